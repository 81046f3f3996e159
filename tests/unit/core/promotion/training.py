"""A fleet of sites with the members of a train, driven step by step. Member a is before b."""

from typing import Self

from pvbus.core.kernel.rolloutrows import Evidence, TargetFacts
from pvbus.core.promotion.protocol.rules import Rules, TrainRules, WaveRules
from tests.unit.core.promotion.stepping import TWO, Fleet

TRAIN = TrainRules(("a", "b"), partial_seconds=600)
IN_ORDER = Rules(TWO, train=TRAIN)
TOGETHER = IN_ORDER._replace(train=TRAIN._replace(is_together=True))
BACK = IN_ORDER._replace(rolls_back=True)
COMBINATION = ("p/a@v2", "p/b@v2")
FORMER = ("p/a@v1", "p/b@v1")
ALL = (WaveRules(),)


def proposed(member: str, site: int) -> TargetFacts:
    """Return the facts of a member that runs v1, and has v2 proposed."""
    return TargetFacts(
        "v2",
        f"{member}2-{site}",
        True,
        "v1",
        f"{member}1-{site}",
        upstream=f"p/{member}@v2",
        source=f"p/{member}@v2",
        published_source=f"p/{member}@v1",
        unit=f"e{site}/a+b",
        part="ab".index(member) + 1,
    )


class TrainFleet(Fleet):
    """Places with the variants `a-PLACE` and `b-PLACE`, each with a proposal."""

    def __init__(self, rules: Rules = IN_ORDER, sites: int = 3) -> None:
        super().__init__(rules, 0)
        self.seen = {f"{member}-{site}": proposed(member, site) for site in range(sites) for member in "ab"}
        self.is_lasting = True

    def settle_member(self, target: str, *, good: bool = True) -> Self:
        """Let a member run v1 and want nothing else."""
        facts = self.seen[target]
        self.seen[target] = facts._replace(
            revision="",
            digest="",
            is_proposed=False,
            is_current=True,
            source="",
            upstream=facts.published_source,
        )
        if good:
            self.evidence[target] = Evidence(
                facts.published, facts.published_digest, self.rollout.attempt, True
            )
        return self

    def prove(self, *targets: str, good: bool = True) -> Self:
        """Say of what targets run whether it is good, in this attempt."""
        for target in targets:
            facts = self.seen[target]
            self.evidence[target] = Evidence(
                facts.published, facts.published_digest, self.rollout.attempt, good
            )
        self.go()
        return self

    def states_at(self, site: int) -> str:
        return " ".join(
            self.rows[f"{member}-{site}"].state.value for member in "ab" if f"{member}-{site}" in self.rows
        )
