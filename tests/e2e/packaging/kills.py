"""Kills the services of packages at random moments, and looks meanwhile for what must never be."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.e2e.packaging.platform import REVISIONS, Object, Platform, folder_of

SERVICES = ("resolve", "establish")
PAUSE_SECONDS = (0.2, 2.5)
"""Between two kills: shorter than an installation takes, so that most kills are in the middle of one."""
LOCKS = "packagelocks.pkg.crossplane.io"


class Killer:
    """Kills one of the services at random moments, when it is asked whether it is done.

    kill: ends a service as kill -9 does, and returns whether it ran; somebody starts it again
    """

    def __init__(self, kill: Callable[[str], bool], kills: int, seed: int) -> None:
        self._kill = kill
        self._left = kills
        self._random = random.Random(seed)
        self._wait()

    def is_done(self) -> bool:
        if self._left and time.monotonic() >= self._next:
            self._left -= self._kill(self._random.choice(SERVICES))
            self._wait()
        return not self._left

    def _wait(self) -> None:
        self._next = time.monotonic() + self._random.uniform(*PAUSE_SECONDS)


@contextmanager
def looking(platform: Platform) -> Iterator[list[str]]:
    """Look at revisions and the lock as long as the block runs; yield what was seen that must never be."""
    wrong: list[str] = []
    known: set[str] = set()
    stop = Event()

    def look() -> None:
        while not stop.is_set():
            found = platform.run("get", ",".join((*REVISIONS, LOCKS)), "-o", "json")
            if found.returncode == 0:
                objects = json.loads(found.stdout)["items"]
                wrong.extend((*two_active(objects), *none_active(objects, known)))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join(60)


def two_active(objects: list[Object]) -> list[str]:
    """Return the packages of which two revisions are active."""
    active = Counter(
        folder_of(each["spec"]["image"]) for each in objects if each["spec"].get("desiredState") == "Active"
    )
    return [f"two of {package} are active" for package, count in active.items() if count > 1]


def none_active(objects: list[Object], known: set[str]) -> list[str]:
    """Return the packages of which no revision is active any more by the lock.

    known: those of which one was active before; it is kept up to date
    """
    locks = [each for each in objects if each["kind"] == "PackageLock"]
    active = {folder_of(package["image"]) for lock in locks for package in lock["spec"].get("packages", ())}
    known |= active
    return [f"none of {package} is active" for package in sorted(known - active)]
