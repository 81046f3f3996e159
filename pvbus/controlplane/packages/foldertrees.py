"""Writes trees of git that differ from another one in one folder, as each commit of one package needs.

libgit2 decodes, sorts and compresses the whole tree each time: 15 ms for a branch of 10,000 packages, which
is most of what an approval costs there. Here the entries of the trees that were written last stay decoded, as
the next commit of a push builds on the one before; and a tree is stored without compression, as git allows:
half of it is hashes, which do not compress, and `git gc` packs it.

Entries are in git's order: by name, a folder's with a slash behind it.
"""

import hashlib
import os
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import pygit2

TREES_MAX = 4
"""Decoded trees: those from the root to a package, before and after a change. Each entry costs 150 bytes."""

GRAFTS_MAX = 1_024
"""Grafts that are known: those of the commits of one push."""

_FOLDER_MODE = b"40000"
_HASH_BYTES = 20
_FORBIDDEN = ("", ".", "..", ".git")

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Entries:
    """The entries of one tree.

    keys: their names, of a folder with a slash behind it, in order
    values: as the tree has them, in the same order
    """

    def __init__(self, keys: list[bytes], values: list[bytes]) -> None:
        self.keys = keys
        self.values = values

    @classmethod
    def decode(cls, raw: bytes) -> "_Entries":
        pairs, start = [], 0
        while start < len(raw):
            end = raw.index(b"\0", start) + 1 + _HASH_BYTES
            value = raw[start:end]
            mode, _, name = value[: -_HASH_BYTES - 1].partition(b" ")
            pairs.append((name + b"/" if mode.lstrip(b"0") == _FOLDER_MODE else name, value))
            start = end
        pairs.sort()  # one that another program has written in another order
        return cls([key for key, _ in pairs], [value for _, value in pairs])

    def copy(self) -> "_Entries":
        return _Entries([*self.keys], [*self.values])

    def find(self, key: bytes) -> int | None:
        at = bisect_left(self.keys, key)
        return at if at < len(self.keys) and self.keys[at] == key else None

    def folder(self, name: bytes) -> str | None:
        at = self.find(name + b"/")
        return None if at is None else self.values[at][-_HASH_BYTES:].hex()

    def put(self, name: bytes, tree: str | None) -> None:
        """Replace whatever has this name by a folder, or by nothing (None)."""
        for key in (name, name + b"/"):
            at = self.find(key)
            if at is not None:
                del self.keys[at], self.values[at]
        if tree is not None:
            at = bisect_left(self.keys, name + b"/")
            self.keys.insert(at, name + b"/")
            self.values.insert(at, b"%s %s\0%s" % (_FOLDER_MODE, name, bytes.fromhex(tree)))


class Graft(NamedTuple):
    """What a root has that the one before it has not.

    written: the root and the trees on the way to the folder
    tree: the folder, with what is below it; None if it was removed
    """

    written: tuple[str, ...]
    tree: str | None


class FolderTrees:
    """The trees of one repository. Not thread-safe: see `BareMirror`.

    grafts: the last grafts, by the root before (None for none) and the root after
    """

    def __init__(self, objects: Path, read: Callable[[str], bytes]) -> None:
        """Begin with nothing decoded.

        objects: git's folder of objects
        read: returns the content of a tree
        """
        self._objects = objects
        self._read = read
        self._decoded: OrderedDict[str, _Entries] = OrderedDict()
        self.grafts: OrderedDict[tuple[str | None, str], Graft] = OrderedDict()

    def clear(self) -> None:
        self._decoded.clear()
        self.grafts.clear()

    def graft(self, root: str | None, names: list[str], tree: str | None) -> str | None:
        """Return the tree `root` with one folder replaced, or removed (None); None if nothing is left.

        names: the names from `root` to the folder
        """
        written: list[str] = []
        after = self._graft(root, names, tree, written)
        if after is not None:
            _keep(self.grafts, (root, after), Graft(tuple(written), tree), GRAFTS_MAX)
        return after

    def _graft(self, root: str | None, names: list[str], tree: str | None, written: list[str]) -> str | None:
        if not names:
            return tree
        name = _checked(names[0])
        child = self._entries(root).folder(name) if root is not None and len(names) > 1 else None
        new = self._graft(child, names[1:], tree, written)
        entries = self._entries(root).copy() if root is not None else _Entries([], [])
        entries.put(name, new)
        if not entries.values:
            return None
        after = self._write(b"".join(entries.values))
        written.append(after)
        _keep(self._decoded, after, entries, TREES_MAX)
        return after

    def _entries(self, tree: str) -> _Entries:
        entries = self._decoded.get(tree) or _Entries.decode(self._read(tree))
        _keep(self._decoded, tree, entries, TREES_MAX)
        return entries

    def _write(self, raw: bytes) -> str:
        """Store a tree as a loose object, and return its id."""
        content = b"tree %d\0%s" % (len(raw), raw)
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        file = self._objects / oid[:2] / oid[2:]
        try:
            os.utime(file)  # so that git does not prune it as an old one
        except FileNotFoundError:
            file.parent.mkdir(exist_ok=True)
            scratch = file.with_name(f"tmp_obj_{oid[2:]}")
            scratch.write_bytes(zlib.compress(content, 0))
            scratch.chmod(0o444)
            scratch.replace(file)
        return oid


def _keep(entries: OrderedDict[_K, _V], key: _K, value: _V, count_max: int) -> None:
    """Add a value as the newest one, and forget the oldest ones."""
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > count_max:
        entries.popitem(last=False)


def _checked(name: str) -> bytes:
    """Encode a folder's name. Raises: pygit2.GitError for one that git refuses."""
    if name.lower() in _FORBIDDEN or "/" in name or "\0" in name:
        raise pygit2.GitError(f"no folder of a git repository may be called {name!r}")
    return name.encode()
