"""The state machine of one PackageVariant's downstream: which revisions exist, what they need.

NO_DOWNSTREAM clones, UPSTREAM_CHANGED makes an upgrade draft from the published revision,
MUTATIONS_CHANGED edits the open draft in place or makes an edit draft, UP_TO_DATE writes nothing.
Revisions are never approved or published here. Each step is a generator of effects and may stop after
any of them: the next run continues from the existing revisions, and lists live before it creates one.

Source: Porch v1.5.8, packagevariant_controller.go; departures: a Proposed revision is not written
to, the upstream is compared by identity, an open draft is not upgraded.
"""

from collections.abc import Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pvbus.core.api.variants import PORCH_GROUP, Downstream, DownstreamTarget, PackageVariant
from pvbus.core.effects import Create, Effect, Get, Update
from pvbus.core.errors import ConflictError, NotOwnedError, PermanentError
from pvbus.core.inject import former
from pvbus.core.inject.mutations import Candidates, Injected, Mutation, injection_points, mutate, wanted
from pvbus.core.inject.owning import (
    PUBLISHED,
    RESOURCES,
    REVISION,
    Effects,
    Object,
    adopt,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    living_owner,
    owner_reference,
    release,
    republish,
    write_owned,
)
from pvbus.core.inject.renderstatus import render_status
from pvbus.core.inject.view import InjectView, ObservedRevision
from pvbus.core.keys import next_workspace

DEFER_RENDER = "pvbus.dev/defer-render"
"""Asks the package store not to run a clone's pipeline before the mutations are in, as a pipeline need
not be idempotent. Porch's own server does not know the annotation, and renders."""

CAUSE = "pvbus.dev/cause"
"""On a clone and on saved files: which variant writes, and why. The package store puts it into the commit
message; Porch's own server ignores it. Other new revisions name their source in their task, and Porch's
controller sets no annotation on them."""

PLACEHOLDER = former.PLACEHOLDER

ContentName = tuple[str, str, str, str]
"""(group, version, kind, name) of an object whose content may be injected."""


class Ensured(NamedTuple):
    """The outcome for the downstream.

    problem: (reason, message) that keeps it from being ready. unrendered: by target name, the error of
    its pipeline. written: by name of a written revision, its resourceVersions in order.
    """

    targets: tuple[DownstreamTarget, ...]
    injected: tuple[Injected, ...]
    problem: tuple[str, str] | None
    unrendered: Mapping[str, str]
    written: Mapping[str, tuple[str, ...]]


class ContentNeededError(Exception):
    """One of our revisions has injection points that the upstream lacks: their candidates must be
    known first."""

    def __init__(self, names: tuple[ContentName, ...]) -> None:
        super().__init__()
        self.names = names


