"""The state machine of one PackageVariant's downstream: which revisions there are, what they need.

NO_DOWNSTREAM clones, UPSTREAM_CHANGED makes an upgrade draft from the published revision,
MUTATIONS_CHANGED edits the open draft in place or makes an edit draft, UP_TO_DATE writes nothing.
Revisions are never approved or published here. Everything is a generator of effects.

Source: Porch v1.5.8, packagevariant_controller.go; departures: a Proposed revision is not written
to, the upstream is compared by identity, an upgrade of an open draft is waited for.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.effects import Create, Delete, Effect, Get, KindRef, List, Update
from pvbus.core.ids import next_workspace
from pvbus.core.inject.view import Revision, View
from pvbus.core.model import (
    PORCH_GROUP,
    VARIANT_API,
    Downstream,
    DownstreamTarget,
    PackageVariant,
)
from pvbus.core.mutations import Candidates, Injected, mutate
from pvbus.errors import PermanentError

REVISION = KindRef(PORCH_GROUP, "PackageRevision", "v1alpha1")
RESOURCES = KindRef(PORCH_GROUP, "PackageRevisionResources", "v1alpha1")
PUBLISHED = ("Published", "DeletionProposed")
DEFER_RENDER = "pvbus.dev/defer-render"

Effects = Generator[Effect, Any, Any]


class Ensured(NamedTuple):
    """What became of the downstream. problem: (reason, message) that keeps it from being ready."""

    targets: tuple[DownstreamTarget, ...]
    injected: tuple[Injected, ...]
    problem: tuple[str, str] | None = None


class Ensurer:
    """Makes one PackageVariant's downstream what it should be, once."""

    def __init__(
        self,
        variant: PackageVariant,
        upstream: Revision,
        view: View,
        candidates: Candidates,
        before: Mapping[str, DownstreamTarget],
    ) -> None:
        assert variant.spec.downstream is not None
        self.variant = variant
        self.upstream = upstream
        self.view = view
        self.candidates = candidates
        self.place = variant.spec.downstream
        self.namespace = variant.metadata.namespace
        self.uid = variant.metadata.uid
        self._before = before
        self._injected: list[Injected] = []
        self._problem: tuple[str, str] | None = None

    # ------------------------------------------------------------ choosing

    def run(self) -> Generator[Effect, Any, Ensured]:
        yield from self._leave_other_places()
        found: list[dict[str, Any]] = []
        for revision in self.view.at(self.namespace, self.place):
            if self._is_ours(revision.row.owners) or self._adopts(revision.facts.revision):
                obj = yield Get(REVISION, self.namespace, revision.name)
                if obj is not None:
                    found.append((yield from self._adopted(obj)))
        if not found:
            live = yield from list_place(self.namespace, self.place)
            mine = [obj for obj in live if owned_by(obj, self.uid)]
            if not mine:
                return (yield from self._clone(live))
            found = mine  # a worker before us made it, and its echo is not here yet
        chosen = choose(found)
        if not chosen:
            live = yield from list_place(self.namespace, self.place)
            return (yield from self._clone(live))
        targets = []
        for obj in chosen:
            targets.append((yield from self._updated(obj)))
        return self._ensured(targets)

    def _ensured(self, targets: list[DownstreamTarget]) -> Ensured:
        return Ensured(tuple(targets), tuple(self._injected), self._problem)

    def _is_ours(self, owners: Iterable[Any]) -> bool:
        return any(owner.uid == self.uid for owner in owners)

    def _adopts(self, revision: int) -> bool:
        return self.variant.spec.adoption_policy == "adoptExisting" and revision != -1

    def _leave_other_places(self) -> Effects:
        """Treat our revisions of a former downstream as the deletion policy says."""
        for revision in self.view.owned(self.uid):
            here = (revision.facts.repository, revision.facts.package)
            if here != (self.place.repo, self.place.package):
                obj = yield Get(REVISION, self.namespace, revision.name)
                if obj is not None:
                    yield from release(obj, self.variant)

    def _adopted(self, obj: dict[str, Any]) -> Generator[Effect, Any, dict[str, Any]]:
        """Take over a revision that is not ours: owner reference, labels, annotations."""
        if owned_by(obj, self.uid):
            return obj
        meta = obj["metadata"]
        others = [o for o in meta.get("ownerReferences") or () if o.get("controller")]
        if others:
            owner = f"{others[0]['kind']} {others[0]['name']}"
            raise PermanentError(
                f"package revision {meta['name']} belongs to {owner}; it is not adopted",
                reason="OwnedByOther",
            )
        meta["ownerReferences"] = [*(meta.get("ownerReferences") or ()), owner_reference(self.variant)]
        for field in ("labels", "annotations"):
            wanted = getattr(self.variant.spec, field)
            if wanted:
                meta[field] = {**(meta.get(field) or {}), **wanted}
        updated: dict[str, Any] = yield Update(REVISION, obj)
        return updated

    # ------------------------------------------------------------ making

    def _clone(self, live: list[dict[str, Any]]) -> Generator[Effect, Any, Ensured]:
        task = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": self.upstream.name}}}}
        obj = yield from self._make(live, {"tasks": [task]}, deferred=True)
        target = yield from self._mutated(obj)
        return self._ensured([target])

    def _make(
        self, live: list[dict[str, Any]], spec: dict[str, Any], *, deferred: bool = False
    ) -> Generator[Effect, Any, dict[str, Any]]:
        """Create a revision in our name.

        deferred: ask the package store not to run the pipeline before the mutations are in, as a
        pipeline need not be idempotent; Porch's own server does not know the annotation and renders.
        """
        metadata: dict[str, Any] = {
            "namespace": self.namespace,
            "ownerReferences": [owner_reference(self.variant)],
        }
        annotations = {**self.variant.spec.annotations, **({DEFER_RENDER: "true"} if deferred else {})}
        if annotations:
            metadata["annotations"] = annotations
        if self.variant.spec.labels:
            metadata["labels"] = dict(self.variant.spec.labels)
        workspace = next_workspace(obj["spec"].get("workspaceName", "") for obj in live)
        body = {
            "apiVersion": f"{PORCH_GROUP}/v1alpha1",
            "kind": "PackageRevision",
            "metadata": metadata,
            "spec": {
                "packageName": self.place.package,
                "repository": self.place.repo,
                "workspaceName": workspace,
                **spec,
            },
        }
        created: dict[str, Any] = yield Create(REVISION, body)
        return created

    def _draft_from(self, source: dict[str, Any], task: dict[str, Any]) -> Effects:
        """Make an upgrade or edit draft: the source's spec with another workspace and task."""
        live = yield from list_place(self.namespace, self.place)
        kept = {k: v for k, v in source["spec"].items() if k not in ("revision", "workspaceName", "tasks")}
        return (yield from self._make(live, {**kept, "lifecycle": "Draft", "tasks": [task]}))

    # ------------------------------------------------------------ updating

    def _updated(self, obj: dict[str, Any]) -> Generator[Effect, Any, DownstreamTarget]:
        lifecycle = obj["spec"].get("lifecycle") or "Draft"
        name = obj["metadata"]["name"]
        if lifecycle == "DeletionProposed":
            obj["spec"]["lifecycle"] = "Published"
            obj = yield Update(REVISION, obj)
        if not self._is_up_to_date(obj):
            if lifecycle not in PUBLISHED:
                self._problem = (
                    "UpstreamChanged",
                    f'the upstream is now {self.upstream.name}, but "{name}" is {lifecycle}: publish it, '
                    "or delete it to have it made anew",
                )
                return self._target(name)
            obj = yield from self._draft_from(obj, self._upgrade_task(obj))
            return (yield from self._mutated(obj))
        if lifecycle == "Proposed":
            return self._target(name)
        if lifecycle in PUBLISHED:
            return (yield from self._edited(obj))
        return (yield from self._mutated(obj))

    def _is_up_to_date(self, obj: dict[str, Any]) -> bool:
        """Compare the upstream in use with the one recorded; where nothing is recorded, believe it.

        A placeholder is compared by commit, any other revision by name where the clone task tells
        it, else by the number in the lock.
        """
        lock = ((obj.get("status") or {}).get("upstreamLock") or {}).get("git") or {}
        if not lock.get("ref"):
            return True
        if self.upstream.is_placeholder:
            commit = self.upstream.facts.self_commit
            return not commit or not lock.get("commit") or bool(lock["commit"] == commit)
        if lock["ref"].startswith("drafts"):
            return bool(lock.get("commit") and lock["commit"] == self.upstream.facts.self_commit)
        return _number(lock["ref"]) == self.upstream.facts.revision

    def _upgrade_task(self, source: dict[str, Any]) -> dict[str, Any]:
        lock = source["status"]["upstreamLock"]["git"]
        number = _number(lock["ref"])
        if number == 0:
            raise PermanentError("upstream cannot be published with revision number 0", reason="NoAncestor")
        assert self.variant.spec.upstream is not None
        up = self.variant.spec.upstream
        place = Downstream(repo=up.repo, package=up.package)
        for revision in self.view.at(self.namespace, place):
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

    def _edited(self, obj: dict[str, Any]) -> Generator[Effect, Any, DownstreamTarget]:
        """Make an edit draft of a published revision, but only if the mutations change it."""
        name = obj["metadata"]["name"]
        resources = yield Get(RESOURCES, self.namespace, name)
        mutation = self._mutation(name, resources)
        if not mutation.changed:
            self._injected += mutation.injected
            return self._target(name)
        draft = yield from self._draft_from(obj, {"type": "edit", "edit": {"sourceRef": {"name": name}}})
        return (yield from self._mutated(draft))

    def _mutated(self, obj: dict[str, Any]) -> Generator[Effect, Any, DownstreamTarget]:
        """Apply the mutations to a draft; a deferred render is run by saving, changed or not."""
        name = obj["metadata"]["name"]
        resources = yield Get(RESOURCES, self.namespace, name)
        mutation = self._mutation(name, resources)
        self._injected += mutation.injected
        deferred = (obj["metadata"].get("annotations") or {}).get(DEFER_RENDER) == "true"
        if not mutation.changed and not deferred:
            return self._target(name)
        resources["spec"]["resources"] = mutation.resources
        saved = yield Update(RESOURCES, resources)
        status = (saved.get("status") or {}).get("renderStatus")
        return DownstreamTarget(name=name, render_status=status or None)

    def _mutation(self, name: str, resources: dict[str, Any] | None) -> Any:
        files = ((resources or {}).get("spec") or {}).get("resources") or {}
        return mutate(files, self.variant, self.candidates, revision_name=name, namespace=self.namespace)

    def _target(self, name: str) -> DownstreamTarget:
        return self._before.get(name, DownstreamTarget(name=name))


