"""Reads plain objects as the API server has them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def annotations_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations of an object, {} without any."""
    return (obj.get("metadata") or {}).get("annotations") or {}


def annotation(obj: Mapping[str, Any], name: str) -> str:
    """Return an annotation, "" without it."""
    value = annotations_of(obj).get(name)
    return str(value) if value is not None else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a part of an object if it is a mapping, else {}. Nobody has validated the object."""
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str:
    """Return such a part if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def owner_name(obj: Mapping[str, Any], kind: str) -> str:
    """Return the name of the first owner of a kind, "" for none."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    return next((str(owner.get("name")) for owner in owners if owner.get("kind") == kind), "")


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it: RFC 3339 in UTC, whole seconds. seconds: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
