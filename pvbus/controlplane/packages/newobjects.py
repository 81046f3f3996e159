"""Finds what a push adds to a repository, and stores it in one on this machine without git's own protocol.

git finds the objects of a push by reading every folder of the root again, and the receiver reads them once
more: 20 ms each for a branch of 10,000 packages. The mirror wrote these objects a moment before, and knows
how it made each root: so nothing is read but the packages that changed.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import pygit2
from pygit2.enums import FileMode

from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.foldertrees import Graft
from pvbus.controlplane.packages.gitcommand import Failure, Git, GitError

LOOSE_OBJECTS_MAX = 32
"""Objects of a push that a repository on this machine stores one by one; it keeps the pack of a larger push.
Each object costs it a file, and each pack slows later reads: git's limit is 100, and 50 packs for a gc."""

OBJECTS_MAX = 20_000
"""Objects that are found here; git itself finds more of them with less."""

_PACKING = ("--quiet", "--delta-base-offset", "--window=64", "--depth=1")
"""The roots of a push differ from each other in an entry or two. With one as the base of all others, and no
chains, a later repack finds the bases of many pushes alike: 322 bytes of each draft among 1,000 packages, and
not 3,229, for half of the CPU."""

_NOT_FILES = (FileMode.TREE, FileMode.COMMIT)


class NewObjects(NamedTuple):
    """The objects of new commits.

    ids: each one once
    parents: the commits of the remote that they build on
    """

    ids: tuple[str, ...]
    parents: frozenset[str]


Finder = Callable[[Iterable[str], Set[str]], NewObjects | None]

Grafts = Mapping[tuple[str | None, str], Graft]


def find_new(
    read: Callable[[str], pygit2.Object], grafts: Grafts, commits: Iterable[str], known: Set[str]
) -> NewObjects | None:
    """Return what these commits add to a repository that has the known ones.

    None if it is not known how one of them was made, if an object cannot be read, or if there are too many.

    read: returns an object of the mirror
    """
    found: dict[str, None] = {}
    parents: set[str] = set()
    waiting = [*commits]
    try:
        while waiting:
            oid = waiting.pop()
            if oid in known:
                parents.add(oid)
            elif oid not in found:
                commit = read(oid)
                if not isinstance(commit, pygit2.Commit) or not _add(read, grafts, commit, found):
                    return None
                waiting += map(str, commit.parent_ids)
    except (KeyError, ContentError, pygit2.GitError):
        return None
    return NewObjects(tuple(found), frozenset(parents))


def _add(
    read: Callable[[str], pygit2.Object], grafts: Grafts, commit: pygit2.Commit, found: dict[str, None]
) -> bool:
    """Add the objects of a commit that its first parent may not have; return False if that is not known."""
    parent = read(str(commit.parent_ids[0])) if commit.parent_ids else None
    before = str(parent.tree_id) if isinstance(parent, pygit2.Commit) else None
    graft = grafts.get((before, str(commit.tree_id)))
    if graft is None:
        return False
    found |= dict.fromkeys((str(commit.id), *graft.written))
    folders = [graft.tree] if graft.tree is not None else []
    while folders and len(found) <= OBJECTS_MAX:
        oid = folders.pop()
        tree = read(oid)
        if oid in found or not isinstance(tree, pygit2.Tree):
            continue
        entries = [(entry.filemode, str(entry.id)) for entry in tree]
        folders += [each for mode, each in entries if mode == FileMode.TREE]
        found |= dict.fromkeys((oid, *(each for mode, each in entries if mode not in _NOT_FILES)))
    return len(found) <= OBJECTS_MAX


def store_new(git: Git, mirror: Path, repository: Path, new: NewObjects) -> None:
    """Store objects of a mirror in a bare repository on this machine. No ref leads to them yet.

    Raises: GitError, OSError.
    """
    receiver = pygit2.Repository(str(repository))
    if any(parent not in receiver for parent in new.parents):
        raise GitError(Failure.MOVED, "a commit that the new ones build on is missing there")
    missing = [oid for oid in new.ids if oid not in receiver]
    if len(missing) <= LOOSE_OBJECTS_MAX:
        try:
            for oid in missing:
                _copy(mirror / "objects", repository / "objects", oid)
            return
        except FileNotFoundError:
            pass  # a gc has packed it in the mirror
    prefix = repository / "objects" / "pack" / "pack"
    given = "".join(f"{oid}\n" for oid in missing).encode()
    git.run("pack-objects", *_PACKING, str(prefix), directory=mirror, given=given)


def _copy(source: Path, target: Path, oid: str) -> None:
    """Copy the file of one object. It appears whole, under a name that git cleans up until then."""
    name = Path(oid[:2], oid[2:])
    content = (source / name).read_bytes()
    folder = target / oid[:2]
    folder.mkdir(exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(prefix="tmp_obj_", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o444)
        os.replace(scratch, target / name)
    except BaseException:
        os.unlink(scratch)
        raise
