"""The writes of a PackageRevision: create, lifecycle, approval, delete.

Departures from Porch's server: an update that only changes the object's own metadata makes no commit;
a pipeline that fails does not fail the request, but its package can be neither proposed nor approved;
`pvbus.dev/defer-render: "true"` on a new revision leaves rendering to the first update of its files; an edit
or upgrade that a PackageVariant controls gets the annotation by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.apiserver import audit
from pvbus.controlplane.apiserver.garbage import USER as GARBAGE_COLLECTOR
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import (
    answers,
    content,
    gates,
    layout,
    operations,
    render,
    signing,
    taskhistory,
    together,
)
from pvbus.controlplane.packages.content import KptfileFacts, facts_of
from pvbus.controlplane.packages.creation import (
    Creation,
    Wanted,
    carry_policy,
    check_place,
    deferred,
    first_files,
    latest_label,
    parse,
)
from pvbus.controlplane.packages.filesets import replaced, texts
from pvbus.controlplane.packages.journal import Note, noted
from pvbus.controlplane.packages.operations import Draft, Staging
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.requests import RevisionRequests
from pvbus.controlplane.packages.revisions import (
    Revision,
    blocking_references,
    rendered_problem,
    with_editors,
)
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.controlplane.packages.upstreams import Upstreams
from pvbus.core.api.kptfile import STATUSES
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, annotation
from pvbus.core.kernel.gates import merged, open_on_proposals
from pvbus.core.kernel.keys import (
    DELETE_EDITS,
    EDITED_BY,
    OVERRIDE_GATES,
    REMOVE_LAST_REVISION,
    SIGNED_CONTENT,
)
from pvbus.core.kernel.objects import annotations_of, owner_name
from pvbus.core.variants.merge import copies
from pvbus.core.variants.revisions import validators
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Object
from pvbus.telemetry.structured import structlog

GARBAGE_COLLECTORS = (GARBAGE_COLLECTOR, "system:kube-controller-manager")
"""The second one is its name in a cluster whose controllers share their credentials."""

OVERRIDE_TITLE = "Override readiness gates"
"""The subject of a commit that has nothing else to say."""

_log = structlog.get_logger(__name__)


class _Asking(NamedTuple):
    """Who asks for an update, and what the request says beside the object.

    reason: why unmet gates are overridden, None if they are not
    content: the digest of the content that the writer has looked at, None if it is not named
    group: the names of the revisions that are approved together, this one, too
    cause: lines for the message of the commit that publishes it
    """

    user: str
    reason: str | None
    content: str | None
    group: frozenset[str] = frozenset()
    cause: tuple[str, ...] = ()


class RevisionHooks:
    """The KindHooks of PackageRevision."""

    def __init__(self, requests: RevisionRequests, upstreams: Upstreams) -> None:
        self._requests = requests
        self._creation = Creation(requests.find, upstreams, requests.render, requests.work.merge)

    # Create.

    async def on_create(self, obj: Object, *, user: str) -> Object:
        wanted = parse(obj)
        sync = await self._requests.sync(wanted.namespace, wanted.repository)
        text = (
            f"package revision (namespace {wanted.namespace}, repository {wanted.repository}, "
            f"package {wanted.package}, workspace {wanted.workspace})"
        )
        with self._requests.busy(wanted.namespace, wanted.name, text):
            directory = layout.join(sync.settings.directory, wanted.package)
            await self._requests.objects.refresh(PACKAGE_REVISION, wanted.namespace, wanted.name)
            await sync.up_to_date()
            check_place(wanted, sync, directory, is_leftover=await sync.clone.is_leftover(directory))
            if self._requests.objects.get(PACKAGE_REVISION, wanted.namespace, wanted.name) is not None:
                raise answers.conflict(wanted.name, "a deleted revision of this name still exists")
            return await self._create(obj["metadata"], wanted, sync, directory, user)

    async def _create(
        self, metadata: Mapping[str, Any], wanted: Wanted, sync: RepositorySync, directory: str, user: str
    ) -> Object:
        deployment = sync.settings.facts.deployment
        policy = carry_policy(wanted, metadata, sync.status.annotations(), deployment=deployment)
        start = await self._creation.start(wanted, sync)
        try:
            first = first_files(wanted, start, policy)
        except editor.YamlError as exc:
            raise answers.unusable(f"Kptfile: {exc}") from exc
        metadata = deferred(metadata, wanted)
        if (metadata.get("annotations") or {}).get(DEFER_RENDER) == "true":
            made = render.defer(first)
        else:
            made = await self._requests.render(first)
        metadata = _with_conflicts(metadata, wanted.name, start.conflicts)
        branch = sync.clone.branch(user)
        said = str((metadata.get("annotations") or {}).get(layout.CAUSE) or "")
        owned = {**metadata, "namespace": wanted.namespace}
        cause = (*operations.cause_of_creation(wanted.task, start.source, owned), *layout.cause_line(said))
        tree = await sync.clone.write(wanted.name, replaced(start.base, signing.bind(made.texts)))
        draft = Draft(tree, wanted.task, made.note, cause)
        note = Note("", noted(metadata))

        def build(refs: Staging) -> str:
            return operations.create_draft(branch, refs, directory, wanted.workspace, draft)

        audit.note(name=wanted.name, lifecycle=layout.DRAFT)
        with sync.writes.writing(wanted.name):
            await sync.changes.make_noted(wanted.name, note, build)
            return self._shown(sync, wanted.name, directory, wanted.workspace, metadata)

    def _shown(
        self, sync: RepositorySync, name: str, directory: str, workspace: str, metadata: Mapping[str, Any]
    ) -> Object:
        revision = sync.clone.catalog.find(directory, workspace)
        if revision is None:
            raise answers.modified(name)  # it was removed right after its creation
        return sync.revisions.shown(revision, metadata)

    # Update.

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        name, namespace = old["metadata"]["name"], old["metadata"].get("namespace", "")
        reason = annotations_of(new).get(OVERRIDE_GATES)
        if reason == annotations_of(old).get(OVERRIDE_GATES):
            reason = None  # somebody else may have left it: an override is asked for with the move itself
        named = annotations_of(new).get(SIGNED_CONTENT)  # an approval, too, says it in its metadata
        group, cause = frozenset((name,)), _cause_of_move(old, new)
        if subresource == "approval":
            lifecycle = (new.get("spec") or {}).get("lifecycle", "")
            if lifecycle == layout.PUBLISHED and _lifecycle(old) == layout.PROPOSED:
                group = together.group_of(self._requests.objects, old, new)
            new = {**old, "spec": {**old["spec"], "lifecycle": lifecycle}}
        _check_update(name, old, new, approval=subresource == "approval")
        _check_conditions(name, old, new)
        if subresource == "status":
            _check_status(name, old, new)
        if _lifecycle(old) != _lifecycle(new):
            new = {**new, "metadata": gates.without_override(new["metadata"])}
        new = {**new, "metadata": signing.without_named_content(new["metadata"])}
        with self._requests.busy(namespace, name):
            await self._requests.check_uninterrupted(old)
            if _is_removed_next(new) or (named is None and not self._touches_git(old, new)):
                return {**old, "metadata": with_editors(new["metadata"], annotations_of(old).get(EDITED_BY))}
            sync, revision = await self._requests.current(old)
            await sync.writes.await_stored(name)
            with sync.changes.groups.refusing(group, name), sync.writes.writing(name):
                await self._update(sync, revision, old, new, _Asking(user, reason, named, group, cause))
                result = self._shown(sync, name, revision.directory, revision.workspace, new["metadata"])
            if result == old:
                sync.writes.end_write(name)
            return result

    def _touches_git(self, old: Object, new: Object) -> bool:
        """Return whether an update changes the package, and not only labels, owners and the like."""
        if _lifecycle(old) != _lifecycle(new):
            return True
        if _lifecycle(old) == layout.PROPOSED:
            return _on_proposal(old, new) is not None
        if _lifecycle(old) != layout.DRAFT:
            return False
        was_deferred, is_deferred = (DEFER_RENDER in annotations_of(obj) for obj in (old, new))
        return was_deferred != is_deferred or any(
            _part(new, *path) is not None and _part(new, *path) != _part(old, *path)
            for path in (
                ("spec", "packageMetadata"),
                ("spec", "readinessGates"),
                ("status", "conditions"),
            )
        )

    async def _update(
        self,
        sync: RepositorySync,
        revision: Revision,
        old: Object,
        new: Object,
        asking: _Asking,
    ) -> None:
        """Change a revision in git.

        The steps: make the next commit of a draft, if its package changes; refuse a proposal or approval of a
        package that is not rendered, or whose gates are not met; then commit, and move the refs, in one push.
        So an edit and a change of lifecycle in one request are both made, or none.
        """
        name = old["metadata"]["name"]
        before, after = _lifecycle(old), _lifecycle(new)
        branch = sync.clone.branch(asking.user)
        draft: Draft | None = None
        if before == layout.DRAFT:
            draft, revision_after = await self._commit_edit(sync, revision, new, asking)
        elif before == after and (reported := _on_proposal(old, new)) is not None:
            draft, revision_after = await self._commit_edit(sync, revision, reported, asking)
        else:
            revision_after = revision
            if asking.content is not None:
                signing.require_content(name, asking.content, [texts(await sync.clone.files(revision))])
        if after == layout.PROPOSED or (before == layout.PROPOSED and after == layout.PUBLISHED):
            if problem := rendered_problem(revision_after):
                raise answers.invalid(name, "spec.lifecycle", problem)
        move = gates.Move(name, before, after, asking.reason)
        override = await gates.require_gates(move, revision_after, deployment=sync.settings.facts.deployment)
        if override and before == layout.DRAFT:
            draft = _recorded(draft, revision, override)

        def build(refs: Staging) -> str:
            commit = revision.commit
            if draft is not None:
                commit = operations.update_draft(branch, refs, name, revision, draft)
            if before == after:
                return commit
            if after == layout.PUBLISHED and before == layout.PROPOSED:
                siblings = sync.clone.catalog.by_directory.get(revision.directory, {}).values()
                number = max([0, *(item.revision for item in siblings)]) + 1
                return operations.approve(branch, refs, name, revision, number, (*override, *asking.cause))
            if revision.is_published:
                operations.set_deletion_proposed(refs, name, revision, after)
            else:
                operations.move(refs, name, revision, after, commit)
            return commit

        note = Note("", noted(new["metadata"]), after, old["metadata"]["resourceVersion"])
        await sync.changes.make_noted(name, note, build, asking.group)
        if before != after:
            audit.note(lifecycle_before=before, lifecycle=after)

    async def _commit_edit(
        self, sync: RepositorySync, revision: Revision, new: Object, asking: _Asking
    ) -> tuple[Draft | None, Revision]:
        """Return a draft's next commit, None without changes, and the revision after it.

        The pipeline runs if the request ends a deferral, or if the edits change an input of the pipeline.
        While the deferral goes on, the edits are stored as they are.
        """
        files = await sync.clone.files(revision)
        stored = signing.current_texts(texts(files), revision)
        was_deferred = revision.note is not None and revision.note.state == "deferred"
        edits = _edits(new, revision.kptfile)
        is_rendered_now = was_deferred and DEFER_RENDER not in annotations_of(new)
        if not edits and not is_rendered_now:
            signing.require_content(new["metadata"]["name"], asking.content, [stored])
            return None, revision  # only the lifecycle or the metadata changes: reading YAML costs the most
        try:
            wanted = copies.edit_kptfile(stored, *edits) if edits else stored
        except editor.YamlError as exc:
            raise answers.unusable(f"Kptfile: {exc}") from exc
        if is_rendered_now:
            made = await self._requests.render(wanted)
        elif was_deferred or wanted == stored:
            made = render.Rendering(wanted, revision.note)
        else:
            made = await self._requests.make_files(wanted, stored, revision)
        signing.require_content(new["metadata"]["name"], asking.content, (made.texts, wanted))
        made, sign_lines = signing.sign(revision, stored, wanted, made, asking.user, may_sign=True)
        made, task_lines = taskhistory.recorded(stored, made, asking.user)
        if made.texts == stored and made.note == revision.note:
            return None, revision
        facts = facts_of(made.texts[layout.KPTFILE])
        after = msgspec.structs.replace(revision, kptfile=facts, note=made.note)
        new_files = replaced(files, made.texts)
        subject, lines = operations.description_of_update(files, new_files, new["metadata"], asking.user)
        tree = await sync.clone.write(new["metadata"]["name"], new_files)
        return Draft(
            tree, operations.RENDER_TASK, made.note, (*lines, *task_lines, *sign_lines), subject
        ), after

    # Delete.

    async def on_delete(self, obj: Object, *, user: str) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        await self._requests.check_uninterrupted(obj)
        audit.note(lifecycle_before=_lifecycle(obj))
        if _lifecycle(obj) == layout.PUBLISHED:
            raise answers.forbidden(
                name,
                "a published package revision can be deleted only after its deletion was proposed: set "
                "spec.lifecycle to DeletionProposed first",
            )
        others = self._requests.objects.list(PACKAGE_REVISION, namespace)
        if problem := _uncollected(obj, user):
            raise answers.conflict(name, problem)
        if names := blocking_references(name, others):
            raise answers.forbidden(
                name,
                f"cannot delete package revision, it is referenced as upstream by: {', '.join(names)}",
            )

    async def on_removed(self, obj: Object) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if not await self._requests.has_repository(obj):
            return  # its Repository is gone: the object is removed, git stays as it is
        sync, revision = await self._requests.locate(obj)
        if revision is None:
            return
        if not revision.is_published:
            sync, revision = await self._requests.current(obj)
        found = revision
        with self._requests.busy(namespace, name):
            await sync.writes.await_stored(name)
            branch = sync.clone.branch("")
            with_folder = sync.status.annotations().get(REMOVE_LAST_REVISION) == "true"
            with sync.writes.writing(name):
                note = Note("", noted(obj["metadata"]), "", obj["metadata"].get("resourceVersion", ""))
                await sync.changes.make_reserved(
                    name,
                    note,
                    lambda refs: operations.delete(branch, refs, name, found, with_folder=with_folder),
                )


def _uncollected(obj: Object, user: str) -> str:
    """Return why the garbage collector may not delete a variant's revision, "" if it may, or it is another.

    A foreground deletion collects what a variant owns before inject has released what people edited.
    """
    editors = annotations_of(obj).get(EDITED_BY)
    if user not in GARBAGE_COLLECTORS or not owner_name(obj, "PackageVariant"):
        return ""
    if not editors or annotations_of(obj).get(DELETE_EDITS) == "true":
        return ""
    return (
        f"it has edits of {editors}, which go with no owner: pvbus releases it when it deletes the "
        "PackageVariant; without pvbus, remove its ownerReferences, or delete it yourself"
    )


def _with_conflicts(
    metadata: Mapping[str, Any], name: str, conflicts: Sequence[Conflict]
) -> Mapping[str, Any]:
    """Report in an annotation what local and upstream both changed."""
    if not conflicts:
        return metadata
    _log.info("upgrade has conflicts", name=name, conflicts=len(conflicts))
    annotations = metadata.get("annotations") or {}
    return {**metadata, "annotations": {**annotations, CONFLICTS: annotation(conflicts)}}


def _lifecycle(obj: Object) -> str:
    return (obj.get("spec") or {}).get("lifecycle") or layout.DRAFT


def _is_removed_next(obj: Object) -> bool:
    """Return whether the server removes an object instead of storing it: its last finalizer is gone."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not obj["metadata"].get("finalizers")


