"""Opens and writes local files safely on a shared machine: private files, lock files, regular files."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from pvbus.core.errors import UsageError

PRIVATE_UMASK = 0o077
"""Only the owner can access the files that our processes create: databases, mirrors and logs hold Secrets."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically by one that only its owner can access. Raises OSError.

    A symbolic link at the path is replaced, never followed: another user may have planted it.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}.new")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        made.replace(path)
    except OSError:
        made.unlink(missing_ok=True)
        raise


def open_lock(path: Path) -> int:
    """Open a lock file; create it if it is missing. Raises OSError, also for a symbolic link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o600)


def open_plain(file: Path) -> BinaryIO:
    """Open a regular file for reading. Raises UsageError that names the actual file type.

    Other types are refused: reading from a pipe or a device may block or never end.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as exc:
        raise UsageError(f"{file}: no such file") from exc
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file}: cannot be read ({reason_of(exc)})") from exc
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "something special")
        raise UsageError(f"{file}: is {kind}, not a file: save its content to a file first")
    return os.fdopen(descriptor, "rb")


def reason_of(error: Exception) -> str:
    """Return the system's message for an error if there is one, else the error's own."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
