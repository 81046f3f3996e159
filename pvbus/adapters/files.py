"""Opens and writes local files safely on a shared machine: private files, lock files, regular files."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
import yaml

from pvbus.core.errors import PermanentError, UsageError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STEPS = {
    **dict.fromkeys(_FULL, "make room on the disk, and start again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give yourself the right to read and write it"),
    errno.EROFS: "the disk is read-only: make it writable, or choose another data folder",
    errno.EIO: "the disk fails: copy what can be read to another one, or restore a backup there",
}
_WHY_CHARACTERS_MAX = 200

SEAL_CHARACTERS = 32


@contextmanager
def own_file(path: Path, remedy: str) -> Iterator[None]:
    """Turn each failure to read, write or understand a file of ours into a PermanentError.

    remedy: what to do if it is damaged, after "<path> cannot be used (<why>): "; a full disk and a missing
    right have remedies of their own. A missing file is the caller's to handle: FileNotFoundError is raised.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, msgspec.MsgspecError, yaml.YAMLError) as exc:
        number = exc.errno if isinstance(exc, OSError) else None
        step = _STEPS.get(number or 0, remedy)
        why = " ".join(reason_of(exc).split())[:_WHY_CHARACTERS_MAX]
        reason = "DiskFull" if number in _FULL else "DataFolder"
        raise PermanentError(f"{path} cannot be used ({why}): {step}", reason=reason) from exc


def seal_of(content: bytes) -> str:
    """Return a hash of a file's content, which is kept in the file: so a byte that changed is noticed."""
    return blake2b(content, digest_size=SEAL_CHARACTERS // 2).hexdigest()


def sealed(document: bytes) -> bytes:
    """Return an indented JSON document with its seal as the value of its last field, `"seal": ""`."""
    before, field, after = document.rpartition(b'"seal": "')
    return before + field + seal_of(document).encode() + after


def check_seal(document: bytes) -> None:
    """Raise ValueError if a document is not as `sealed` returned it; one without a seal is accepted.

    The seal is of the text, so a version with other fields finds it right, too.
    """
    before, field, after = document.rpartition(b'"seal": "')
    seal, end = after[:SEAL_CHARACTERS], after[SEAL_CHARACTERS:]
    if field and seal != seal_of(before + field + end).encode():
        raise ValueError("it is not what pvbus wrote")


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