def _part(obj: Object, section: str, field: str) -> Any:
    return (obj.get(section) or {}).get(field)


def _check_update(name: str, old: Object, new: Object, *, approval: bool) -> None:
    before, after = _lifecycle(old), _lifecycle(new)
    if not operations.allowed(before, after, approval=approval):
        through = "the approval subresource" if approval else "an update"
        raise answers.invalid(
            name, "spec.lifecycle", f'cannot go from "{before}" to "{after}" through {through}'
        )
    labels_before, labels_after = (obj["metadata"].get("labels") or {} for obj in (old, new))
    if labels_before.get(layout.LATEST_LABEL) != labels_after.get(layout.LATEST_LABEL):
        raise latest_label(name)
    spec_before, spec_after = old.get("spec") or {}, new.get("spec") or {}
    for field in ("packageName", "repository", "workspaceName"):
        if spec_before.get(field) != spec_after.get(field):
            raise answers.invalid(name, f"spec.{field}", "field is immutable")
    if before in (layout.PUBLISHED, layout.DELETION_PROPOSED):
        for field in spec_before.keys() | spec_after.keys():
            if field != "lifecycle" and spec_before.get(field) != spec_after.get(field):
                raise answers.invalid(
                    name, f"spec.{field}", "only the lifecycle of a published package revision may change"
                )


