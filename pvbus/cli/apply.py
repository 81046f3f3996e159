"""Manifests into an API server: create what is missing, update what differs.

What a manifest says at its top level (spec, data, ...) replaces what is there; labels and annotations are
added; what it does not mention stays. A write that changes nothing is none: the server tells.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from pvbus.cli.manifests import Manifest
from pvbus.core.model import CONFIG_GROUP
from pvbus.errors import AlreadyExistsError, ConflictError, PermanentError, UsageError
from pvbus.ports.cluster import Cluster, Kind, Object, Resource

PARALLEL_MAX = 16
CONFLICT_SECONDS_MAX = 10.0  # for so long somebody else's writes of one object may come between
CONFLICT_PAUSE_SECONDS = (0.02, 0.5)  # the first pause and the longest; each is twice the last
SERVED_SECONDS = 5.0  # a definition is served a moment after it was written


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


async def apply(cluster: Cluster, manifests: Sequence[Manifest]) -> int:
    """Apply everything; returns how many objects there are now that were not there before.

    Raises UsageError that lists every manifest that was refused, with its place.
    """
    created = 0
    free = asyncio.Semaphore(PARALLEL_MAX)

    async def one(manifest: Manifest) -> bool | str:
        async with free:
            try:
                return await _apply(cluster, manifest.object)
            except (PermanentError, ConflictError) as exc:
                name = f"{manifest.object['kind']} {manifest.object['metadata']['name']}"
                return f"{manifest.place}: {name}: {exc}"

    ordered = sorted(manifests, key=lambda manifest: rank(manifest.object))
    for number, group in groupby(ordered, key=lambda manifest: rank(manifest.object)):
        results = await asyncio.gather(*(one(manifest) for manifest in group))
        problems = [result for result in results if isinstance(result, str)]
        if problems:
            raise UsageError("not everything could be applied:\n  " + "\n  ".join(problems))
        created += sum(result is True for result in results)
        if number == 0:
            cluster.forget_resources()
    return created


async def _apply(cluster: Cluster, obj: Object) -> bool:
    """Create or update; returns whether it was created."""
    resource = await _resource(cluster, obj)
    namespace = (obj["metadata"].get("namespace") or "default") if resource.namespaced else ""
    wanted = {**obj, "metadata": {**obj["metadata"]}}
    if namespace:
        wanted["metadata"]["namespace"] = namespace
    pause, longest = CONFLICT_PAUSE_SECONDS
    deadline = asyncio.get_running_loop().time() + CONFLICT_SECONDS_MAX
    while True:
        live = await cluster.get(resource, namespace, obj["metadata"]["name"])
        try:
            if live is None:
                await cluster.create(resource, wanted)
                return True
            merged = merged_into(live, wanted)
            if merged != live:
                await cluster.update(resource, merged)
        except (AlreadyExistsError, ConflictError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        else:
            return False
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


def merged_into(live: Object, wanted: Object) -> Object:
    """Return the live object with what the manifest says."""
    own = ("metadata", "status", "apiVersion", "kind")
    said = {field: value for field, value in wanted.items() if field not in own}
    metadata = {**live["metadata"]}
    for field in ("labels", "annotations"):
        if wanted["metadata"].get(field):
            metadata[field] = {**(metadata.get(field) or {}), **wanted["metadata"][field]}
    return {**live, **said, "metadata": metadata}
