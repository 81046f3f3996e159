"""A bare mirror of one remote repository: objects through pygit2, the network through git.

The mirror's branches and tags are the remote's as of the last fetch or push; `refs` holds them in
memory. Objects are written into the mirror first and reach the remote by one atomic push that
names, for every ref it moves, its expected value there.

Thread-safe: one lock guards pygit2 and `refs`. Git commands run outside of it, so reads continue during
a push; the caller must ensure that only one of `fetch` and `push` runs at a time.
"""

import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pygit2
from pygit2.enums import FileMode, ObjectType

from pvbus.controlplane.packages import bounds, layout
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.filesets import File, Files, check_files
from pvbus.controlplane.packages.foldertrees import FolderTrees
from pvbus.controlplane.packages.gitcommand import Failure, Git, GitError, RefUpdate, is_path
from pvbus.controlplane.packages.newobjects import NewObjects, find_new
from pvbus.controlplane.packages.packedrefs import replace_packed
from pvbus.controlplane.packages.pushing import Pusher
from pvbus.core.kernel.objects import timestamp

# The mirror is our own folder; git itself checks the owner of the remote's.
pygit2.option(pygit2.enums.Option.SET_OWNER_VALIDATION, False)
pygit2.settings.cache_max_size(32 * 1024 * 1024)  # of trees and commits, all mirrors together

LOOSE_SAMPLE_MAX = 27
"""Loose objects in one of 256 folders: 6,700 in all, git's own limit for a gc."""

LOOSE_REFS_MAX = 256
"""Refs moved between two pack-refs, which cost some 20 ms; 3,000 loose refs cost every push 140 ms."""

LINE_MAX = 256
"""First parents that are tried before git's own search for an ancestor, which also walks the drafts that were
merged: 23 ms for the approvals of one push. The commits of a push follow each other."""

TREES_MAX = 4 * bounds.FOLDERS_MAX
"""Trees in the caches of package and empty trees, at 100 bytes each, including those of former commits."""

OBJECT_BYTES_MAX = 16 * 1024 * 1024
"""A commit, tag or tree, which is read whole: a folder with 200,000 entries has less. A pack of some KB may
expand to one of gigabytes."""

TAGS_DEEP_MAX = 16
"""Tags of tags of one commit; people make one."""

MARKER = "pvbus-url"
"""The file of a mirror with the address of its remote."""

DAMAGE = (pygit2.GitError, LookupError, ValueError, AssertionError, OSError)
"""The errors of reading damaged objects or refs; none of them says that something is damaged."""

SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999, the limit of RFC 3339."""


class Commit(NamedTuple):
    """The fields of a commit that are read.

    id: the object id
    parents: the object ids of its parents, in git's order
    message: the message, cut off at `MESSAGE_BYTES_MAX`
    author_email: the author's address, "" if it cannot be read
    authored: the author's time, as RFC 3339 in UTC
    """

    id: str
    parents: tuple[str, ...]
    message: str
    author_email: str
    authored: str


class Author(NamedTuple):
    """The author of a commit.

    name: the name
    email: the address
    """

    name: str = layout.SERVICE_NAME
    email: str = layout.SERVICE_EMAIL


class BareMirror:
    """One bare mirror.

    url: the remote as git gets it, a URL or an absolute path
    refs: ref -> object id at the remote as of the last fetch or push. The mapping is replaced, never changed,
        so a caller may read it without the lock.
    """

    def __init__(self, path: Path, url: str, git: Git) -> None:
        """Open the mirror, or create one if there is none for this URL."""
        self.path = path
        self.url = url
        self._git = git
        self._pusher = Pusher(path, url)
        self._lock = threading.RLock()
        self._aside = path.with_name(f"{path.name}.old")
        if not self._is_ours():
            self._make()
        try:
            self._repository = pygit2.Repository(str(path))
            self._read_refs()
        except DAMAGE:
            self._make()
            self._repository = pygit2.Repository(str(path))
        self._folders = FolderTrees(path / "objects", lambda tree: self._tree(tree).read_raw())
        self._package_trees: set[str] = set()
        self._empty_trees: set[str] = set()
        self._folders_read = 0
        self._loose_refs = 0
        self.refs: Mapping[str, str] = self._read_refs()

    def _is_ours(self) -> bool:
        try:
            return (self.path / MARKER).read_bytes() == self.url.encode()
        except OSError:
            return False

    def _make(self) -> None:
        """Begin an empty mirror.

        The old one is moved aside until the remote has been fetched: the remote may be gone, and the old
        mirror is then the last copy.
        """
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            shutil.rmtree(self._aside, ignore_errors=True)
            self.path.rename(self._aside)
        self.path.mkdir(parents=True, exist_ok=True)
        self._git.run("init", "--quiet", "--bare", "--template=", ".", directory=self.path)
        (self.path / MARKER).write_bytes(self.url.encode())

    def is_damaged(self) -> bool:
        """Return whether objects are missing or not what was written. Reads all of them."""
        try:
            self._git.run("fsck", "--no-dangling", "--no-progress", directory=self.path)
        except GitError:
            return True
        return False

    def renew(self) -> None:
        """Begin again with an empty mirror, which the next fetch fills."""
        with self._lock:
            self._make()
            self._repository = pygit2.Repository(str(self.path))
            self._folders.clear()
            self._package_trees.clear()
            self._empty_trees.clear()
            self.refs = {}

    def use(self, git: Git) -> None:
        """Use this Git for later commands: the credentials changed."""
        self._git = git

    def pack(self) -> None:
        """Run `git gc` on the mirror if it has more than some 7,000 loose objects, by git's own estimate."""
        sample = self.path / "objects" / "17"
        if sample.is_dir() and sum(1 for _ in sample.iterdir()) > LOOSE_SAMPLE_MAX:
            self._git.run("gc", "--quiet", directory=self.path)

    # Remote.

    def fetch(self) -> None:
        """Update the refs from the remote. Raises: GitError."""
        if is_path(self.url) and not Path(self.url).exists():
            raise GitError(
                Failure.UNREACHABLE,
                f"git fetch: {self.url} does not exist: create the repository "
                f"(git init --bare {self.url}), or correct spec.git.repo",
            )
        self._git.fetch(self.path, self.url)
        if self._aside.exists():
            shutil.rmtree(self._aside, ignore_errors=True)
        with self._lock:
            before, self.refs = self.refs, self._read_refs()
        self._tidy(abs(len(self.refs) - len(before)))

    def fetch_one(self, source: str) -> str | None:
        """Fetch one ref or commit without its history; return the commit. Raises: GitError."""
        target = "refs/upstream/commit"
        self._git.fetch_one(self.path, self.url, source, target)
        return self.commit_of(str(self._repository.references[target].target))

    def push(self, updates: Sequence[RefUpdate], bases: Iterable[str] = ()) -> None:
        """Move refs at the remote atomically.

        The mirror's own refs move in memory. Many at a time follow on disk, and the next fetch writes the
        rest, also after a crash.

        bases: other refs whose commits the new ones build on
        Raises: GitError.
        """
        present = {ref: self.refs[ref] for ref in bases if ref in self.refs}
        self._pusher.push(self._git, updates, present, self._new_objects)
        with self._lock:
            refs = dict(self.refs)
            for update in updates:
                if update.new is None:
                    refs.pop(update.ref, None)
                else:
                    refs[update.ref] = update.new
            self.refs = refs
        self._tidy(len(updates))

    def _new_objects(self, commits: Iterable[str], known: Set[str]) -> NewObjects | None:
        with self._lock:
            return find_new(self._object, self._folders.grafts, commits, known)

    def _tidy(self, moved: int) -> None:
        """Pack many loose refs into one file, in the mirror and in a repository on this machine.

        Each loose ref is a file, and every push reads all refs on both sides. The mirror's file of packed
        refs gets the pushed refs, too. Otherwise the next fetch would write and sync a file for each: 10,000
        of them delay all changes of the repository for half a minute. A fetch corrects the file, whatever it
        says.
        """
        self._loose_refs += moved
        if self._loose_refs < LOOSE_REFS_MAX:
            return
        self._loose_refs = 0
        with suppress(GitError, OSError):  # it only saves time
            self._git.run("pack-refs", "--all", directory=self.path)
            replace_packed(self.path, self.refs)
        if is_path(self.url):
            with suppress(GitError):
                self._git.run("pack-refs", "--all", directory=Path(self.url))

    def _read_refs(self) -> dict[str, str]:
        return {
            ref.name: str(ref.target)
            for ref in self._repository.references.iterator()
            if isinstance(ref.target, pygit2.Oid)
            and ref.name.startswith((layout.HEADS, layout.TAGS))
            and _is_text(ref.name)
        }

    # Reading.

    def commit_of(self, oid: str) -> str | None:
        """Return the commit of an object id (a commit's, or an annotated tag's).

        Raises: ContentError for an object that is beyond the limits.
        """
        with self._lock:
            try:
                found = self._object(oid)
                for _ in range(TAGS_DEEP_MAX):
                    if not isinstance(found, pygit2.Tag):
                        break
                    found = self._object(str(found.target))
            except (KeyError, ValueError, pygit2.GitError, pygit2.InvalidSpecError):
                return None
            return str(found.id) if isinstance(found, pygit2.Commit) else None

    def commit(self, oid: str) -> Commit | None:
        """Read a commit leniently: a foreign client may have written its fields in any form.

        Raises: ContentError for one that is beyond the limits.
        """
        with self._lock:
            found = self._commit(oid)
            if found is None:
                return None
            try:
                email, seconds = found.author.raw_email.decode(errors="replace"), found.author.time
            except (ValueError, LookupError, pygit2.GitError):
                email, seconds = "", 0
            return Commit(
                id=str(found.id),
                parents=tuple(str(parent) for parent in found.parent_ids),
                message=found.raw_message[: bounds.MESSAGE_BYTES_MAX].decode(errors="replace"),
                author_email=email,
                authored=_rfc3339(seconds),
            )

    def tree_of(self, commit: str | None, directory: str = "") -> str | None:
        """Return the tree of a folder of a commit; None if there is no such folder."""
        with self._lock:
            found = self._commit(commit)
            return self._subtree(str(found.tree_id), directory) if found is not None else None

    def blob(self, tree: str, name: str) -> str | None:
        """Return the id of the blob of this name directly in a tree."""
        with self._lock:
            found = self._tree(tree)
            if name not in found or found[name].type != ObjectType.BLOB:
                return None
            return str(found[name].id)

    def data(self, blob: str, bytes_max: int = bounds.PACKAGE_BYTES_MAX) -> bytes:
        """Read a blob. Raises: ContentError for a larger one, which is not read."""
        with self._lock:
            size = self._size(blob)
            if size > bytes_max:
                raise ContentError(f"it has {size} bytes, at most {bytes_max} are allowed")
            found = self._repository[blob]
            assert isinstance(found, pygit2.Blob)
            return found.data

    def _size(self, blob: str) -> int:
        return int(self._repository.odb.read_header(pygit2.Oid(hex=blob))[1])

    def files(self, tree: str) -> dict[str, File]:
        """Read all files below a tree. Raises: ContentError if they exceed a package's limits."""
        found: dict[str, File] = {}
        bytes_left = bounds.PACKAGE_BYTES_MAX
        with self._lock:
            self._folders_read = 0
            for path, blob, mode in self._blobs(tree, "", 0):
                bytes_left -= self._size(blob)
                if bytes_left < 0 or len(found) >= bounds.FILES_MAX:
                    raise ContentError(
                        f"the package has more than {bounds.PACKAGE_BYTES_MAX} bytes or {bounds.FILES_MAX} "
                        "files: make it smaller, or keep large files elsewhere"
                    )
                problem = f"{bounds.shortened(path)} is there twice" if path in found else None
                if problem := problem or bounds.one_path_problem(path):
                    raise ContentError(problem)
                found[path] = File(self.data(blob), mode)
        return found

    def packages(self, commit: str, base: str) -> dict[str, str]:
        """Find the packages below a folder: directory from the root -> tree.

        A package is a folder with a Kptfile; nothing below it is a package of its own. A tree's content never
        changes, so a tree that is known to be a package, or to have none below it, is not read again.
        """
        with self._lock:
            tree = self.tree_of(commit, base)
            self._folders_read = 0
            if len(self._package_trees) + len(self._empty_trees) > TREES_MAX:
                self._package_trees.clear()
                self._empty_trees.clear()
            return dict(self._packages(tree, base.strip("/"))) if tree else {}

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Return whether one commit is in the history of another, False if that cannot be read."""
        with self._lock:
            try:
                return older in islice(self._line(newer), LINE_MAX) or self._repository.descendant_of(
                    newer, older
                )
            except (KeyError, ContentError, pygit2.GitError):
                return False

    def _line(self, commit: str) -> Iterator[str]:
        """Yield a commit, its first parent, and so on."""
        current: str | None = commit
        while current is not None:
            yield current
            found = self._commit(current)
            current = str(found.parent_ids[0]) if found is not None and found.parent_ids else None

    def _tree(self, oid: str) -> pygit2.Tree:
        found = self._object(oid)
        assert isinstance(found, pygit2.Tree)
        return found

    def _commit(self, oid: str | None) -> pygit2.Commit | None:
        try:
            found = self._object(oid) if oid else None
        except (KeyError, pygit2.GitError):
            return None
        return found if isinstance(found, pygit2.Commit) else None

    def _object(self, oid: str) -> pygit2.Object:
        """Read a commit, tag or tree. Raises: ContentError for a larger one, which is not read."""
        size = self._size(oid)
        if size > OBJECT_BYTES_MAX:
            raise ContentError(
                f"the object {oid} has {size} bytes, and a commit, tag or folder at most {OBJECT_BYTES_MAX}"
            )
        return self._repository[oid]

    def _subtree(self, tree: str, directory: str) -> str | None:
        for name in directory.split("/") if directory else []:
            found = self._tree(tree)
            if not name or name not in found or found[name].type != ObjectType.TREE:
                return None
            tree = str(found[name].id)
        return tree

    def _blobs(self, tree: str, prefix: str, depth: int) -> Iterator[tuple[str, str, int]]:
        if depth > bounds.DEPTH_MAX:
            raise ContentError(f"the package has more than {bounds.DEPTH_MAX} nested folders")
        self._folders_read += 1
        if self._folders_read > bounds.FILES_MAX:
            raise ContentError(f"the package has more than {bounds.FILES_MAX} folders: make it smaller")
        for entry in self._tree(tree):
            path = f"{prefix}{_raw_name(entry).decode(errors='backslashreplace')}"
            if b"/" in _raw_name(entry):
                raise ContentError(f"{bounds.shortened(path)}: one name in a folder has a slash")
            if entry.type == ObjectType.TREE:
                yield from self._blobs(str(entry.id), f"{path}/", depth + 1)
            elif entry.filemode == FileMode.COMMIT:
                raise ContentError(
                    f"{bounds.shortened(path)} is a git submodule, whose files are in another repository: "
                    "commit the files themselves (git rm --cached, then git add)"
                )
            elif entry.type == ObjectType.BLOB:
                if path != f"{prefix}{_raw_name(entry).decode(errors='replace')}":
                    raise ContentError(f"a file name is not UTF-8: {path}")
                yield path, str(entry.id), entry.filemode

    def _packages(self, tree: str, directory: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        """Yield the packages in a tree, without entering a package or a tree that is known to have none.

        directory: the path of the tree from the root
        """
        if tree in self._empty_trees or depth > bounds.DEPTH_MAX:
            return
        self._folders_read += 1
        if self._folders_read > bounds.FOLDERS_MAX:
            raise GitError(
                Failure.UNREACHABLE,
                f"the branch has more than {bounds.FOLDERS_MAX} folders: set spec.git.directory of a new "
                "Repository to the folder with the packages",
            )
        if tree in self._package_trees and directory:
            yield directory, tree
            return
        found = self._tree(tree)
        if layout.KPTFILE in found and directory:
            self._package_trees.add(tree)
            yield directory, tree
            return
        is_empty = True
        for entry in found:
            if entry.type == ObjectType.TREE:
                name = _raw_name(entry).decode(errors="backslashreplace")
                for package in self._packages(str(entry.id), layout.join(directory, name), depth + 1):
                    is_empty = False
                    yield package
        if is_empty:
            self._empty_trees.add(tree)

    # Writing objects. Nothing is visible before a push.

    def write_files(self, files: Files) -> str:
        """Write a package's files and return the tree."""
        with self._lock:
            return self._write(list(files.items()))

    def write_package(self, files: Files) -> str:
        """Like `write_files`. Raises: ContentError for files that no package may have."""
        check_files(files)
        return self.write_files(files)

    def _write(self, files: Sequence[tuple[str, File]]) -> str:
        builder = self._repository.TreeBuilder()
        below: dict[str, list[tuple[str, File]]] = {}
        for path, file in files:
            name, separator, rest = path.partition("/")
            if separator:
                below.setdefault(name, []).append((rest, file))
            else:
                builder.insert(name, self._repository.create_blob(file.data), file.mode)
        for name, children in below.items():
            builder.insert(name, self._write(children), FileMode.TREE)
        return str(builder.write())

    def graft(self, commit: str | None, directory: str, tree: str | None) -> str:
        """Return the root tree of a commit with one folder replaced, or removed (None)."""
        with self._lock:
            found = self._commit(commit)
            root = str(found.tree_id) if found is not None else None
            return self._folders.graft(root, directory.split("/"), tree) or str(
                self._repository.TreeBuilder().write()
            )

    def write_commit(self, tree: str, parents: Sequence[str], message: str, author: Author) -> str:
        """Write a commit that no ref points to yet."""
        seconds = int(datetime.now(UTC).timestamp())
        with self._lock:
            oid = self._repository.create_commit(
                None,
                pygit2.Signature(author.name, author.email, seconds, 0),
                pygit2.Signature(layout.SERVICE_NAME, layout.SERVICE_EMAIL, seconds, 0),
                message,
                tree,
                list(parents),
            )
            return str(oid)


def _raw_name(entry: pygit2.Object) -> bytes:
    assert entry.raw_name is not None, "entries of trees have names"
    return entry.raw_name


def _is_text(name: str) -> bool:
    """Return whether a name is valid UTF-8; no API can show any other."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _rfc3339(seconds: int) -> str:
    """Return a time as the API writes it, limited to the years 1970 to 9999."""
    seconds = min(max(seconds, 0), SECONDS_MAX)
    return timestamp(seconds)
