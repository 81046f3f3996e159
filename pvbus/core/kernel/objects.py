"""Reads plain objects as the API server has them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar


class _Owner(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def controller(self) -> bool | None: ...


_O = TypeVar("_O", bound=_Owner)


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
    """Return the name of the owner of a kind, "" for none. As `owner_among`."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or ()
    found = sorted(
        (o for o in owners if o.get("kind") == kind), key=lambda o: o.get("controller") is not True
    )
    return str(found[0].get("name")) if found else ""


def owner_among(owners: Iterable[_O], kind: str) -> _O | None:
    """Return the owner of a kind, None for none: the controller, of which there is one. Whoever may edit an
    object may add references, in any place, to what does not own it."""
    found = [owner for owner in owners if owner.kind == kind]
    return min(found, key=lambda owner: not owner.controller, default=None)


def set_among(owners: Iterable[_Owner]) -> str:
    """Return the name of the PackageVariantSet among the owners of a variant, "" without one."""
    owner = owner_among(owners, "PackageVariantSet")
    return owner.name if owner is not None else ""


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it: RFC 3339 in UTC, whole seconds. seconds: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
