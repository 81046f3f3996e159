"""The work that `workers` has done in processes of its own, and the main loop of such a process.

Everything here is pure. Large values go in and out as JSON, which costs a fraction of the work.
"""

import gc
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from pvbus.controlplane.apiserver import computing
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.workers import BROKEN, DONE, FAILED, REFUSED, Failure, Job
from pvbus.core.yaml.reader import Limits, document


def read_yaml(content: bytes, limits: Limits) -> tuple[bytes, tuple[str, ...]]:
    """Return the value of a document as JSON, and its duplicate fields. Raises YamlError."""
    value, _, doubled = document(content, limits)
    return msgspec.json.encode(value), doubled


JOBS: dict[Job, Callable[..., Any]] = {
    "read_yaml": read_yaml,
    "create": computing.created,
    "update": computing.updated,
}


def main(memory_bytes: int) -> None:
    """Do one piece of work after another, until the input ends: the server has ended, or has no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the server, which ends this process
    gc.disable()  # values have no cycles, and looking for them takes half of the time
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    requests = os.fdopen(0, "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write into the answers
    while head := requests.read(8):
        job, arguments = pickle.loads(requests.read(struct.unpack("!Q", head)[0]))  # the server's
        answer(answers, work(job, arguments))


def work(job: Job, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return DONE, JOBS[job](*arguments)
    except ValueError as exc:
        return REFUSED, str(exc)
    except StatusError as exc:
        return FAILED, Failure(
            exc.code, exc.reason, exc.message, tuple(exc.causes), exc.details, exc.retry_after_seconds
        )
    except MemoryError:
        raise  # the process has no room for more: another one takes its place
    except Exception as exc:  # the server answers and logs a bug, as it does for its own
        return BROKEN, (f"{type(exc).__name__}: {exc}", traceback.format_exc())


def answer(answers: BinaryIO, result: tuple[str, Any]) -> None:
    content = pickle.dumps(result)
    answers.write(struct.pack("!Q", len(content)))
    answers.write(content)
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
