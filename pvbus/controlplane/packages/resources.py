"""PackageRevisionResources: the files of a package revision, read from git and written to drafts.

`<name>@<commit>` is read as the revision was at a commit, as an `upstreamLock` records it; an annotation says
whether that commit comes after the revision.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import answers, bounds, layout, operations, signing, taskhistory, upgrading
from pvbus.controlplane.packages.content import facts_of, validators_in
from pvbus.controlplane.packages.filesets import File, Files, replaced, texts
from pvbus.controlplane.packages.journal import Note, noted
from pvbus.controlplane.packages.operations import Draft
from pvbus.controlplane.packages.render import Rendering
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.requests import RevisionRequests
from pvbus.controlplane.packages.revisions import Revision
from pvbus.core.api.variants import PORCH_API, PORCH_GROUP
from pvbus.core.kernel.keys import IS_LATER, SIGNED_CONTENT
from pvbus.core.kernel.objects import annotations_of
from pvbus.ports.cluster import Object

PUSH_ON_FAILURE = "porch.kpt.dev/push-on-render-failure"
"""Annotation of a draft: what an update does whose pipeline fails. "false" stores nothing, "true" stores the
files and answers with an error nevertheless, both as Porch's server; without it, they are stored."""

_FAILED = "error rendering package in kpt function pipeline."
_NOT_PUSHED = "Package NOT pushed to remote. Fix locally (until 'kpt fn render' succeeds) and retry."
_PUSHED = "Package pushed to remote despite render failure."

PLURAL = f"packagerevisionresources.{PORCH_GROUP}"
KIND = "PackageRevisionResources"


class _Asking(NamedTuple):
    """Who asks for an update, and what the request says beside the files.

    cause: why, if a service of pvbus has made the files, else ""
    content: the digest of the content that the writer has looked at, None if it is not named
    """

    user: str
    cause: str
    content: str | None

    @classmethod
    def of(cls, user: str, metadata: Mapping[str, Any]) -> "_Asking":
        annotations = metadata.get("annotations") or {}
        return cls(user, str(annotations.get(layout.CAUSE) or ""), annotations.get(SIGNED_CONTENT))


