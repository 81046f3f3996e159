"""Writes branches and tags of a bare repository into its file of packed refs.

git has no command for it: `update-ref` and `fetch` write a file for each ref, and sync each to the disk.
Apart from `gitrepo`, which leaves the formats of git's files to git.
Source of the format: git 2.39, gitrepository-layout(5), and refs/packed-backend.c.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pvbus.controlplane.packages import layout

_HEADER = b"# pack-refs with: sorted \n"
"""Says that names are in order, and nothing of peeled tags, which git looks up itself then."""


def replace_packed(folder: Path, refs: Mapping[str, str]) -> None:
    """Replace the packed branches and tags by these; other packed refs stay.

    Loose refs come before packed ones, so a ref that has a file of its own does not move.

    Raises: OSError, and then nothing has changed; FileExistsError if another git has the lock.
    """
    packed, lock = folder / "packed-refs", folder / "packed-refs.lock"
    descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with open(descriptor, "wb") as file:
            lines = {name.encode(): oid.encode() for name, oid in refs.items()}
            lines |= _others(packed, lines)
            file.write(_HEADER)
            file.writelines(b"%s %s\n" % (lines[name], name) for name in sorted(lines))
            file.flush()
            os.fsync(file.fileno())
        lock.replace(packed)
    except BaseException:
        lock.unlink(missing_ok=True)
        raise


def _others(packed: Path, written: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the packed refs that are no branches and tags, or whose names are no text."""
    found = {}
    for line in packed.read_bytes().split(b"\n") if packed.exists() else ():
        oid, _, name = line.partition(b" ")
        if not name or line.startswith((b"#", b"^")) or name in written:
            continue
        if not name.startswith((layout.HEADS.encode(), layout.TAGS.encode())) or not _is_utf8(name):
            found[name] = oid
    return found


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
