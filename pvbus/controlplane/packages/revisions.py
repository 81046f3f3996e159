"""Package revisions, and their form as API objects."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.content import KptfileFacts, shown_conditions
from pvbus.controlplane.packages.layout import RenderNote
from pvbus.core.api.packages import RENDER_REMARKS
from pvbus.core.api.variants import PORCH_API
from pvbus.core.kernel.keys import EDITED_BY, revision_name
from pvbus.core.kernel.messages import first_of
from pvbus.core.variants.revisions.validators import unproven
from pvbus.ports.cluster import Object

EDITORS_SHOWN_MAX = 5  # names in an annotation: enough to know whom to ask

RevisionKey = tuple[str, str]
"""Directory and workspace of a revision."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One package revision.

    package: the package's path below the Repository's directory
    directory: the package's path from the root of the repository
    workspace: its workspace name
    revision: its number; 0 for an open one, `PLACEHOLDER_REVISION` for a placeholder
    lifecycle: its lifecycle
    ref: its branch or tag
    oid: what the ref points to, the commit or an annotated tag of it
    commit: its commit
    tree: the tree of the package's folder
    kptfile: what its Kptfile says
    task: the task that made it, None if no commit names one
    note: the pipeline's outcome for its content, None if no commit names one
    published_by: the author's address of a published one, "" for an open one
    authored: the author's time of its commit, as RFC 3339 in UTC
    editors: the people whose commits an open one has, the last one first
    latest: whether it is the newest published one of its package
    """

    package: str
    directory: str
    workspace: str
    revision: int
    lifecycle: str
    ref: str
    oid: str
    commit: str
    tree: str
    kptfile: KptfileFacts
    task: dict[str, Any] | None = None
    note: RenderNote | None = None
    published_by: str = ""
    authored: str = ""
    editors: tuple[str, ...] = ()
    latest: bool = False

    @property
    def is_placeholder(self) -> bool:
        """Whether it is the folder on the Repository's branch, not a draft or a tag."""
        return not self.ref.startswith((layout.TAGS, layout.DRAFTS, layout.PROPOSALS))

    @property
    def is_published(self) -> bool:
        return self.lifecycle in (layout.PUBLISHED, layout.DELETION_PROPOSED)

    @property
    def deletion_identifier(self) -> str:
        return f"v{self.revision}" if self.revision > 0 else self.workspace


class RepositoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Repository that its PackageRevisions repeat.

    namespace: its namespace
    name: its name
    address: the address of the git repository, as in its spec
    deployment: whether it is a deployment repository
    """

    namespace: str
    name: str
    address: str
    deployment: bool


def lock_address(address: str) -> str:
    """Return the repository's address in locks: URLs end in `.git`, paths are unchanged."""
    return f"{address}.git" if "://" in address and not address.endswith(".git") else address


def lock_of(revision: Revision, repository: RepositoryFacts) -> dict[str, Any]:
    """Return the lock of a revision: its position in git."""
    return {
        "type": "git",
        "git": {
            "repo": lock_address(repository.address),
            "directory": revision.package,
            "ref": layout.short_ref(revision.ref),
            "commit": revision.commit,
        },
    }


def name_of(revision: Revision, repository: RepositoryFacts) -> str:
    return revision_name(repository.name, revision.package, revision.workspace)


def to_object(revision: Revision, repository: RepositoryFacts, metadata: Mapping[str, Any]) -> Object:
    """Convert a revision to a PackageRevision.

    metadata: the object's present metadata, which stays but for the labels and annotations of the store
    """
    name = name_of(revision, repository)
    labels = {
        key: value for key, value in (metadata.get("labels") or {}).items() if key != layout.LATEST_LABEL
    }
    if revision.latest:
        labels[layout.LATEST_LABEL] = "true"
    retained = {key: value for key, value in metadata.items() if key not in ("labels", "annotations")}
    spec: dict[str, Any] = {
        "packageName": revision.package,
        "repository": repository.name,
        "workspaceName": revision.workspace,
        "lifecycle": revision.lifecycle,
    }
    if revision.revision:  # like Porch's server, which omits empty fields
        spec["revision"] = revision.revision
    if revision.task is not None:
        spec["tasks"] = [revision.task]
    facts = revision.kptfile
    if facts.gates:
        spec["readinessGates"] = [{"conditionType": gate["conditionType"]} for gate in facts.gates]
    package_metadata = {"labels": facts.labels, "annotations": facts.annotations}
    if any(package_metadata.values()):
        spec["packageMetadata"] = {key: value for key, value in package_metadata.items() if value}
    return {
        "apiVersion": PORCH_API,
        "kind": "PackageRevision",
        "metadata": {
            "creationTimestamp": revision.authored,
            **retained,
            "name": name,
            "namespace": repository.namespace,
            "uid": layout.revision_uid(repository.namespace, name),
            **({"labels": labels} if labels or "labels" in metadata else {}),
            **_annotations(revision, metadata),
        },
        "spec": spec,
        "status": _status(revision, repository),
    }


