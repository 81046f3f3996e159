"""What is pushed into a repository on this machine without git's protocol is all there, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pygit2
import pytest

from pvbus.controlplane.packages import operations
from pvbus.controlplane.packages.filesets import File, Files
from pvbus.controlplane.packages.gitcommand import Failure, Git, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import Author, BareMirror
from pvbus.controlplane.packages.layout import draft_ref
from pvbus.controlplane.packages.newobjects import LOOSE_OBJECTS_MAX
from pvbus.controlplane.packages.operations import Branch, Draft, Staging, commit_all
from pvbus.controlplane.packages.pushing import DIRECT_MAX
from tests.integration.packages.support import KPTFILE, bare, git, push_files, refs

MAIN = "refs/heads/main"
TASK: dict[str, Any] = {"type": "init"}


def branch_of(folder: Path) -> Branch:
    """Make a repository with two packages, and its mirror."""
    remote = bare(folder / "edge.git")
    push_files(remote, {f"{name}/Kptfile": KPTFILE.format(name=name) for name in ("app", "team/db")})
    mirror = BareMirror(folder / "mirror", str(remote), Git())
    mirror.fetch()
    return Branch(mirror, MAIN, Author())


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return branch_of(tmp_path)


def remote_of(branch: Branch) -> Path:
    return Path(branch.mirror.url)


def package(text: str, count: int = 1) -> Files:
    files = {f"dir/file-{number}.yaml": File(f"{text} {number}".encode()) for number in range(count)}
    return {"Kptfile": File(KPTFILE.format(name=text).encode()), **files}


def draft_of(branch: Branch, directory: str, text: str, count: int = 1) -> Callable[[Staging], str]:
    def build(staging: Staging) -> str:
        tree = branch.mirror.write_files(package(text, count))
        return operations.create_draft(branch, staging, directory, "ws", Draft(tree, TASK, None))

    return build


def commands_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each git command that runs from now on."""
    commands: list[str] = []
    run = Git.run

    def noted(self: Git, *arguments: str, **options: Any) -> str:
        commands.append(arguments[0])
        return run(self, *arguments, **options)

    monkeypatch.setattr(Git, "run", noted)
    return commands


def trees(remote: Path) -> dict[str, str]:
    """Return the content of each ref, from a clone that has only what the refs lead to."""
    git(remote, "fsck", "--full", "--strict", "--connectivity-only")
    clone = remote.with_name("whole.git")
    git(remote.parent, "clone", "--quiet", "--bare", "--no-local", str(remote), str(clone))
    return {ref: git(clone, "ls-tree", "-r", ref) for ref in refs(clone)}


def history(branch: Branch, count: int, files: int) -> None:
    """Make drafts, propose and approve them, edit one, delete another package's folder."""
    mirror, names = branch.mirror, [f"team/app-{number}" for number in range(count)]

    def checked(*builds: Callable[[Staging], object]) -> None:
        outcomes = commit_all(mirror, builds)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    def approved(name: str, number: int) -> Callable[[Staging], object]:
        def build(staging: Staging) -> None:
            ref = draft_ref(name, "ws")
            draft, head = staging.get(ref), staging.get(MAIN)
            assert draft is not None
            assert head is not None
            root = mirror.graft(head, name, mirror.tree_of(draft, name))
            commit = mirror.write_commit(root, [head, draft], f"Approve {number}", Author())
            staging.set(MAIN, commit)
            staging.set(f"refs/tags/{name}/v1", commit)
            staging.set(ref, None)

        return build

    def removed(staging: Staging) -> None:
        head = staging.get(MAIN)
        assert head is not None
        staging.set(MAIN, mirror.write_commit(mirror.graft(head, "app", None), [head], "Delete", Author()))

    checked(*(draft_of(branch, name, name, files) for name in names))
    checked(*(approved(name, number) for number, name in enumerate(names)))
    checked(removed, draft_of(branch, "team/db", "again"))


@pytest.mark.parametrize(("count", "files"), [(1, 1), (3, 2), (12, 5)], ids=["loose", "mixed", "packed"])
def test_the_repository_gets_what_a_push_of_git_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, files: int
) -> None:
    direct, pushed = (branch_of(tmp_path / name) for name in ("direct", "pushed"))
    git(remote_of(pushed), "config", "receive.autogc", "false")  # a guard
    commands = commands_of(monkeypatch)
    history(direct, count, files)
    assert "push" not in commands
    history(pushed, count, files)
    assert commands.count("push") == 3
    found = trees(remote_of(direct))
    assert len(found) == 2 + count
    assert found == trees(remote_of(pushed))


def test_few_objects_are_files_and_many_a_pack(branch: Branch) -> None:
    def count() -> dict[str, str]:
        return dict(line.split(": ") for line in git(remote_of(branch), "count-objects", "-v").splitlines())

    before = count()
    commit_all(branch.mirror, [draft_of(branch, "a", "one")])
    few = count()
    assert few["packs"] == before["packs"]
    assert int(few["count"]) > int(before["count"])
    commit_all(branch.mirror, [draft_of(branch, "b", "two", LOOSE_OBJECTS_MAX)])
    many = count()
    assert int(many["packs"]) == int(few["packs"]) + 1
    assert many["count"] == few["count"]
    assert not list((remote_of(branch) / "objects").rglob("tmp_*"))