class NotYetError(Exception):
    """The step must wait for another event, which the text names."""


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
        """candidates: the known objects that can be injected. before: the last reported targets, by name."""
        assert variant.spec.downstream is not None
        self.variant = variant
        self.upstream = upstream
        self.view = view
        self.candidates = candidates
        self.downstream = variant.spec.downstream
        self.namespace = variant.metadata.namespace
        self.uid = variant.metadata.uid
        self._known = frozenset(known)
        self._before = before
        self._injected: list[Injected] = []
        self._problem: tuple[str, str] | None = None
        self._unrendered: dict[str, str] = {}
        self._written: dict[str, list[str]] = {}

    # ------------------------------------------------------------ choosing

    def run(self) -> Generator[Effect, Any, Ensured]:
        yield from self._leave_other_places()
        chosen = yield from self._observed()
        if not chosen:
            live = yield from list_package(self.namespace, self.downstream)
            chosen = yield from self._found_live(live)
            if not chosen:
                chosen = [(yield from self._cloned(live))]
        targets = []
        for obj in chosen:
            targets.append((yield from self._updated(obj)))
        written = {name: tuple(versions) for name, versions in self._written.items()}
        return Ensured(tuple(targets), tuple(self._injected), self._problem, self._unrendered, written)

    def _observed(self) -> Generator[Effect, Any, list[Object]]:
        """Read the observed revisions to update, after adopting those that are to be taken over."""
        revisions = []
        for revision in self.view.at(self.namespace, self.downstream):
            if revision.row.deleted:
                continue
            if revision.owned_by(self.uid):
                if former.is_proposed_by(former.trace_of_row(revision), self.variant):
                    yield from self._republished(revision)
                revisions.append(revision)
            elif self._takes(former.trace_of_row(revision)):
                if (yield from self._taken(revision.name)) is not None:
                    revisions.append(revision)
        found = []
        for revision in choose(revisions, lambda r: (r.facts.lifecycle or "Draft", r.facts.revision)):
            obj = yield Get(REVISION, self.namespace, revision.name)
            if obj is not None and belongs_to(obj, self.variant) and not is_terminating(obj):
                found.append(obj)
        return found

    def _found_live(self, live: list[Object]) -> Generator[Effect, Any, list[Object]]:
        """Choose among the live revisions: a previous worker may have made one whose echo is not here yet."""
        mine = [obj for obj in live if belongs_to(obj, self.variant)]
        going = [obj["metadata"]["name"] for obj in mine if is_terminating(obj)]
        for obj in live:
            if not belongs_to(obj, self.variant) and self._takes(former.trace_of(obj)):
                taken = yield from self._taken(obj["metadata"]["name"])
                mine += [taken] if taken is not None else []
        staying = [obj for obj in mine if not is_terminating(obj)]
        chosen = choose(staying, lambda obj: (lifecycle_of(obj), obj["spec"].get("revision", 0)))
        if not chosen and going:
            raise NotYetError(f"the deletion of PackageRevision {', '.join(going)}")
        return chosen

    def _republished(self, revision: ObservedRevision) -> Effects:
        """Withdraw the deletion that we proposed while the downstream was another one."""
        try:
            restored = yield from republish(revision.name, self.variant)
        except NotOwnedError:
            return
        self._wrote(revision.name, revision.row.resource_version, restored)

    def _takes(self, trace: former.Trace) -> bool:
        """Return whether to adopt a foreign revision: by policy, or as a former variant's of this name."""
        if self.variant.spec.adoption_policy == "adoptExisting":
            return trace.revision != PLACEHOLDER
        return former.made(trace, self.variant)

    def _taken(self, name: str) -> Generator[Effect, Any, Object | None]:
        """Adopt a revision if it still qualifies, and return it; None if it does not."""
        obj = yield Get(REVISION, self.namespace, name)
        if obj is None or is_terminating(obj):
            return None
        if belongs_to(obj, self.variant):  # the echo of our own adoption is not here yet
            return dict(obj)
        if not self._takes(former.trace_of(obj)):
            return None
        updated = yield from adopt(obj, self.variant)
        self._wrote(name, _version(obj), updated)
        return updated

    def _leave_other_places(self) -> Effects:
        """Release our revisions of a former downstream by the deletion policy."""
        for revision in self.view.owned(self.namespace, self.uid):
            here = (revision.facts.repository, revision.facts.package)
            if here == (self.downstream.repo, self.downstream.package) or revision.row.deleted:
                continue
            if (
                revision.facts.lifecycle == "DeletionProposed"
                and self.variant.spec.deletion_policy != "orphan"
            ):
                continue
            try:
                yield from release(revision.name, self.variant)
            except NotOwnedError:  # it has another owner or is gone: there is nothing to release
                continue
            except PermanentError as error:  # the new downstream must not wait for the old one
                self._problem = ("Error", f"cannot release {revision.name} of the former downstream: {error}")

    # ------------------------------------------------------------ making

    def _cloned(self, live: list[Object]) -> Generator[Effect, Any, Object]:
        for obj in live:
            owner = yield from living_owner(obj, self.variant)
            if owner:
                package, repository = self.downstream.package, self.downstream.repo
                message = (
                    f'package "{package}" in repository "{repository}" belongs to {owner} '
                    f"({obj['metadata']['name']}); it is left alone; once that owner has released it, "
                    "adoptionPolicy: adoptExisting takes it over"
                )
                raise PermanentError(message, reason="OwnedByOther")
        task = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": self.upstream.name}}}}
        try:
            annotations = {
                DEFER_RENDER: "true",
                former.MADE_BY: former.record_of(self.variant),
                CAUSE: self._cause(f"clone of {self.upstream.name}"),
            }
            return (yield from self._made(live, {"tasks": [task]}, annotations))
        except PermanentError as error:
            if error.reason != "PackageExists":
                raise
            raise former.why_refused(error, live, self.variant, self.downstream) from error

    def _made(
        self, live: list[Object], spec: Object, annotations: Mapping[str, str] = MappingProxyType({})
    ) -> Generator[Effect, Any, Object]:
        """Create a revision that the variant owns."""
        workspace = next_workspace(obj["spec"].get("workspaceName", "") for obj in live)
        metadata: Object = {
            "namespace": self.namespace,
            "ownerReferences": [owner_reference(self.variant)],
        }
        if annotations or self.variant.spec.annotations:
            metadata["annotations"] = {**self.variant.spec.annotations, **annotations}
        if self.variant.spec.labels:
            metadata["labels"] = dict(self.variant.spec.labels)
        body = {
            "apiVersion": f"{PORCH_GROUP}/v1alpha1",
            "kind": "PackageRevision",
            "metadata": metadata,
            "spec": {
                "packageName": self.downstream.package,
                "repository": self.downstream.repo,
                "workspaceName": workspace,
                **spec,
            },
        }
        created: Object = yield Create(REVISION, body)
        self._wrote(created["metadata"]["name"], "", created)
        return created

    def _draft_from(self, source: Object, task: Object) -> Generator[Effect, Any, Object]:
        """Make an upgrade or edit draft: the source's spec with another workspace and task. If we have an
        unobserved draft, return that one instead. Raises: NotOwnedError if the source is no longer ours."""
        live = yield from list_package(self.namespace, self.downstream)
        mine = [obj for obj in live if belongs_to(obj, self.variant)]
        for obj in mine:
            if lifecycle_of(obj) not in PUBLISHED and not is_terminating(obj):
                return obj
        name = source["metadata"]["name"]
        if all(obj["metadata"]["name"] != name for obj in mine):
            raise NotOwnedError(f"PackageRevision {self.namespace}/{name} no longer belongs to the variant")
        retained = {
            k: v for k, v in source["spec"].items() if k not in ("revision", "workspaceName", "tasks")
        }
        return (yield from self._made(live, {**retained, "lifecycle": "Draft", "tasks": [task]}))

    # ------------------------------------------------------------ updating

    def _updated(self, obj: Object) -> Generator[Effect, Any, DownstreamTarget]:
        name = obj["metadata"]["name"]
        if lifecycle_of(obj) == "DeletionProposed":
            before, obj = obj, (yield from republish(name, self.variant))
            self._wrote(name, _version(before), obj)
        if self._is_up_to_date(obj):
            if lifecycle_of(obj) == "Published":
                return (yield from self._edited(obj))
            return (yield from self._mutated(obj))
        if lifecycle_of(obj) != "Published":
            self._problem = (
                "UpstreamChanged",
                f'the upstream is now {self.upstream.name}, but "{name}" is {lifecycle_of(obj)}: publish it, '
                "or delete it to have it recreated",
            )
            return self._target(obj)
        draft = yield from self._draft_from(obj, self._upgrade_task(obj))
        return (yield from self._mutated(draft))

    def _is_up_to_date(self, obj: Object) -> bool:
        """Compare the upstream in use with the recorded one; without a record, assume they are equal.

        A placeholder and a draft are compared by commit, a published revision by number, repository
        and directory.
        """
        lock = ((obj.get("status") or {}).get("upstreamLock") or {}).get("git") or {}
        facts = self.upstream.facts
        if not lock.get("ref"):
            return True
        if self.upstream.is_placeholder:
            return not facts.self_commit or lock.get("commit") in (None, "", facts.self_commit)
        if lock["ref"].startswith("drafts"):
            return bool(facts.self_commit) and lock.get("commit") == facts.self_commit
        if _number(lock["ref"]) != facts.revision:
            return False
        downstreams = ((lock.get("repo"), facts.self_repo), (lock.get("directory"), facts.self_directory))
        return all(not recorded or not own or recorded == own for recorded, own in downstreams)

    def _upgrade_task(self, source: Object) -> Object:
        lock = source["status"]["upstreamLock"]["git"]
        number = _number(lock["ref"])
        if number == 0:
            raise PermanentError("upstream cannot be published with revision number 0", reason="NoAncestor")
        assert self.variant.spec.upstream is not None
        up = self.variant.spec.upstream
        downstream = Downstream(repo=up.repo, package=up.package)
        for revision in self.view.at(self.namespace, downstream):
            if revision.facts.revision == number and revision.facts.lifecycle in PUBLISHED:
                return {
                    "type": "upgrade",
                    "upgrade": {
                        "oldUpstreamRef": {"name": revision.name},
                        "newUpstreamRef": {"name": self.upstream.name},
                        "localPackageRevisionRef": {"name": source["metadata"]["name"]},
                        "strategy": "resource-merge",
                    },
                }
        message = f"could not find upstream package revision {up.package}/v{number} in repository {up.repo}"
        raise PermanentError(message, reason="NoAncestor")

    def _edited(self, obj: Object) -> Generator[Effect, Any, DownstreamTarget]:
        """Make an edit draft of a published revision, but only if the mutations change it."""
        name = obj["metadata"]["name"]
        resources = yield Get(RESOURCES, self.namespace, name)
        mutation = self._mutation(name, resources)
        if not mutation.changed:
            self._injected += mutation.injected
            return self._target(obj, resources)
        draft = yield from self._draft_from(obj, {"type": "edit", "edit": {"sourceRef": {"name": name}}})
        return (yield from self._mutated(draft))

    def _mutated(self, obj: Object) -> Generator[Effect, Any, DownstreamTarget]:
        """Apply the mutations to a draft and save it if it changed, or if its first render is deferred."""
        name = obj["metadata"]["name"]
        resources = yield Get(RESOURCES, self.namespace, name)
        if resources is None:
            raise ConflictError(f"PackageRevisionResources {name} are gone")
        mutation = self._mutation(name, resources)
        self._injected += mutation.injected
        if not mutation.changed and not _is_deferred(obj):
            return self._target(obj, resources)
        if lifecycle_of(obj) != "Draft":
            what = f'"{name}" is {lifecycle_of(obj)}, but needs a change: reject it, or publish it'
            self._problem = self._problem or ("NotDraft", what)
            return self._target(obj, resources)
        before = _version(resources)
        resources["spec"]["resources"] = mutation.resources
        resources["metadata"]["annotations"] = {
            **(resources["metadata"].get("annotations") or {}),
            CAUSE: self._cause(", ".join(mutation.causes) or "first render"),
        }
        saved = yield from write_owned(self.variant, name, lambda _: Update(RESOURCES, resources))
        if before == _version(obj):  # both kinds share one resourceVersion
            self._wrote(name, before, saved)
        status = render_status(saved)
        if status and status["error"]:
            self._unrendered[name] = status["error"]
        return DownstreamTarget(name=name, render_status=status)

    def _mutation(self, name: str, resources: Object | None) -> Mutation:
        files = ((resources or {}).get("spec") or {}).get("resources") or {}
        if self.variant.spec.injectors:
            names = wanted(injection_points(files).points, self.variant.spec.injectors)
            if not self._known.issuperset(names):
                raise ContentNeededError(names)
        return mutate(files, self.variant, self.candidates, revision_name=name, namespace=self.namespace)

    # ------------------------------------------------------------ reporting

    def _cause(self, what: str) -> str:
        return f"PackageVariant {self.namespace}/{self.variant.metadata.name}: {what}"

    def _wrote(self, name: str, before: str, after: Object) -> None:
        """Note the versions of a revision that we wrote. before: "" when it was created."""
        versions = self._written.setdefault(name, [])
        for version in (before, _version(after)):
            if version and version not in versions:
                versions.append(version)

    def _target(self, obj: Object, resources: Object | None = None) -> DownstreamTarget:
        """Return the target of a revision that was not saved now. Its render status is the one in its
        content, else the one of our last save; an error that a later save has mended is dropped."""
        name = obj["metadata"]["name"]
        reported = self._before.get(name, DownstreamTarget(name=name))
        if status := render_status(resources or {}):
            reported = DownstreamTarget(name=name, render_status=status)
        rendered = _condition(obj, "Rendered")
        if rendered.get("status") == "False":
            self._unrendered[name] = (reported.render_status or {}).get("error") or rendered.get(
                "message", ""
            )
        elif rendered and (reported.render_status or {}).get("error"):
            return DownstreamTarget(name=name)
        return reported


def choose(found: list[Any], facts: Any) -> list[Any]:
    """Pick all drafts if there are any, else the published revision with the highest number.

    facts: returns (lifecycle, revision number) of an element.
    """
    drafts = [one for one in found if facts(one)[0] not in PUBLISHED]
    if drafts:
        return drafts
    published = [one for one in found if facts(one)[1] > PLACEHOLDER]
    return [max(published, key=lambda one: facts(one)[1])] if published else []


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")


def _condition(obj: Object, name: str) -> Mapping[str, Any]:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == name:
            return dict(condition)
    return {}


def _is_deferred(obj: Object) -> bool:
    """Return whether the package store defers the pipeline to the first save. The annotation alone is
    not enough: Porch's own server keeps it, although it has rendered."""
    return _condition(obj, "Rendered").get("reason") == "Deferred"


def _number(ref: str) -> int:
    """Return the revision number in a lock's ref: the integer after the last slash, else -1."""
    tail = ref.rpartition("/")[2].removeprefix("v")
    return int(tail) if tail.isdigit() else PLACEHOLDER