def _annotations(revision: Revision, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata's annotations, with the remarks of the last render and the people who edited it."""
    note, given = revision.note, metadata.get("annotations") or {}
    annotations = {key: text for key, text in given.items() if key not in (RENDER_REMARKS, EDITED_BY)}
    if revision.editors:
        annotations[EDITED_BY] = first_of(revision.editors, EDITORS_SHOWN_MAX)
    if note is not None and note.remarks:
        annotations[RENDER_REMARKS] = "; ".join(note.remarks)
    return {"annotations": annotations} if annotations or metadata.get("annotations") == {} else {}


def with_editors(metadata: Mapping[str, Any], editors: str | None) -> Mapping[str, Any]:
    """Return the metadata of a request with the store's note of who edited the draft, whatever it says."""
    given = metadata.get("annotations") or {}
    if given.get(EDITED_BY) == editors:
        return metadata
    annotations = {key: text for key, text in given.items() if key != EDITED_BY}
    return {**metadata, "annotations": {**annotations, **({EDITED_BY: editors} if editors else {})}}


def _status(revision: Revision, repository: RepositoryFacts) -> dict[str, Any]:
    status: dict[str, Any] = {"selfLock": lock_of(revision, repository)}
    if repository.deployment:
        status["deployment"] = True
    if revision.kptfile.upstream_lock is not None:
        status["upstreamLock"] = _shown_lock(revision.kptfile.upstream_lock)
    if revision.published_by:
        status["publishedBy"] = revision.published_by
        status["publishTimestamp"] = revision.authored
    if conditions := conditions_of(revision):
        status["conditions"] = conditions
    return status


def conditions_of(revision: Revision) -> list[dict[str, str]]:
    """Return the conditions that the API shows and gates ask for.

    The store has run no validator on what another program has committed to a draft, without a note.
    """
    warning = revision.note.warning if revision.note is not None else ""
    conditions = shown_conditions(revision.kptfile, warning)
    is_open = revision.lifecycle in (layout.DRAFT, layout.PROPOSED)
    return unproven(conditions) if is_open and revision.note is None else conditions


def _shown_lock(lock: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a lock as the API shows it: with a slash in its ref.

    The lock of a package that was cloned from a branch has the branch's short name, as kpt requires.
    `porchctl rpkg upgrade --discover` takes the text after the last slash as the revision, and fails for
    the whole namespace if there is no slash.
    """
    git = lock.get("git") or {}
    ref = git.get("ref", "")
    return lock if not ref or "/" in ref else {**lock, "git": {**git, "ref": f"{layout.HEADS}{ref}"}}


def rendered_problem(revision: Revision) -> str | None:
    """Return why a revision may be neither proposed nor approved, None if it may."""
    if revision.note is not None and revision.note.state == "deferred":
        return (
            "the package has not been rendered yet: update its PackageRevisionResources once, or remove "
            "the annotation pvbus.dev/defer-render"
        )
    condition = revision.kptfile.rendered
    if condition is not None and condition.get("status") != "True":
        return f"the package is not rendered: {condition.get('message') or condition.get('reason', '')}"
    if revision.note is not None and revision.note.state == "failed":
        return "the package is not rendered: cannot read its Kptfile"
    return None


def blocking_references(name: str, others: Iterable[Object]) -> list[str]:
    """Return the names of the package revisions that were cloned from this one, or upgraded to it."""
    found = []
    for other in others:
        if other["spec"].get("revision") == layout.PLACEHOLDER_REVISION:
            continue
        for task in other["spec"].get("tasks") or []:
            clone = ((task.get("clone") or {}).get("upstreamRef") or {}).get("upstreamRef") or {}
            upgrade = (task.get("upgrade") or {}).get("newUpstreamRef") or {}
            if name in (clone.get("name"), upgrade.get("name")):
                found.append(other["metadata"]["name"])
                break
    return sorted(found)