def _check_conditions(name: str, old: Object, new: Object) -> None:
    """Refuse a new condition of a validator, and one without a valid status.

    The latter would make Porch's server panic.
    """
    before = _part(old, "status", "conditions") or ()
    for index, condition in enumerate(_part(new, "status", "conditions") or ()):
        status = condition.get("status")
        if status not in STATUSES and condition not in before:
            field = f"status.conditions[{index}].status"
            raise answers.invalid(name, field, f'"{status}" is none of {", ".join(STATUSES)}')
        is_validators = validators.is_validators(str(condition.get("type")))
        if is_validators and _lifecycle(old) == layout.DRAFT and condition not in before:
            field = f"status.conditions[{index}]"
            raise answers.invalid(name, field, f"{condition['type']} {validators.SET_BY}")


def _check_status(name: str, old: Object, new: Object) -> None:
    """Refuse conditions that would not be stored.

    A write of the whole object leaves them out instead, as Porch's server does.
    """
    lifecycle = _lifecycle(old)
    before, after = (_part(obj, "status", "conditions") for obj in (old, new))
    if lifecycle == layout.DRAFT or before == after:
        return
    stored = _on_proposal(old, new) if lifecycle == layout.PROPOSED else None
    if stored is None or _part(stored, "status", "conditions") != after:
        also = " and of a Proposed revision those of gates for its approval alone"
        raise answers.invalid(
            name, "status.conditions", f"only those of a Draft can change,{also}; this one is {lifecycle}"
        )


