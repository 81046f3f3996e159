"""Package revisions in git: found from refs and folders, converted to API objects.

`Catalog` follows one mirror: `apply` takes the changed refs and returns the changed revisions. The
revision at a ref and commit is read once and cached, so the cost depends on the size of a change, not of
the repository.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pygit2

from pvbus.controlplane.packages import bounds, layout
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.content import KptfileFacts, facts_of, unreadable_kptfile
from pvbus.controlplane.packages.gitrepo import BareMirror, Commit
from pvbus.controlplane.packages.layout import Annotation, RenderNote
from pvbus.controlplane.packages.leftovers import Approvals
from pvbus.core.api.variants import PORCH_API
from pvbus.core.keys import revision_name
from pvbus.ports.cluster import Object

HISTORY_COMMITS_MAX = 200
"""Commits that are searched for a revision's task: with more edits than this, a draft has no task in the
listing; with a higher limit, histories without annotations would be slow to read."""

UNPACKAGED_SHOWN_MAX = 3

FACTS_CACHE_BYTES_MAX = 4 * 1024 * 1024
"""Cache of one Repository's Kptfiles: most revisions of a package have the same one."""

_UNREADABLE = (ContentError, LookupError, ValueError, RecursionError, AssertionError, pygit2.GitError)


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One package revision. ref: its branch or tag; oid: the target of that ref, the commit or an
    annotated tag of it; tree: of the package's folder."""

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


def _bytes_of(facts: KptfileFacts) -> int:
    return len(msgspec.json.encode(facts)) + 500


