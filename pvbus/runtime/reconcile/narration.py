"""The log lines of a worker: writes to the cluster, and conditions that show a failure.

One line each, at info. Status writes are at debug: their content is on `pvbus.conditions`, whose failures
are logged here, once for each published change.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import WRITES, Create, Delete, Effect, Patch, Put, Update
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR
from pvbus.core.kernel.records import CONDITIONS, SETRESULTS, SetResult
from pvbus.core.variants.severity import PROGRESS, TROUBLES


class Line(NamedTuple):
    """One line of the log.

    event: the text, which is constant
    fields: what it happened to
    is_detail: whether it is at debug
    """

    event: str
    fields: dict[str, Any]
    is_detail: bool = False


def write_line(effect: Effect, result: Any) -> Line | None:
    """Return the line of an effect on the cluster; None if it wrote nothing."""
    if not isinstance(effect, WRITES) or getattr(effect, "is_dry_run", False):
        return None
    subresource = ""
    match effect:
        case Create(kind, obj):
            event, metadata = "created", (result or obj)["metadata"]
        case Update(kind, obj, subresource):
            event, metadata = "updated", obj["metadata"]
        case Patch(kind, namespace, name, _, subresource):
            event, metadata = "updated", {"namespace": namespace, "name": name}
        case Delete(kind, namespace, name):
            event, metadata = "deleted", {"namespace": namespace, "name": name}
            if result is False:
                return None
    fields = {
        "kind": kind.kind,
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
    }
    annotations = metadata.get("annotations") or {}
    if event == "updated" and KEPT_FOR in annotations:
        event = "kept, as people edited it"
        fields |= {"of": annotations[KEPT_FOR].rpartition("@")[0], "editors": annotations.get(EDITED_BY, "")}
    lifecycle = _lifecycle(effect)
    if lifecycle:
        fields["lifecycle"] = lifecycle
    if subresource:
        fields["subresource"] = subresource
    return Line(event, fields, is_detail=subresource == "status")


def _lifecycle(effect: Effect) -> str:
    """Return the lifecycle that a write gives a PackageRevision."""
    content = effect.patch if isinstance(effect, Patch) else getattr(effect, "object", {})
    spec = content.get("spec")
    found = spec.get("lifecycle", "") if isinstance(spec, dict) else ""
    return str(found)


class Narrator:
    """Describes committed rows in log lines. One for each worker."""

    def __init__(self) -> None:
        self._released: dict[str, str] = {}
        self._failing: set[tuple[str, str]] = set()

    def lines(self, puts: tuple[Put, ...]) -> Iterator[Line]:
        """Yield a line for each failure that a condition begins or ends to show, and each confirmation."""
        for put in puts:
            if put.topic == CONDITIONS and isinstance(put.row, ConditionEvent):
                yield from self._condition(put.key, put.row)
            elif put.topic == SETRESULTS and isinstance(put.row, SetResult):
                yield from self._note_confirmation(put.key, put.row)

    def _note_confirmation(self, key: str, row: SetResult) -> Iterator[Line]:
        """Yield a line for a new confirmation; none for the first row of a set, as that may be old."""
        known = self._released.get(key)
        self._released[key] = row.released
        if row.released and known is not None and known != row.released:
            yield Line("removals confirmed", {"set": key, "hold": row.released})

    def _condition(self, key: str, event: ConditionEvent) -> Iterator[Line]:
        """Yield a line for a failure, and one for its end.

        The end has a line if the failure had one here, or if the type of the condition shows trouble only.
        """
        condition = event.condition
        is_trouble = condition.type in TROUBLES
        bad = "True" if is_trouble else "False"
        fields = {
            "kind": event.kind,
            "namespace": event.namespace,
            "name": event.name,
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
        }
        if event.kind == "PackageRevision":  # its condition is its lifecycle: a draft is no failure
            lifecycle = {"variant": event.variant, "lifecycle": condition.reason}
            about = {name: fields[name] for name in ("kind", "namespace", "name")}
            yield Line("lifecycle changed", {**about, **lifecycle})
            return
        trouble = (key, condition.type)
        if condition.status == bad and condition.reason not in PROGRESS:
            self._failing.add(trouble)
            yield Line("condition shows a failure", {**fields, "message": condition.message})
        elif trouble in self._failing or (is_trouble and event.previous == bad and condition.status != bad):
            self._failing.discard(trouble)
            yield Line("condition shows no failure any more", fields)
