"""PackageRevisionResources: the files of a package revision, read from git and written to drafts."""

from collections.abc import Mapping
from typing import Any

from pvbus.core import yamledit
from pvbus.core.model import PORCH_API, PORCH_GROUP
from pvbus.embedded.packages import answers, content, layout, operations, rendering
from pvbus.embedded.packages.gitrepo import replaced, texts
from pvbus.embedded.packages.operations import Draft
from pvbus.embedded.packages.rendering import Rendering
from pvbus.embedded.packages.repository import PACKAGE_REVISION
from pvbus.embedded.packages.revisions import Revision, facts_of
from pvbus.embedded.packages.workshop import Workshop
from pvbus.ports.cluster import Object

PLURAL = f"packagerevisionresources.{PORCH_GROUP}"
KIND = "PackageRevisionResources"


class ResourcesKind:
    """The VirtualKind of PackageRevisionResources."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def get(self, namespace: str, name: str) -> Object | None:
        obj = self._workshop.objects.get(PACKAGE_REVISION, namespace, name)
        if obj is None or not self._workshop.has_repository(obj):
            return None
        return await self._read(obj)

    async def list(self, namespace: str | None) -> list[Object]:
        return [
            found
            for obj in self._workshop.objects.list(PACKAGE_REVISION, namespace)
            if self._workshop.has_repository(obj) and (found := await self._read(obj)) is not None
        ]

    async def _read(self, obj: Object) -> Object | None:
        keeper, revision = await self._workshop.located(obj)
        if revision is None:
            return None
        return _shown(obj, texts(await keeper.files(revision)))

    async def update(self, obj: Object, *, user: str) -> Object:
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        version = metadata.get("resourceVersion", "")
        if not version:
            raise answers.invalid(
                name, "metadata.resourceVersion", "must be specified for an update", kind=KIND
            )
        wanted = _resources(name, obj)
        with self._workshop.busy(namespace, name):
            stored = self._workshop.objects.get(PACKAGE_REVISION, namespace, name)
            if stored is None:
                raise answers.not_found(name, plural=PLURAL)
            keeper, _ = await self._workshop.located(stored)
            await keeper.settled(name)
            stored = self._workshop.objects.get(PACKAGE_REVISION, namespace, name)
            if stored is None or stored["metadata"].get("resourceVersion") != version:
                raise answers.modified(name, plural=PLURAL)
            return await self._update(stored, wanted, user)

    async def _update(self, stored: Object, wanted: Mapping[str, str], user: str) -> Object:
        name = stored["metadata"]["name"]
        keeper, revision = await self._workshop.current(stored)
        if revision.lifecycle != layout.DRAFT:
            raise answers.internal(
                f'cannot update a package revision with lifecycle value "{revision.lifecycle}"; '
                "package must be Draft"
            )
        files = await keeper.files(revision)
        made = await self._made(wanted, texts(files), revision)
        new_files = replaced(files, made.texts)
        if new_files == files and made.note == revision.note:
            return _shown(stored, made.texts, made.status)
        draft = Draft(new_files, operations.RENDER_TASK, made.note)
        place = keeper.place(user)
        with keeper.writing(name):
            await keeper.change(
                name, lambda refs: operations.update_draft(place, refs, name, revision, draft)
            )
            after = keeper.catalog.find(revision.directory, revision.workspace)
            if after is None:
                raise answers.modified(name, plural=PLURAL)
            latest = self._workshop.objects.get(
                PACKAGE_REVISION, stored["metadata"].get("namespace", ""), name
            )
            shown = keeper.shown(after, (latest or stored)["metadata"])
            stored = await self._workshop.objects.put(PACKAGE_REVISION, shown)
        keeper.written(name)
        return _shown(stored, made.texts, made.status)

    async def _made(
        self, wanted: Mapping[str, str], stored: Mapping[str, str], revision: Revision
    ) -> Rendering:
        """Return what these files become: rendered, unless they have been already."""
        note = revision.note
        if rendering.is_needed(wanted, stored, note):
            return await self._workshop.rendered(wanted)
        # Only the conditions can differ: take them from the request, and the rest from where it is
        # rendered, the request itself or what was made of it before.
        base = stored if rendering.is_source_of_stored(wanted, note) else wanted
        conditions = facts_of(wanted[layout.KPTFILE]).conditions
        try:
            edited = content.edit_kptfile(
                base, content.with_conditions(conditions, revision.kptfile.rendered)
            )
        except yamledit.YamlError as exc:
            raise answers.internal(f"Kptfile: {exc}") from exc
        return Rendering(edited, note)


def _resources(name: str, obj: Object) -> Mapping[str, str]:
    resources = (obj.get("spec") or {}).get("resources")
    if not isinstance(resources, dict) or not all(isinstance(text, str) for text in resources.values()):
        raise answers.bad_request("spec.resources must map file paths to texts")
    if problem := content.path_problem(list(resources)):
        raise answers.invalid(name, "spec.resources", problem, kind=KIND)
    return resources


def _shown(revision: Object, resources: Mapping[str, str], status: Object | None = None) -> Object:
    metadata = revision["metadata"]
    spec = revision["spec"]
    shown: dict[str, Any] = {
        "apiVersion": PORCH_API,
        "kind": KIND,
        "metadata": {
            key: metadata[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in metadata
        },
        "spec": {
            **{key: spec[key] for key in ("packageName", "workspaceName", "revision", "repository")},
            "resources": dict(resources),
        },
        "status": {"renderStatus": status} if status is not None else {},
    }
    return shown