class Catalog:
    """The package revisions of one Repository."""

    def __init__(self, mirror: BareMirror, base: str, branch: str, pins: Mapping[str, str]) -> None:
        """base: the Repository's directory; pins: directory -> last commit of its placeholder, which
        stays while the folder's tree is the same."""
        self._mirror = mirror
        self._base = base.strip("/")
        self._branch = branch
        self._pins = dict(pins)
        self._refs: dict[str, str] = {}
        self._refs_by_directory: dict[str, set[str]] = {}
        self._folders: dict[str, str] = {}
        self._tips: dict[tuple[str, str], Revision | None] = {}
        self._facts: SizedCache[str, KptfileFacts] = SizedCache(FACTS_CACHE_BYTES_MAX, _bytes_of)
        self._approvals = Approvals(mirror)
        self._undone: set[str] = set()
        self._unreadable: dict[tuple[str, str], str] = {}
        self.by_directory: dict[str, dict[str, Revision]] = {}

    def revisions(self) -> Iterable[Revision]:
        for found in list(self.by_directory.values()):  # a worker thread may change it meanwhile
            yield from found.values()

    def find(self, directory: str, workspace: str) -> Revision | None:
        return self.by_directory.get(directory, {}).get(workspace)

    @property
    def branch_ref(self) -> str:
        return f"{layout.HEADS}{self._branch}"

    @property
    def head(self) -> str:
        """Return the branch's commit as of the last `apply`, "" without a branch."""
        return self._refs.get(self.branch_ref, "")

    def leftovers(self, directory: str | None = None) -> list[str]:
        """Return the directories that deleted packages left on the branch, checking one or all."""
        directories = list(self._folders) if directory is None else [directory]
        alone = [
            (each, placeholder.tree)
            for each in directories
            if (placeholder := self._only_placeholder(each)) is not None
        ]
        head = self._refs.get(self.branch_ref)
        return self._approvals.leftovers(self._mirror.commit_of(head) if head else None, alone)

    def _only_placeholder(self, directory: str) -> Revision | None:
        """Return a package's placeholder if it is the package's only published revision."""
        published = [item for item in self.by_directory.get(directory, {}).values() if item.is_published]
        return published[0] if len(published) == 1 and published[0].is_placeholder else None

    def readiness(self) -> str:
        """Return the message of the condition Ready, with refs that look like packages but are not."""
        missing = self._without_kptfile()
        broken = sorted(
            f"{ref} ({problem})"
            for (ref, oid), problem in self._unreadable.items()
            if self._refs.get(ref) == oid
        )
        unreadable = (
            f"; {len(broken)} branches or tags cannot be read: {', '.join(broken[:UNPACKAGED_SHOWN_MAX])}. "
            "Delete them, or push them again"
            if broken
            else ""
        )
        if not missing:
            return f"Repository Ready{unreadable}"
        return (
            f"Repository Ready; {len(missing)} branches or tags name a folder without a Kptfile, which is "
            f"not a package: {', '.join(missing[:UNPACKAGED_SHOWN_MAX])}. Add a Kptfile (kpt pkg init) and "
            f"commit or tag it again{unreadable}"
        )

    def _without_kptfile(self) -> list[str]:
        found = []
        for (ref, oid), revision in self._tips.items():
            parsed = layout.parse_ref(ref)
            if revision is not None or parsed is None or self._refs.get(ref) != oid:
                continue
            commit = self._mirror.commit_of(oid)
            tree = self._mirror.tree_of(commit, parsed.directory) if commit else None
            if tree is not None and self._mirror.blob(tree, layout.KPTFILE) is None:
                found.append(ref)
        return sorted(found)

    def apply(self, refs: Mapping[str, str]) -> set[tuple[str, str]]:
        """Apply the mirror's refs; return (directory, workspace) of every revision that is new, changed
        or gone."""
        moved = {ref for ref, oid in refs.items() if self._refs.get(ref) != oid}
        moved |= self._refs.keys() - refs.keys()
        return self.apply_moved(refs, moved)

    def apply_moved(self, refs: Mapping[str, str], moved: Iterable[str]) -> set[tuple[str, str]]:
        """Like `apply`, for a caller that knows which refs may have moved."""
        directories = self._undone  # after an error, the next call continues
        for ref in moved:
            if ref == self.branch_ref:
                directories |= self._read_branch(refs.get(ref))
            if parsed := layout.parse_ref(ref):
                if layout.package_path(parsed.directory, self._base) is None:
                    continue
                directories.add(parsed.directory)
                known = self._refs_by_directory.setdefault(parsed.directory, set())
                known.add(ref) if ref in refs else known.discard(ref)
            former = (ref, self._refs.pop(ref, ""))
            if ref in refs:
                self._refs[ref] = refs[ref]
            if refs.get(ref) != former[1]:
                self._tips.pop(former, None)
                self._unreadable.pop(former, None)
        changed: set[tuple[str, str]] = set()
        for directory in directories:
            changed |= self._recompute(directory)
        self._undone = set()
        return changed

    def _recompute(self, directory: str) -> set[tuple[str, str]]:
        old = self.by_directory.get(directory, {})
        new = self._read_directory(directory)
        if new:
            self.by_directory[directory] = new
        else:
            self.by_directory.pop(directory, None)
        return {(directory, key) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}

    def _read_directory(self, directory: str) -> dict[str, Revision]:
        """Read a directory's revisions by workspace; a published one replaces a leftover draft."""
        found: dict[str, Revision] = {}
        if (placeholder := self._placeholder(directory)) is not None:
            found[placeholder.workspace] = placeholder
        order = (layout.DRAFTS, layout.PROPOSALS, layout.TAGS)
        refs = self._refs_by_directory.get(directory, set())
        for prefix in order:
            for ref in sorted(ref for ref in refs if ref.startswith(prefix)):
                revision = self._at(ref, self._refs[ref])
                if revision is not None:
                    found[revision.workspace] = revision
        for workspace, revision in found.items():
            if layout.deletion_ref(directory, revision.deletion_identifier) in refs and revision.is_published:
                found[workspace] = msgspec.structs.replace(revision, lifecycle=layout.DELETION_PROPOSED)
        newest = max((item.revision for item in found.values() if item.is_published), default=0)
        return {
            workspace: msgspec.structs.replace(item, latest=newest > 0 and item.revision == newest)
            for workspace, item in found.items()
        }

    def _placeholder(self, directory: str) -> Revision | None:
        tree = self._folders.get(directory)
        commit = self._mirror.commit(self._pins.get(directory, "")) if tree else None
        if tree is None or commit is None:
            return None
        return self._revision(
            directory,
            self._branch,
            layout.PLACEHOLDER_REVISION,
            layout.PUBLISHED,
            self.branch_ref,
            commit.id,
            commit,
            tree,
        )

    def _read_branch(self, oid: str | None) -> set[str]:
        """Read the packages on the branch; return the changed folders."""
        head = self._mirror.commit_of(oid) if oid else None
        folders = self._mirror.packages(head, self._base) if head else {}
        touched = {
            name
            for name in folders.keys() | self._folders.keys()
            if folders.get(name) != self._folders.get(name)
        }
        retained: dict[str, bool] = {}
        for directory, tree in folders.items():
            pin = self._pins.get(directory)
            if pin is not None and head is not None and self._mirror.tree_of(pin, directory) == tree:
                if pin not in retained:
                    retained[pin] = self._mirror.is_ancestor(pin, head)
                if retained[pin]:
                    continue
            self._pins[directory] = head or ""
            touched.add(directory)
        self._folders = folders
        return touched

    def _at(self, ref: str, oid: str) -> Revision | None:
        """Return the revision at a ref with this oid; cached, as it never changes."""
        key = (ref, oid)
        if key not in self._tips:
            try:
                self._tips[key] = self._read_tip(ref, oid)
            except _UNREADABLE as exc:
                # A bad push to one ref must not affect the other packages.
                self._tips[key] = None
                self._unreadable[key] = (str(exc) or type(exc).__name__)[:200]
        return self._tips[key]

    def _read_tip(self, ref: str, oid: str) -> Revision | None:
        parsed = layout.parse_ref(ref)
        tip = self._mirror.commit_of(oid)
        if parsed is not None and tip is None:
            raise ContentError("it is not a commit that git can read")
        commit = self._mirror.commit(tip) if tip else None
        if parsed is None or commit is None:
            return None
        tree = self._mirror.tree_of(commit.id, parsed.directory)
        if tree is None or self._mirror.blob(tree, layout.KPTFILE) is None:
            return None
        if parsed.kind != "tag":
            lifecycle = layout.DRAFT if parsed.kind == "draft" else layout.PROPOSED
            return self._revision(parsed.directory, parsed.identifier, 0, lifecycle, ref, oid, commit, tree)
        number = layout.revision_number(parsed.identifier)
        named = [
            note.workspace_name
            for note in layout.parse_annotations(commit.message)
            if note.package == parsed.directory and note.workspace_name
        ]
        workspace = named[0] if named and number > 0 else parsed.identifier
        return self._revision(parsed.directory, workspace, number, layout.PUBLISHED, ref, oid, commit, tree)

    def _revision(
        self,
        directory: str,
        workspace: str,
        number: int,
        lifecycle: str,
        ref: str,
        oid: str,
        commit: Commit,
        tree: str,
    ) -> Revision | None:
        package = layout.package_path(directory, self._base)
        if package is None or layout.package_problem(package) or not _is_workspace(workspace):
            return None
        published = lifecycle == layout.PUBLISHED
        blob = self._mirror.blob(tree, layout.KPTFILE)
        return Revision(
            package=package,
            directory=directory,
            workspace=workspace,
            revision=number,
            lifecycle=lifecycle,
            ref=ref,
            oid=oid,
            commit=commit.id,
            tree=tree,
            kptfile=self._facts.get(blob, lambda: self._read_facts(blob)) if blob else KptfileFacts(),
            task=self._task(directory, workspace, commit) if ref != self.branch_ref else None,
            note=layout.parse_render_note(commit.message),
            published_by=commit.author_email if published else "",
            authored=commit.authored,
        )

    def _task(self, directory: str, workspace: str, commit: Commit) -> dict[str, Any] | None:
        """Return the task that made the revision, from its own history.

        An approval merges the draft into the branch, so the draft is the last parent.
        """
        task: dict[str, Any] | None = None
        current: Commit | None = commit
        for _ in range(HISTORY_COMMITS_MAX):
            if current is None:
                break
            for note in layout.parse_annotations(current.message):
                if _is_about(note, directory, workspace) and layout.is_content_task(note.task):
                    task = note.task
            if task is not None and layout.starts_history(task):
                break
            current = self._mirror.commit(current.parents[-1]) if current.parents else None
        return task

    def _read_facts(self, blob: str) -> KptfileFacts:
        try:
            data = self._mirror.data(blob, bounds.KPTFILE_BYTES_MAX)
        except ContentError as exc:
            return unreadable_kptfile(str(exc))
        return facts_of(data.decode(errors="replace"))


