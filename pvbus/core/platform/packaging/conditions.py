"""Conditions of statuses: what they say, of which generation, and since when."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Status = dict[str, Any]
Answer = Literal["True", "False", "Unknown"]


def condition(type_: str, answer: Answer, reason: str = "", message: str = "") -> Status:
    """Return a condition; what it does not say is left out."""
    found = {"type": type_, "status": answer, "reason": reason, "message": message}
    return {name: text for name, text in found.items() if text}


def observed(status: Status, generation: int) -> Status:
    """Return a status whose conditions say of which generation they speak. generation: 0 for an unknown one.

    `kubectl wait` takes a condition of an older generation for none, so after a change it waits for that.
    """
    if not generation:
        return status
    conditions = [{**each, "observedGeneration": generation} for each in status["conditions"]]
    return {**status, "conditions": conditions}


def with_times(
    conditions: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], now: str
) -> list[Status]:
    """Return conditions with lastTransitionTime: the former one while the answer is the same, else `now`.

    before: the conditions that the object has
    now: the time, RFC 3339 in UTC
    """
    former = {each.get("type"): each for each in before}
    found = []
    for each in conditions:
        known = former.get(each["type"], {})
        is_same = known.get("status") == each["status"]
        time = known.get("lastTransitionTime") if is_same else None
        found.append({**each, "lastTransitionTime": time or now})
    return found
