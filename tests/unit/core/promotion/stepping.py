"""A small fleet around the rollout machine, driven step by step."""

from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    Answers,
    Commands,
    Evidence,
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
    """Drives the machine: tests change `seen`, `evidence` and `commands`, and call `go`."""

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
        self.taken: Step

    def go(self, seconds: float = 0) -> "Fleet":
        self.now += seconds
        self.taken = step(
            self.rules,
            self.rollout,
            self.rows,
            self.seen,
            self.evidence,
            now=self.now,
            answers=self.answers,
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
        return self

    def publish(self, *targets: str, good: bool | None = True) -> "Fleet":
        """Publish what is proposed. good: what its evidence says, None for no evidence yet."""
        for target in targets:
            facts = self.seen[target]
            self.seen[target] = facts._replace(
                is_proposed=False,
                is_current=True,
                published=facts.revision,
                published_digest=facts.digest,
            )
            if good is not None:
                self.evidence[target] = Evidence(facts.revision, facts.digest, self.rollout.attempt, good)
        return self.go()

    def change(self, target: str, **fields: object) -> "Fleet":
        self.seen[target] = self.seen[target]._replace(**fields)  # type: ignore[arg-type]  # of any field
        return self.go()

    def command(self, **fields: object) -> "Fleet":
        self.commands = self.commands._replace(**fields)  # type: ignore[arg-type]  # of any field
        return self.go()

    def answer(self, *verdicts: bool | None, words: tuple[str, ...] = ()) -> "Fleet":
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
