"""What the stories of `pvbus demo` share: their steps, and the fleet as the API server has it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.live import FILES, REVISION
from pvbus.cli.progress import SET, VARIANT, Judged
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.gates import conditions_of
from pvbus.core.kernel.tasks import status_of
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Kind, Object

NAMESPACE = "default"
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
"""Ten times what 200 packages need on two idle cores."""


class Step(NamedTuple):
    """One step of a story.

    title: its title
    commands: the commands, for a shell; a function returns those that name what is there by then
    outcome: waits until the commands have had their effect, and returns what is now true
    codes: the exit codes that the commands may have
    shows: words that their output has to have
    """

    title: str
    commands: str | Callable[["Fleet"], Awaitable[str]]
    outcome: Callable[["Fleet"], Awaitable[str]]
    codes: tuple[int, ...] = (0,)
    shows: str = ""


class Fleet:
    """The fleet as the API server has it."""

    def __init__(self, cluster: HttpCluster) -> None:
        self._cluster = cluster
        self.began = time.monotonic()

    async def all(self, kind: Kind, namespace: str = NAMESPACE) -> list[Object]:
        resource = await self._cluster.resource(kind)
        return list((await self._cluster.list(resource, namespace)).items) if resource is not None else []

    async def get(self, kind: Kind, name: str) -> Object | None:
        resource = await self._cluster.resource(kind)
        return await self._cluster.get(resource, NAMESPACE, name) if resource is not None else None

    async def revisions(self, number: int, where: str = "") -> list[Object]:
        """Return the PackageRevisions of the variants' number-th workspace.

        where: a region, "" for all
        """
        return [
            obj
            for obj in await self.all(REVISION)
            if obj["metadata"]["name"].endswith(f".packagevariant-{number}")
            and obj["metadata"]["name"].startswith(f"edge-{where}")
        ]

    async def size(self) -> int:
        return len(await self.all(VARIANT))

    async def text(self, name: str, file: str) -> str:
        """Return a file of a PackageRevision, "" if there is none."""
        found = await self.get(FILES, name) or {}
        return str(found.get("spec", {}).get("resources", {}).get(file, ""))

    async def until(self, ask: Callable[[], Awaitable[bool]], what: str) -> float:
        """Wait until `ask` returns True; return the seconds since the step began. Raises PermanentError."""
        while not await ask():
            if time.monotonic() - self.began > PATIENCE_SECONDS:
                raise PermanentError(f"after {PATIENCE_SECONDS:.0f} s: {what}; `pvbus explain` says why")
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - self.began


async def first_published(fleet: Fleet) -> float:
    """Wait until the first revisions of all packages are published; return the seconds as `until` does."""
    size = await fleet.size()

    async def is_published() -> bool:
        return sum(lifecycle_of(obj) == "Published" for obj in await fleet.revisions(1)) == size

    return await fleet.until(is_published, "not all first drafts are published")


def condition(obj: Object, type_: str) -> str:
    """Return the status of a condition of an object, "" if it has none."""
    return status_of(conditions_of(obj), type_)


async def is_settled(fleet: Fleet) -> bool:
    """Return whether the set and all its variants are ready."""
    sets, variants = await fleet.all(SET), await fleet.all(VARIANT)
    return bool(sets and variants) and all(msgspec.convert(obj, Judged).ready for obj in (*sets, *variants))


async def was_told(fleet: Fleet) -> bool:
    """Return whether the story was run on this fleet, or a part of it."""
    firsts = await fleet.revisions(1)
    return bool(await fleet.get(REVISION, "blueprints.web.v2")) or any(
        lifecycle_of(obj) != "Draft" for obj in firsts
    )


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
