"""A small fleet around the rollout machine, driven step by step."""

from typing import Self

from pvbus.core.api.quarantines import QuarantineSpec
from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    Answers,
    Commands,
    Evidence,
    Isolate,
    Isolated,
    Rollout,
    Sighting,
    Step,
    Target,
    TargetFacts,
)
from pvbus.core.promotion.protocol.machine import step
from pvbus.core.promotion.protocol.rules import Rules, WaveRules

NOW = 1_000_000.0
TWO = (WaveRules(percent=0, number=1), WaveRules())


class Fleet:
    """Drives the machine: tests change `seen`, `evidence` and `commands`, and call `go`.

    quarantines: what it had quarantined, by its number. is_lasting: whether they cover anything: without, a
    person ends each at once. refusal: why the API server takes none, None for no answer.
    """

    def __init__(self, rules: Rules = Rules(TWO), targets: int = 3) -> None:  # noqa: B008 - immutable
        self.rules = rules
        self.seen = {f"t{i}": TargetFacts("v2", f"d{i}", True, "v1", f"old{i}") for i in range(targets)}
        self.evidence: dict[str, Evidence] = {}
        self.commands: Commands = NO_COMMANDS
        self.answers: Answers | None = None
        self.words: dict[str, str] = {}
        self.sightings: dict[str, Sighting] = {}
        self.now = NOW
        self.rollout, self.rows = Rollout(), dict[str, Target]()
        self.quarantines: dict[int, QuarantineSpec] = {}
        self.is_lasting = False
        self.refusal: str | None = ""
        self.isolated: Isolated | None = None
        self.taken: Step

    def go(self, seconds: float = 0) -> Self:
        """Let time pass, and take a step; then as many as the quarantines need."""
        self.now += seconds
        self._step()
        while (isolated := self._isolate()) is not None and isolated != self.isolated:
            self.isolated = isolated
            self._step()
        return self

    def _isolate(self) -> Isolated | None:
        """Write what is to be quarantined, unless it is there."""
        action = next((each for each in self.taken.actions if isinstance(each, Isolate)), None)
        if action is None or self.refusal is None:
            return None
        if not self.refusal:
            self.quarantines.setdefault(action.number, action.spec)
            self.cover(*self.quarantines.values())
        return Isolated(action.attempt, action.number, is_lasting=self.is_lasting, refusal=self.refusal)

    def cover(self, *specs: QuarantineSpec) -> Self:
        """Let every target see which quarantines last."""
        lasting = specs if self.is_lasting else ()
        sources = {each.revision for spec in lasting for each in spec.upstreams}
        contents = {each for spec in lasting for each in spec.contents}
        banned = tuple(("q", *each.upstreams) for spec in lasting for each in spec.combinations)
        for target, facts in self.seen.items():
            is_open = facts.source in sources or facts.digest in contents
            is_run = facts.published_source in sources or facts.published_digest in contents
            was_open = facts.is_quarantined and facts.revision != facts.published
            is_proposed = not is_open and (facts.is_proposed or was_open)
            self.seen[target] = facts._replace(
                is_quarantined=is_open,
                is_proposed=is_proposed,
                runs="q" if is_run else "",
                banned=banned,
            )
        return self

    def _step(self) -> None:
        self.taken = step(
            self.rules,
            self.rollout,
            self.rows,
            self.seen,
            self.evidence,
            now=self.now,
            answers=self.answers,
            isolated=self.isolated,
            commands=self.commands,
            words=self.words,
            sightings=self.sightings,
        )
        self.rollout = self.taken.rollout
        for target, row in self.taken.rows.items():
            if row is None:
                del self.rows[target]
            else:
                self.rows[target] = row

    def publish(self, *targets: str, good: bool | None = True) -> Self:
        """Publish what is proposed. good: what its evidence says, None for no evidence yet."""
        for target in targets:
            facts = self.seen[target]
            self.seen[target] = facts._replace(
                is_proposed=False,
                is_current=True,
                published=facts.revision,
                published_digest=facts.digest,
                published_source=facts.source,
            )
            if good is not None:
                self.evidence[target] = Evidence(facts.revision, facts.digest, self.rollout.attempt, good)
        return self.go()

    def change(self, target: str, **fields: object) -> Self:
        self.seen[target] = self.seen[target]._replace(**fields)  # type: ignore[arg-type]  # of any field
        return self.go()

    def command(self, **fields: object) -> Self:
        self.commands = self.commands._replace(**fields)  # type: ignore[arg-type]  # of any field
        return self.go()

    def answer(self, *verdicts: bool | None, words: tuple[str, ...] = ()) -> Self:
        rollout = self.rollout
        self.answers = Answers(rollout.attempt, rollout.wave, rollout.ask, verdicts, words)
        return self.go()

    @property
    def states(self) -> str:
        return " ".join(row.state.value for _, row in sorted(self.rows.items()))

    def ordered(self, kind: type) -> list[str]:
        return [
            str(getattr(action, "target", "")) for action in self.taken.actions if isinstance(action, kind)
        ]
