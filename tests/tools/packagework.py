"""A process of the package store that misbehaves: `-m tests.tools.packagework BYTES`.

A job with one of these words in a file of its package hangs, takes two seconds, ends the process, takes too
much memory, or has a bug.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pvbus.controlplane.apiserver.workers import serve
from pvbus.controlplane.packages.workload import JOBS

HANG, SLOW, DIE, GROW, BUG = "# hang", "# slow", "# die", "# grow", "# bug"


def misbehaving(job: Callable[..., Any], *arguments: Any) -> Any:
    text = repr(arguments)
    if HANG in text:
        time.sleep(3600)
    if SLOW in text:
        time.sleep(2)
    if DIE in text:
        os._exit(3)
    if GROW in text:
        return b"x" * (1 << 40)
    if BUG in text:
        raise LookupError("a bug")
    return job(*arguments)


if __name__ == "__main__":
    serve(int(sys.argv[1]), {name: partial(misbehaving, job) for name, job in JOBS.items()})
