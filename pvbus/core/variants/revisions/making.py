"""Creates package revisions that a variant owns: clones, upgrade drafts and edit drafts."""

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any

from pvbus.core.api.variants import PORCH_GROUP, PackageVariant
from pvbus.core.errors import NotOwnedError, PermanentError
from pvbus.core.kernel.effects import Create, Effect
from pvbus.core.kernel.keys import next_workspace
from pvbus.core.kernel.objects import set_among
from pvbus.core.variants.revisions import former
from pvbus.core.variants.revisions.owning import (
    PUBLISHED,
    REVISION,
    Object,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    owner_reference,
    version_of,
)

DEFER_RENDER = "pvbus.dev/defer-render"
"""Asks the package store not to run a clone's pipeline before the mutations are in, as a pipeline need
not be idempotent. Porch's own server does not know the annotation, and renders. Edits and upgrades need not
ask: Porch's controller sets no annotation on them."""

_NEW = frozenset({"revision", "workspaceName", "tasks"})
_IN_KPTFILE = frozenset({"readinessGates", "packageMetadata"})
"""Fields that an upgrade merges in the Kptfile: in the request they would undo upstream's changes."""

CAUSE = "pvbus.dev/cause"
"""On a clone and on saved files: which variant writes, and why. The package store puts it into the commit
message; Porch's own server ignores it. Other new revisions name their source in their task, and Porch's
controller sets no annotation on them."""


def cause(variant: PackageVariant, what: str) -> str:
    """Return the writer and the reason: what is new to the variant, at which generation of its spec, and the
    set whose template that spec is of."""
    metadata = variant.metadata
    set_name = set_among(metadata.owner_references)
    spec = f"generation {metadata.generation}" + (f" by PackageVariantSet {set_name}" if set_name else "")
    return f"PackageVariant {metadata.namespace}/{metadata.name}: {what}; {spec}"


def upgrade_task(source: Object, old: str, new: str) -> Object:
    return {
        "type": "upgrade",
        "upgrade": {
            "oldUpstreamRef": {"name": old},
            "newUpstreamRef": {"name": new},
            "localPackageRevisionRef": {"name": source["metadata"]["name"]},
            "strategy": "resource-merge",
        },
    }


def edit_task(source: Object) -> Object:
    return {"type": "edit", "edit": {"sourceRef": {"name": source["metadata"]["name"]}}}


class Written:
    """The versions of the revisions that an attempt wrote."""

    def __init__(self) -> None:
        self._versions: dict[str, list[str]] = {}

    def add(self, name: str, before: str, after: Object) -> None:
        """Note a write of a revision. before: its resourceVersion before, "" if it was created."""
        versions = self._versions.setdefault(name, [])
        for version in (before, version_of(after)):
            if version and version not in versions:
                versions.append(version)

    def versions(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(versions) for name, versions in self._versions.items()}


class Making:
    def __init__(self, variant: PackageVariant, written: Written) -> None:
        assert variant.spec.downstream is not None
        self.variant = variant
        self.namespace = variant.metadata.namespace
        self.downstream = variant.spec.downstream
        self._written = written

    def clone(self, upstream: str, live: list[Object]) -> Generator[Effect, Any, Object]:
        """Clone an upstream revision into a new draft. live: the package's revisions."""
        task = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": upstream}}}}
        try:
            annotations = {
                DEFER_RENDER: "true",
                former.MADE_BY: former.record_of(self.variant),
                CAUSE: cause(self.variant, f"clone of {upstream}"),
            }
            return (yield from self._make(live, {"tasks": [task]}, annotations))
        except PermanentError as error:
            if error.reason != "PackageExists":
                raise
            raise former.why_refused(error, live, self.variant, self.downstream) from error

    def _make(
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
        self._written.add(created["metadata"]["name"], "", created)
        return created

    def draft_from(self, source: Object, task: Object) -> Generator[Effect, Any, Object]:
        """Make an upgrade or edit draft: the source's spec with another workspace and task. If we have an
        unobserved draft, return that one instead. Raises: NotOwnedError if the source got other owners."""
        live = yield from list_package(self.namespace, self.downstream)
        mine = [obj for obj in live if belongs_to(obj, self.variant)]
        for obj in mine:
            if lifecycle_of(obj) not in PUBLISHED and not is_terminating(obj):
                return obj
        name = source["metadata"]["name"]
        if not any(_is_same_owned(source, obj) for obj in live):
            raise NotOwnedError(f"PackageRevision {self.namespace}/{name} is gone, or has another owner now")
        left = _NEW if task["type"] == "edit" else _NEW | _IN_KPTFILE
        retained = {field: value for field, value in source["spec"].items() if field not in left}
        return (yield from self._make(live, {**retained, "lifecycle": "Draft", "tasks": [task]}))


def _is_same_owned(source: Object, live: Object) -> bool:
    """Return whether a live revision is the source, with the owners that were decided on."""
    wanted, present = source["metadata"], live["metadata"]
    return bool(
        wanted["name"] == present["name"]
        and (wanted.get("ownerReferences") or []) == (present.get("ownerReferences") or [])
    )