def test_one_root_from_two_parents_has_the_objects_of_both_ways(branch: Branch) -> None:
    """The second way must not hide what the first one added."""
    mirror, head = branch.mirror, branch.mirror.refs[MAIN]
    first, second = (mirror.write_files(package(text)) for text in ("first", "second"))
    one = mirror.write_commit(mirror.graft(head, "app", first), [head], "one", Author())
    other = mirror.write_commit(mirror.graft(head, "team/db", second), [head], "other", Author())
    both = mirror.write_commit(mirror.graft(one, "team/db", second), [one], "both", Author())
    same = mirror.graft(other, "app", first)
    assert same == mirror.graft(one, "team/db", second)
    mirror.push([RefUpdate("refs/heads/drafts/both/ws", None, both)], [MAIN])
    assert "first 0" in git(remote_of(branch), "show", f"{both}:app/dir/file-0.yaml")
    assert "second 0" in git(remote_of(branch), "show", f"{both}:team/db/dir/file-0.yaml")


def test_what_a_kill_left_half_stored_is_completed(branch: Branch) -> None:
    """The commit and the trees are there, the files are not: a commit alone proves nothing."""
    build, staging = draft_of(branch, "a", "half", 3), Staging(branch.mirror.refs)
    commit = build(staging)
    source, target = (pygit2.Repository(str(path)) for path in (branch.mirror.path, remote_of(branch)))
    made = source[commit]
    assert isinstance(made, pygit2.Commit)
    for oid in (commit, str(made.tree_id), str(made.tree["a"].id)):
        target.write(*source.read(oid))
    branch.mirror.push(staging.updates(), staging.asked)
    assert refs(remote_of(branch)).count("refs/heads/drafts/a/ws") == 1
    git(remote_of(branch), "fsck", "--full", "--strict")


def test_a_commit_of_another_run_goes_by_gits_own_push(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(branch.mirror.refs)
    draft_of(branch, "a", "before")(staging)
    again = BareMirror(branch.mirror.path, branch.mirror.url, Git())
    commands = commands_of(monkeypatch)
    again.push(staging.updates(), staging.asked)
    assert commands == ["push"]
    git(remote_of(branch), "fsck", "--full", "--strict")


def test_objects_that_the_mirror_has_packed_are_sent(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(branch.mirror.refs)
    commit = draft_of(branch, "a", "packed")(staging)
    git(branch.mirror.path, "update-ref", "refs/upstream/commit", commit)
    git(branch.mirror.path, "repack", "-adq")
    commands = commands_of(monkeypatch)
    branch.mirror.push(staging.updates(), staging.asked)
    assert commands == ["pack-objects", "update-ref"]
    git(remote_of(branch), "fsck", "--full", "--strict")


def test_nothing_is_built_on_a_commit_that_the_repository_has_lost(branch: Branch) -> None:
    staging = Staging(branch.mirror.refs)
    draft_of(branch, "a", "new")(staging)
    remote, other = remote_of(branch), git(remote_of(branch), "commit-tree", "-m", "x", f"{MAIN}^{{tree}}")
    git(remote, "update-ref", MAIN, other)
    git(remote, "-c", "gc.reflogExpire=now", "gc", "--quiet", "--prune=now")
    branch.mirror.push(staging.updates(), staging.asked)  # git sends the lost commit, too
    git(remote, "fsck", "--full", "--strict")


def test_a_ref_that_moved_meanwhile_stays_and_the_next_attempt_builds_on_it(branch: Branch) -> None:
    remote = remote_of(branch)
    commit_all(branch.mirror, [draft_of(branch, "a", "ours")])
    ref = draft_ref("a", "ws")
    old = branch.mirror.refs[ref]
    theirs = git(remote, "commit-tree", "-m", "theirs", "-p", old, f"{old}^{{tree}}")
    git(remote, "update-ref", ref, theirs)
    tree = branch.mirror.write_files(package("edit"))
    edit = branch.mirror.write_commit(branch.mirror.graft(old, "a", tree), [old], "edit", Author())
    with pytest.raises(GitError) as refused:
        branch.mirror.push([RefUpdate(ref, old, edit)])
    assert refused.value.failure is Failure.MOVED
    assert git(remote, "rev-parse", ref) == theirs


def test_a_folder_of_objects_that_cannot_be_written_fails_in_words(branch: Branch) -> None:
    remote, before = remote_of(branch), refs(remote_of(branch))
    for number in range(1_000):
        staging = Staging(branch.mirror.refs)
        folder = remote / "objects" / draft_of(branch, "a", f"new {number}")(staging)[:2]
        if not folder.exists():  # the first ones may have the hash of an object that is there
            break
    folder.write_text("in the way")
    with pytest.raises(GitError):
        branch.mirror.push(staging.updates(), staging.asked)
    assert refs(remote) == before


def test_git_looks_whether_a_gc_is_due(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = commands_of(monkeypatch)
    for number in range(DIRECT_MAX):
        assert "gc" not in commands
        commit_all(branch.mirror, [draft_of(branch, f"a-{number}", "same")])
    assert commands.count("gc") == 1


def test_a_package_that_is_deeper_than_any_may_be_goes_by_gits_own_push(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, head = pygit2.Repository(str(branch.mirror.path)), branch.mirror.refs[MAIN]
    tree = branch.mirror.write_files(package("deep"))
    for _ in range(3_000):
        builder = repository.TreeBuilder()
        builder.insert("d", pygit2.Oid(hex=tree), pygit2.enums.FileMode.TREE)
        tree = str(builder.write())
    commit = branch.mirror.write_commit(branch.mirror.graft(head, "a", tree), [head], "deep", Author())
    branch.mirror.push([RefUpdate("refs/heads/drafts/a/ws", None, commit)], [MAIN])
    git(remote_of(branch), "cat-file", "-e", commit)
