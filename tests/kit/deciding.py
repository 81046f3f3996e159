"""The kit of tests of one decider: runs its decisions effect by effect, over rows that the test holds.

`drive` runs one decision, and answers its effects as the test says; `drive_live` does so where an answer is
awaited. `Partition` has the rows of a bus and the controllers that read them: it loads, runs and commits.
What is special of a service (its objects, its words for them) is in the world beside its tests.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Outcome
from pvbus.core.kernel.topics import TOPICS
from pvbus.runtime.preview.locking import drive as drive_to_end

PARTITION = 0
PRODUCERS = {topic.name: topic.producers for topic in TOPICS}
Result = TypeVar("Result")


class CrashedError(Exception):
    """The process ends here."""


async def drive_live(
    steps: Generator[Any, Any, Result],
    perform: Callable[[Any], Awaitable[Any]],
    *,
    crash_after: int | None = None,
) -> Result:
    """Run a decision to its end, and return what it returns.

    perform: answers an effect; an error of ours that it raises is raised in the decision
    crash_after: how many effects are done when the process ends, before anything is committed

    Raises CrashedError at the next effect, or before the result would be committed.
    """
    done = 0

    async def performed(effect: Any) -> Any:
        nonlocal done
        if done == crash_after:
            raise CrashedError
        done += 1
        return await perform(effect)

    result = await drive_to_end(steps, performed)
    if done == crash_after:
        raise CrashedError
    return result


def drive(
    steps: Generator[Any, Any, Result], perform: Callable[[Any], Any], *, crash_after: int | None = None
) -> Result:
    """Run a decision whose effects are answered at once. See `drive_live`."""

    async def performed(effect: Any) -> Any:
        return perform(effect)

    return at_once(drive_live(steps, performed, crash_after=crash_after))


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work that waits for nothing: a loop for each would take most of the time."""
    try:
        work.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("the work has waited")


class Partition:
    """Partition 0 of every topic: the rows on it, and the controllers that hold its lease.

    rows: (topic, key) -> what is on the bus
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], bytes] = {}
        self.controllers: tuple[Any, ...] = ()

    def open(self, *controllers: Any) -> None:
        """Begin with new processes: they know what is on the bus, and nothing else."""
        self.controllers = controllers
        for controller in controllers:
            controller.open(PARTITION)
            for (topic, key), value in self.rows.items():
                if topic in (*controller.inputs, *controller.memory, *controller.broadcast):
                    controller.load(topic, PARTITION, key, value)

    def write(self, topic: str, key: str, row: Any) -> None:
        """Write a row, its bytes, or None for a tombstone; who reads the topic gets it."""
        value = row if isinstance(row, bytes) else encode_row(row)
        if value is None:
            self.rows.pop((topic, key), None)
        else:
            self.rows[topic, key] = value
        for controller in self.controllers:
            if topic in (*controller.inputs, *controller.broadcast):
                controller.load(topic, PARTITION, key, value)

    def decide(
        self,
        controller: Any,
        key: str,
        now: float,
        perform: Callable[[Any], Any],
        *,
        crash_after: int | None = None,
    ) -> Outcome:
        """Run one decision on a key, and commit it. Raises what the decision raises, and CrashedError."""
        outcome: Outcome = drive(controller.reconcile(PARTITION, key, now), perform, crash_after=crash_after)
        for put in outcome.puts:
            assert controller.name in PRODUCERS[put.topic]
            self.write(put.topic, put.key, put.row)
            controller.store(PARTITION, put)
        return outcome
