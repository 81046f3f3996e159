"""Reads the facts of a Kptfile that the API shows."""

from collections.abc import Iterable
from typing import Any

import msgspec

from pvbus.controlplane.packages import bounds
from pvbus.core.yaml import editor

RENDERED = "Rendered"


class KptfileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a Kptfile that the API shows, as plain JSON."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    gates: tuple[dict[str, str], ...] = ()
    conditions: tuple[dict[str, str], ...] = ()
    upstream_lock: dict[str, Any] | None = None

    @property
    def rendered(self) -> dict[str, str] | None:
        """The condition `Rendered`."""
        return next((item for item in self.conditions if item["type"] == RENDERED), None)


def facts_of(text: str) -> KptfileFacts:
    """Read a Kptfile leniently: invalid fields count as absent."""
    try:
        value = editor.values(text)[0]
    except editor.YamlError as exc:
        return unreadable_kptfile(str(exc))
    except IndexError:
        return unreadable_kptfile("it is empty")
    facts = _facts_in(_mapping(value))
    if len(msgspec.json.encode(facts)) > bounds.FACTS_BYTES_MAX:
        return unreadable_kptfile(
            f"its labels, annotations, gates and conditions have more than {bounds.FACTS_BYTES_MAX} bytes"
        )
    return facts


def unreadable_kptfile(problem: str) -> KptfileFacts:
    """Return the facts of an unreadable Kptfile: a condition with the problem."""
    message = f"cannot read the Kptfile: {problem}"
    condition = {"type": RENDERED, "status": "False", "reason": "InvalidKptfile", "message": message}
    return KptfileFacts(conditions=(condition,))


def _facts_in(root: dict[str, Any]) -> KptfileFacts:
    metadata = _mapping(root.get("metadata"))
    return KptfileFacts(
        labels=_strings(metadata.get("labels")),
        annotations=_strings(metadata.get("annotations")),
        gates=tuple(_entries(_mapping(root.get("info")).get("readinessGates"), "conditionType")),
        conditions=tuple(_entries(_mapping(root.get("status")).get("conditions"), "type")),
        upstream_lock=_lock_in(_mapping(root.get("upstreamLock"))),
    )


def _lock_in(value: dict[str, Any]) -> dict[str, Any] | None:
    git = _strings(value.get("git"))
    retained = {key: git[key] for key in ("repo", "directory", "ref", "commit") if key in git}
    if not value:
        return None
    return {"type": str(value.get("type", "git"))} | ({"git": retained} if retained else {})


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in _mapping(value).items()}


def _entries(value: Any, key: str) -> Iterable[dict[str, str]]:
    for item in value if isinstance(value, list) else []:
        if isinstance(item, dict) and item.get(key):
            yield _strings(item)
