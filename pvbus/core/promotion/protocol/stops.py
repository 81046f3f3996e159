"""What a fleet-wide stop holds back, and the table of all stops. Pure.

Each RolloutStop that pvbus sees holds all its rollouts, whichever namespace it is in, while one of its
entries lasts. Where a stop may exist that is not seen, nothing goes on either.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pvbus.core.api.stops import RolloutStop, words_of
from pvbus.core.kernel.keys import STOP_PREFIX, Key
from pvbus.core.kernel.markers import NOT_SERVED, SyncView, is_marker, marker_kind
from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.objectrows import STOP
from pvbus.core.kernel.rolloutrows import Commands
from pvbus.core.kernel.rolloutstates import RolloutState

FLEET_STOPPED = "FleetStopped"
STOP_UNKNOWN = "StopUnknown"
MESSAGE_CHARACTERS_MAX = 1_500
UNDOING = (RolloutState.ISOLATING, RolloutState.ROLLING_BACK)
_KIND = str(STOP)
_stop = msgspec.json.Decoder(RolloutStop)


class Standstill(NamedTuple):
    """Whether rollouts stand still.

    reason: why, as a word, "" if they do not
    message: who wants it and why, or what is not known, with what to do
    lets_roll_backs: whether rollbacks go on
    """

    reason: str = ""
    message: str = ""
    lets_roll_backs: bool = False

    def holds(self, *, is_rollback: bool) -> bool:
        return bool(self.reason) and not (is_rollback and self.lets_roll_backs)

    def obeyed(self, commands: Commands, state: RolloutState) -> Commands:
        """Return the commands for a rollout in this state: one that stands still is paused."""
        return commands._replace(paused=True) if self.holds(is_rollback=state in UNDOING) else commands


MOVING = Standstill()


def concerns_stops(key: str) -> bool:
    """Tell whether a key of `pvbus.policies` is that of a RolloutStop, or of their marker."""
    return key.startswith(STOP_PREFIX) or (is_marker(key) and marker_kind(key) == _KIND)


def standstill_of(stops: Iterable[RolloutStop]) -> Standstill:
    """Return what these stops come to. A rollback goes on if every lasting entry lets it."""
    lasting = [(stop.metadata, entry) for stop in stops for entry in stop.spec.lasting]
    if not lasting:
        return MOVING
    words = [
        f"{words_of(entry)} (pvbus rollout lift {Key(meta.namespace, meta.name)} {entry.name} --reason TEXT)"
        for meta, entry in lasting
    ]
    message = cut(f"all rollouts are stopped: {SEPARATOR.join(words)}", MESSAGE_CHARACTERS_MAX)
    return Standstill(FLEET_STOPPED, message, all(entry.let_roll_backs for _, entry in lasting))


class StopView:
    """All RolloutStops that pvbus sees, and whether there may be others."""

    def __init__(self, partitions: int) -> None:
        """partitions: how many partitions of the topic the reader sees."""
        self._sync = SyncView(partitions)
        self._stops: dict[str, RolloutStop] = {}
        self.standstill = self._decide()

    def load(self, partition: int, key: str, value: bytes | None) -> bool:
        """Apply a record that concerns stops; return whether rollouts stand otherwise than before."""
        if is_marker(key):
            self._sync.load(partition, key, value)
        elif value is None:
            self._stops.pop(key, None)
        else:
            self._stops[key] = _stop.decode(value)
        before, self.standstill = self.standstill, self._decide()
        return before != self.standstill

    def stops(self) -> list[RolloutStop]:
        return [self._stops[key] for key in sorted(self._stops)]

    def _decide(self) -> Standstill:
        known = standstill_of(self.stops())
        unlisted = self._unlisted()
        if not unlisted:
            return known
        return known if known.reason and not known.lets_roll_backs else Standstill(STOP_UNKNOWN, unlisted)

    def _unlisted(self) -> str:
        """Return why a stop may exist that is not seen, "" if none does."""
        marker = self._sync.marker(_KIND)
        if marker is None or marker.state not in ("ok", "unavailable"):
            return "it is not known whether a person has stopped all rollouts: their stops are being listed"
        if marker.state == "ok" and not marker.coverage.refused:
            return ""
        if marker.message.startswith(NOT_SERVED):
            why = "the API server does not serve the kind RolloutStop: apply its definition"
        else:
            why = marker.message or "; ".join(each.message for each in marker.coverage.refused)
            why = f"RolloutStops cannot be listed ({why}): pvbus doctor says what is missing"
        return cut(
            f"it is not known whether a person has stopped all rollouts: {why}", MESSAGE_CHARACTERS_MAX
        )
