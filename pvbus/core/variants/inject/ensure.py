"""Brings one PackageVariant's downstream to its desired state.

What each revision needs is a pair of `pvbus.core.variants.revisions.states`, and the table there has the
action. Revisions are never approved or published here. Each step is a generator of effects and may stop
after any of them: the next run continues from the existing revisions, and lists live before it creates one.

Source: Porch v1.5.8, packagevariant_controller.go; departures: a Proposed revision is not written
to, the upstream is compared by identity, the new upstream is merged into an open draft, a person's
published edit is gone on from (`later`).
"""

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, assert_never

from pvbus.core.api.variants import Downstream, DownstreamTarget, PackageVariant
from pvbus.core.errors import ConflictError, InvariantError
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, annotation, joined, reported
from pvbus.core.kernel.effects import Effect, Get, Update
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.variants.following import follows_saves, refuses_moved_tags
from pvbus.core.variants.inject import locks
from pvbus.core.variants.inject.choosing import Choosing
from pvbus.core.variants.inject.later import MERGED, Later, later_than
from pvbus.core.variants.inject.locks import Lock, Old
from pvbus.core.variants.inject.look import Look, conflicts_of
from pvbus.core.variants.inject.mutations import (
    Candidates,
    Injected,
    Mutation,
    injection_points,
    mutate,
    wanted,
)
from pvbus.core.variants.inject.rebasing import rebase, with_edit
from pvbus.core.variants.inject.renderstatus import render_status
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.merge.packages import PackageMerge
from pvbus.core.variants.merge.resolving import carried, unresolved
from pvbus.core.variants.revisions.making import CAUSE, Making, Written, cause, edit_task, upgrade_task
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import (
    RESOURCES,
    REVISION,
    Object,
    republish,
    state_of,
    version_of,
    write_owned,
)
from pvbus.core.variants.revisions.states import (
    FINDINGS,
    MOVED,
    Action,
    DownstreamState,
    Finding,
    OldContent,
    UpstreamState,
    action,
)

ContentName = tuple[str, str, str, str]
"""(group, version, kind, name) of an object whose content may be injected."""


class Ensured(NamedTuple):
    """The outcome for the downstream.

    problem: reason and message of what keeps it from being ready, None if nothing does
    unrendered: target name -> the error of its pipeline
    written: name of a written revision -> its resourceVersions, in order
    conflicts: name of an open revision -> the conflicts of its merges that nobody has resolved
    """

    targets: tuple[DownstreamTarget, ...]
    injected: tuple[Injected, ...]
    problem: tuple[str, str] | None
    unrendered: Mapping[str, str]
    written: Mapping[str, tuple[str, ...]]
    conflicts: Mapping[str, tuple[Conflict, ...]]


class ContentNeededError(Exception):
    """One of our revisions has injection points that the upstream lacks: their candidates must be
    known first."""

    def __init__(self, names: tuple[ContentName, ...]) -> None:
        super().__init__()
        self.names = names


