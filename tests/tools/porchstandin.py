"""A stand-in for Porch's controllers of PackageVariantSets and PackageVariants. It is not Porch.

Porch's own program takes minutes to build; `tests/porch/test_change_over.py` runs it where that is asked for.
This one is for every run of the tests: it makes the writes that Porch's makes, as its users see them: the
same names, labels, owners, finalizers, workspaces, tasks, conditions, and the same name of the program in
managedFields. It covers sets of repositories without a template, and variants without injection and
mutations. Source: Porch's controllers/packagevariantsets and controllers/packagevariants, as of v1.5.
"""

from collections.abc import Iterator
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PermanentError
from pvbus.core.platform.establish.rivals import MANAGER
from pvbus.ports.cluster import Kind, Object
from tests.kit.cluster import KindClient, resource_of

CONFIG = "config.porch.kpt.dev"
SET, VARIANT = Kind(CONFIG, "PackageVariantSet"), Kind(CONFIG, "PackageVariant")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
FINALIZER = f"{CONFIG}/packagevariants"
SET_LABEL = f"{CONFIG}/packagevariantset"
WORKSPACE = "packagevariant-"


def reference_to(owner: Object, version: str) -> Object:
    """Return the ownerReference that Porch writes."""
    metadata = owner["metadata"]
    return {
        "apiVersion": f"{CONFIG}/{version}",
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


class PorchStandIn(KindClient[HttpCluster]):
    """Reconciles everything once per `reconcile`. writes: how many writes it made."""

    def __init__(self, cluster: HttpCluster, namespace: str = "default") -> None:
        super().__init__(cluster.named(MANAGER), namespace)
        self.writes = 0

    async def reconcile(self) -> None:
        """Let both controllers look at every object, until they have nothing to do."""
        while True:
            before = self.writes
            for pvs in await self.items(SET):
                await self._reconcile_set(pvs)
            for variant in await self.items(VARIANT):
                await self._reconcile_variant(variant)
            if self.writes == before:
                return

    async def _create(self, kind: Kind, obj: Object) -> Object:
        resource = await resource_of(self.cluster, kind)
        self.writes += 1
        return await self.cluster.create(
            resource, {"apiVersion": resource.api_version, "kind": kind.kind, **obj}
        )

    async def _update(self, kind: Kind, old: Object, new: Object, subresource: str = "") -> Object:
        """Write an object. One that equals the stored one makes no version, and no mark."""
        written = await self.put(kind, new, subresource)
        self.writes += written["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
        return written

    # ------------------------------------------------------------ sets

    async def _reconcile_set(self, pvs: Object) -> None:
        uid = pvs["metadata"]["uid"]
        variants = await self.items(VARIANT)
        own = [v for v in variants if (v["metadata"].get("labels") or {}).get(SET_LABEL) == uid]
        existing = {_identifier(pvs, variant["spec"]["downstream"]): variant for variant in own}
        for downstream in _downstreams(pvs):
            identifier = _identifier(pvs, downstream)
            spec = {"upstream": pvs["spec"]["upstream"], "downstream": downstream}
            if identifier in existing:
                old = existing[identifier]
                await self._update(VARIANT, old, {**old, "spec": spec})
            else:
                await self._create(VARIANT, {"metadata": self._metadata(pvs, identifier), "spec": spec})
        await self._set_status(SET, pvs, "Reconciled", {})

    def _metadata(self, pvs: Object, name: str) -> Object:
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": {SET_LABEL: pvs["metadata"]["uid"]},
            "finalizers": [FINALIZER],
            "ownerReferences": [reference_to(pvs, "v1alpha2")],
        }

    async def _set_status(self, kind: Kind, obj: Object, reason: str, more: Object) -> None:
        """Write status; times change only with a condition's status, so that a quiet controller is quiet."""
        wanted = {"Stalled": ("False", "Valid"), "Ready": ("True", reason)}
        found = {each["type"]: each for each in (obj.get("status") or {}).get("conditions") or ()}
        conditions = []
        for name, (status, why) in wanted.items():
            before = found.get(name, {})
            at = before.get("lastTransitionTime") if before.get("status") == status else None
            conditions.append(
                {"type": name, "status": status, "reason": why, "message": why,
                 "lastTransitionTime": at or "2026-01-01T00:00:00Z"}
            )  # fmt: skip
        await self._update(kind, obj, {**obj, "status": {"conditions": conditions, **more}}, "status")

    # ------------------------------------------------------------ variants

    async def _reconcile_variant(self, variant: Object) -> None:
        if FINALIZER not in (variant["metadata"].get("finalizers") or ()):
            metadata = {**variant["metadata"], "finalizers": [FINALIZER]}
            variant = await self._update(VARIANT, variant, {**variant, "metadata": metadata})
        revisions = await self.items(REVISION)
        upstream = _upstream(variant, revisions)
        targets = [
            await self._ensured(variant, each, upstream, revisions) for each in _targets(variant, revisions)
        ]
        if not targets:
            task = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": _named(upstream)}}}
            targets = [await self._draft(variant, revisions, task)]
        names = [{"name": target["metadata"]["name"]} for target in targets]
        await self._set_status(VARIANT, variant, "NoErrors", {"downstreamTargets": names})

    async def _ensured(
        self, variant: Object, target: Object, upstream: Object, revisions: list[Object]
    ) -> Object:
        """Return a draft that upgrades a published revision whose upstream has changed, else the revision."""
        lock = (target.get("status") or {}).get("upstreamLock") or {}
        reference = ((lock.get("git") or {}).get("ref") or "").rpartition("/")[2]
        wanted = f"v{upstream['spec'].get('revision') or (upstream.get('status') or {}).get('revision')}"
        if reference == wanted or target["spec"]["lifecycle"] != "Published":
            return target
        (old,) = [
            r for r in revisions if _is_of(r, variant["spec"]["upstream"]) and f"v{_number(r)}" == reference
        ]
        upgrade = {
            "oldUpstreamRef": _named(old),
            "newUpstreamRef": _named(upstream),
            "localPackageRevisionRef": _named(target),
            "strategy": "resource-merge",
        }
        return await self._draft(variant, revisions, {"type": "upgrade", "upgrade": upgrade})

    async def _draft(self, variant: Object, revisions: list[Object], task: Object) -> Object:
        downstream = variant["spec"]["downstream"]
        taken = [
            revision["spec"]["workspaceName"].removeprefix(WORKSPACE)
            for revision in revisions
            if _is_of(revision, downstream) and revision["spec"]["workspaceName"].startswith(WORKSPACE)
        ]
        number = max([0, *(int(text) for text in taken if text.isdigit())]) + 1
        spec = {
            "packageName": downstream["package"],
            "repository": downstream["repo"],
            "workspaceName": f"{WORKSPACE}{number}",
            "tasks": [task],
        }
        owners = [reference_to(variant, "v1alpha1")]
        return await self._create(
            REVISION, {"metadata": {"namespace": self.namespace, "ownerReferences": owners}, "spec": spec}
        )


def _identifier(pvs: Object, downstream: Object) -> str:
    return f"{pvs['metadata']['name']}-{downstream['repo']}-{downstream['package']}"


def _downstreams(pvs: Object) -> Iterator[Object]:
    for target in pvs["spec"]["targets"]:
        for repository in target["repositories"]:
            for package in repository.get("packageNames") or [pvs["spec"]["upstream"]["package"]]:
                yield {"repo": repository["name"], "package": package}


def _is_of(revision: Object, package: Object) -> bool:
    spec = revision["spec"]
    return bool(spec["repository"] == package["repo"] and spec["packageName"] == package["package"])


def _number(revision: Object) -> Any:
    return revision["spec"].get("revision") or (revision.get("status") or {}).get("revision")


def _named(revision: Object) -> Object:
    return {"name": revision["metadata"]["name"]}


def _upstream(variant: Object, revisions: list[Object]) -> Object:
    """Return the upstream, by its workspace."""
    wanted = variant["spec"]["upstream"]
    workspace = wanted.get("workspaceName") or "main"
    for revision in revisions:
        if _is_of(revision, wanted) and revision["spec"]["workspaceName"] == workspace:
            return revision
    raise PermanentError(f"could not find upstream package revision {wanted}", reason="NotFound")


def _targets(variant: Object, revisions: list[Object]) -> list[Object]:
    """Return all drafts of a variant, or else its latest published revision."""
    uid = variant["metadata"]["uid"]
    own = [
        revision
        for revision in revisions
        if _is_of(revision, variant["spec"]["downstream"])
        and any(each["uid"] == uid for each in revision["metadata"].get("ownerReferences") or ())
    ]
    published = [each for each in own if each["spec"]["lifecycle"] in ("Published", "DeletionProposed")]
    drafts = [each for each in own if each not in published]
    return drafts or sorted(published, key=_number)[-1:]
