"""The process that gives second opinions: evaluates samples with ours and with cel-python, in bounded CPU.

cel-python takes a thousand times as long as ours for loops within loops. So a timer of CPU time ends the
evaluation of a target that takes too long, and the next target begins anew.
"""

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final

from pvbus.controlplane.apiserver.workers import serve
from pvbus.core.cel.second_opinion import NoAnswerError, answer
from pvbus.core.variants.unroll.opinion import Evaluate, Opinion, Question, opinion_of

SAMPLE_SECONDS: Final = 0.02  # of CPU for one target; five usual expressions take 2 ms
QUESTION_SECONDS: Final = 0.1  # of CPU for a question: its last targets are left out if it takes longer
NICENESS: Final = 10  # the services go first


class _TooCostly(BaseException):  # `except Exception` must not take it
    """The CPU that a target may cost is spent."""


def opinion(content: bytes, theirs: Evaluate = answer) -> Opinion:
    """Return the opinion on an encoded question."""
    question: Question = pickle.loads(content)  # the service's
    found, began = Opinion(), time.process_time()
    for sample in question.samples:
        left = QUESTION_SECONDS - (time.process_time() - began)

        compare = partial(opinion_of, question, sample, theirs, NoAnswerError)
        added = _limited(compare, min(SAMPLE_SECONDS, left)) if left > 0 else None
        found = found.plus(added or Opinion(left_out=question.size(sample)))
    return found


def _limited(compare: Callable[[], Opinion], seconds: float) -> Opinion | None:
    """Return the result, None if it takes more CPU than this.

    seconds: the limit of CPU time
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        return compare()
    except _TooCostly:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _end_sample(number: int, frame: FrameType | None) -> None:
    raise _TooCostly


def main(memory_bytes: int, theirs: Evaluate = answer) -> None:
    """Answer questions until the input ends.

    memory_bytes: the limit of this process's memory
    theirs: the other evaluator, which tests replace
    """
    os.nice(NICENESS)
    signal.signal(signal.SIGVTALRM, _end_sample)
    jobs = {"opinion": lambda content: opinion(content, theirs)}
    serve(memory_bytes, jobs, has_cycles=True)  # syntax trees and errors of cel-python


if __name__ == "__main__":
    main(int(sys.argv[1]))
