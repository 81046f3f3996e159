"""A thousand proposed revisions in waves of 1, 5, 25 and 100 %, by the real promote and rollout.

Both get the rows that ingest makes of the objects. Release is played: it publishes what is ordered, in any
order, and the programs that report on a revision are late.
"""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Create, Get, Outcome, Update
from pvbus.core.kernel.keys import PROPOSED_CONTENT, sync_key
from pvbus.core.kernel.objectrows import (
    POLICY,
    QUARANTINE,
    REVISION,
    SPECIALIZER,
    STOP,
    VARIANT,
    rows_of,
    topics_of,
)
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, ReleaseRow
from pvbus.core.kernel.records import (
    APPROVALS,
    CANDIDATES,
    OBJECTS,
    POLICIES,
    PROMOTIONS,
    RELEASES,
    ROLLOUTS,
    VARIANTS,
    SyncMarker,
)
from pvbus.core.promotion.promote.controller import PromoteController
from pvbus.core.promotion.rollout.controller import RolloutController
from tests.kit.deciding import drive
from tests.unit.core.promotion.promoting import NOW, Object, draft, variant

COUNT, IN_FLIGHT_MAX, HOLD_SECONDS = 1000, 60, 600.0
CANARIES = ("v-0990", "v-0500", "v-0007")
WAVES = {1: 10, 2: 40, 3: 200, 4: 750}
HEALTHY = "Healthy"
KEY = "default/fleet"
SPEC: dict[str, Any] = {
    "revisions": {"all": True},
    "approval": "Always",
    "settle": "10s",
    "canaries": list(CANARIES),
    "order": [{"label": "stage", "values": ["test", "production"]}],
    "conditions": [HEALTHY],
    "waves": [
        {"percent": 1, "hold": "10m"},
        {"percent": 5, "hold": "10m"},
        {"percent": 25, "hold": "10m"},
        {"percent": 100},
    ],
    "budgets": {"maxInFlight": IN_FLIGHT_MAX, "maxFailing": 0},
}
ROW_BYTES_MAX, POLICY_BYTES_MAX = 1_000, 8_000
"""Of any row of promote and rollout, and of the policy with its status: none grows with the fleet."""