class ResourcesKind:
    """The VirtualKind of PackageRevisionResources."""

    def __init__(self, requests: RevisionRequests) -> None:
        self._requests = requests

    async def get(self, namespace: str, name: str) -> Object | None:
        name, _, commit = name.partition("@")
        await self._requests.objects.refresh(PACKAGE_REVISION, namespace, name)
        obj = self._requests.objects.get(PACKAGE_REVISION, namespace, name)
        if obj is None or not await self._requests.has_repository(obj):
            return None
        return await (self._read_at(obj, commit) if commit else self._read(obj))

    async def list(self, namespace: str | None) -> list[Object]:
        """List all; one with unreadable content has no files, and the error in its status."""
        found: list[Object] = []
        for obj in self._requests.objects.list(PACKAGE_REVISION, namespace):
            if not await self._requests.has_repository(obj):
                continue
            try:
                shown = await self._read(obj)
            except StatusError as exc:
                if exc.code != 422:
                    raise
                shown = resources_of(obj, {}, {"error": exc.message})
            if shown is not None:
                found.append(shown)
        return found

    async def _read(self, obj: Object) -> Object | None:
        sync, revision = await self._requests.locate(obj)
        if revision is None:
            return None
        return resources_of(obj, signing.current_texts(texts(await sync.clone.files(revision)), revision))

    async def _read_at(self, obj: Object, commit: str) -> Object | None:
        sync, revision = await self._requests.locate(obj)
        if revision is None:
            return None
        found = sync.clone.mirror.commit_of(commit)
        tree = sync.clone.mirror.tree_of(found, revision.directory)
        if found is None or tree is None:
            return None
        at = msgspec.structs.replace(revision, commit=found, tree=tree)
        shown = resources_of(obj, texts(await sync.clone.files(at)))
        is_later = sync.clone.mirror.is_ancestor(revision.commit, found)
        metadata = {
            **shown["metadata"],
            "name": f"{obj['metadata']['name']}@{commit}",
            "annotations": {IS_LATER: "true" if is_later else "false"},
        }
        return {**shown, "metadata": metadata}

    async def update(self, obj: Object, *, user: str) -> Object:
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        version = metadata.get("resourceVersion", "")
        if not version:
            raise answers.invalid(
                name, "metadata.resourceVersion", "must be specified for an update", kind=KIND
            )
        wanted = _resources(name, obj)
        with self._requests.busy(namespace, name):
            await self._requests.objects.refresh(PACKAGE_REVISION, namespace, name)
            stored = self._requests.objects.get(PACKAGE_REVISION, namespace, name)
            if stored is None:
                raise answers.not_found(name, plural=PLURAL)
            sync, _ = await self._requests.locate(stored)
            await sync.writes.await_stored(name)
            stored = self._requests.objects.get(PACKAGE_REVISION, namespace, name)
            if stored is None or stored["metadata"].get("resourceVersion") != version:
                raise answers.modified(name, plural=PLURAL)
            await self._requests.check_uninterrupted(stored)
            return await self._update(stored, wanted, _Asking.of(user, metadata))

    async def _update(self, stored: Object, wanted: Mapping[str, str], asking: _Asking) -> Object:
        sync, revision = await self._requests.current(stored)
        if revision.lifecycle != layout.DRAFT:
            raise answers.internal(
                f'cannot update a package revision with lifecycle value "{revision.lifecycle}"; '
                "package must be Draft"
            )
        files = await sync.clone.files(revision)
        present = signing.current_texts(texts(files), revision)
        made = await self._make_files(wanted, present, revision)
        signing.require_content(stored["metadata"]["name"], asking.content, (made.texts, wanted))
        made, lines = signing.sign(revision, present, wanted, made, asking.user, may_sign=not asking.cause)
        failure = _failure(made)
        policy = annotations_of(stored).get(PUSH_ON_FAILURE)
        if failure and policy == "false":
            raise answers.internal(f"{_FAILED} {_NOT_PUSHED} Details: {failure}")
        shown = await self._save(sync, revision, stored, files, made, asking, lines)
        if failure and policy == "true":
            raise answers.internal(f"{_FAILED} {_PUSHED} Details: {failure}")
        return shown

    async def _make_files(
        self, wanted: Mapping[str, str], stored: Mapping[str, str], revision: Revision
    ) -> Rendering:
        """Return a draft's new files. What another program wrote is rendered even without a change."""
        if revision.note is None and validators_in(wanted):
            return await self._requests.render(wanted)
        return await self._requests.make_files(wanted, stored, revision)

    async def _with_modes(
        self, stored: Object, revision: Revision, files: Files, made: Rendering
    ) -> dict[str, File]:
        """Return a draft's new files; modes and links are merged where its upstream is another one now."""
        merged = replaced(files, made.texts)
        before = revision.kptfile.upstream_lock
        after = facts_of(made.texts[layout.KPTFILE]).upstream_lock
        if before is None or after is None or before == after:
            return merged
        namespace = stored["metadata"].get("namespace", "")
        old = await self._requests.files_at(namespace, before, revision)
        new = await self._requests.files_at(namespace, after, revision)
        return upgrading.with_modes(old, files, new, merged) if old and new else merged

    async def _save(
        self,
        sync: RepositorySync,
        revision: Revision,
        stored: Object,
        files: Files,
        made: Rendering,
        asking: _Asking,
        lines: tuple[str, ...],
    ) -> Object:
        """Commit a rendered package, unless the draft has it already.

        stored: the draft's object
        files: the draft's files now
        made: the rendered package
        lines: for git, about signatures
        """
        name = stored["metadata"]["name"]
        made, task_lines = taskhistory.recorded(texts(files), made, asking.user)
        new_files = await self._with_modes(stored, revision, files, made)
        if new_files == files and made.note == revision.note:
            return resources_of(stored, made.texts, made.status)
        subject, changes = operations.description_of_update(
            files, new_files, stored["metadata"], "" if asking.cause else asking.user
        )
        cause = (*changes, *task_lines, *lines, *layout.cause_line(asking.cause))
        draft = Draft(
            await sync.clone.write(name, new_files), operations.RENDER_TASK, made.note, cause, subject
        )
        branch = sync.clone.branch(asking.user)
        with sync.writes.writing(name):
            note = Note("", noted(stored["metadata"]), "", stored["metadata"]["resourceVersion"])
            await sync.changes.make_reserved(
                name, note, lambda refs: operations.update_draft(branch, refs, name, revision, draft)
            )
            after = sync.clone.catalog.find(revision.directory, revision.workspace)
            if after is None:
                raise answers.modified(name, plural=PLURAL)
            changed = await self._requests.objects.change(
                PACKAGE_REVISION,
                stored["metadata"].get("namespace", ""),
                name,
                lambda newest: sync.revisions.shown(after, newest["metadata"]),
            )
            if changed is None:
                raise answers.modified(name, plural=PLURAL)
        sync.writes.end_write(name)
        return resources_of(changed, made.texts, made.status)


def _resources(name: str, obj: Object) -> Mapping[str, str]:
    resources = (obj.get("spec") or {}).get("resources")
    if not isinstance(resources, dict) or not all(isinstance(text, str) for text in resources.values()):
        raise answers.bad_request("spec.resources must map file paths to texts")
    if problem := bounds.path_problem(list(resources)):
        raise answers.invalid(name, "spec.resources", problem, kind=KIND)
    return resources


def _failure(made: Rendering) -> str:
    """Return why the pipeline failed, "" if it did not."""
    if made.note is None or made.note.state != "failed":
        return ""
    condition = facts_of(made.texts[layout.KPTFILE]).rendered or {}
    return condition.get("message") or condition.get("reason") or "the Kptfile cannot be read"


_SPEC = ("packageName", "workspaceName", "revision", "repository")


def resources_of(revision: Object, resources: Mapping[str, str], status: Object | None = None) -> Object:
    """Return the PackageRevisionResources of a PackageRevision with these files."""
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
            **{key: spec[key] for key in _SPEC if key in spec},
            "resources": dict(resources),
        },
        "status": {"renderStatus": status} if status is not None else {},
    }
    return shown