def _cause_of_move(old: Object, new: Object) -> tuple[str, ...]:
    """Return the lines about why a request moves a revision; () if it says nothing that was not there."""
    said = annotations_of(new).get(layout.CAUSE)
    return () if said == annotations_of(old).get(layout.CAUSE) else layout.cause_line(str(said or ""))


def _on_proposal(old: Object, new: Object) -> Object | None:
    """Return a proposal with the new conditions that may change on it, None if none of them differs."""
    types = open_on_proposals(old)
    reported = [each for each in _part(new, "status", "conditions") or () if each.get("type") in types]
    before = list(_part(old, "status", "conditions") or ())
    after = merged(before, reported)
    if after == before:
        return None
    return {**old, "status": {**(old.get("status") or {}), "conditions": after}}


def _recorded(draft: Draft | None, revision: Revision, lines: tuple[str, ...]) -> Draft:
    """Return a draft's next commit with lines about an override; one without changes if it has no other."""
    if draft is None:
        draft = Draft(revision.tree, operations.RENDER_TASK, revision.note, (), OVERRIDE_TITLE)
    return draft._replace(cause=(*draft.cause, *lines))


def _edits(new: Object, facts: KptfileFacts) -> Sequence[copies.Edit]:
    """Return the request's edits of the Kptfile."""
    edits: list[copies.Edit] = []
    package_metadata = _part(new, "spec", "packageMetadata") or {}
    for field, present in (("labels", facts.labels), ("annotations", facts.annotations)):
        wanted = package_metadata.get(field)
        if wanted is not None and wanted != present:
            edits.append(content.with_metadata(field, wanted, exact=True))
    gates = _part(new, "spec", "readinessGates")
    if gates is not None and list(gates) != list(facts.gates):
        edits.append(content.with_gates(gates))
    conditions = _part(new, "status", "conditions")
    own = [each for each in conditions or () if each.get("type") != content.RENDER_IDEMPOTENT]
    if conditions is not None and own != list(facts.conditions):
        edits.append(content.with_conditions(own, facts.own))
    return edits
