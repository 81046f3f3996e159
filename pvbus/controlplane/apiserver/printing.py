"""Tables for `kubectl get`, rendered by the server (meta.k8s.io/v1 Table)."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from pvbus.controlplane.apiserver import jsonpath
from pvbus.controlplane.apiserver.kinds import Column, ServedKind
from pvbus.ports.cluster import Object

Include = Literal["None", "Metadata", "Object"]
_Cells = list[Any]

_NAME = Column(
    name="Name", type="string", json_path=".metadata.name", format="name", description="Name of the object."
)
_AGE = Column(
    name="Age", type="date", json_path=".metadata.creationTimestamp", description="Time since it was created."
)


class _Layout(NamedTuple):
    """The columns of a kind, and the function that returns an object's cells at a given time."""

    columns: Sequence[Column]
    cells: Callable[[Object, datetime], _Cells]


def table(
    kind: ServedKind,
    version: str,
    objects: Sequence[Object],
    *,
    now: datetime,
    include: Include = "Metadata",
    resource_version: str = "",
    continue_: str = "",
    remaining: int | None = None,
    watch: bool = False,
) -> dict[str, Any]:
    """Return the objects as a Table.

    include: the part of its object that each row holds
    resource_version: the resourceVersion of the list
    continue_: the continue token, "" on the last page
    remaining: the number of objects on later pages, None if unknown
    watch: whether the rows continue a table, so that the columns are left out
    """
    layout = _layout(kind, version)
    metadata: dict[str, Any] = {"resourceVersion": resource_version}
    if continue_:
        metadata["continue"] = continue_
    if remaining:
        metadata["remainingItemCount"] = remaining
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [] if watch else [_definition(column) for column in layout.columns],
        "rows": [_row(layout, obj, now, include) for obj in objects],
    }


def _definition(column: Column) -> dict[str, Any]:
    """Return a column definition for clients. Dates are sent as ages, which are strings."""
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": column.format,
        "description": column.description
        or f"Custom resource definition column (in JSONPath format): {column.json_path}",
        "priority": column.priority,
    }


def _row(layout: _Layout, obj: Object, now: datetime, include: Include) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": layout.cells(obj, now)}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = partial_metadata(obj)
    return row


def partial_metadata(obj: Object) -> Object:
    """Return the PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj.get("metadata") or {},
    }


def _layout(kind: ServedKind, version: str) -> _Layout:
    special = _SPECIAL.get((kind.group, kind.kind))
    if special is not None and not kind.custom:
        return special
    served = kind.version(version)
    columns = (served.columns if served else ()) or (_AGE,)
    return _by_path((_NAME, *columns))


def _by_path(columns: tuple[Column, ...]) -> _Layout:
    return _Layout(columns, lambda obj, now: [_cell(column, obj, now) for column in columns])


# --- cells ---


def _cell(column: Column, obj: Object, now: datetime) -> Any:
    """Return the first value at the column's path, None where there is none or of another type."""
    try:
        found = jsonpath.find(column.json_path, obj)
    except ValueError:
        return None
    if not found or found[0] is None:
        return None
    value = found[0]
    match column.type:
        case "string":
            return shown(value)
        case "date":
            return age(value, now) if isinstance(value, str) else "<invalid>"
        case "integer":
            return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return None


def shown(value: Any) -> str:
    """Return a value as text; values other than text are encoded as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def age(timestamp: str | None, now: datetime) -> str:
    """Return the time since an RFC 3339 timestamp in kubectl's format."""
    if not timestamp:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return duration((now - then).total_seconds())


