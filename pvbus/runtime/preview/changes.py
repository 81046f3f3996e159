"""A user's changes to a system, and how they are laid over its objects, as an API server does."""

from collections.abc import Sequence
from typing import NamedTuple

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.objects import copy_of, split_api_version
from pvbus.ports.cluster import Kind, Object


class ObjectName(NamedTuple):
    """The identity of an object.

    kind: its kind
    namespace: its namespace, "" for none
    name: its name
    """

    kind: Kind
    namespace: str
    name: str


class Changes(NamedTuple):
    """A user's changes to a settled system."""

    put: Sequence[Object] = ()
    delete: Sequence[ObjectName] = ()


def lay_over(cluster: MemoryCluster, changes: Changes) -> None:
    """Apply a user's changes like an API server. Deletions of missing objects are skipped."""
    for obj in changes.put:
        cluster.put(replaced(obj, _present(cluster, obj)))
    for kind, namespace, name in changes.delete:
        if cluster.peek(kind, namespace, name) is not None:
            cluster.terminate(kind, namespace, name)


def _present(cluster: MemoryCluster, obj: Object) -> Object | None:
    group, _ = split_api_version(obj["apiVersion"])
    kind, meta = Kind(group, obj["kind"]), obj["metadata"]
    return cluster.peek(kind, meta.get("namespace") or "default", meta["name"]) or cluster.peek(
        kind, "", meta["name"]
    )


def replaced(obj: Object, live: Object | None) -> Object:
    """Return a live object replaced by that of a file.

    Fields that only servers and controllers write stay, unless the file sets them.
    """
    new: Object = copy_of(obj)
    if live is None:
        return new
    meta, before = new["metadata"], live["metadata"]
    for field in ("namespace", "uid", "creationTimestamp", "resourceVersion", "deletionTimestamp"):
        meta.pop(field, None)
        if field in before:
            meta[field] = before[field]
    for field in ("ownerReferences", "finalizers"):
        if field not in meta and field in before:
            meta[field] = copy_of(before[field])
    if "status" not in new and "status" in live:
        new["status"] = copy_of(live["status"])
    changed = new.get("spec") != live.get("spec")
    meta["generation"] = before.get("generation", 1) + (1 if changed else 0)
    return new
