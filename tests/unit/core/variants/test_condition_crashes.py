"""No transition is lost: a worker of the service conditions may die before and after every single effect."""

from itertools import product
from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.records import CONDITIONS, LATEST, RESULTS, VARIANTS, ResultRow
from pvbus.core.variants.conditions.controller import ConditionsController
from tests.kit.deciding import CrashedError
from tests.simulation.parts import VARIANT, obj

KEY = "PackageVariant|default/v"
POINTS = 7
"""Before the step with the event, after it, before the status write, after it, before the last step, after
it; the last number is none of them."""
Transition = tuple[str, str, str | None]
"""Status, reason and time of the condition Ready."""


class ConditionWorld:
    """The API server, the bus, and one worker at a time."""

    def __init__(self) -> None:
        self.object = obj(VARIANT, "v", spec={})
        self.latest: dict[str, bytes] = {}
        self.events: list[ConditionEvent] = []
        self.written: list[Transition] = []
        self.result = b""
        self.now = 1_000.0
        self.left: int | None = None

    def start(self) -> None:
        self.controller = ConditionsController(source="/test", partitions=1)
        self.controller.open(0)
        for key, value in self.latest.items():
            self.controller.load(LATEST, 0, key, value)
        self.see()
        self.controller.load(RESULTS, 0, "default/v", self.result)

    def see(self) -> None:
        self.controller.load(VARIANTS, 0, "default/v", msgspec.json.encode(self.object))

    def change(self, status: str, reason: str) -> None:
        ready = Condition(type="Ready", status=status, reason=reason, observed_generation=1)
        self.result = encode_row(ResultRow(uid="uid-v", generation=1, conditions=(ready,))) or b""

    def run(self) -> None:
        """Reconcile until nothing is left to do."""
        dirty = True
        while dirty:
            steps, dirty, answer = self.controller.reconcile(0, KEY, self.now), False, None
            try:
                while True:
                    effect: Any = steps.send(answer)
                    self._may_crash()
                    self.object = answer = effect.object
                    condition = answer["status"]["conditions"][0]
                    self.written.append(
                        (condition["status"], condition["reason"], condition["lastTransitionTime"])
                    )
                    self._may_crash()
            except StopIteration as end:
                self._may_crash()
                for put in end.value.puts:
                    if put.topic == CONDITIONS:
                        self.events.append(put.row)
                    elif put.row is None:
                        self.latest.pop(put.key, None)
                    else:
                        self.latest[put.key] = encode_row(put.row) or b""
                self._may_crash()
                dirty = any(KEY in self.controller.store(0, put) for put in end.value.puts)

    def _may_crash(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise CrashedError


def is_subsequence(short: list[Transition], long: list[Transition]) -> bool:
    rest = iter(long)
    return all(any(one == other for other in rest) for one in short)


@pytest.mark.parametrize("crashes", list(product(range(POINTS), repeat=3)), ids=str)
def test_every_transition_that_a_status_ever_had_was_published(crashes: tuple[int, ...]) -> None:
    """Three results that differ; the worker dies at one point of each, and the next worker, who may already
    find the next result, publishes the rest in order, each once, with its time."""
    world = ConditionWorld()
    for n, point in enumerate(crashes):
        world.change("True" if n % 2 else "False", f"Reason{n}")
        world.now += 60
        world.start()
        world.left = point
        try:
            world.run()
        except CrashedError:
            continue
        finally:
            world.left = None
    world.now += 60
    world.start()
    world.run()
    events = [
        (e.condition.status, e.condition.reason, e.condition.last_transition_time) for e in world.events
    ]
    assert is_subsequence(world.written, events), (world.written, events)
    assert world.written[-1] == events[-1] == ("False", "Reason2", events[-1][2])
    assert [e.previous for e in world.events] == ["", *(status for status, _, _ in events[:-1])]
    assert len({e.id for e in world.events}) == len(world.events)
    before = len(world.written), len(world.events)
    world.start()
    world.run()
    assert (len(world.written), len(world.events)) == before