def choose(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pick all drafts if there are any, else the published revision with the highest number."""
    drafts = [obj for obj in found if (obj["spec"].get("lifecycle") or "Draft") not in PUBLISHED]
    if drafts:
        return drafts
    published = [obj for obj in found if obj["spec"].get("revision", 0) > -1]
    return [max(published, key=lambda obj: obj["spec"].get("revision", 0))] if published else []


def list_place(namespace: str, place: Downstream) -> Generator[Effect, Any, list[dict[str, Any]]]:
    """List live the revisions of one package; the answer is checked, as selectors are not exact."""
    selector = f"spec.repository={place.repo},spec.packageName={place.package}"
    items = yield List(REVISION, namespace, field_selector=selector)
    return [
        obj
        for obj in items
        if (obj["spec"].get("repository"), obj["spec"].get("packageName")) == (place.repo, place.package)
    ]


def owned_by(obj: dict[str, Any], uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())


def owner_reference(variant: PackageVariant) -> dict[str, Any]:
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "name": variant.metadata.name,
        "uid": variant.metadata.uid,
        "controller": True,
    }


def release(obj: dict[str, Any], variant: PackageVariant) -> Effects:
    """Let one of our revisions go as the deletion policy says.

    Returns the object afterwards, None when it was deleted.
    """
    if variant.spec.deletion_policy == "orphan":
        return (yield from disown(obj, variant))
    lifecycle = obj["spec"].get("lifecycle") or "Draft"
    meta = obj["metadata"]
    if lifecycle in ("Draft", "Proposed"):
        yield Delete(
            REVISION,
            meta["namespace"],
            meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
        )
        return None
    if lifecycle == "Published":
        obj["spec"]["lifecycle"] = "DeletionProposed"
        return (yield Update(REVISION, obj))
    return obj


def disown(obj: dict[str, Any], variant: PackageVariant) -> Effects:
    """Take our owner reference off a revision."""
    meta = obj["metadata"]
    references = meta.get("ownerReferences") or []
    meta["ownerReferences"] = [o for o in references if o.get("uid") != variant.metadata.uid]
    return (yield Update(REVISION, obj))


def _number(ref: str) -> int:
    """Return the revision a lock's ref names: the integer behind the last slash, else -1."""
    tail = ref.rpartition("/")[2].removeprefix("v")
    return int(tail) if tail.isdigit() else -1
