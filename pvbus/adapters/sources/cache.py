"""Contents of packages on disk, by their digest. Several processes may share the folder.

A file is complete or not there: it is written beside and renamed. What a crash or a full disk left of it is
found by its checksum when it is read, removed, and read from the source again.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from pvbus.core.kernel.effects import Content
from pvbus.core.platform.packaging.references import is_digest
from pvbus.telemetry.logs import get_logger

LEFTOVER_SECONDS = 3600.0
"""Age after which a file that was never renamed is removed: its writer was killed."""
_CHECKSUM_BYTES = 32
_TEMPORARY = ".new-"
_log = get_logger("sources")


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    files: dict[str, bytes]


class ContentCache:
    """A folder of contents. An error of the disk is logged, and costs a read of the source, nothing else."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Use a folder.

        bytes_max: the size of all contents together; the least recently used are removed above it
        """
        self._folder = folder
        self._bytes_max = bytes_max
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Stored)

    def get(self, digest: str) -> Content | None:
        """Return a content, None if it is not there or its file is damaged."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.warning("cached content cannot be read", path=str(path), error=str(exc))
            return None
        content = self._decoded(digest, data)
        if content is None:
            _log.warning("cached content is damaged; it is removed and read again", path=str(path))
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return content

    def put(self, content: Content) -> None:
        """Store a content. One that is larger than the cache is not stored."""
        body = self._encoder.encode(_Stored(content.digest, dict(content.files)))
        data = hashlib.sha256(body).digest() + body
        if len(data) > self._bytes_max:
            return
        try:
            self._write(self._path(content.digest), data)
            self._trim()
        except OSError as exc:
            _log.warning("content is not cached", folder=str(self._folder), error=str(exc))

    def _decoded(self, digest: str, data: bytes) -> Content | None:
        checksum, body = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if hashlib.sha256(body).digest() != checksum:
            return None
        try:
            stored = self._decoder.decode(body)
        except msgspec.DecodeError:
            return None
        return Content(stored.digest, stored.files) if stored.digest == digest else None

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise AssertionError(digest)  # it would be a path of somebody else's choice
        return self._folder / digest.replace(":", "-")

    def _write(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_TEMPORARY)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _trim(self) -> None:
        """Remove the least recently used contents, until the rest is within the limit."""
        found = sorted(self._files(), reverse=True)
        total = 0
        for _, size, path in found:
            total += size
            if total > self._bytes_max:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of use, bytes and path of each content; remove leftovers."""
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another process has removed it
            if not path.name.startswith(_TEMPORARY):
                yield status.st_mtime, status.st_size, path
            elif time.time() - status.st_mtime > LEFTOVER_SECONDS:
                path.unlink(missing_ok=True)
