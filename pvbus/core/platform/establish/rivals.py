"""Whether Porch's own controllers write the objects that pvbus writes, by their marks on them. Pure.

Porch's program is called porch-controllers, and Kubernetes notes the program that wrote in managedFields,
with the time. Its controllers write only when something changes, so an idle one leaves no mark: it answers
the first write of pvbus with one of its own, within seconds. Source: Porch, controllers/Dockerfile;
Kubernetes 1.36, apimachinery/pkg/util/managedfields.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

MANAGER = "porch-controllers"
QUIET_SECONDS = 60.0
"""How long Porch's controllers must have written nothing before pvbus writes. A pod that is told to stop may
go on for 30 s, the default grace period; as long again is for a node that is slow, and for the clocks. If
it is shorter, both write during a change-over; if longer, nobody does."""

RELAPSE_SECONDS = 600.0
"""The same once they have written beside pvbus: then they are on, and somebody has to act. Until that
happens, each attempt costs a few writes on both sides; a restart of pvbus attempts at once."""

_UNMARKED: dict[str, Any] = {}


class Mark(NamedTuple):
    """A write of Porch's controllers. at: whole seconds since the epoch, by the API server's clock."""

    at: float
    namespace: str
    name: str


def last_mark(objects: Iterable[Mapping[str, Any]]) -> Mark | None:
    """Return the last write of Porch's controllers to any of these objects, None if there is none."""
    return max((mark for obj in objects if (mark := mark_of(obj)) is not None), default=None)


def mark_of(obj: Mapping[str, Any]) -> Mark | None:
    """Return the last write of Porch's controllers to an object, None if there is none."""
    return mark_by(obj, _is_theirs)


def marked(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `mark_of` reads of an object. Those without a mark share one value."""
    metadata = obj.get("metadata") or {}
    theirs = [entry for entry in metadata.get("managedFields") or () if _is_theirs(entry)]
    if not theirs:
        return _UNMARKED
    entries = [{"manager": MANAGER, "time": entry.get("time")} for entry in theirs]
    names = {field: metadata[field] for field in ("namespace", "name") if field in metadata}
    return {"metadata": {**names, "managedFields": entries}}


def mark_by(obj: Mapping[str, Any], is_theirs: Callable[[Mapping[str, Any]], bool]) -> Mark | None:
    """Return the last write to an object by somebody else, None if there is none.

    is_theirs: tells the entries of managedFields that are theirs
    """
    metadata = obj.get("metadata") or {}
    times = [_seconds(entry.get("time")) for entry in metadata.get("managedFields") or () if is_theirs(entry)]
    if not times:
        return None
    return Mark(max(times), metadata.get("namespace", ""), metadata.get("name", ""))


def _is_theirs(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == MANAGER


def _seconds(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def wait_seconds(mark: Mark | None, now: float, *, beside: bool) -> float:
    """Return how many seconds pvbus must not write yet, 0 if it may.

    now: the time by the API server's clock, in seconds since 1970
    beside: whether the mark was made while pvbus wrote
    """
    if mark is None:
        return 0.0
    return max(0.0, mark.at + (RELAPSE_SECONDS if beside else QUIET_SECONDS) - now)
