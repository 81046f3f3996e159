"""Owner references of packaged objects: who controls one, and who may take it.

An object has at most one controller. An active revision controls its objects, an inactive one owns them
without control. A reference is a revision's own if apiVersion's group, kind and name are its own: after a
restore from a backup, uids differ. Source: Crossplane, design-doc-packages-v2.md.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.platform.establish.objects import Object, group_of


class Owner(NamedTuple):
    """What may own objects: a revision, or an install."""

    api_version: str
    kind: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Owner":
        meta = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], meta["name"], meta.get("uid", ""))

    def reference(self, *, is_controller: bool) -> Object:
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": is_controller,
        }

    def has(self, reference: Mapping[str, Any]) -> bool:
        """Return whether a reference names this owner, with whatever uid."""
        return (
            group_of(str(reference.get("apiVersion", ""))) == group_of(self.api_version)
            and reference.get("kind") == self.kind
            and reference.get("name") == self.name
        )


def references_of(obj: Mapping[str, Any]) -> list[Object]:
    return list((obj.get("metadata") or {}).get("ownerReferences") or ())


def controller_of(obj: Mapping[str, Any]) -> Object | None:
    """Return the reference to the controller of an object, None if nobody controls it."""
    return next((each for each in references_of(obj) if each.get("controller")), None)


def controls(owner: Owner, obj: Mapping[str, Any]) -> bool:
    """Return whether an object's controller is this owner, with whatever uid."""
    found = controller_of(obj)
    return found is not None and owner.has(found)


def owns(owner: Owner, obj: Mapping[str, Any]) -> bool:
    return any(owner.has(each) for each in references_of(obj))


def stranger_of(obj: Mapping[str, Any], owner: Owner, siblings: Container[str]) -> str:
    """Return who else controls an object, as `<kind> <name>`; "" if this owner may take it.

    siblings: names of the other revisions of the same install, which have the owner's kind.
    """
    found = controller_of(obj)
    if found is None or owner.has(found):
        return ""
    is_sibling = owner._replace(name=str(found.get("name"))).has(found) and found.get("name") in siblings
    return "" if is_sibling else f"{found.get('kind')} {found.get('name')}"


def taken(references: Iterable[Object], owner: Owner) -> list[Object]:
    """Return references after an owner took control: whoever had it keeps a reference without."""
    others = [released_reference(each) for each in references if not owner.has(each)]
    return [*others, owner.reference(is_controller=True)]


def released(references: Iterable[Object], owner: Owner) -> list[Object]:
    """Return references after an owner has released control: it keeps one without."""
    return [owner.reference(is_controller=False) if owner.has(each) else each for each in references]


def without(references: Iterable[Object], owner: Owner) -> list[Object]:
    """Return references without those of an owner."""
    return [each for each in references if not owner.has(each)]


def released_reference(reference: Object) -> Object:
    if not reference.get("controller"):
        return reference
    return {**reference, "controller": False}
