"""Gets second opinions from a process beside the event loop (`pvbus.runtime.opinion.work`).

There is one such process, of low priority; it starts with the first question, and ends when there was none
for some time. What it may cost is bounded: CPU for a target and for a question, time for a question, memory,
and the bytes of questions that wait. What exceeds a bound is left out and counted.
"""

import asyncio
import pickle
from collections import deque
from typing import TYPE_CHECKING, Final

from pvbus.core.variants.unroll.opinion import OUTCOMES, Opinion, Question, Sample
from pvbus.telemetry import logs, metrics

if TYPE_CHECKING:
    from pvbus.controlplane.apiserver.workers import Workers

WORK: Final = "pvbus.runtime.opinion.work"
SECONDS_MAX: Final = 30.0
"""The time of one question. Its CPU is bounded in the process, so only what hangs takes so long."""

MEMORY_BYTES: Final = 256 << 20  # of the process, which takes some 50 MB
IDLE_SECONDS: Final = 60.0  # then it ends: a start takes 0.5 s of CPU
SAMPLE_BYTES_MAX: Final = 64 << 10  # of the variables of a target; usual ones have 1 kB
WAITING_BYTES_MAX: Final = 32 << 20
"""The size of the questions that wait: those of some 1,500 sets, which are answered within two minutes."""

QUESTION_SECONDS: Final = 0.05  # of one that waits: how long others expect to wait for it
POLL_SECONDS: Final = 1.0


class AskedQuestion:
    """A question that waits or is being answered. See `pvbus.core.variants.unroll.opinion.Pending`.

    content: the question, encoded
    size: the number of its evaluations
    left_out: the number of evaluations that exceed a bound and are not asked for
    ahead: the number of questions that wait before it
    """

    def __init__(self, content: bytes, size: int, left_out: int, ahead: int) -> None:
        self.content = content
        self.size = size
        self.left_out = left_out
        self.opinion: Opinion | None = None
        self.is_cancelled = False
        self._ahead = ahead

    @property
    def seconds(self) -> float:
        """Return the estimate of the start; then it is looked at each second."""
        ahead, self._ahead = self._ahead, 0
        return POLL_SECONDS + ahead * QUESTION_SECONDS

    def cancel(self) -> None:
        self.is_cancelled = True


class OpinionProcess:
    """Answers questions one by one. `run` runs until cancelled."""

    def __init__(
        self,
        *,
        work: str = WORK,
        seconds_max: float = SECONDS_MAX,
        idle_seconds: float = IDLE_SECONDS,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        """Start the process with the first question.

        work: the module that the process runs
        seconds_max: the time of one question
        idle_seconds: how long the process waits for a question before it ends
        waiting_bytes_max: the size of the questions that wait
        """
        self._work = work
        self._seconds_max = seconds_max
        self._workers: Workers | None = None
        self._idle_seconds = idle_seconds
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[AskedQuestion] = deque()
        self._bytes = 0
        self._asked = asyncio.Event()
        self._log = logs.get_logger("unroll")
        self._outcomes = {word: metrics.SECOND_OPINIONS.labels(word) for word in OUTCOMES}

    def ask(self, question: Question) -> AskedQuestion:
        small: list[Sample] = []
        left_out = 0
        for sample in question.samples:
            if len(pickle.dumps(sample)) <= SAMPLE_BYTES_MAX:
                small.append(sample)
            else:
                left_out += question.size(sample)
        question = question._replace(samples=tuple(small))
        size = sum(map(question.size, small))
        asked = AskedQuestion(pickle.dumps(question), size, left_out, len(self._waiting))
        if not small:
            self._answer(asked, Opinion())
        elif self._bytes + len(asked.content) > self._waiting_bytes_max:
            self._answer(asked, Opinion(left_out=size))
        else:
            self._waiting.append(asked)
            self._bytes += len(asked.content)
            self._asked.set()
        return asked

    async def run(self) -> None:
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                while self._waiting:
                    asked = self._waiting.popleft()
                    self._bytes -= len(asked.content)
                    if not asked.is_cancelled:
                        self._answer(asked, await self._opinion(asked))
        finally:
            if self._workers is not None:
                await self._workers.stop()

    async def _opinion(self, asked: AskedQuestion) -> Opinion:
        from pvbus.controlplane.apiserver.hooks import (
            StatusError,
        )  # only who is asked needs the server's parts
        from pvbus.controlplane.apiserver.workers import Workers

        if self._workers is None:
            self._workers = Workers(
                self._seconds_max, MEMORY_BYTES, work=self._work, idle_seconds=self._idle_seconds
            )
        try:
            return Opinion(*await self._workers.run("opinion", asked.content))
        except (
            StatusError,
            RuntimeError,
            ValueError,
        ) as exc:  # it hung, died or has a bug: the set needs none
            self._log.warning("a second opinion is left out", error=str(exc))
            return Opinion(left_out=asked.size)

    def _answer(self, asked: AskedQuestion, opinion: Opinion) -> None:
        asked.opinion = opinion = opinion.plus(Opinion(left_out=asked.left_out))
        asked.content = b""
        for word, number in zip(OUTCOMES, opinion[:4], strict=True):
            self._outcomes[word].inc(number)
