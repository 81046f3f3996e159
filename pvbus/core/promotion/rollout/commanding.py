"""What people order a rollout to do: annotations of its RolloutPolicy.

A value names the attempt that it is for, and where that matters the stop or the wave. So each order is
followed once: one that is left behind by mistake does nothing to a later attempt.
"""

import re
from collections.abc import Mapping

import msgspec

from pvbus.core.api.rollouts import CanaryExcuse
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.rolloutrows import Commands

PREFIX = "promotion.pvbus.dev/"
PAUSE = f"{PREFIX}pause"
RESUME = f"{PREFIX}resume"
APPROVE = f"{PREFIX}approve"
PROMOTE = f"{PREFIX}promote"
ABORT = f"{PREFIX}abort"
ROLL_BACK = f"{PREFIX}roll-back"
RESTART = f"{PREFIX}restart"
EXCUSE = f"{PREFIX}excuse"

_ATTEMPTS = {PROMOTE: "promote", ABORT: "abort", ROLL_BACK: "roll_back", RESTART: "restart"}
_REASONS = {PROMOTE: "promote_reason", ABORT: "abort_reason", ROLL_BACK: "roll_back_reason"}
_PAIRS = {RESUME: ("resume", "STOP"), APPROVE: ("approve", "WAVE")}
_DIGITS_MAX = 9
EXCUSES_FORM = '[{"attempt": 3, "canary": "web-edge", "reason": "its site is closed"}]'
_excuses = msgspec.json.Decoder(tuple[CanaryExcuse, ...])
_NUMBER = re.compile(rf"[0-9]{{1,{_DIGITS_MAX}}}")


def commands_of(annotations: Mapping[str, str]) -> tuple[Commands, list[str]]:
    """Return the orders in the annotations of a policy, and what is wrong with them.

    An order that cannot be read does nothing, except a pause: who writes it wants the rollout to stand still.
    """
    fields: dict[str, object] = {}
    problems = []
    if PAUSE in annotations:
        text = annotations[PAUSE]
        fields["paused"] = text != "false"
        if text not in ("true", "false"):
            problems.append(f'{PAUSE} is "{text}", which counts as true: give true or false')
    for name, field in _ATTEMPTS.items():
        text, colon, reason = annotations.get(name, "").partition(": ")
        if colon and name in _REASONS:
            fields[_REASONS[name]] = part(reason.strip())
        elif colon:
            text = annotations[name]
        if _NUMBER.fullmatch(text):
            fields[field] = int(text)
        elif name in annotations:
            problems.append(f'{name} is "{annotations[name]}": give the number of the attempt')
    for name, (field, number_of) in _PAIRS.items():
        attempt, _, number = annotations.get(name, "").partition(".")
        if _NUMBER.fullmatch(attempt) and _NUMBER.fullmatch(number):
            fields[field] = (int(attempt), int(number))
        elif name in annotations:
            problems.append(f'{name} is "{annotations[name]}": give ATTEMPT.{number_of}, such as 3.1')
    if EXCUSE in annotations:
        fields["excuses"] = excuses_of(annotations)
        if not fields["excuses"]:
            problems.append(f'{EXCUSE} is "{part(annotations[EXCUSE])}": give {EXCUSES_FORM}')
    return Commands(**fields), problems  # type: ignore[arg-type]  # the tables name its fields


def excuses_of(annotations: Mapping[str, str]) -> tuple[CanaryExcuse, ...]:
    """Return the excuses of canaries, none at all if one cannot be read, or does not say why."""
    try:
        found = _excuses.decode(annotations.get(EXCUSE) or "[]")
    except msgspec.MsgspecError:
        return ()
    return found if all(each.attempt > 0 and each.canary and each.reason.strip() for each in found) else ()