def duration(seconds_exact: float) -> str:
    """Return a duration in at most two units; short durations are more precise.

    Source: k8s.io/apimachinery pkg/util/duration (HumanDuration), behaviour only.
    """
    seconds = int(seconds_exact)
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 10:
        return _units(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return _units(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 192:
        return _units(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    years = days // 365
    if years < 8:
        return _units(years, "y", days % 365, "d")
    return f"{years}y"


def _units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


# --- kinds whose cells are not plain paths ---


def _text_column(name: str, description: str, *, type_: str = "string", priority: int = 0) -> Column:
    return Column(name=name, type=type_, json_path="", description=description, priority=priority)


def _created(obj: Object) -> str | None:
    return (obj.get("metadata") or {}).get("creationTimestamp")


def _name(obj: Object) -> str:
    return str((obj.get("metadata") or {}).get("name", ""))


def _config_map(obj: Object, now: datetime) -> _Cells:
    size = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [_name(obj), size, age(_created(obj), now)]


def _secret(obj: Object, now: datetime) -> _Cells:
    return [_name(obj), obj.get("type") or "Opaque", len(obj.get("data") or ()), age(_created(obj), now)]


def _namespace(obj: Object, now: datetime) -> _Cells:
    return [_name(obj), (obj.get("status") or {}).get("phase", ""), age(_created(obj), now)]


def _crd(obj: Object, _now: datetime) -> _Cells:
    return [_name(obj), _created(obj) or ""]


def _event(obj: Object, now: datetime) -> _Cells:
    """Return the cells of an Event of either version."""
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    count = obj.get("count") or obj.get("deprecatedCount") or 1
    if series := obj.get("series"):
        last, count = series.get("lastObservedTime") or last, series.get("count") or count
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    target = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    reporter = (
        source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    )
    host = source.get("host") or obj.get("reportingInstance") or ""
    message = str(obj.get("message") or obj.get("note") or "").strip()
    return [
        age(last or _created(obj), now),
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        f"{reporter}, {host}" if host else reporter,
        message,
        age(first or _created(obj), now),
        count,
        _name(obj),
    ]


def _package_cells(obj: Object) -> _Cells:
    spec: Mapping[str, Any] = obj.get("spec") or {}
    return [
        _name(obj),
        spec.get("packageName", ""),
        spec.get("workspaceName", ""),
        spec.get("revision", 0),
    ]


def _package_revision(obj: Object, _now: datetime) -> _Cells:
    spec = obj.get("spec") or {}
    labels = (obj.get("metadata") or {}).get("labels") or {}
    latest = labels.get("kpt.dev/latest-revision") == "true"
    lifecycle = spec.get("lifecycle") or "Draft"
    return [*_package_cells(obj), latest, lifecycle, spec.get("repository", "")]


def _package_resources(obj: Object, _now: datetime) -> _Cells:
    spec = obj.get("spec") or {}
    return [*_package_cells(obj), spec.get("repository", ""), len(spec.get("resources") or ())]


_PACKAGE_COLUMNS = (
    _NAME,
    _text_column("Package", "Path of the package."),
    _text_column("WorkspaceName", "Name of the revision among those of the package."),
    _text_column("Revision", "Number of the published revision.", type_="integer"),
)
_EVENT_COLUMNS = (
    _text_column("Last Seen", "Time since it last happened."),
    _text_column("Type", "Normal or Warning."),
    _text_column("Reason", "What happened, in one word."),
    _text_column("Object", "What it happened to."),
    _text_column("Subobject", "Which part of it.", priority=1),
    _text_column("Source", "Who saw it.", priority=1),
    _text_column("Message", "What happened."),
    _text_column("First Seen", "Time since it first happened.", priority=1),
    _text_column("Count", "How often it happened.", type_="integer", priority=1),
    _NAME._replace(priority=1),
)

_SPECIAL: Mapping[tuple[str, str], _Layout] = {
    ("", "Namespace"): _Layout((_NAME, _text_column("Status", "Active or Terminating."), _AGE), _namespace),
    ("", "ConfigMap"): _Layout(
        (_NAME, _text_column("Data", "Number of keys.", type_="integer"), _AGE), _config_map
    ),
    ("", "Secret"): _Layout(
        (
            _NAME,
            _text_column("Type", "What the data is for."),
            _text_column("Data", "Number of keys.", type_="integer"),
            _AGE,
        ),
        _secret,
    ),
    ("", "Event"): _Layout(_EVENT_COLUMNS, _event),
    ("events.k8s.io", "Event"): _Layout(_EVENT_COLUMNS, _event),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _Layout(
        (_NAME, _text_column("Created At", "When it was created.", type_="date")), _crd
    ),
    ("porch.kpt.dev", "PackageRevision"): _Layout(
        (
            *_PACKAGE_COLUMNS,
            _text_column("Latest", "Whether it is the newest published one.", type_="boolean"),
            _text_column("Lifecycle", "Draft, Proposed, Published or DeletionProposed."),
            _text_column("Repository", "Name of the Repository."),
        ),
        _package_revision,
    ),
    ("porch.kpt.dev", "PackageRevisionResources"): _Layout(
        (
            *_PACKAGE_COLUMNS,
            _text_column("Repository", "Name of the Repository."),
            _text_column("Files", "Number of files.", type_="integer"),
        ),
        _package_resources,
    ),
}
