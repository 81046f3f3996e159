"""Pushes move their own refs, and neither read nor send again what the others have."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.packages.filesets import File
from pvbus.controlplane.packages.gitcommand import Failure, Git, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import LOOSE_REFS_MAX, Author, BareMirror
from pvbus.controlplane.packages.newobjects import LOOSE_OBJECTS_MAX
from pvbus.controlplane.packages.operations import Staging, commit_all
from tests.integration.packages.support import KPTFILE, git, push_files, refs

OTHERS = 30


@pytest.fixture
def mirror(tmp_path: Path, edge: Path) -> BareMirror:
    """A mirror of a repository with a branch, and tags and drafts of other packages."""
    push_files(edge, {"app/Kptfile": KPTFILE.format(name="app")})
    for number in range(OTHERS):
        git(edge, "tag", f"other-{number}/v1", "main")
        git(edge, "branch", f"drafts/other-{number}/ws", "main")
    made = BareMirror(tmp_path / "mirror", str(edge), Git())
    made.fetch()
    return made


def guard(edge: Path) -> None:
    """Give a repository a setting for pushes: then it gets them by git's own protocol."""
    git(edge, "config", "receive.autogc", "false")


def committed(mirror: BareMirror, text: str, parent: str | None = None) -> str:
    """Write a commit with one changed package. parent: else the branch."""
    head = parent or mirror.refs["refs/heads/main"]
    tree = mirror.write_files({"Kptfile": File(text.encode())})
    return mirror.write_commit(mirror.graft(head, "app", tree), [head], text, Author())