class Fleet:
    """approved: (target, wave) of each approval, in order. at: when each was proven or not, in seconds."""

    def __init__(self) -> None:
        self.now, self.random = NOW, random.Random(1)
        self.policy: Object = {
            "apiVersion": "promotion.pvbus.dev/v1alpha1",
            "kind": "RolloutPolicy",
            "metadata": {"name": "fleet", "namespace": "default", "uid": "uid-p", "generation": 1},
            "spec": SPEC,
        }
        self.promote, self.rollout = PromoteController(partitions=1), RolloutController(keeps_specs=False)
        self.orders: dict[str, ApprovalRow] = {}
        self.approved: list[tuple[str, int]] = []
        self.began: dict[int, float] = {}
        self.proven: dict[str, float] = {}
        self.in_flight: set[str] = set()
        self.targets: dict[str, Any] = {}
        self.revisions: dict[str, Object] = {}
        self.variants: dict[str, Object] = {}
        self.due: float | None = None
        self.quarantine: Object | None = None
        for controller in (self.promote, self.rollout):
            controller.open(0)
        for kind in (VARIANT, REVISION, SPECIALIZER, POLICY, QUARANTINE, STOP):
            for topic in (OBJECTS, VARIANTS, POLICIES):
                self._tell(topic, sync_key(*kind), encode_row(SyncMarker(state="ok", epoch=1)))
        self._observe(POLICY, self.policy)
        for number in range(COUNT):
            self._make(f"v-{number:04}", "production" if number % 2 else "test")

    def _make(self, name: str, stage: str) -> None:
        of = variant(name=name, uid=f"uid-{name}", labels={"stage": stage})
        of["status"]["downstreamTargets"] = [{"name": f"edge.{name}.w1"}]
        owner = {"apiVersion": of["apiVersion"], "kind": "PackageVariant", "name": name, "uid": f"uid-{name}"}
        revision = draft(
            lifecycle="Proposed",
            name=f"edge.{name}.w1",
            uid=f"uid-r-{name}",
            annotations={PROPOSED_CONTENT: f"content of {name}"},
            ownerReferences=[owner],
        )
        revision["spec"]["packageName"] = name
        self.revisions[name], self.variants[name] = revision, of
        self._observe(VARIANT, of)
        self._observe(REVISION, revision)
        self._decide(name)

    def _observe(self, kind: Any, obj: Object) -> None:
        for row in rows_of(kind, obj, topics_of(kind, requested=False)):
            self._tell(row.topic, row.key, row.value)

    def _tell(self, topic: str, key: str, value: bytes | None) -> None:
        for controller in (self.promote, self.rollout):
            if topic in (*controller.inputs, *controller.broadcast):
                list(controller.load(topic, 0, key, value))

    def _decide(self, name: str) -> None:
        """Let promote decide on a variant."""
        for put in self._run(self.promote, f"default/{name}").puts:
            value = encode_row(put.row)
            if put.topic == PROMOTIONS:
                list(self.promote.store(0, put))
            elif put.topic == CANDIDATES:
                assert value is not None
                assert len(value) <= ROW_BYTES_MAX
                self._tell(CANDIDATES, put.key, value)

    def _run(self, controller: Any, key: str) -> Outcome:
        outcome: Outcome = drive(controller.reconcile(0, key, self.now), self._perform)
        return outcome

    def _perform(self, effect: Any) -> Object | None:
        if isinstance(effect, Get | Create):
            return self._quarantine(effect)
        assert isinstance(effect, Update)
        assert effect.subresource == "status", "all content is noted: nothing is read"
        self.policy = {**self.policy, "status": effect.object["status"]}
        assert len(msgspec.json.encode(self.policy)) <= POLICY_BYTES_MAX
        return self.policy

    def _quarantine(self, effect: Get | Create) -> Object | None:
        assert effect.kind.kind == "Quarantine", "all content is noted: nothing is read"
        if isinstance(effect, Create):
            self.quarantine = effect.object
        return self.quarantine

    def isolate(self) -> None:
        """Let promote decide on what is quarantined now."""
        assert self.quarantine is not None
        self._observe(QUARANTINE, self.quarantine)
        for content in self.quarantine["spec"]["contents"]:
            self._decide(content.removeprefix("content of "))

    def step(self) -> None:
        """Let the rollout take its steps of this moment, and judge what it orders."""
        while True:
            before = self.quarantine
            outcome = self._run(self.rollout, KEY)
            self.due = outcome.again_after
            if self.quarantine is not before:
                self.isolate()
            for put in outcome.puts:
                assert len(encode_row(put.row) or b"") <= ROW_BYTES_MAX
                if put.topic == ROLLOUTS:
                    list(self.rollout.store(0, put))
                    if "|" in put.key:
                        self.targets[put.key.partition("|")[2]] = put.row
            for put in outcome.puts:
                if put.topic == APPROVALS:
                    self._ordered(put.key.partition("|")[0].partition("/")[2], put.row)
            if not outcome.puts:
                return

    def _ordered(self, name: str, order: Any) -> None:
        if order is None:
            del self.orders[name]
            return
        assert (order.order, order.digest) == ("approve", f"content of {name}")
        wave = self.targets[name].wave
        before = [self.proven[each] for each, of in self.approved if of < wave]
        assert len(before) == sum(size for of, size in WAVES.items() if of < wave), "a wave began early"
        assert not before or self.now >= max(before) + HOLD_SECONDS, "a hold time was too short"
        assert name not in {each for each, _ in self.approved}, f"{name} is approved again"
        self.in_flight.add(name)
        assert len(self.in_flight) <= IN_FLIGHT_MAX, "too many are in flight"
        self.began.setdefault(wave, self.now)
        self.approved.append((name, wave))
        self.orders[name] = order

    def publish(self) -> None:
        """Carry out what is ordered, in any order."""
        for name in self.random.sample(sorted(self.orders), len(self.orders)):
            revision = self.revisions[name]
            revision["spec"] |= {"lifecycle": "Published", "revision": 1}
            self._observe(REVISION, revision)
            self._tell(RELEASES, f"default/{name}", encode_row(self._released(name, revision)))
            self._decide(name)

    def _released(self, name: str, revision: Object) -> ReleaseRow:
        order = self.orders[name]
        done = Approval(
            policy="fleet",
            attempt=order.attempt,
            order="approve",
            revision=revision["metadata"]["name"],
            digest=order.digest,
            outcome="done",
        )
        return ReleaseRow(uid=f"uid-{name}", approvals=(done,))

    def report(self, names: Iterable[str], *, is_bad: bool = False) -> None:
        """Report on published revisions, as conditions of their variants that name them."""
        for name in names:
            of, revision = self.variants[name], self.revisions[name]["metadata"]["name"]
            condition = {"type": HEALTHY, "status": "False" if is_bad else "True", "message": revision}
            others = [each for each in of["status"].get("conditions") or () if each["type"] != HEALTHY]
            of["status"]["conditions"] = [*others, condition]
            self._observe(VARIANT, of)
            self._decide(name)
            self.in_flight.discard(name)
            self.proven[name] = self.now

    def wait(self, seconds: float = 1.0) -> None:
        self.now += seconds if self.due is None else max(seconds, self.due)

    @property
    def phase(self) -> str:
        return str(self.policy.get("status", {}).get("phase"))

    def go(self, *, bad: str = "") -> None:
        """Go on until nothing is left to do. bad: a target that turns out bad."""
        for _ in range(1_000):
            self.step()
            flying = sorted(self.in_flight)
            if not flying and self.phase in ("Completed", "Stopped"):
                return
            self.publish()
            self.step()
            self.wait()
            some = self.random.sample(flying, min(len(flying), 40))
            self.report([each for each in some if each != bad])
            if bad in some:
                self.report([bad], is_bad=True)
            self.step()
            self.wait()
        raise AssertionError(f"no end: {self.phase}, {len(self.approved)} are approved")