def _is_about(note: Annotation, directory: str, workspace: str) -> bool:
    return note.package == directory and note.workspace_name == workspace


def _is_workspace(text: str) -> bool:
    """Return whether a text is a workspace; also one that Porch would not create, such as the tag v1.2."""
    return all(layout.label_problem(part) is None for part in text.split("."))


class RepositoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Repository that its PackageRevisions repeat."""

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
    """Convert a revision to a PackageRevision. metadata: the object's own metadata to keep."""
    name = name_of(revision, repository)
    labels = {
        key: value for key, value in (metadata.get("labels") or {}).items() if key != layout.LATEST_LABEL
    }
    if revision.latest:
        labels[layout.LATEST_LABEL] = "true"
    retained = {key: value for key, value in metadata.items() if key != "labels"}
    spec: dict[str, Any] = {
        "packageName": revision.package,
        "repository": repository.name,
        "workspaceName": revision.workspace,
        "revision": revision.revision,
        "lifecycle": revision.lifecycle,
    }
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
        },
        "spec": spec,
        "status": _status(revision, repository),
    }


def _status(revision: Revision, repository: RepositoryFacts) -> dict[str, Any]:
    status: dict[str, Any] = {"selfLock": lock_of(revision, repository), "deployment": repository.deployment}
    if revision.kptfile.upstream_lock is not None:
        status["upstreamLock"] = _shown_lock(revision.kptfile.upstream_lock)
    if revision.published_by:
        status["publishedBy"] = revision.published_by
        status["publishTimestamp"] = revision.authored
    if revision.kptfile.conditions:
        status["conditions"] = [dict(condition) for condition in revision.kptfile.conditions]
    return status


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
