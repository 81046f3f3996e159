"""Remotes that refuse, move or hang: the request fails with clear words, and nothing is half done."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.filesets import File
from pvbus.controlplane.packages.gitcommand import STALE_LOCK_SECONDS, Failure, Git, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import LOOSE_REFS_MAX, Author, BareMirror
from pvbus.controlplane.packages.operations import Staging, commit_all
from tests.integration.packages.support import (
    KPTFILE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    refs,
    revision,
    running,
    tree,
)


def refuse(remote: Path, pattern: str) -> None:
    """Install a pre-receive hook that refuses every push that touches a matching ref."""
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\nwhile read old new ref; do\n"
        f'  case "$ref" in *{pattern}*) echo "policy: $ref is frozen" >&2; exit 1;; esac\ndone\n'
    )
    hook.chmod(0o755)


async def test_a_refused_push_says_what_the_hook_said_and_leaves_no_object(
    fleet: StoreWorld, edge: Path
) -> None:
    refuse(edge, "drafts")
    with pytest.raises(StatusError, match=r"hook.*policy: refs/heads/drafts/app-1/ws is frozen") as refused:
        await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    assert refused.value.code == 500
    assert refs(edge) == []
    assert fleet.revision("edge.app-1.ws") is None
    (edge / "hooks" / "pre-receive").unlink()
    assert await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))


async def test_a_refused_approval_leaves_the_proposal_as_it_was(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    proposed = await fleet.update(draft, lifecycle="Proposed")
    refuse(edge, "tags")
    with pytest.raises(StatusError):
        await fleet.update(proposed, lifecycle="Published", subresource="approval")
    assert refs(edge) == ["refs/heads/proposed/app-1/ws"]
    assert fleet.present("edge.app-1.ws") == proposed


async def test_one_refused_draft_does_not_fail_the_others_of_its_push(fleet: StoreWorld, edge: Path) -> None:
    refuse(edge, "bad")
    names = ["bad-1", *(f"good-{number}" for number in range(6)), "bad-2"]
    outcomes = await asyncio.gather(
        *(fleet.create(revision("edge", name, "ws", clone_of("blue.app.v1"))) for name in names),
        return_exceptions=True,
    )
    failed = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, Exception)]
    assert failed == ["bad-1", "bad-2"]
    assert refs(edge) == [f"refs/heads/drafts/good-{number}/ws" for number in range(6)]


async def test_a_branch_that_moved_meanwhile_is_merged_onto_not_lost(fleet: StoreWorld, edge: Path) -> None:
    drafts = [
        await fleet.create(revision("edge", name, "ws", clone_of("blue.app.v1"))) for name in ("a", "b")
    ]
    await fleet.publish(drafts[0])
    proposed = await fleet.update(drafts[1], lifecycle="Proposed")
    push_files(edge, {"by-hand.txt": "mine"})
    await fleet.update(proposed, lifecycle="Published", subresource="approval")
    assert git(edge, "ls-tree", "--name-only", "main").split() == ["a", "b", "by-hand.txt"]


async def test_a_draft_that_somebody_else_pushed_to_is_a_conflict(tmp_path: Path, edge: Path) -> None:
    async with running(tmp_path / "data", poll_seconds=60, fetch_seconds=60) as world:
        await world.add_repository("edge", edge)
        await world.create(revision("edge", "app", "ws"))
        mine = await world.files("edge.app.ws")
        theirs = push_files(edge, {"app/theirs.txt": "theirs"}, branch="drafts/app/ws")
        with pytest.raises(StatusError, match="has been modified") as refused:
            await world.put(mine, {"mine.txt": "mine"})
        assert refused.value.code == 409
        assert git(edge, "rev-parse", "drafts/app/ws") == theirs
        fresh = await world.until(
            lambda: (
                (found := world.revision("edge.app.ws"))
                and found["status"]["selfLock"]["git"]["commit"] == theirs
                and found
            )
        )
        merged = await world.put(await world.files("edge.app.ws"), {"mine.txt": "mine"})
        assert merged["metadata"]["resourceVersion"] != fresh["metadata"]["resourceVersion"]
        assert set(tree(edge, "drafts/app/ws", "app")) >= {"mine.txt", "theirs.txt"}


async def test_two_stores_of_one_remote_see_each_others_work_and_keep_it(tmp_path: Path, edge: Path) -> None:
    async with running(tmp_path / "one") as first, running(tmp_path / "two") as two:
        for world in (first, two):
            await world.add_repository("edge", edge)
        await first.create(revision("edge", "app", "ws"))
        seen = await two.until(lambda: two.revision("edge.app.ws"))
        assert seen["metadata"]["uid"] == first.present("edge.app.ws")["metadata"]["uid"]
        await two.publish(seen)
        await first.until(lambda: first.present("edge.app.ws")["spec"]["lifecycle"] == "Published")

        worlds = [(first, "a"), (two, "b")] * 4
        outcomes = await asyncio.gather(
            *(
                world.create(revision("edge", f"{letter}-{number}", "ws"))
                for number, (world, letter) in enumerate(worlds)
            )
        )
        assert len(outcomes) == 8
        drafts = [ref for ref in refs(edge) if "/drafts/" in ref]
        assert len(drafts) == 8
        await first.until(lambda: len(first.names()) == len(two.names()) == 10)


async def test_two_stores_that_approve_at_once_give_two_numbers_and_one_history(
    tmp_path: Path, edge: Path
) -> None:
    async with running(tmp_path / "one") as one, running(tmp_path / "two") as two:
        for world in (one, two):
            await world.add_repository("edge", edge)
        await one.publish(await one.create(revision("edge", "app", "first")))
        await two.until(
            lambda: (two.revision("edge.app.first") or {}).get("spec", {}).get("lifecycle") == "Published"
        )
        edit = {"type": "edit", "edit": {"sourceRef": {"name": "edge.app.first"}}}
        proposals = [
            await world.update(
                await world.create(revision("edge", "app", workspace, edit)), lifecycle="Proposed"
            )
            for world, workspace in ((one, "second"), (two, "third"))
        ]
        published = await asyncio.gather(
            *(
                world.update(proposal, lifecycle="Published", subresource="approval")
                for world, proposal in zip((one, two), proposals, strict=True)
            )
        )
        assert sorted(item["spec"]["revision"] for item in published) == [2, 3]
        for tag in ("app/v1", "app/v2", "app/v3"):
            git(edge, "merge-base", "--is-ancestor", tag, "main")


async def test_a_remote_that_never_answers_is_given_up_and_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        runner = Git()
        url = f"git://127.0.0.1:{server.getsockname()[1]}/x.git"
        with pytest.raises(GitError, match=r"did not end within 0\.5 s"):
            runner.run("ls-remote", "--", url, directory=tmp_path, seconds_max=0.5)
        assert time.monotonic() - started < 10


async def test_stopping_ends_what_git_is_doing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        runner = Git()
        url = f"git://127.0.0.1:{server.getsockname()[1]}/x.git"
        threading.Timer(0.3, runner.interrupt).start()
        started = time.monotonic()
        with pytest.raises(GitError):
            runner.run("ls-remote", "--", url, directory=tmp_path)
        assert time.monotonic() - started < 10
        with pytest.raises(GitError, match="shutting down"):
            runner.run("version", directory=tmp_path)


async def test_a_host_that_is_not_there_is_named_in_the_condition(world: StoreWorld) -> None:
    await world.add_repository("far", "http://127.0.0.1:9/nothing.git")
    condition = world.condition("far")
    assert condition["status"] == "False"
    assert "cannot reach the remote" in condition["message"]


async def test_a_secret_that_is_missing_is_named_in_the_condition(world: StoreWorld) -> None:
    await world.add_repository(
        "far", "http://127.0.0.1:9/nothing.git", git={"secretRef": {"name": "git-password"}}
    )
    assert 'the Secret "git-password"' in world.condition("far")["message"]


async def test_a_request_during_the_shutdown_is_told_to_come_back(fleet: StoreWorld) -> None:
    await fleet.store.stop()
    with pytest.raises(StatusError) as refused:
        await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    assert refused.value.code == 503


async def test_a_branch_in_the_way_of_drafts_is_named(world: StoreWorld, edge: Path) -> None:
    push_files(edge, {"file": "x"}, branch="main")
    git(edge, "branch", "drafts", "main")
    await world.add_repository("edge", edge)
    with pytest.raises(StatusError, match=r"another branch or tag conflicts.*drafts") as refused:
        await world.create(revision("edge", "app", "ws"))
    assert refused.value.code == 500


async def test_a_full_disk_fails_the_request_with_words_and_leaves_no_draft(
    fleet: StoreWorld, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: BareMirror, files: object) -> str:
        raise OSError("No space left on device")

    wanted = revision("edge", "app-1", "ws", clone_of("blue.app.v1"))
    with monkeypatch.context() as patch:
        patch.setattr(BareMirror, "write_files", full)
        with pytest.raises(StatusError, match=r"No space left on device.*check the disk") as refused:
            await fleet.create(wanted)
    assert refused.value.code == 500
    assert not any("drafts/" in ref for ref in refs(edge))
    await fleet.create(wanted)  # the same request, once there is room


def damage_objects(folder: Path) -> None:
    """Flip a bit in the middle of each object and pack."""
    for path in [*folder.glob("objects/??/*"), *folder.glob("objects/pack/*.pack")]:
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


def cut_objects(folder: Path) -> None:
    for path in [*folder.glob("objects/??/*"), *folder.glob("objects/pack/*")]:
        path.chmod(0o600)
        os.truncate(path, 10)


def spoil(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(b"\xff\x00nonsense")

    return write


@pytest.mark.parametrize(
    "damage",
    [damage_objects, cut_objects, spoil("HEAD"), spoil("config"), spoil("packed-refs"), spoil("pvbus-url")],
)
async def test_a_damaged_mirror_is_fetched_again(
    damage: Callable[[Path], None], tmp_path: Path, blueprints: Path
) -> None:
    """It has nothing that the remote has not: package revisions are served as before, without a person."""
    async with running(tmp_path / "data") as world:
        await world.add_repository("blue", blueprints)
        await world.until(lambda: world.revision("blue.app.v1"))
        files = await world.files("blue.app.v1")
    folder = next((tmp_path / "data").rglob("mirror.git"))
    damage(folder)
    async with running(tmp_path / "data") as world:
        await world.add_repository("blue", blueprints)
        await world.until(lambda: world.revision("blue.app.v1"))
        code = 503
        deadline = asyncio.get_running_loop().time() + 30
        while code == 503 and asyncio.get_running_loop().time() < deadline:
            try:
                found = await world.files("blue.app.v1")
                code = 200
            except StatusError as exc:
                code = exc.code
                await asyncio.sleep(0.05)
        assert code == 200
        assert found["spec"] == files["spec"]
    assert not folder.with_name("mirror.git.old").exists()


# The mirror itself.


@pytest.fixture
def mirror(tmp_path: Path, edge: Path) -> BareMirror:
    push_files(edge, {"app/Kptfile": KPTFILE.format(name="app")})
    made = BareMirror(tmp_path / "mirror", str(edge), Git())
    made.fetch()
    return made


def test_a_push_with_a_lease_that_does_not_hold_moves_nothing(mirror: BareMirror, edge: Path) -> None:
    tree_id = mirror.write_files({"Kptfile": File(b"x")})
    commit = mirror.write_commit(mirror.graft(None, "p", tree_id), [], "one", Author())
    updates = [
        RefUpdate("refs/heads/fine", None, commit),
        RefUpdate("refs/heads/main", None, commit),  # it is there already
    ]
    before = refs(edge)
    with pytest.raises(GitError) as refused:
        mirror.push(updates)
    assert refused.value.failure is Failure.MOVED
    assert refs(edge) == before
    assert "refs/heads/fine" not in mirror.refs


@pytest.mark.parametrize("age_seconds", [STALE_LOCK_SECONDS + 5, 0, -3600])
def test_a_lock_that_a_killed_git_left_is_removed_and_a_fresh_one_is_not(
    mirror: BareMirror, edge: Path, age_seconds: float
) -> None:
    tree_id = mirror.write_files({"Kptfile": File(b"x")})
    commit = mirror.write_commit(mirror.graft(None, "p", tree_id), [], "one", Author())
    lock = edge / "refs" / "heads" / "fine.lock"
    lock.touch()
    os.utime(lock, (time.time() - age_seconds,) * 2)
    updates = [RefUpdate("refs/heads/fine", None, commit)]
    if age_seconds:
        mirror.push(updates)
        assert git(edge, "rev-parse", "refs/heads/fine").strip() == commit
        assert not lock.exists()
    else:
        with pytest.raises(GitError):
            mirror.push(updates)
        assert lock.exists()


def test_a_build_that_fails_takes_back_what_it_staged(mirror: BareMirror, edge: Path) -> None:
    tree_id = mirror.write_files({"Kptfile": File(b"x")})
    commit = mirror.write_commit(mirror.graft(None, "p", tree_id), [], "one", Author())

    def good(staging: Staging) -> str:
        staging.set("refs/heads/good", commit)
        return "done"

    def bad(staging: Staging) -> None:
        staging.set("refs/heads/bad", commit)
        raise ValueError("no")

    outcomes = commit_all(mirror, [good, bad])
    assert outcomes[0] == "done"
    assert isinstance(outcomes[1], ValueError)
    assert "refs/heads/good" in refs(edge)
    assert "refs/heads/bad" not in refs(edge)


@pytest.mark.parametrize(
    ("refused", "pushes_max"),
    [({11}, 9), ({0}, 9), ({15}, 9), (set(range(16)), 19), ({3, 12}, 19), ({2, 3}, 9)],
)
def test_of_many_changes_those_that_the_remote_refuses_are_told_so_and_the_others_go(
    mirror: BareMirror, edge: Path, monkeypatch: pytest.MonkeyPatch, refused: set[int], pushes_max: int
) -> None:
    """A hook refuses some refs of sixteen: the others are there after few pushes, not one for each."""
    commit = mirror.refs["refs/heads/main"]
    names = [f"refs/heads/drafts/p{number}/ws" for number in range(16)]
    hook = edge / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    cases = "|".join(names[number] for number in sorted(refused))
    hook.write_text(f'#!/bin/sh\ncase "$1" in {cases}) echo "not this one" >&2; exit 1;; esac\n')
    hook.chmod(0o755)
    pushes = []
    push = BareMirror.push

    def counted(own: BareMirror, updates: Sequence[RefUpdate], bases: Iterable[str] = ()) -> None:
        pushes.append(len(updates))
        push(own, updates, bases)

    monkeypatch.setattr(BareMirror, "push", counted)

    def change(name: str) -> Callable[[Staging], str]:
        def build(staging: Staging) -> str:
            staging.set(name, commit)
            return name

        return build

    outcomes = commit_all(mirror, [change(name) for name in names])
    errors = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, GitError)}
    assert errors == refused
    assert [outcome for outcome in outcomes if not isinstance(outcome, GitError)] == [
        name for number, name in enumerate(names) if number not in refused
    ]
    assert all("not this one" in str(outcomes[number]) for number in refused)
    assert set(refs(edge)) & set(names) == {name for n, name in enumerate(names) if n not in refused}
    assert len(pushes) <= pushes_max


def test_grafting_replaces_one_folder_and_nothing_else(mirror: BareMirror) -> None:
    head = mirror.refs["refs/heads/main"]
    tree_id = mirror.write_files({"Kptfile": File(b"x"), "a/b": File(b"y", 0o100755)})
    commit = mirror.write_commit(mirror.graft(head, "deep/er", tree_id), [head], "m", Author())
    assert mirror.packages(commit, "") == {
        "app": mirror.tree_of(head, "app"),
        "deep/er": tree_id,
    }
    assert mirror.files(tree_id) == {"Kptfile": File(b"x"), "a/b": File(b"y", 0o100755)}
    gone = mirror.write_commit(mirror.graft(commit, "deep/er", None), [commit], "m", Author())
    assert mirror.tree_of(gone) == mirror.tree_of(head)


def test_many_drafts_do_not_leave_a_file_for_each_ref(mirror: BareMirror, edge: Path) -> None:
    tree_id = mirror.write_files({"Kptfile": File(b"x")})
    commit = mirror.write_commit(mirror.graft(None, "p", tree_id), [], "one", Author())

    def draft(name: str) -> Callable[[Staging], None]:
        return lambda staging: staging.set(f"refs/heads/drafts/{name}/ws", commit)

    outcomes = commit_all(mirror, [draft(f"p{number}") for number in range(LOOSE_REFS_MAX)])
    assert outcomes == [None] * LOOSE_REFS_MAX
    assert not list((edge / "refs" / "heads").rglob("ws"))
    assert len(refs(edge)) == LOOSE_REFS_MAX + 1
    before = dict(mirror.refs)
    mirror.fetch()
    assert mirror.refs == before


async def test_a_client_that_goes_away_at_any_moment_leaves_git_and_objects_agreeing(
    fleet: StoreWorld, edge: Path
) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}
    requests = []
    for number in range(24):
        wanted = revision("edge", f"app-{number}", "ws", clone_of("blue.app.v1"), ownerReferences=[owner])
        requests.append(asyncio.create_task(fleet.create(wanted)))
        await asyncio.sleep(0.004)
    for number, request in enumerate(requests):
        if number % 2:
            request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)

    def drafts() -> set[str]:
        return {ref.split("/")[3] for ref in refs(edge)}

    def shown() -> set[str]:
        return {name.split(".")[1] for name in fleet.names() if name.startswith("edge.")}

    await fleet.until(lambda: shown() == drafts())
    assert drafts() >= {f"app-{number}" for number in range(0, 24, 2)}
    for name in shown():
        assert fleet.present(f"edge.{name}.ws")["metadata"]["ownerReferences"] == [owner]
