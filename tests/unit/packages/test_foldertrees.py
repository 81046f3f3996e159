"""Trees with one folder replaced: the same as libgit2 makes, object for object, and valid for git."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pygit2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pygit2.enums import FileMode, ObjectType

from pvbus.controlplane.packages.foldertrees import FolderTrees

NAMES = st.sampled_from(["a", "a.b", "a-b", "ab", "b", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=3)


def folders_of(repository: pygit2.Repository) -> FolderTrees:
    return FolderTrees(Path(repository.path) / "objects", lambda tree: repository[tree].read_raw())


def reference(
    repository: pygit2.Repository, root: str | None, names: Sequence[str], tree: str | None
) -> str | None:
    """Graft by libgit2's own builder."""
    if not names:
        return tree
    base = repository[root] if root else None
    assert base is None or isinstance(base, pygit2.Tree)
    builder = repository.TreeBuilder(base) if base is not None else repository.TreeBuilder()
    entry = base[names[0]] if base is not None and names[0] in base else None
    child = str(entry.id) if entry is not None and entry.type == ObjectType.TREE else None
    new = reference(repository, child, names[1:], tree)
    if new is not None:
        builder.insert(names[0], new, FileMode.TREE)
    elif entry is not None:
        builder.remove(names[0])
    return str(builder.write()) if len(builder) else None


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> pygit2.Repository:
    return pygit2.init_repository(str(tmp_path_factory.mktemp("trees")), bare=True)


def package(repository: pygit2.Repository, text: str) -> str:
    builder = repository.TreeBuilder()
    builder.insert("Kptfile", repository.create_blob(text.encode()), FileMode.BLOB)
    return str(builder.write())


@settings(deadline=None)
@given(
    files=st.sets(NAMES),
    steps=st.lists(st.tuples(PATHS, st.sampled_from(["1", "2", None]), st.booleans()), max_size=12),
)
def test_any_history_of_grafts_makes_the_trees_of_libgit2(
    repository: pygit2.Repository, files: set[str], steps: list[tuple[list[str], str | None, bool]]
) -> None:
    """Files and folders of one name replace each other; each third step begins from the first tree again, as
    a batch that is built anew does."""
    folders, builder = folders_of(repository), repository.TreeBuilder()
    for name in files:
        builder.insert(name, repository.create_blob(name.encode()), FileMode.BLOB)
    first = str(builder.write())
    root: str | None = first
    for names, text, is_again in steps:
        base = first if is_again or root is None else root
        tree = package(repository, text) if text is not None else None
        wanted = reference(repository, base, names, tree)
        root = folders.graft(base, names, tree)
        assert root == wanted, (names, text)


def test_git_finds_nothing_wrong_with_what_is_written(repository: pygit2.Repository) -> None:
    folders, root = folders_of(repository), None
    for number in range(20):
        root = folders.graft(root, [f"team-{number % 3}", f"app-{number}"], package(repository, str(number)))
    assert root is not None
    command = ["git", "fsck", "--strict", "--no-dangling", root]
    found = subprocess.run(command, cwd=repository.path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_tree_that_is_left_in_another_order_is_put_in_order(repository: pygit2.Repository) -> None:
    """Another program may have written it: an entry that is not found would be there twice."""
    blob = repository.create_blob(b"x").raw
    raw = b"".join(b"100644 %s\0%s" % (name, blob) for name in (b"b", b"a"))
    root = FolderTrees(Path(repository.path) / "objects", lambda _: raw).graft("0" * 40, ["c"], None)
    assert root is not None
    tree = repository[root]
    assert isinstance(tree, pygit2.Tree)
    assert [entry.name for entry in tree] == ["a", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", ".git", ".GIT", "a\0b"])
def test_a_name_that_git_refuses_is_refused(repository: pygit2.Repository, name: str) -> None:
    with pytest.raises(pygit2.GitError, match="no folder of a git repository"):
        folders_of(repository).graft(None, [name], package(repository, "1"))
