"""PackageRev: where the cluster keeps a PackageRevision, and a change of it that is under way.

Name, label, finalizer, labels and annotations are Porch's, so that its server finds the metadata of a package
revision where it looks for it. The truth is in `spec`:

- `packageRevision`: the object as every replica shows it, without its resourceVersion. That is the
  PackageRev's own, so all replicas give the same one, in the order of etcd.
- `change`: a change that a replica has begun: it may be in git already. While it is there, no other change
  may begin, and the object keeps the resourceVersion that it had.
- `withdrawn`: the Repository is gone; the metadata is kept for one of the same name.

Owner references are in `spec.packageRevision` only. The garbage collector deletes an object whose owners are
gone; a PackageRev that it deleted before the PackageRevision would take the owners of that one with it, and
the draft would stay. Nor does a PackageRev name its PackageRevision as an owner: that one has the same uid
whenever it is created, and the collector remembers the uids of deleted owners.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.controlplane.packages.journal import Note
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.ports.cluster import Kind, Object

PACKAGE_REV = Kind(CONFIG_GROUP, "PackageRev")
API_VERSION = f"{CONFIG_GROUP}/v1alpha1"
REPOSITORY_LABEL = "internal.porch.kpt.dev/repository"
FINALIZER = "internal.porch.kpt.dev/packagerevision"
_SHOWN = "packageRevision"
_CHANGE = "change"
_WITHDRAWN = "withdrawn"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is under way.

    id: the id of this attempt
    note: what the change does to the metadata
    """

    id: str
    note: Note

    @property
    def version(self) -> str:
        """The resourceVersion of the object before the change, "" if there was none."""
        return self.note.version


def shown(rev: Object) -> Object | None:
    """Return the PackageRevision of a PackageRev, None if it has none to show."""
    spec = rev.get("spec") or {}
    found = spec.get(_SHOWN)
    if not isinstance(found, dict) or "metadata" not in found or spec.get(_WITHDRAWN):
        return None
    metadata = {**found["metadata"], "resourceVersion": version(rev)}
    return {**found, "metadata": metadata}


def version(rev: Object) -> str:
    """Return the resourceVersion of the PackageRevision; "" while its creation is under way."""
    under_way = change_of(rev)
    return under_way.version if under_way is not None else str(rev["metadata"]["resourceVersion"])


def change_of(rev: Object) -> Change | None:
    """Return the change that is under way, None if there is none that can be read."""
    found = (rev.get("spec") or {}).get(_CHANGE)
    try:
        return msgspec.convert(found, Change) if found else None
    except msgspec.ValidationError:
        return None


def kept_metadata(rev: Object) -> Mapping[str, Any]:
    """Return the metadata for a PackageRevision that is shown again: our own, else what Porch has kept."""
    found = ((rev.get("spec") or {}).get(_SHOWN) or {}).get("metadata")
    if found:
        return {key: value for key, value in found.items() if key != "resourceVersion"}
    metadata = rev["metadata"]
    labels = {key: text for key, text in (metadata.get("labels") or {}).items() if key != REPOSITORY_LABEL}
    finalizers = [each for each in metadata.get("finalizers") or [] if each != FINALIZER]
    owners = [each for each in metadata.get("ownerReferences") or [] if each.get("kind") != "PackageRevision"]
    found = {
        "labels": labels,
        "annotations": metadata.get("annotations"),
        "finalizers": finalizers,
        "ownerReferences": owners,
    }
    return {key: value for key, value in found.items() if value}


def begun(change: Change, namespace: str, name: str, repository: str) -> Object:
    """Return a new PackageRev: a creation is under way. Without a finalizer, one request ends it."""
    return {
        "apiVersion": API_VERSION,
        "kind": PACKAGE_REV.kind,
        "metadata": {"namespace": namespace, "name": name, "labels": {REPOSITORY_LABEL: repository}},
        "spec": {_CHANGE: msgspec.to_builtins(change)},
    }


def with_change(rev: Object, change: Change | None, *, last: bool = False) -> Object:
    """Return a PackageRev with a change under way, or with none.

    change: the change, None for none
    last: whether the PackageRev is deleted after that; it then gets no finalizer
    """
    spec = {key: value for key, value in (rev.get("spec") or {}).items() if key != _CHANGE}
    if change is not None:
        spec[_CHANGE] = msgspec.to_builtins(change)
    metadata = dict(rev["metadata"])
    if last:
        metadata.pop("finalizers", None)
    return {**rev, "metadata": metadata, "spec": spec}


def withdrawn(rev: Object) -> Object:
    """Return a PackageRev whose Repository is gone."""
    return {**rev, "spec": {**(rev.get("spec") or {}), _WITHDRAWN: True}}


def is_withdrawn(rev: Object) -> bool:
    return bool((rev.get("spec") or {}).get(_WITHDRAWN))


def written(obj: Object, rev: Object | None) -> Object:
    """Return the PackageRev of a PackageRevision.

    rev: the present PackageRev, which is replaced; None if there is none
    """
    metadata = obj["metadata"]
    own = {key: value for key, value in metadata.items() if key != "resourceVersion"}
    labels = {**(metadata.get("labels") or {}), REPOSITORY_LABEL: obj["spec"]["repository"]}
    made: dict[str, Any] = {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "labels": labels,
        "finalizers": sorted({*(metadata.get("finalizers") or ()), FINALIZER}),
    }
    if metadata.get("annotations"):
        made["annotations"] = metadata["annotations"]
    if rev is not None:
        made |= {key: rev["metadata"][key] for key in ("uid", "resourceVersion") if key in rev["metadata"]}
    spec: dict[str, Any] = {_SHOWN: {**obj, "metadata": own}}
    return {"apiVersion": API_VERSION, "kind": PACKAGE_REV.kind, "metadata": made, "spec": spec}


def is_deleted_by_hand(rev: Object) -> bool:
    """Return whether somebody deletes a PackageRev: the package store removes the finalizer first."""
    metadata = rev["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FINALIZER in (metadata.get("finalizers") or ())


def remade(rev: Object) -> Object:
    """Return a PackageRev like one that is gone."""
    retained = ("namespace", "name", "labels", "annotations", "finalizers")
    metadata = {key: rev["metadata"][key] for key in retained if key in rev["metadata"]}
    return {"apiVersion": API_VERSION, "kind": PACKAGE_REV.kind, "metadata": metadata, "spec": rev["spec"]}


def repository_of(rev: Object) -> str:
    """Return the name of the Repository, "" if it is not known."""
    return str((rev["metadata"].get("labels") or {}).get(REPOSITORY_LABEL, ""))


def last_shown(rev: Object) -> Object | None:
    """Return the PackageRevision of a PackageRev, also of a withdrawn one."""
    found = (rev.get("spec") or {}).get(_SHOWN)
    return found if isinstance(found, dict) and "metadata" in found else None