def test_the_remote_shows_a_push_its_branches_and_the_refs_of_the_push(
    mirror: BareMirror, edge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard(edge)
    trace = tmp_path / "packets"
    run = Git.run

    def traced(self: Git, *arguments: str, directory: Path, **options: Any) -> str:
        self._environment = {**self._environment, "GIT_TRACE_PACKET": str(trace)}
        return run(self, *arguments, directory=directory, **options)

    monkeypatch.setattr(Git, "run", traced)
    ref, old = "refs/heads/drafts/other-1/ws", mirror.refs["refs/heads/main"]
    mirror.push([RefUpdate(ref, old, committed(mirror, "new"))], ["refs/tags/other-2/v1"])
    lines = [line.rstrip() for line in trace.read_text().splitlines() if "push< " in line]
    shown = {line.split("push< ")[1].partition("\\0")[0].partition(" ")[2] for line in lines}
    assert {name for name in shown if name.startswith("refs/")} == {
        "refs/heads/main",
        "refs/tags/other-2/v1",
        ref,
    }


def test_a_ref_that_another_client_has_made_meanwhile_stays_as_it_is(mirror: BareMirror, edge: Path) -> None:
    git(edge, "tag", "app/v1", "main")
    before = refs(edge)
    draft = RefUpdate("refs/heads/drafts/app/ws", None, committed(mirror, "new"))
    with pytest.raises(GitError) as refused:
        mirror.push([RefUpdate("refs/tags/app/v1", None, draft.new), draft])
    assert refused.value.failure is Failure.MOVED
    assert refs(edge) == before


@pytest.mark.parametrize(
    "name", ['a"b', "a;b#c", "a'b$(c)", "=x]", "ä", "x" * 200 + "/" + "y" * 200], ids=lambda name: name[:9]
)
@pytest.mark.parametrize("is_guarded", [True, False], ids=["pushed", "stored"])
def test_names_of_refs_reach_the_remote_as_they_are(
    mirror: BareMirror, edge: Path, name: str, is_guarded: bool
) -> None:
    if is_guarded:
        guard(edge)
    ref, first = f"refs/heads/drafts/{name}/ws", committed(mirror, "first")
    mirror.push([RefUpdate(ref, None, first)])
    mirror.push([RefUpdate(ref, first, committed(mirror, "second", first))])
    mirror.push([RefUpdate(ref, mirror.refs[ref], None)])
    assert not any(f"drafts/{name}/" in shown for shown in refs(edge))


def test_many_long_names_fit_into_one_push(mirror: BareMirror, edge: Path) -> None:
    guard(edge)
    commit = committed(mirror, "new")
    names = [f"refs/heads/drafts/{'d' * 200}/{'e' * 200}-{number}/{'w' * 60}" for number in range(400)]
    mirror.push([RefUpdate(name, None, commit) for name in names])
    assert len(refs(edge)) == 1 + 2 * OTHERS + len(names)


def test_history_behind_a_tag_beside_the_branch_is_not_sent_again(mirror: BareMirror, edge: Path) -> None:
    """A mark of a proposed deletion is built on its tag, which the remote would not show by itself."""
    guard(edge)
    commit = mirror.refs["refs/heads/main"]
    for number in range(LOOSE_OBJECTS_MAX):
        commit = committed(mirror, f"edit {number}", commit)
    mirror.push([RefUpdate("refs/tags/app/v1", None, commit)])
    git(edge, "repack", "-adq")
    before = git(edge, "count-objects", "-v")

    def propose(staging: Staging) -> None:
        staging.set("refs/heads/deletionProposed/app/v1", staging.get("refs/tags/app/v1"))

    assert commit_all(mirror, [propose]) == [None]
    assert "refs/heads/deletionProposed/app/v1" in mirror.refs
    assert git(edge, "count-objects", "-v") == before


def test_a_push_works_after_a_kill_left_its_folder_half_made(mirror: BareMirror, edge: Path) -> None:
    guard(edge)
    folder = mirror.path / "pushing"
    (folder / "objects" / "info").mkdir(parents=True)
    (folder / "objects" / "info" / "alternates").touch()
    commit = committed(mirror, "new")
    mirror.push([RefUpdate("refs/heads/drafts/app/ws", None, commit)])
    assert git(edge, "rev-parse", "refs/heads/drafts/app/ws").strip() == commit
    assert os.listdir(folder / "refs") == []


def many(mirror: BareMirror) -> list[RefUpdate]:
    """Propose as many drafts as are packed at once, and one more: half of the updates delete a ref."""
    head = mirror.refs["refs/heads/main"]
    made = [RefUpdate(f"refs/heads/drafts/p{number}/ws", None, head) for number in range(LOOSE_REFS_MAX)]
    mirror.push(made)
    return [
        change
        for draft in made
        for change in (
            RefUpdate(draft.ref, head, None),
            RefUpdate(draft.ref.replace("drafts", "proposed"), None, head),
        )
    ]


def on_disk(folder: Path) -> set[bytes]:
    command = ["git", "for-each-ref", "--format=%(objectname) %(refname)"]
    return set(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout.splitlines())


def test_many_pushed_refs_are_in_one_file_of_the_mirror(
    mirror: BareMirror, edge: Path, tmp_path: Path
) -> None:
    """The next fetch, or start, has nothing to write: with a file for each ref, 10,000 take half a minute."""
    git(edge, "tag", "-m", "annotated", "app/v9", "main")
    head, odd = git(edge, "rev-parse", "main"), b"refs/heads/drafts/\xff/ws"
    subprocess.run([b"git", b"update-ref", odd, head.encode()], cwd=edge, check=True)
    git(mirror.path, "update-ref", "refs/upstream/commit", head)
    mirror.fetch()
    mirror.push(many(mirror))
    assert not [path for path in (mirror.path / "refs" / "heads").rglob("*") if path.is_file()]
    assert BareMirror(mirror.path, str(edge), Git()).refs == mirror.refs
    others = on_disk(mirror.path) - on_disk(edge)
    assert others == {f"{head} refs/upstream/commit".encode()}
    assert on_disk(edge) == on_disk(mirror.path) - others
    assert any(odd in line for line in on_disk(mirror.path))
    written = (mirror.path / "packed-refs").stat().st_ino
    before = dict(mirror.refs)
    mirror.fetch()
    assert mirror.refs == before
    assert (mirror.path / "packed-refs").stat().st_ino == written
    assert not [path for path in (mirror.path / "refs" / "heads").rglob("*") if path.is_file()]


def test_a_lock_that_was_left_on_the_mirrors_refs_fails_no_push(mirror: BareMirror, edge: Path) -> None:
    (mirror.path / "packed-refs.lock").touch()
    updates = many(mirror)
    mirror.push(updates)
    assert {ref for ref in refs(edge) if "/p1/" in ref} == {"refs/heads/proposed/p1/ws"}
    (mirror.path / "packed-refs.lock").unlink()
    before = dict(mirror.refs)
    mirror.fetch()
    assert mirror.refs == before


def _propose(mirror: BareMirror) -> list[RefUpdate]:
    """Return what moves two drafts to refs of proposals."""
    names = [f"refs/heads/drafts/other-{number}/ws" for number in (1, 2)]
    return [
        update
        for name in names
        for update in (
            RefUpdate(name, mirror.refs[name], None),
            RefUpdate(name.replace("drafts", "proposed"), None, mirror.refs[name]),
        )
    ]


def _commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each git command that runs from now on."""
    commands: list[str] = []
    run = Git.run

    def noted(self: Git, *arguments: str, **options: Any) -> str:
        commands.append(arguments[0])
        return run(self, *arguments, **options)

    monkeypatch.setattr(Git, "run", noted)
    return commands


def test_proposals_move_in_one_transaction_without_a_push(
    mirror: BareMirror, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, updates = _commands(monkeypatch), _propose(mirror)
    mirror.push(updates)
    assert commands == ["update-ref"]
    present = dict(line.split(b" ")[::-1] for line in on_disk(edge))
    expected = {update.ref: update.new and update.new.encode() for update in updates}
    assert {ref: present.get(ref.encode()) for ref in expected} == expected


def test_no_proposal_moves_if_another_client_has_moved_one(mirror: BareMirror, edge: Path) -> None:
    updates = _propose(mirror)
    changed = committed(mirror, "elsewhere")
    git(mirror.path, "push", "--quiet", str(edge), f"{changed}:refs/heads/drafts/other-2/ws")
    before = on_disk(edge)
    with pytest.raises(GitError) as refused:
        mirror.push(updates)
    assert refused.value.failure is Failure.MOVED
    assert on_disk(edge) == before


@pytest.mark.parametrize("hook", ["pre-receive", "update", "reference-transaction"])
def test_a_hook_of_a_repository_on_this_machine_judges_a_proposal(
    mirror: BareMirror, edge: Path, hook: str
) -> None:
    (edge / "hooks").mkdir(exist_ok=True)
    file = edge / "hooks" / hook
    file.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    file.chmod(0o755)
    before = on_disk(edge)
    with pytest.raises(GitError):
        mirror.push(_propose(mirror))
    assert on_disk(edge) == before


def test_a_setting_of_a_repository_on_this_machine_judges_a_proposal(mirror: BareMirror, edge: Path) -> None:
    git(edge, "config", "receive.denyDeletes", "true")
    before = on_disk(edge)
    with pytest.raises(GitError):
        mirror.push(_propose(mirror))
    assert on_disk(edge) == before


@pytest.mark.parametrize(
    "key", ["core.hooksPath", "core.sharedRepository", "include.path", "transfer.fsckObjects"]
)
def test_a_repository_with_such_a_setting_gets_a_push(
    mirror: BareMirror, edge: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    git(edge, "config", key, "1" if key != "include.path" else "/dev/null")
    commands = _commands(monkeypatch)
    mirror.push(_propose(mirror))
    assert commands == ["push"]
