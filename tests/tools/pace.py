"""How much slower than a free one this machine is, for the limits of real time that tests have.

Machines that run tests are shared, and some are three times as slow as others, also where nothing else runs.
`python -m tests.tools.pace CORES` prints how many of the tests that wait for processes run at once here.
"""

import subprocess
import sys
import time
from functools import cache

PROGRAM = "import asyncio, decimal, http.client, json, ssl"
"""What is measured: to start a process and to make many objects, as the tests do. Empty loops, which stay in
the caches of a processor, are as fast on a machine whose memory is busy. It is the time that passes, as a
processor that others take away counts, too: each test process measures while the other tests run."""

PROGRAM_SECONDS = 0.1
"""How long it takes on a free machine."""

WAITING = 2
"""How many more tests than cores run at once on a free machine: they wait for processes, rollouts, restarts
and rebalances a third to half of the time. What is computed takes longer on a slower machine, what is waited
for does not."""


@cache
def slowness() -> float:
    """Return how much slower than a free machine this one is, 1.0 if it is not slower."""
    return max(1.0, min(_measure() for _ in range(3)) / PROGRAM_SECONDS)


def _measure() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", PROGRAM], check=True)
    return time.perf_counter() - began


def patience(seconds: float) -> float:
    """Return how long to wait for what takes up to so long on a free machine."""
    return seconds * slowness()


def at_once(cores: int) -> int:
    """Return how many of the tests that wait run at once."""
    return cores + int(WAITING / slowness())


if __name__ == "__main__":
    print(at_once(int(sys.argv[1])))
