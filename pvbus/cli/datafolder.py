"""The paths in a data folder, and its lock."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pvbus.adapters.files import open_lock, own_file, write_private
from pvbus.core.errors import PermanentError

DEFAULT = ".pvbus"
_PREFIX = re.compile(r"pvbus-[0-9a-f]{8}")


class DataPaths:
    """The files of a data folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.bus = self.root / "bus.db"
        self.kubeconfig = self.root / "kubeconfig"
        self.services_kubeconfig = self.root / "services.kubeconfig"
        self.objects = self.root / "apiserver" / "objects.db"
        self.example = self.root / "example"
        self.applied = self.root / "applied.json"
        self.lock = self.root / "lock"
        self.web = self.root / "web.json"
        self._bus_prefix = self.root / "bus-prefix"

    def make(self) -> None:
        """Create the folder with access for its owner only. Raises PermanentError."""
        if self.root.exists() and not self.root.is_dir():
            raise PermanentError(
                f"the data folder {self.root} is a file: choose a folder with --data", reason="DataFolder"
            )
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.root / ".probe"
            write_private(probe, b"x" * 4096)
            probe.unlink()
        except OSError as exc:
            raise PermanentError(
                f"nothing can be written to the data folder {self.root} ({exc.strerror}): make room or give "
                "yourself the right to write there, or choose another folder with --data",
                reason="DataFolder",
            ) from exc

    def bus_prefix(self) -> str:
        """Return the prefix of this folder's topics on Kafka, which the first call creates and saves.

        Two API servers must never share topics, and each must find its own again. A backup omits it, as a
        restored folder is another installation.
        """
        with own_file(self._bus_prefix, "restore it, or give the prefix in --bus: kafka://HOST:PORT/PREFIX"):
            if not self._bus_prefix.exists():
                write_private(self._bus_prefix, f"pvbus-{secrets.token_hex(4)}\n".encode())
            prefix = self._bus_prefix.read_text(encoding="ascii").strip()
            if not _PREFIX.fullmatch(prefix):
                raise ValueError("it is no prefix of topics")
        return prefix


@contextmanager
def held(paths: DataPaths) -> Iterator[None]:
    """Lock the data folder for this process. Raises PermanentError if another process holds the lock."""
    with own_file(paths.lock, "it must be a plain file; remove it"):
        descriptor = open_lock(paths.lock)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise PermanentError(
                f"the data folder {paths.root} is in use by another pvbus (process {other or 'unknown'}): "
                "stop that one first, or choose another folder with --data. kubectl applies manifests to the "
                "one that runs",
                reason="DataInUse",
            ) from exc
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
