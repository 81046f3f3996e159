"""Updates the PackageRevisions of one repository from its catalog, after git was read or written.

An object with a request in progress is left to that request, and looked at again afterwards; so is one that
another replica is changing.
"""

import asyncio
from collections.abc import Sequence

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.catalog import Catalog
from pvbus.controlplane.packages.journal import Notes
from pvbus.controlplane.packages.revisions import RevisionKey, name_of
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.controlplane.packages.shown import ShownRevisions
from pvbus.core.kernel.keys import revision_name

SHARED_WRITES_MAX = 16
"""Objects that are written at once where each is a request to another server: a first start of a thousand
takes seconds, and other clients of the server notice little."""

PAUSE_OBJECTS = 200
"""Objects that are updated between two turns of other tasks."""


class ObjectUpdater:
    """Writes the objects of one Repository after its revisions.

    later: the revisions to look at again
    is_behind: whether git must be read before that, as another replica knows more of it
    """

    def __init__(self, settings: RepositorySettings, revisions: ShownRevisions, journal: Notes) -> None:
        self.later: set[RevisionKey] = set()
        self.is_behind = False
        self._settings = settings
        self._revisions = revisions
        self._writes = revisions.writes
        self._journal = journal

    async def finish_interrupted(self, catalog: Catalog) -> None:
        """Update the objects of interrupted changes from git, before any request reads them.

        An object that is missing is left to the full sync: there are many in a recreated Repository.
        """
        interrupted = [name for name in self._journal.interrupted() if not self._writes.is_pending(name)]
        if not interrupted:
            self._journal.remote_read()
            return
        in_git = {name_of(item, self._settings.facts): item for item in catalog.revisions()}
        for name in interrupted:
            if name in in_git and (self._journal.is_shared or self._revisions.get(name) is not None):
                await self._revisions.put_alone(name, in_git[name])
            if self._revisions.may_write(name):
                await self._journal.settle(name, is_in_git=name in in_git)
        self._journal.remote_read()

    async def update_all(self, catalog: Catalog) -> None:
        """Compare every object with git, and remove journal notes that are no longer needed."""
        facts = self._settings.facts
        present = {name_of(item, facts): (item.directory, item.workspace) for item in catalog.revisions()}
        for obj in self._revisions.all():
            name = obj["metadata"]["name"]
            if name not in present and not self._writes.is_pending(name):
                await self._revisions.remove(name)
        for name in self._journal.hidden():
            if name not in present:
                await self._revisions.remove(name)
        await self.update(catalog, set(present.values()))
        interrupted = set(self._journal.interrupted())
        for name in self._journal.names():
            if name not in interrupted and not self._writes.is_pending(name):
                self._journal.drop(name)

    async def update(self, catalog: Catalog, changed: set[RevisionKey]) -> None:
        """Update the objects of these revisions and of those in `later`.

        An object with a request in progress is updated once the request is done.
        """
        todo = sorted(changed | self.later)
        self.later = set()
        if self._journal.is_shared:
            await self._update_together(catalog, todo)
            return
        for count, key in enumerate(todo, start=1):
            await self._update_one(catalog, *key)
            if count % PAUSE_OBJECTS == 0:
                await asyncio.sleep(0)  # let requests run

    async def _update_together(self, catalog: Catalog, todo: Sequence[RevisionKey]) -> None:
        for start in range(0, len(todo), SHARED_WRITES_MAX):
            some = todo[start : start + SHARED_WRITES_MAX]
            updates = (self._update_one(catalog, *key) for key in some)
            done = await asyncio.gather(*updates, return_exceptions=True)
            if failures := [each for each in done if each is not None]:
                raise failures[0]

    async def _update_one(self, catalog: Catalog, directory: str, workspace: str) -> None:
        revision = catalog.find(directory, workspace)
        package = layout.package_path(directory, self._settings.directory) or directory
        name = revision_name(self._settings.facts.name, package, workspace)
        if self._writes.is_pending(name):
            self.later.add((directory, workspace))
            return
        must_wait, obj = False, self._revisions.get(name)
        if self._journal.is_shared and revision is not None and revision.is_placeholder and obj is not None:
            catalog.adopt(directory, obj["status"]["selfLock"]["git"]["commit"])
            revision = catalog.find(directory, workspace)
        if revision is not None:
            must_wait = await self._revisions.put_alone(name, revision)
        elif obj is not None:
            must_wait = await self._revisions.remove(name)
        if must_wait:
            self.later.add((directory, workspace))
            self.is_behind = self.is_behind or not self._journal.is_held(name)
