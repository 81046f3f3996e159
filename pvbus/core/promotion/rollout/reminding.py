"""Whom a rollout waits for that has no time limit, and how it reminds of that. Pure.

The condition `Waiting` of the policy is True while a person or release has to act, and says who, what for and
since when. Its message changes when the wait has lasted an hour, and then once a day, which is an event each
time, and no more than that is written. The times are in the status: no row grows, and any restart goes on.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import TargetState

WAITING = "Waiting"
FOR_PERSON = "WaitsForPerson"
FOR_RELEASE = "WaitsForRelease"
RELEASE_SECONDS = 300.0
"""Release carries an order out within seconds. Shorter, and a restart of it is reported; longer, and one that
is away is seen later."""
HOUR, DAY = 3_600, 86_400
SHOWN_MAX = 3
_ORDERED: Mapping[TargetState, str] = {
    TargetState.ORDERED: "approve",
    TargetState.CANCELLING: "take back",
    TargetState.UNDOING: "roll back",
}


_WAITED = re.compile(r"for (\d+) ([dh]): ")


class Awaited(Enum):
    """What has to happen before a rollout goes on. Only of a person it reminds."""

    ITSELF = "it goes on by itself"
    PERSON = "a person"
    TIME = "a time that comes by itself"
    CHANGE = "another change: nothing is to be done"


class Progress(NamedTuple):
    """What a rollout waits for, why as a word, and in a sentence."""

    awaited: Awaited
    reason: str
    message: str


class Wait(NamedTuple):
    """reason: of the condition. message: who has to do what. since: in seconds since 1970, None for what the
    status says."""

    reason: str
    message: str
    since: float | None = None


def wait_of(
    awaited: Awaited, going: Condition, rollout: Rollout, rows: Iterable[Target], now: float
) -> Wait | None:
    """Return whom a rollout waits for, None for nobody. going: its condition `Progressing`."""
    late = [row for row in _targets_of_release(rollout, rows) if now - row.ordered_at >= RELEASE_SECONDS]
    if late:
        ordered = sorted(late, key=lambda row: row.position)
        shown = SEPARATOR.join(f"{_ORDERED[row.state]} {row.target}" for row in ordered[:SHOWN_MAX])
        more = f" and {len(late) - SHOWN_MAX} more" if len(late) > SHOWN_MAX else ""
        what = f"release has to {shown}{more}; `pvbus lag release` and its log say what keeps it"
        return Wait(FOR_RELEASE, what, min(row.ordered_at for row in late))
    if awaited is Awaited.PERSON:
        return Wait(going.reason, f"a person has to act: {going.message}")
    return None


def _targets_of_release(rollout: Rollout, rows: Iterable[Target]) -> Iterator[Target]:
    """Yield the targets that release has to do something about."""
    for row in rows:
        if row.attempt == rollout.attempt and row.state in _ORDERED and row.ordered_at:
            yield row


def reminded(
    conditions: tuple[Condition, ...], wait: Wait | None, now: float, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions with `Waiting`, once anybody was waited for."""
    former = next((each for each in conditions if each.type == WAITING), None)
    others = tuple(each for each in conditions if each.type != WAITING)
    if wait is None:
        return (*others, _ended(former, now, generation)) if former is not None else others
    is_same = former is not None and (former.status, former.reason) == ("True", wait.reason)
    known = _since(former, now) if former is not None and is_same else None
    since = known or timestamp(wait.since if wait.since is not None else now)
    waited = words_for(now - seconds_of(since))
    condition = Condition(
        type=WAITING,
        status="True",
        reason=wait.reason,
        message=cut(f"{waited}{wait.message}"),
        observed_generation=generation,
        last_transition_time=since,
    )
    return (*others, condition)


def _since(former: Condition, now: float) -> str | None:
    """Return since when the same is waited for: at least as long as it says."""
    known = former.last_transition_time
    latest = now - said_seconds(former.message)
    return timestamp(latest) if known and seconds_of(known) > latest else known


def _ended(former: Condition, now: float, generation: int) -> Condition:
    since = former.last_transition_time if former.status == "False" else timestamp(now)
    done = replace(former, status="False", reason="NobodyWaitedFor", message="")
    return replace(done, last_transition_time=since, observed_generation=generation)


def words_for(seconds: float) -> str:
    """Say how long something was waited for, as of the last reminder; "" before the first."""
    if seconds < HOUR:
        return ""
    return f"for {int(seconds // DAY)} d: " if seconds >= DAY else "for 1 h: "


def said_seconds(message: str) -> float:
    """Return how long something was waited for, by the words of `words_for`; 0 without them."""
    said = _WAITED.match(message)
    return int(said[1]) * (DAY if said[2] == "d" else HOUR) if said is not None else 0.0


def seconds_of(time: str) -> float:
    """Return the time of a condition in seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def next_reminder(
    conditions: Iterable[Condition], rollout: Rollout, rows: Iterable[Target], now: float
) -> float:
    """Return when the status has to be looked at again for a reminder, in seconds since 1970; infinite for
    never. It is always ahead."""
    dues = [row.ordered_at + RELEASE_SECONDS for row in _targets_of_release(rollout, rows)]
    for each in conditions:
        if each.type == WAITING and each.status == "True" and each.last_transition_time:
            since = seconds_of(each.last_transition_time)
            days = max(0, int((now - since) // DAY))
            dues += [since + HOUR, since + (days + 1) * DAY]
    return min((due for due in dues if due > now), default=math.inf)
