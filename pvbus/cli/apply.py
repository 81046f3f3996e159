"""Applies manifests to an API server: creates missing objects, updates those that differ.

A manifest's top-level fields (spec, data, ...) replace those of the live object. Its labels and annotations
are added, and those that it set before and no longer has are removed. Other fields stay. An object that would
not change is not written.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from pvbus.adapters.manifests import Manifest, kind_of
from pvbus.cli.applyrecord import AppliedEntry, AppliedRecord, identity, name_of
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError, UsageError
from pvbus.core.kernel.backoff import Backoff
from pvbus.ports.cluster import Cluster, Kind, Object, Resource
from pvbus.runtime.backoff import uniform

PARALLEL_MAX = 16
CONFLICT_SECONDS_MAX = 10.0  # how long to retry conflicts with other writers of one object
CONFLICT_PAUSE_SECONDS = (0.02, 0.5)  # the shortest pause and the longest
SERVED_SECONDS = 5.0  # a definition is served a moment after it was written
SAVE_SECONDS = (
    0.5  # after a crash, manifests applied since the last save are applied again; a save is an fsync
)
NAMES_SHOWN_MAX = 3

Effect = Literal["created", "updated", "same"]


class Applied(NamedTuple):
    """What an application of manifests did.

    applied: the number of new manifests
    changed: the number of known ones that were applied again
    unchanged: the number of known ones that were not
    remarks: messages for the user
    """

    applied: int
    changed: int
    unchanged: int
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.applied} applied, {self.changed} changed, {self.unchanged} unchanged"


def rank(obj: Object) -> int:
    """Return the rank: definitions, namespaces, Repositories, the rest, sets and variants."""
    group, kind = kind_of(obj)
    if kind == "CustomResourceDefinition":
        return 0
    if (group, kind) == ("", "Namespace"):
        return 1
    if group == CONFIG_GROUP:
        return 2 if kind == "Repository" else 4
    return 3


async def apply_news(
    cluster: Cluster,
    manifests: Sequence[Manifest],
    record: AppliedRecord,
    scope: Sequence[str],
    *,
    reapply: bool = False,
) -> Applied:
    """Apply manifests that are new or changed since they were last applied, and record them.

    scope: the files, folders and examples that the manifests come from
    reapply: whether to apply all of them
    Raises UsageError as `apply` does; manifests applied before the error are recorded.
    """
    news = {identity(manifest.object): record.news(manifest) for manifest in manifests}
    due = [m for m in manifests if reapply or news[identity(m.object)] != "same"]
    same = [] if reapply else [m for m in manifests if news[identity(m.object)] == "same"]
    left = record.left(manifests, scope)
    for manifest in same:
        record.note_same(manifest)
    record.save()
    effects = await apply(cluster, due, record)
    applied = sum(news[key] == "new" for key in effects)
    changed = sum(
        news[key] == "changed" or (news[key] == "same" and effects[key] != "same") for key in effects
    )
    remarks = [*await _same_remarks(cluster, same, record), *await _report_remains(cluster, left, record)]
    record.save()
    return Applied(applied, changed, len(manifests) - applied - changed, tuple(remarks))


async def _same_remarks(cluster: Cluster, same: Sequence[Manifest], record: AppliedRecord) -> list[str]:
    """Report unchanged manifests whose object was deleted, or was applied since from another file."""
    present = await _present(cluster, (manifest.object for manifest in same))
    gone = [m for m in same if identity(m.object) not in present]
    other = [(m, source) for m in same if (source := record.superseded(m)) and m not in gone]
    remarks = []
    if gone:
        names = _listed([name_of(m.object) for m in gone])
        remarks.append(f"deleted since, and not brought back: {names}; --reapply brings them back")
    if other:
        names = _listed([f"{name_of(m.object)} (by {source})" for m, source in other])
        remarks.append(f"applied since with other content: {names}; --reapply applies what these files say")
    return remarks


async def _report_remains(
    cluster: Cluster, left: Mapping[str, AppliedEntry], record: AppliedRecord
) -> list[str]:
    """Report objects that remain although their manifest is gone; forget deleted ones."""
    present = await _present(cluster, (_reference(key, entry) for key, entry in left.items()))
    record.forget(key for key in left if key not in present)
    stay = [entry for key, entry in left.items() if key in present]
    if not stay:
        return []
    first = stay[0]
    address = f"-n {first.namespace} " if first.namespace else ""
    command = f"kubectl delete {first.kind.lower()} {address}{first.name}"
    names = _listed([str(entry) for entry in stay])
    return [f"no longer in the manifests, and left as it is: {names}; to delete: {command}"]


def _reference(key: str, entry: AppliedEntry) -> Object:
    group = key.partition("/")[0]
    metadata = {"namespace": entry.namespace, "name": entry.name}
    return {"apiVersion": f"{group}/", "kind": entry.kind, "metadata": metadata}


async def _present(cluster: Cluster, objects: Iterable[Object]) -> set[str]:
    """Return the identities of those objects that exist. Sends one list request per kind."""
    wanted: dict[Kind, dict[tuple[str, str], str]] = {}
    for obj in objects:
        metadata = obj["metadata"]
        address = (metadata.get("namespace") or "default", metadata["name"])
        wanted.setdefault(kind_of(obj), {})[address] = identity(obj)
    found = set()
    for kind, identities in wanted.items():
        if (resource := await cluster.resource(kind)) is None:
            continue
        listing = await cluster.list(resource, metadata_only=True)
        there = {(item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in listing.items}
        for (namespace, name), key in identities.items():
            if (namespace if resource.namespaced else "", name) in there:
                found.add(key)
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


async def apply(
    cluster: Cluster, manifests: Sequence[Manifest], record: AppliedRecord | None = None
) -> dict[str, Effect]:
    """Apply all manifests in order of rank; return the effect of each by identity, and record progress.

    Raises UsageError after a rank with refused manifests; it lists them with their locations.
    """
    effects: dict[str, Effect] = {}
    free = asyncio.Semaphore(PARALLEL_MAX)
    clock = asyncio.get_running_loop()
    saved = clock.time()

    async def one(manifest: Manifest) -> str:
        nonlocal saved
        async with free:
            former = record.former(manifest) if record is not None else None
            try:
                effects[identity(manifest.object)] = await _apply(cluster, manifest.object, former)
            except (PermanentError, ConflictError) as exc:
                return f"{manifest.location}: {name_of(manifest.object)}: {exc}"
            if record is not None:
                record.note(manifest)
                if clock.time() - saved > SAVE_SECONDS:
                    record.save()
                    saved = clock.time()
            return ""

    try:
        ordered = sorted(manifests, key=lambda manifest: rank(manifest.object))
        for number, group in groupby(ordered, key=lambda manifest: rank(manifest.object)):
            problems = [found for found in await asyncio.gather(*map(one, group)) if found]
            if problems:
                raise UsageError("not everything could be applied:\n  " + "\n  ".join(problems))
            if number == 0:
                cluster.forget_resources()
    finally:
        if record is not None:
            record.save()
    return effects


async def _apply(cluster: Cluster, obj: Object, former: AppliedEntry | None) -> Effect:
    """Create or update an object.

    former: its entry in the record, None if it was never applied
    """
    resource = await _resource(cluster, obj)
    namespace = (obj["metadata"].get("namespace") or "default") if resource.namespaced else ""
    wanted = {**obj, "metadata": {**obj["metadata"]}}
    if namespace:
        wanted["metadata"]["namespace"] = namespace
    deadline = asyncio.get_running_loop().time() + CONFLICT_SECONDS_MAX
    backoff = Backoff(*CONFLICT_PAUSE_SECONDS, uniform)
    while True:
        live = await cluster.get(resource, namespace, obj["metadata"]["name"])
        try:
            if live is None:
                await cluster.create(resource, wanted)
                return "created"
            merged = merged_into(live, wanted, former)
            if merged == live:
                return "same"
            await cluster.update(resource, merged)
        except (AlreadyExistsError, ConflictError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        else:
            return "updated"
        # The other write may be accepted but not readable yet: an immediate retry would read the old object.
        await asyncio.sleep(backoff.next_seconds())


async def _resource(cluster: Cluster, obj: Object) -> Resource:
    version = str(obj["apiVersion"]).rpartition("/")[2]
    deadline = asyncio.get_running_loop().time() + SERVED_SECONDS
    while True:
        resource = await cluster.resource(kind_of(obj), version=version)
        if resource is not None:
            return resource
        if asyncio.get_running_loop().time() > deadline:
            raise PermanentError(
                f'the API server knows no kind "{obj["kind"]}" in version "{obj["apiVersion"]}": apply its '
                "CustomResourceDefinition, too",
                reason="NoMatch",
            )
        cluster.forget_resources()
        await asyncio.sleep(0.25)


def merged_into(live: Object, wanted: Object, former: AppliedEntry | None = None) -> Object:
    """Return the live object merged with the manifest, without labels and annotations that it dropped."""
    own = ("metadata", "status", "apiVersion", "kind")
    said = {field: value for field, value in wanted.items() if field not in own}
    metadata = {**live["metadata"]}
    formerly = {"labels": former.labels, "annotations": former.annotations} if former is not None else {}
    for field in ("labels", "annotations"):
        given = wanted["metadata"].get(field) or {}
        present = metadata.get(field) or {}
        dropped = {key for key in formerly.get(field, ()) if key in present} - set(given)
        if given or dropped:
            metadata[field] = {k: v for k, v in {**present, **given}.items() if k not in dropped}
    return {**live, **said, "metadata": metadata}
