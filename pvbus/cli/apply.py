"""Manifests into an API server: create what is missing, update what differs.

What a manifest says at its top level (spec, data, ...) replaces what is there; labels and annotations are
added, and those that it had when it was applied before and has no more are removed; what it does not mention
stays. A write that changes nothing is none: the server tells.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from pvbus.cli.applied import AppliedEntry, AppliedRecord, identity, name_of
from pvbus.cli.manifests import Manifest
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError, UsageError
from pvbus.ports.cluster import Cluster, Kind, Object, Resource

PARALLEL_MAX = 16
CONFLICT_SECONDS_MAX = 10.0  # for so long somebody else's writes of one object may come between
CONFLICT_PAUSE_SECONDS = (0.02, 0.5)  # the first pause and the longest; each is twice the last
SERVED_SECONDS = 5.0  # a definition is served a moment after it was written
SAVE_SECONDS = (
    0.5  # what was applied since the last save is applied once more after a crash; a save is a sync
)
NAMES_SHOWN_MAX = 3

Effect = Literal["created", "updated", "same"]


class Applied(NamedTuple):
    """applied: manifests that are new. changed: known ones that were applied again. remarks: sentences."""

    applied: int
    changed: int
    unchanged: int
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.applied} applied, {self.changed} changed, {self.unchanged} unchanged"


def rank(obj: Object) -> int:
    """Return the place in the order: definitions, namespaces, Repositories, the rest, sets and variants."""
    group, kind = kind_of(obj)
    if kind == "CustomResourceDefinition":
        return 0
    if (group, kind) == ("", "Namespace"):
        return 1
    if group == CONFIG_GROUP:
        return 2 if kind == "Repository" else 4
    return 3


def kind_of(obj: Object) -> Kind:
    return Kind(str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"]))


async def apply_news(
    cluster: Cluster,
    manifests: Sequence[Manifest],
    record: AppliedRecord,
    scope: Sequence[str],
    *,
    reapply: bool = False,
) -> Applied:
    """Apply what is new or changed since it was applied last, and record it.

    scope: the files, folders and examples that the manifests come from. reapply: apply everything.
    Raises UsageError that lists every manifest that was refused; what was applied is recorded even then.
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
    remarks = [*await _same_remarks(cluster, same, record), *await _left_remarks(cluster, left, record)]
    record.save()
    return Applied(applied, changed, len(manifests) - applied - changed, tuple(remarks))


async def _same_remarks(cluster: Cluster, same: Sequence[Manifest], record: AppliedRecord) -> list[str]:
    """Say what of the unchanged manifests is not as they say, as far as that is known."""
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


async def _left_remarks(
    cluster: Cluster, left: Mapping[str, AppliedEntry], record: AppliedRecord
) -> list[str]:
    """Say which objects stay although their manifest is gone; forget those that are gone, too."""
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
    """Return which of these objects there are, by identity. One list for each kind."""
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
    """Apply everything; returns what each manifest did, by identity. Progress goes into the record.

    Raises UsageError that lists every manifest that was refused, with its place.
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
    """Create or update. former: what was recorded of it when it was applied before."""
    resource = await _resource(cluster, obj)
    namespace = (obj["metadata"].get("namespace") or "default") if resource.namespaced else ""
    wanted = {**obj, "metadata": {**obj["metadata"]}}
    if namespace:
        wanted["metadata"]["namespace"] = namespace
    deadline = asyncio.get_running_loop().time() + CONFLICT_SECONDS_MAX
    pause, longest = CONFLICT_PAUSE_SECONDS
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
        # What came between may be accepted and not yet readable: asking again at once finds the same.
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest)


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
    """Return the live object with what the manifest says, and without what it said before of labels."""
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
