"""Writes objects of git as they are given, also those that git itself would refuse to make."""

import hashlib
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

FILE, LINK, FOLDER, SUBMODULE = b"100644", b"120000", b"40000", b"160000"
Entry = tuple[bytes, bytes, str]
"""An entry of a tree: mode, name, object."""


class RawRepository:
    """A bare repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(folder)], check=True)

    def write(self, kind: str, data: bytes) -> str:
        whole = f"{kind} {len(data)}\0".encode() + data
        oid = hashlib.sha1(whole).hexdigest()
        path = self.folder / "objects" / oid[:2] / oid[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(whole, 1))
        return oid

    def blob(self, data: bytes) -> str:
        return self.write("blob", data)

    def tree(self, entries: Sequence[Entry]) -> str:
        return self.write(
            "tree", b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
        )

    def nested(self, leaf: str, *, depth: int, width: int) -> str:
        """Return a tree of `width` ** `depth` times the leaf."""
        for _ in range(depth):
            leaf = self.tree([(FOLDER, f"{number:02}".encode(), leaf) for number in range(width)])
        return leaf

    def commit(self, tree: str, message: bytes = b"x", date: str = "1700000000 +0000") -> str:
        who = f"a <a@b> {date}"
        return self.write("commit", f"tree {tree}\nauthor {who}\ncommitter {who}\n\n".encode() + message)

    def tag(self, target: str, kind: str) -> str:
        head = f"object {target}\ntype {kind}\ntag v1\ntagger a <a@b> 1 +0000\n\nx"
        return self.write("tag", head.encode())

    def set_ref(self, oid: str, name: str = "refs/heads/main") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{oid}\n")
