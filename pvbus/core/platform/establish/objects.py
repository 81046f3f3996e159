"""Objects as plain JSON values: their keys, the content of packages, and whether a live one is as wanted."""

from collections.abc import Iterable, Mapping
from typing import Any

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import KindRef
from pvbus.core.kernel.keys import ObjectKey, digest, okey
from pvbus.core.yaml.reader import PACKAGES, YamlError, values

Object = dict[str, Any]

CONTENT = "pvbus.dev/content"
"""On an object that establish wrote: the digest of what the package says. So a field that a later version of
the package lacks is removed, too."""
ADOPTED = "pvbus.dev/adopted"
"""On an object that was there before its package, and that nobody controlled."""

CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")
XRD = ("apiextensions.crossplane.io", "CompositeResourceDefinition")

_FIRST = {
    ("", "Namespace"): 0,
    CRD: 1,
    XRD: 2,
    ("", "ServiceAccount"): 3,
    ("", "Secret"): 3,
    ("", "ConfigMap"): 3,
}
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_ROLES = ("Role", "ClusterRole")
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "ReplicaSet")


def group_of(api_version: str) -> str:
    """Return the group of an apiVersion, "" for the core group."""
    return api_version.rpartition("/")[0]


def kind_of(obj: Mapping[str, Any]) -> KindRef:
    """Return the kind of an object, at its version."""
    group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
    return KindRef(group, str(obj.get("kind", "")), version)


def key_of(obj: Mapping[str, Any]) -> str:
    """Return the okey of an object."""
    kind, meta = kind_of(obj), obj.get("metadata") or {}
    return okey(kind.group, kind.kind, meta.get("namespace") or "", meta.get("name") or "")


def title(key: str) -> str:
    """Return an okey in words: `CustomResourceDefinition buckets.example.org`."""
    kind, namespace, name = ObjectKey.parse(key)[1:]
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def rank(obj: Mapping[str, Any]) -> int:
    """Return the place of an object in the order of writes: what others need comes first."""
    kind = kind_of(obj)
    if kind.kind in _ROLES:
        return 4
    if kind.kind in _BINDINGS:
        return 5
    if kind.kind in _WORKLOADS:
        return 7
    return _FIRST.get((kind.group, kind.kind), 6)


def in_order(objects: Iterable[Object]) -> list[Object]:
    """Return objects in the order in which they are written; those of one rank stay in their order."""
    return sorted(objects, key=rank)


def parsed(files: Mapping[str, bytes | str]) -> list[Object]:
    """Return the objects of these files. Raises PermanentError, with the file's name."""
    found: list[Object] = []
    for path in sorted(files):
        for value in parsed_values(path, files[path]):
            found += _taken_apart(path, value)
    return found


def parsed_values(path: str, data: bytes | str) -> list[Any]:
    """Return the values of a file's documents. Raises PermanentError, with the file's name."""
    try:
        return values(data, PACKAGES)
    except YamlError as error:
        raise PermanentError(f"{path}: {error}", reason="InvalidContent") from error


def _taken_apart(path: str, value: Any) -> list[Object]:
    if not isinstance(value, dict) or not value.get("apiVersion") or not value.get("kind"):
        raise PermanentError(f"{path}: a document is no object of Kubernetes", reason="InvalidContent")
    if value["kind"] == "List" and isinstance(value.get("items"), list):
        return [each for item in value["items"] for each in _taken_apart(path, item)]
    if not isinstance(value.get("metadata"), dict) or not value["metadata"].get("name"):
        raise PermanentError(f"{path}: a {value['kind']} has no name", reason="InvalidContent")
    return [value]


def defined(objects: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], bool]:
    """Return the kinds that these objects define, and whether each is namespaced."""
    found = {}
    for obj in objects:
        kind, spec = kind_of(obj), obj.get("spec") or {}
        names = (spec.get("names") or {}).get("kind")
        if names and (kind.group, kind.kind) == CRD:
            found[spec.get("group", ""), names] = spec.get("scope", "Namespaced") == "Namespaced"
        elif names and (kind.group, kind.kind) == XRD:
            found[spec.get("group", ""), names] = False
            if claim_kind := (spec.get("claimNames") or {}).get("kind"):
                found[spec.get("group", ""), claim_kind] = True
    return found


def contains(live: Any, wanted: Any) -> bool:
    """Return whether a live value has all that is wanted; the API server may have added defaults.

    Lists must have equal lengths. None stands for a field that is not there.
    """
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            contains(live.get(field), value) for field, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(live, list | tuple) and len(live) == len(wanted) and all(map(contains, live, wanted))
        ) or (not wanted and live is None)
    if wanted is None or wanted == "":
        return live in (None, "", {}, [])
    if isinstance(wanted, bool) or isinstance(live, bool):
        return live is wanted or (wanted is False and live is None)
    return bool(live == wanted)


def wanted_object(obj: Object, references: list[Object], *, is_adopted: bool = False) -> Object:
    """Return an object of a package as it is created: with owners, and the digest of its content."""
    meta = {**obj["metadata"], "ownerReferences": references}
    if not references:
        del meta["ownerReferences"]
    annotations = {**(meta.get("annotations") or {}), CONTENT: content_digest(obj)}
    if is_adopted:
        annotations[ADOPTED] = "true"
    meta["annotations"] = annotations
    return {**{field: value for field, value in obj.items() if field != "status"}, "metadata": meta}


def content_digest(obj: Object) -> str:
    """Return the digest of what a package says of an object."""
    return digest({field: value for field, value in obj.items() if field != "status"})


def updated_object(
    live: Object, obj: Object, references: list[Object], *, is_adopted: bool = False
) -> Object:
    """Return a live object with a package's content and these owners; others' labels and annotations stay.

    The live object itself is returned if nothing differs.
    """
    wanted = wanted_object(obj, references, is_adopted=is_adopted)
    old, new = live["metadata"], wanted["metadata"]
    meta = {**old, "annotations": {**(old.get("annotations") or {}), **new["annotations"]}}
    if new.get("labels"):
        meta["labels"] = {**(old.get("labels") or {}), **new["labels"]}
    meta["ownerReferences"] = references
    if not references:
        del meta["ownerReferences"]
    is_same_content = (old.get("annotations") or {}).get(CONTENT) == new["annotations"][CONTENT] and contains(
        {field: live.get(field) for field in wanted if field != "metadata"},
        {field: value for field, value in wanted.items() if field != "metadata"},
    )
    if is_same_content:
        return live if _same_meta(old, meta) else {**live, "metadata": meta}
    return {**wanted, "metadata": meta, **({"status": live["status"]} if "status" in live else {})}


def _same_meta(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all((old.get(field) or None) == (value or None) for field, value in new.items()) and bool(
        old.get("ownerReferences")
    ) == bool(new.get("ownerReferences"))


def with_owners(live: Object, references: list[Object]) -> Object:
    """Return a live object with other owner references."""
    meta = {**live["metadata"], "ownerReferences": references}
    if not references:
        del meta["ownerReferences"]
    return {**live, "metadata": meta}


def with_annotations(live: Object, changes: Mapping[str, str | None]) -> Object:
    """Return a live object with these annotations; None removes one."""
    merged = {**(live["metadata"].get("annotations") or {}), **changes}
    left = {name: value for name, value in merged.items() if value is not None}
    return {**live, "metadata": {**live["metadata"], "annotations": left}}