def test_a_thousand_proposals_are_approved_in_four_waves_with_the_canaries_first() -> None:
    fleet = Fleet()
    fleet.go()
    assert Counter(wave for _, wave in fleet.approved) == WAVES
    names = [name for name, _ in fleet.approved]
    assert tuple(names[:3]) == CANARIES
    others = [name for name in sorted(fleet.revisions) if name not in CANARIES]
    stages = [[each for each in others if int(each[2:]) % 2 == odd] for odd in (0, 1)]
    assert names[3:] == [*stages[0], *stages[1]], "test before production, by name"
    assert (fleet.phase, len(fleet.proven)) == ("Completed", COUNT)
    assert fleet.policy["status"]["targets"]["proven"] == COUNT
    assert sorted(fleet.began) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("wave", [1, 3])
def test_a_bad_target_stops_a_thousand_in_its_wave(wave: int) -> None:
    """Nothing is ordered after it is known; what a person resumes goes on to the end, each approved once. It
    waits until the quarantine has ended, too."""
    fleet = Fleet()
    bad = CANARIES[1] if wave == 1 else "v-0222"
    fleet.go(bad=bad)
    assert fleet.phase == "Stopped"
    assert max(of for _, of in fleet.approved) == wave
    assert dict(fleet.approved)[bad] == wave
    before = len(fleet.approved)
    fleet.wait(10_000)
    fleet.step()
    assert (len(fleet.approved), fleet.orders) == (before, {})
    fleet.policy["metadata"]["annotations"] = {"promotion.pvbus.dev/resume": "1.1"}
    fleet._observe(POLICY, fleet.policy)
    fleet.wait()
    fleet.step()
    assert (fleet.phase, len(fleet.approved)) == ("Stopped", before)
    assert fleet.quarantine is not None
    fleet.quarantine["spec"]["released"] = {"reason": "the report was false"}
    fleet.isolate()
    fleet.wait()
    fleet.go()
    assert (fleet.phase, len(fleet.approved)) == ("Completed", COUNT)
