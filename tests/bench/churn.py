"""A rollout of 10,000 targets of which 1,000 leave, and 1,000 join, in the middle: the protocol alone.

Release is played: it carries out what is ordered, and evidence comes a step later. In each step some targets
are deleted, in whatever state they are, and as many are made. Those wait for the next attempt. A canary is
unproven for some steps in the middle.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator

from pvbus.core.kernel.rolloutrows import Approve, Evidence, Rollout, Target, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.machine import step
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.rollout.report import counts_of
from tests.bench.report import Row

NAME = "churn"
NOW, STEP_SECONDS, STEPS_MAX, CPU_GOAL = 1_000_000.0, 10.0, 5_000, 1.0
CANARIES = tuple(f"canary-{number}" for number in range(3))
WAVES = (WaveRules(1, hold_seconds=20), WaveRules(10), WaveRules(50), WaveRules())
REVISION, UPSTREAM = "v2", "blueprints/web@v2"
UNPROVEN_STEPS = range(30, 40)


class Churn:
    """A fleet around the machine. wrong: what should not have been.

    ordered: how often an approval of a target was ordered, each time in another attempt
    leavers, joiners: who is to be deleted and made in the next steps
    left: planned targets of the first attempt that are deleted
    """

    def __init__(self, count: int, changing: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._count = count
        self._in_a_step = max(1, changing // 40)
        names = [*CANARIES, *(f"t{number:05}" for number in range(count - len(CANARIES)))]
        self.leavers = self._random.sample(names[len(CANARIES) :], changing)
        self.joiners = [f"joiner-{number:05}" for number in range(changing)]
        self.rules = Rules(
            WAVES, settle_seconds=2 * STEP_SECONDS, canaries=CANARIES, in_flight_max=max(10, count // 50)
        )
        self.seen = {name: self._facts(name) for name in names}
        self.evidence: dict[str, Evidence] = {}
        self.rollout, self.rows = Rollout(), dict[str, Target]()
        self.ordered, self.left, self.wrong = Counter[str](), set[str](), list[str]()
        self._orders: set[tuple[str, int]] = set()
        self._published: list[str] = []
        self._steps, self._known = 0, dict[str, Evidence]()
        self.now = NOW

    def _facts(self, name: str) -> TargetFacts:
        return TargetFacts(REVISION, f"d-{name}", True, "v1", "old", upstream=UPSTREAM, source=UPSTREAM)

    def run(self) -> None:
        """Go on until nobody joins any more, and everybody has the revision."""
        for _ in range(STEPS_MAX):
            self._step()
            self._change()
            if self.rollout.state is RolloutState.COMPLETED:
                self.wrong += self._miscounted()
                if not self.joiners and all(facts.published == REVISION for facts in self.seen.values()):
                    return
        self.wrong.append(f"no end after {STEPS_MAX} steps: {self.rollout}")

    def _step(self) -> None:
        self.now += STEP_SECONDS
        self._steps += 1
        seen, self._known = {**self._withdrawn(), **self.seen}, dict(self.evidence)
        if self._steps in UNPROVEN_STEPS:
            self._known.pop(CANARIES[0], None)
        taken = step(self.rules, self.rollout, self.rows, seen, self._known, now=self.now)
        self.rollout = taken.rollout
        for target, row in taken.rows.items():
            if row is None:
                del self.rows[target]
            else:
                self.rows[target] = row
        self._prove()
        for action in taken.actions:
            if isinstance(action, Approve):
                self._approve(action)

    def _withdrawn(self) -> dict[str, TargetFacts]:
        """Let the orders of targets that are gone be confirmed as withdrawn, as those of the service are."""
        return {
            target: TargetFacts(withdrawn=row.attempt)
            for target, row in self.rows.items()
            if row.state in (TargetState.ORDERED, TargetState.CANCELLING)
        }

    def _approve(self, action: Approve) -> None:
        row, key = self.rows[action.target], (action.target, action.attempt)
        if key not in self._orders:
            self._orders.add(key)
            self.ordered[action.target] += 1
        is_canary = action.target in CANARIES
        if row.wave > 1 and not is_canary and not all(map(self._is_proven, CANARIES)):
            self.wrong.append(f"{action.target} goes before a canary")
        if self.seen[action.target].published == REVISION:
            self.wrong.append(f"{action.target} has it, and is ordered again")
        self.seen[action.target] = self.seen[action.target]._replace(
            is_proposed=False, is_current=True, published=REVISION, published_digest=row.digest
        )
        self._published.append(action.target)

    def _is_proven(self, canary: str) -> bool:
        known = self._known.get(canary)
        return known is not None and known.is_good is True

    def _prove(self) -> None:
        for target in self._published:
            if target in self.seen:
                row = self.rows[target]
                self.evidence[target] = Evidence(row.revision, row.digest, row.attempt, True)
        self._published = []

    def _change(self) -> None:
        """Delete some targets and make others, once an attempt goes on."""
        if self.rollout.attempt == 0:
            return
        for _ in range(min(self._in_a_step, len(self.leavers))):
            target = self.leavers.pop()
            del self.seen[target]
            self.evidence.pop(target, None)
            if self.rows[target].attempt == self.rollout.attempt == 1:
                self.left.add(target)
        for _ in range(min(self._in_a_step, len(self.joiners))):
            name = self.joiners.pop()
            self.seen[name] = self._facts(name)

    def _miscounted(self) -> Iterator[str]:
        """Yield what is wrong with the counts of the attempt that is over."""
        counts = counts_of(self.rollout, self.rows.values())
        if self.rollout.attempt == 1 and counts.total != self._count:
            yield f"{counts.total} targets are counted, {self._count} were planned"
        current = [row for row in self.rows.values() if row.attempt == self.rollout.attempt]
        gone = {row.target for row in current if row.state in (TargetState.GONE, TargetState.LEFT)}
        if self.rollout.attempt == 1 and gone != self.left:
            yield f"{sorted(gone ^ self.left)[:3]} are counted as left or not, and it is the other way round"
        if counts.proven + counts.left != counts.total:
            yield f"{counts} do not add up"
        if self.rollout.attempt == 1 and counts.left != len(gone):
            yield f"{counts.left} are counted as left, {len(gone)} have"


async def churn(*, small: bool) -> list[Row]:
    """CPU of the protocol per target, and whether anybody was skipped, ordered twice, or miscounted."""
    count, changing = (600, 60) if small else (10_000, 1_000)
    fleet = Churn(count, changing)
    began = time.process_time()
    fleet.run()
    cpu = 1000 * (time.process_time() - began) / count
    what = f"rollout of {count:,} of which {changing:,} leave and {changing:,} join"
    twice = sum(number - 1 for number in fleet.ordered.values())
    return [
        Row(NAME, f"{what}: attempts", fleet.rollout.attempt, "attempts"),
        Row(NAME, "orders that were given twice", twice, "approvals", 0, "equal"),
        Row(NAME, "canaries skipped, targets miscounted", len(fleet.wrong), "targets", 0, "equal"),
        Row(NAME, "protocol: CPU per target", cpu, "ms", CPU_GOAL, "less"),
    ]
