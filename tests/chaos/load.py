"""The client of a chaos run: the fleet's, which also publishes upstreams, follows them and edits drafts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.cluster import Kind, Object
from tests.chaos.judge import Branch, Edit
from tests.e2e.faults.fleet import NAMESPACE, REVISION, SET, Change, Fleet, Spot
from tests.e2e.faults.world import commit
from tests.tools import packages

RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")
BLUEPRINTS = "blueprints"
PACKAGE = "web"
EDITION = "edition.txt"
UPSTREAMS_MAX = 40
"""Each one is a revision that the package store keeps; a long run goes back to older ones, too."""


class ChaosFleet(Fleet):
    """See the module. edited: takes each person's edit that was answered."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        clusters_per_region: int,
        pause_seconds_max: float,
        has_drafts: bool,
        edited: Callable[[Edit], None],
    ) -> None:
        super().__init__(
            folder,
            seed,
            clusters_per_region=clusters_per_region,
            pause_seconds_max=pause_seconds_max,
            has_drafts=has_drafts,
        )
        self._edited = edited
        self._published = 1
        self.upstreams = 0
        self.refusals = 0

    def _changes(self) -> dict[Change, int]:
        more: dict[Change, int] = {self._follow_upstream: 4}
        if self._has_drafts:
            more[self._edit_draft] = 8
        return {**super()._changes(), **more}

    async def settle_in(self) -> None:
        await super().settle_in()
        if not self._has_drafts:
            await self._create(REVISION, packages.published(NAMESPACE, BLUEPRINTS, PACKAGE, 1))

    async def mine(self) -> dict[Spot, Object]:
        """Add the published revisions, which the client creates where no package store does."""
        found = await super().mine()
        if not self._has_drafts:
            for obj in await self.items(REVISION):
                found[Spot(REVISION, obj["metadata"]["name"])] = obj
        return found

    async def _follow_upstream(self) -> None:
        """Publish a revision of the blueprint, or take one that there is; the set `web` follows it."""
        if self._published < UPSTREAMS_MAX and self._random.random() < 0.7:
            await self._publish(self._published + 1)
        number = self._random.randint(max(1, self._published - 2), self._published)
        for obj in await self.items(SET):
            if obj["metadata"]["name"] == "web":
                upstream = {**obj["spec"]["upstream"], "revision": number}
                await self._patch(SET, obj, {"spec": {**obj["spec"], "upstream": upstream}})
                self.upstreams += 1

    async def _publish(self, number: int) -> None:
        if self._has_drafts:
            files = {f"{PACKAGE}/{EDITION}": f"edition {number}\n"}
            remote = self.folder / f"{BLUEPRINTS}.git"
            await asyncio.to_thread(commit, remote, "main", files, tag=f"{PACKAGE}/v{number}")
        else:
            await self._create(REVISION, packages.published(NAMESPACE, BLUEPRINTS, PACKAGE, number))
        self._published = number

    async def _edit_draft(self) -> None:
        """A person adds a file to a draft."""
        drafts = [obj for obj in await self.items(REVISION) if _is_draft(obj)]
        resource = await self.cluster.resource(RESOURCES)
        if not drafts or resource is None:
            return
        draft = self._random.choice(sorted(drafts, key=lambda obj: str(obj["metadata"]["name"])))
        found = await self.cluster.get(resource, NAMESPACE, draft["metadata"]["name"])
        if found is None:
            return
        self._names += 1
        file = f"note-{self._names}.txt"
        spec = {**found["spec"], "resources": {**found["spec"]["resources"], file: "of a person\n"}}
        try:
            await self.cluster.update(resource, {**found, "spec": spec})
        except (ConflictError, PermanentError):  # somebody was faster, or the draft is gone
            self.refusals += 1
            return
        spec = draft["spec"]
        branch = Branch(spec["repository"], spec["packageName"], spec["workspaceName"])
        self._edited(Edit(branch, draft["metadata"]["uid"], file))

    async def work(self, stop: asyncio.Event) -> None:
        """Change something, again and again, also while the API server is away or refuses."""
        while not stop.is_set():
            try:
                await super().work(stop)
            except (ConflictError, PermanentError):  # what was chosen has changed or gone meanwhile
                self.refusals += 1
            except TransientError:
                await asyncio.sleep(0.1)


def _is_draft(obj: Object) -> bool:
    meta = obj["metadata"]
    is_ours = obj["spec"]["repository"] != BLUEPRINTS and obj["spec"]["lifecycle"] == "Draft"
    return is_ours and not meta.get("deletionTimestamp")
