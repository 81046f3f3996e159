"""Hold: the annotation on a PackageVariant or a set that stops all writes for it, and the reason with it."""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.kernel.keys import HOLD, HOLD_REASON, Key
from pvbus.core.kernel.messages import part

NEEDS_PLAN = "needs a signed plan"
"""How the reason begins with which a set is held that no valid signed plan allows."""
REASON_CHARACTERS_MAX = 200
"""Of the reason in messages: what stands beside it in a condition stays readable."""


class SetHold(NamedTuple):
    """The hold of a variant's set. name: the name of the set."""

    name: str
    reason: str = ""


def is_held(annotations: Mapping[str, str] | None) -> bool:
    return (annotations or {}).get(HOLD) == "true"


def hold_reason(annotations: Mapping[str, str] | None) -> str:
    """Return why an object is on hold, as one short line; "" if nobody says, or it is not on hold."""
    text = (annotations or {}).get(HOLD_REASON, "") if is_held(annotations) else ""
    words = "".join(char if char.isprintable() else " " for char in text[: REASON_CHARACTERS_MAX * 2])
    return part(" ".join(words.split()), REASON_CHARACTERS_MAX)


def why_held(holder: object, reason: str) -> str:
    """Return what holds, in words, as the end of "while ..."."""
    if reason.startswith(NEEDS_PLAN):
        return f"{holder} {reason}"
    return f'{holder} has the annotation {HOLD}: "true"{because(reason)}'


def because(reason: str) -> str:
    """Return a reason in parentheses behind what it is for, "" without one."""
    return f" ({reason})" if reason else ""


def held_variant(key: Key, annotations: Mapping[str, str]) -> str:
    """Return that a variant has the annotation, and why."""
    return f'PackageVariant "{key.name}" has the annotation {HOLD}{because(hold_reason(annotations))}'