class DownstreamReconciler:
    """Brings one PackageVariant's downstream to its desired state, once."""

    def __init__(
        self,
        variant: PackageVariant,
        upstream: ObservedRevision,
        view: InjectView,
        candidates: Candidates,
        known: Iterable[ContentName],
        before: Mapping[str, DownstreamTarget],
    ) -> None:
        """Create a reconciler for one attempt.

        candidates: the known objects that can be injected
        known: the names of the objects whose content was requested
        before: target name -> the target as it was last reported
        """
        assert variant.spec.upstream is not None
        self.variant = variant
        self.upstream = upstream
        self.view = view
        self.candidates = candidates
        self.asked = variant.spec.upstream
        self.namespace = variant.metadata.namespace
        self._known = frozenset(known)
        self._before = before
        self._injected: dict[str, tuple[Injected, ...]] = {}
        self._problem: tuple[str, str] | None = None
        self._unrendered: dict[str, str] = {}
        self._conflicts: dict[str, tuple[Conflict, ...]] = {}
        self._written = Written()
        self._making = Making(variant, self._written)
        self._choosing = Choosing(variant, upstream.name, view, self._making, self._written)

    def run(self) -> Generator[Effect, Any, Ensured]:
        self._problem = yield from self._choosing.leave_other_places()
        targets = []
        for obj in (yield from self._choosing.run()):
            targets.append((yield from self._bring_up_to_date(obj)))
        return Ensured(
            tuple(targets),
            tuple(one for injected in self._injected.values() for one in injected),
            self._problem,
            self._unrendered,
            self._written.versions(),
            self._conflicts,
        )

    # ------------------------------------------------------------ acting

    def _bring_up_to_date(self, obj: Object) -> Generator[Effect, Any, DownstreamTarget]:
        """Take the action for one of our revisions; return the target that stands for it."""
        look = yield from self._look(obj)
        match action(look.state, look.finding):
            case Action.NOTHING:
                return self._target(look)
            case Action.REPORT:
                self._problem = self._problem or look.problem(self.upstream.name)
                return self._target(look)
            case Action.SAVE:
                return (yield from self._save(look))
            case Action.REBASE:
                return (yield from self._rebase(look))
            case Action.MERGE:
                assert look.later is not None
                return (yield from self._merge_later(look, look.later))
            case Action.EDIT:
                draft = yield from self._making.draft_from(look.obj, edit_task(look.obj))
                return (yield from self._bring_up_to_date(draft))
            case Action.UPGRADE:
                assert look.old is not None
                assert look.old.revision is not None
                task = upgrade_task(look.obj, look.old.revision.name, self.upstream.name)
                draft = yield from self._making.draft_from(look.obj, task)
                return (yield from self._bring_up_to_date(draft))
            case Action.REPUBLISH:
                restored = yield from republish(look.name, self.variant)
                self._written.add(look.name, version_of(obj), restored)
                return (yield from self._bring_up_to_date(restored))
            case (
                Action.WAIT
                | Action.ADOPT
                | Action.CLONE
                | Action.DELETE
                | Action.PROPOSE_DELETION
                | Action.DISOWN
                | Action.KEEP
            ) as other:
                raise InvariantError(f"{look.name}: {other} is no action for a revision that stays")
            case other:
                assert_never(other)

    def _look(self, obj: Object) -> Generator[Effect, Any, Look]:
        """Find out what a revision needs, or what the later published revision needs that replaces it."""
        state = state_of(obj)
        if state is DownstreamState.DELETION_PROPOSED:
            return Look(obj, state, Finding.WANTED)
        later = yield from later_than(obj, self.variant, self.view)
        if state is DownstreamState.PUBLISHED:
            if later is not None and later.obstacle is None:
                return (yield from self._look_at(later.obj, state))
            look = yield from self._look_at(obj, state)
            is_replaced = later is not None and look.finding is not Finding.CURRENT
            return look._replace(finding=Finding.REPLACED, later=later) if is_replaced else look
        if later is not None:
            finding = Finding.OVERTAKEN if later.obstacle is None else Finding.REPLACED
            return Look(obj, state, finding, conflicts=conflicts_of(obj), later=later)
        return (yield from self._look_at(obj, state))

    def _look_at(self, obj: Object, state: DownstreamState) -> Generator[Effect, Any, Look]:
        """Compare with the upstream, and with the mutations only if it holds the wanted one."""
        lock = Lock.of(obj)
        if lock is not None and (wanted := self._wanted(lock)) in MOVED:
            is_published = state is DownstreamState.PUBLISHED
            conflicts = () if is_published else conflicts_of(obj)
            if wanted is UpstreamState.REFUSED:
                return Look(obj, state, Finding.TAG_MOVED, conflicts=conflicts)
            old = yield from self._old(lock, published=is_published)
            if wanted is not UpstreamState.RETAGGED or not (yield from self._is_same(old)):
                return Look(obj, state, FINDINGS[wanted][old.kind], old, conflicts=conflicts)
        resources = yield Get(RESOURCES, self.namespace, obj["metadata"]["name"])
        return self._compared(obj, state, resources)

    def _wanted(self, lock: Lock) -> UpstreamState:
        saves, refuses = follows_saves(self.variant), refuses_moved_tags(self.variant)
        return locks.upstream_state(lock, self.upstream.facts, saves=saves, refuses=refuses)

    def _old(self, lock: Lock, *, published: bool) -> Generator[Effect, Any, Old]:
        near = self.view.at(self.namespace, Downstream(repo=self.asked.repo, package=self.asked.package))
        far = partial(self.view.from_directory, self.namespace, *lock[:2])
        return (yield from locks.find_old(lock, self.upstream, near, far, published=published))

    def _is_same(self, old: Old) -> Generator[Effect, Any, bool]:
        """Return whether a moved tag has the content it had, as when the history was rewritten: drafts would
        change nothing but the lock."""
        if old.kind is OldContent.LOST:
            return False
        new, _ = yield from self._content(self.upstream)
        return bool(new) and new == (yield from self._former(old))

    def _compared(
        self,
        obj: Object,
        state: DownstreamState,
        resources: Object | None,
        merged: PackageMerge | None = None,
        causes: tuple[str, ...] = (),
    ) -> Look:
        """Compare the files of a revision with what the mutations make of them, or of a merge with them.

        causes: the merge in words."""
        name = obj["metadata"]["name"]
        if resources is None:
            raise ConflictError(f"PackageRevisionResources {name} are gone")
        files = resources["spec"].get("resources") or {}
        mutation = self._mutation(name, files if merged is None else merged.texts)
        conflicts: tuple[Conflict, ...] = ()
        is_changed = mutation.resources != files
        if state is not DownstreamState.PUBLISHED:
            known = conflicts_of(obj)
            if merged is not None:
                open_before = unresolved(known, files)
                found = reported(annotation(merged.conflicts))
                known = joined(carried(open_before, mutation.resources), found)
            conflicts = unresolved(known, mutation.resources)
        if state is DownstreamState.DRAFT:
            is_changed = is_changed or _is_deferred(obj) or conflicts != conflicts_of(obj)
        finding = Finding.CHANGED if is_changed else Finding.CURRENT
        return Look(obj, state, finding, None, resources, mutation, conflicts, causes)

    def _rebase(self, look: Look) -> Generator[Effect, Any, DownstreamTarget]:
        """Merge the new upstream into a draft, and save it with the mutations in one write."""
        assert look.old is not None
        old = yield from self._former(look.old)
        new, lock = yield from self._content(self.upstream)
        resources = yield Get(RESOURCES, self.namespace, look.name)
        if old is None or not new or resources is None:
            lost = look._replace(finding=Finding.BASE_LOST)
            self._problem = self._problem or lost.problem(self.upstream.name)
            return self._target(lost)
        local = resources["spec"].get("resources") or {}
        deployment = bool((look.obj.get("status") or {}).get("deployment"))
        merged = rebase(look.name, old, local, new, lock, deployment=deployment)
        causes = (f"upgrade to {self.upstream.name}",)
        return (yield from self._save(self._compared(look.obj, look.state, resources, merged, causes)))

    def _merge_later(self, look: Look, later: Later) -> Generator[Effect, Any, DownstreamTarget]:
        """Merge a later published revision into a draft, save it, note that it is merged, and go on.

        A run that stops before the note merges again, with the same result."""
        assert later.base is not None
        resources = []
        for name in (later.base["metadata"]["name"], later.name, look.name):
            found = yield Get(RESOURCES, self.namespace, name)
            if found is None:
                raise ConflictError(f"PackageRevisionResources {name} are gone")
            resources.append(found)
        base, edit, local = ((one["spec"].get("resources") or {}) for one in resources)
        merged = with_edit(look.name, base, edit, local)
        causes = (f"merge of {later.name}",)
        yield from self._save(self._compared(look.obj, look.state, resources[2], merged, causes))

        def effect(live: Object) -> Effect:
            live["metadata"]["annotations"] = {**annotations_of(live), MERGED: later.name}
            return Update(REVISION, live)

        noted = yield from write_owned(self.variant, look.name, effect)
        self._written.add(look.name, "", noted)
        return (yield from self._bring_up_to_date(noted))

    def _former(self, old: Old) -> Generator[Effect, Any, Mapping[str, str] | None]:
        """Return the files that a draft was made of, None if they are gone."""
        if old.files is not None:
            return old.files
        assert old.revision is not None
        files, _ = yield from self._content(old.revision)
        return files or None

    def _content(
        self, revision: ObservedRevision
    ) -> Generator[Effect, Any, tuple[Mapping[str, str], Mapping[str, Any]]]:
        """Read the files of an upstream revision and its `selfLock`. Raises: ConflictError if it has changed
        since it was observed."""
        resources = yield Get(RESOURCES, self.namespace, revision.name)
        live = yield Get(REVISION, self.namespace, revision.name)
        lock = ((live or {}).get("status") or {}).get("selfLock") or {}
        commit = (lock.get("git") or {}).get("commit", "")
        if live is None or commit != revision.facts.self_commit:
            raise ConflictError(f"PackageRevision {self.namespace}/{revision.name} has changed")
        return ((resources or {}).get("spec") or {}).get("resources") or {}, lock

    def _save(self, look: Look) -> Generator[Effect, Any, DownstreamTarget]:
        """Write a draft's conflicts, and its files if they changed, or if its first render is deferred."""
        obj, resources, mutation = look.obj, look.resources, look.mutation
        assert resources is not None
        assert mutation is not None
        before = version_of(resources)
        if look.conflicts != conflicts_of(obj):
            obj = yield from self._with_conflicts(look)
            if before == version_of(look.obj):  # both kinds share one resourceVersion
                resources["metadata"]["resourceVersion"] = before = version_of(obj)
        if mutation.resources == look.files and not _is_deferred(obj):
            return self._target(look)
        resources["spec"]["resources"] = mutation.resources
        resources["metadata"]["annotations"] = {
            **annotations_of(resources),
            CAUSE: cause(self.variant, ", ".join((*look.causes, *mutation.causes)) or "first render"),
        }
        saved = yield from write_owned(self.variant, look.name, lambda _: Update(RESOURCES, resources))
        if before == version_of(obj):
            self._written.add(look.name, before, saved)
        status = render_status(saved)
        if status and status["error"]:
            self._unrendered[look.name] = status["error"]
        self._note_result(look)
        return DownstreamTarget(name=look.name, render_status=status)

    def _with_conflicts(self, look: Look) -> Generator[Effect, Any, Object]:
        """Write the open conflicts to the draft; they are there before the files that have them."""

        def effect(live: Object) -> Effect:
            if version_of(live) != version_of(look.obj):
                raise ConflictError(f"PackageRevision {self.namespace}/{look.name} has changed")
            retained = {key: value for key, value in annotations_of(live).items() if key != CONFLICTS}
            fresh = {CONFLICTS: annotation(look.conflicts)} if look.conflicts else {}
            live["metadata"]["annotations"] = retained | fresh
            return Update(REVISION, live)

        after: Object = yield from write_owned(self.variant, look.name, effect)
        self._written.add(look.name, version_of(look.obj), after)
        return after

    def _mutation(self, name: str, files: Mapping[str, str]) -> Mutation:
        if self.variant.spec.injectors:
            names = wanted(injection_points(files).points, self.variant.spec.injectors)
            if not self._known.issuperset(names):
                raise ContentNeededError(names)
        return mutate(files, self.variant, self.candidates, revision_name=name, namespace=self.namespace)

    # ------------------------------------------------------------ reporting

    def _note_result(self, look: Look) -> None:
        if look.mutation is not None:
            self._injected[look.name] = tuple(look.mutation.injected)
        if look.conflicts:
            self._conflicts[look.name] = look.conflicts

    def _target(self, look: Look) -> DownstreamTarget:
        """Return the target of a revision that was not saved now. Its render status is the one in its
        content, else the one of our last save; an error that a later save has mended is dropped."""
        self._note_result(look)
        name = look.name
        target = self._before.get(name, DownstreamTarget(name=name))
        if status := render_status(look.resources or {}):
            target = DownstreamTarget(name=name, render_status=status)
        rendered = _condition(look.obj, "Rendered")
        if rendered.get("status") == "False":
            message = rendered.get("message", "")
            self._unrendered[name] = (target.render_status or {}).get("error") or message
        elif rendered and (target.render_status or {}).get("error"):
            return DownstreamTarget(name=name)
        return target


def _condition(obj: Object, name: str) -> Mapping[str, Any]:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == name:
            return dict(condition)
    return {}


def _is_deferred(obj: Object) -> bool:
    """Return whether the package store defers the pipeline to the first save. The annotation alone is
    not enough: Porch's own server keeps it, although it has rendered."""
    return _condition(obj, "Rendered").get("reason") == "Deferred"
