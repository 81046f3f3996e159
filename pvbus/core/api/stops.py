"""RolloutStop of the group `promotion.pvbus.dev`: keeps all rollouts of an installation from going on.

Same rules as `pvbus.core.api.variants`: frozen Structs, unknown fields ignored. What a stop holds back is
decided in `pvbus.core.promotion.protocol.stops`.
"""

from collections.abc import Mapping

from pvbus.core.api.promotion import PROMOTION_API
from pvbus.core.api.variants import ApiStruct, Condition, ObjectMeta

STOPPED = "Stopped"
"""The condition type of a stop in its events."""


class StopLift(ApiStruct, frozen=True, kw_only=True):
    """The end of an entry. by: "" if the user is not known. at: RFC 3339 in UTC."""

    reason: str = ""
    by: str = ""
    at: str = ""


class StopEntry(ApiStruct, frozen=True, kw_only=True):
    """What one person wants. name: unique in its object. by, at: as in `StopLift`. let_roll_backs: whether
    rollbacks go on. lifted: None while it lasts."""

    name: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""
    let_roll_backs: bool = False
    lifted: StopLift | None = None


class RolloutStopSpec(ApiStruct, frozen=True, kw_only=True):
    """entries: it lasts while one of them does."""

    entries: tuple[StopEntry, ...] = ()

    @property
    def lasting(self) -> tuple[StopEntry, ...]:
        return tuple(each for each in self.entries if each.lifted is None)


class RolloutStopStatus(ApiStruct, frozen=True, kw_only=True):
    """partitions: how many have to confirm. confirmed: number of a partition -> the last generation that the
    release of it follows."""

    partitions: int = 0
    confirmed: Mapping[str, int] = {}


class RolloutStop(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PROMOTION_API
    kind: str = "RolloutStop"
    metadata: ObjectMeta = ObjectMeta()
    spec: RolloutStopSpec = RolloutStopSpec()
    status: RolloutStopStatus = RolloutStopStatus()


def words_of(entry: StopEntry) -> str:
    """Say who wants a stop, why, and since when."""
    return f"{entry.by or 'somebody'}{entry.at and f' at {entry.at}'}: {entry.reason}"


def condition_of(spec: RolloutStopSpec) -> Condition:
    """Return the condition of a stop, of which each change is an event."""
    if spec.lasting:
        return Condition(
            type=STOPPED,
            status="True",
            reason="FleetStopped",
            message="; ".join(map(words_of, spec.lasting)),
        )
    lifts = (each.lifted for each in spec.entries if each.lifted is not None)
    message = "; ".join(
        f"{each.by or 'somebody'}{each.at and f' at {each.at}'}: {each.reason}" for each in lifts
    )
    return Condition(type=STOPPED, status="False", reason="Lifted", message=message)
