"""Checks whether the process of a group's member is still running.

Each process that opens a bus file holds a lock on a small file of its own beside it. The kernel releases
the lock when the process dies for any reason, so a restart after a crash need not wait for a session to
expire. A process that hangs keeps its lock; its session expires instead.
"""

import contextlib
import fcntl
import glob
import os
import secrets


class ProcessLock:
    """The lock of this process, or more exactly of one opened bus."""

    def __init__(self, bus_path: str) -> None:
        self._bus_path = bus_path
        self.process = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._file = os.open(self._path(self.process), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def _path(self, process: str) -> str:
        return f"{self._bus_path}-process-{process}"

    def is_gone(self, process: str) -> bool:
        """Return whether the holder of another lock has ended; if so, remove its file."""
        if process == self.process:
            return False
        try:
            file = os.open(self._path(process), os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:  # a disk that is read-only, for example: its session tells
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._remove(process)
            return True
        finally:
            os.close(file)

    def is_alone(self) -> bool:
        """Return whether no other process has the bus open."""
        prefix = f"{self._bus_path}-process-"
        return all(
            self.is_gone(name[len(prefix) :])
            for name in glob.glob(f"{glob.escape(prefix)}*")
            if name != prefix + self.process
        )

    def release(self) -> None:
        self._remove(self.process)
        os.close(self._file)

    def _remove(self, process: str) -> None:
        with contextlib.suppress(
            OSError
        ):  # a file that stays has no lock, and is removed by the next process
            os.unlink(self._path(process))
