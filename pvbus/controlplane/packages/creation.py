"""Creates package revisions: checks the task, makes the first files.

Raises StatusError with Porch's texts. Rules that compare with other revisions use the whole path;
Porch compares only its last element, and so accepts some duplicates.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import answers, bounds, content, layout, upgrading
from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.filesets import Files, check_files, texts
from pvbus.controlplane.packages.operations import Source
from pvbus.controlplane.packages.render import Rendering
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.revisions import Revision, lock_address, lock_of
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.controlplane.packages.upgrading import Names, Upgraded, Upstream
from pvbus.controlplane.packages.upstreams import Origin, Upstreams
from pvbus.core.kernel.conflicts import Conflict
from pvbus.core.kernel.keys import COPIED_CONDITIONS, revision_name
from pvbus.core.kernel.packagepaths import label_problem, package_problem
from pvbus.core.variants.merge import MergeError, copies
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Object

ORIGINS_BYTES_MAX = 32 * 1024 * 1024
"""Cache of upstream packages' annotated files: a fleet follows few of them."""


TEXT_OVERHEAD_BYTES = 200
OWNER_KIND = "PackageVariant"


class Wanted(NamedTuple):
    """A PackageRevision to create, with its form checked.

    namespace: its namespace
    repository: the name of its Repository
    package: its package's path below the Repository's directory
    workspace: its workspace name
    task: the task that makes it
    spec: its spec
    """

    namespace: str
    repository: str
    package: str
    workspace: str
    task: dict[str, Any]
    spec: Mapping[str, Any]

    @property
    def name(self) -> str:
        return revision_name(self.repository, self.package, self.workspace)


class Start(NamedTuple):
    """The first files of a new package revision.

    base: the files of the source, from which those that are no text are taken
    texts: the text files, by path
    source: what was cloned, copied or upgraded to; None for a package that starts empty
    conflicts: the conflicts of an upgrade
    """

    base: Files
    texts: dict[str, str]
    source: Source | None = None
    conflicts: tuple[Conflict, ...] = ()


class Finder(Protocol):
    """Looks up a revision of the namespace by name."""

    async def __call__(self, namespace: str, name: str) -> tuple[RepositorySync, Revision] | None: ...


Renderer = Callable[[Mapping[str, str]], Awaitable[Rendering]]


class Merger(Protocol):
    """Does `upgrading.upgraded`, beside the event loop."""

    async def __call__(
        self,
        old: Upstream,
        local: Files,
        new: Upstream,
        lock: Mapping[str, Any],
        strategy: str,
        *,
        deployment: bool,
    ) -> Upgraded: ...


def parse(obj: Object) -> Wanted:
    """Check the object by itself, without other objects or git."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    repository, package = spec.get("repository", ""), spec.get("packageName", "")
    workspace, lifecycle = spec.get("workspaceName", ""), spec.get("lifecycle", "")
    if not repository:
        raise answers.bad_request("spec.repositoryName is required")
    name = f"{repository}.{package}.{workspace}"
    if layout.LATEST_LABEL in (metadata.get("labels") or {}):
        raise latest_label(name)
    for field, problem in (
        ("spec.packageName", package_problem(package)),
        ("spec.workspaceName", label_problem(workspace)),
    ):
        if problem:
            raise answers.invalid(name, field, problem)
    if lifecycle not in ("", layout.DRAFT):
        raise answers.invalid(
            name, "spec.lifecycle", f'value can only be created as Draft, and not as "{lifecycle}"'
        )
    tasks = spec.get("tasks") or [{"type": "init", "init": {"description": f"{package} description"}}]
    if len(tasks) > 1:
        raise answers.internal("task list must not contain more than one task")
    namespace = metadata.get("namespace", "")
    return Wanted(namespace, repository, package, workspace, tasks[0], spec)


def latest_label(name: str) -> StatusError:
    return StatusError(
        422,
        "Invalid",
        f'PackageRevision "{name}" is invalid: metadata.labels[{layout.LATEST_LABEL}]: Forbidden: '
        "the label is set by the server",
        causes=((f"metadata.labels[{layout.LATEST_LABEL}]", "FieldValueForbidden", "set by the server"),),
    )


def workspace_exists(wanted: Wanted) -> StatusError:
    return answers.internal(
        "package revision workspaceNames must be unique; package revision with name "
        f"{wanted.package} in repo {wanted.repository} with workspaceName {wanted.workspace} "
        "already exists"
    )


def clone_exists(wanted: Wanted) -> StatusError:
    return answers.internal(
        f'`clone` cannot create a new revision for package "{wanted.package}" that already exists '
        f'in repo "{wanted.repository}"; make subsequent revisions using `copy`'
    )


def check_place(wanted: Wanted, sync: RepositorySync, directory: str, *, is_leftover: bool) -> None:
    """Check a new revision against those of its repository.

    is_leftover: whether the directory has only what a deleted package left on the branch; a new package
        replaces it
    """
    present = sync.clone.catalog.by_directory
    siblings = present.get(directory, {})
    kind = wanted.task.get("type", "")
    if wanted.workspace in siblings:
        raise workspace_exists(wanted)
    exists = bool(siblings) and not (is_leftover and all(item.is_placeholder for item in siblings.values()))
    if kind == "init" and exists:
        raise answers.internal(
            f'package "{wanted.package}" already exists in repository "{wanted.repository}"; make '
            "subsequent revisions using `copy`"
        )
    if kind == "clone" and exists:
        raise clone_exists(wanted)
    if kind in ("init", "clone"):
        if nested := sync.clone.catalog.nested_with(directory):
            raise answers.internal(
                f'package path "{wanted.package}" of repo "{wanted.repository}" overlaps with the existing '
                f'package "{nested}": packages cannot be nested'
            )


def _bytes_of(texts: Mapping[str, str]) -> int:
    return sum(len(path) + len(text) + TEXT_OVERHEAD_BYTES for path, text in texts.items())


class Creation:
    """Makes the first files of new revisions."""

    def __init__(self, find: Finder, upstreams: Upstreams, render: Renderer, merge: Merger) -> None:
        """Make nothing yet.

        find: looks up a revision by name
        upstreams: reads repositories that are not registered
        render: runs a package's pipeline
        merge: merges the files of an upgrade
        """
        self._find = find
        self._render = render
        self._merge = merge
        self._upstreams = upstreams
        self.origins: SizedCache[str, Mapping[str, str]] = SizedCache(ORIGINS_BYTES_MAX, _bytes_of)

    async def start(self, wanted: Wanted, sync: RepositorySync) -> Start:
        task = wanted.task
        match task.get("type"):
            case "init":
                body = task.get("init") or {}
                if body.get("subpackage"):
                    raise answers.internal("init.subpackage is not supported: create the package itself")
                name = wanted.package.rpartition("/")[2]
                return Start({}, content.initial_files(name, body))
            case "clone":
                return await self._clone(wanted, sync)
            case "edit":
                return await self._edit(wanted, sync)
            case "upgrade":
                return await self._upgrade(wanted, sync)
            case other:
                raise answers.internal(f'task type "{other}" cannot create a package revision')

    async def _clone(self, wanted: Wanted, sync: RepositorySync) -> Start:
        reference = (wanted.task.get("clone") or {}).get("upstreamRef") or {}
        if name := (reference.get("upstreamRef") or {}).get("name"):
            origin = await self._find_registered(wanted.namespace, name)
        else:
            origin = await self._upstreams.read(wanted.namespace, reference)
        try:
            return await sync.clone.in_thread(self._cloned, wanted, sync, origin)
        except (editor.YamlError, bounds.ContentError) as exc:
            raise answers.unusable(
                f'upstream package revision "{origin.source.name}" cannot be cloned: {exc}'
            ) from exc

    async def _find_registered(self, namespace: str, name: str) -> Origin:
        found = await self._find(namespace, name)
        if found is None:
            raise answers.internal(f'upstream package revision "{namespace}/{name}" not found')
        sync, revision = found
        lock = lock_of(revision, sync.settings.facts)
        return Origin(_source(name, revision), revision.tree, await sync.clone.files(revision), lock)

    def _cloned(self, wanted: Wanted, sync: RepositorySync, origin: Origin) -> Start:
        check_files(origin.files)
        plain = texts(origin.files)
        edited = copies.edit_kptfile(
            plain, copies.named(wanted.package.rpartition("/")[2]), copies.derived_from(origin.lock)
        )
        kptfile = copies.with_origins({layout.KPTFILE: edited[layout.KPTFILE]})
        result = {**self._with_origins(origin.tree, plain), **kptfile}
        if sync.settings.facts.deployment:
            result = content.with_package_context(result, wanted.package)
        return Start(origin.files, result, origin.source)

    def _with_origins(self, tree: str, plain: Mapping[str, str]) -> Mapping[str, str]:
        """Record origins in all files but the Kptfile: the same for every clone of a tree."""
        others = {path: text for path, text in plain.items() if path != layout.KPTFILE}
        return self.origins.get(tree, lambda: copies.with_origins(others))

    async def _edit(self, wanted: Wanted, sync: RepositorySync) -> Start:
        name = ((wanted.task.get("edit") or {}).get("sourceRef") or {}).get("name", "")
        found = await self._find(wanted.namespace, name)
        if found is None:
            raise answers.internal(f'source package revision "{wanted.namespace}/{name}" not found')
        source, revision = found
        if source is not sync or revision.package != wanted.package:
            raise answers.internal(
                f'source revision must be from same package {wanted.repository}/{wanted.package}, "{name}" '
                "is not"
            )
        if not revision.is_published:
            raise answers.internal("source revision must be published")
        if revision.is_placeholder:
            raise answers.internal(
                f"source revision may not be the placeholder package revision {wanted.repository}/{name}"
            )
        files = await sync.clone.files(revision)
        return Start(files, texts(files), _source(name, revision))

    async def _upgrade(self, wanted: Wanted, sync: RepositorySync) -> Start:
        names = Names.of(wanted.task)
        old_sync, old = await self._find_source(wanted, upgrading.OLD, names.old)
        new_sync, new = await self._find_source(wanted, upgrading.NEW, names.new)
        local_sync, local = await self._find_source(wanted, upgrading.LOCAL, names.local)
        if local_sync is not sync or local.package != wanted.package:
            raise answers.internal(
                f"local revision must be from same package {wanted.repository}/{wanted.package}, "
                f'"{names.local}" is not'
            )
        old = await self._ancestor(old_sync, old, local, names)
        old_files, local_files = await old_sync.clone.files(old), await sync.clone.files(local)
        new_files = await new_sync.clone.files(new)

        def upstreams() -> tuple[Upstream, Upstream]:
            return self._upstream(old.tree, old_files), self._upstream(new.tree, new_files)

        async def merge(ours: Files) -> Upgraded:
            lock, deployment = lock_of(new, new_sync.settings.facts), sync.settings.facts.deployment
            return await self._merge(before, ours, after, lock, names.strategy, deployment=deployment)

        try:
            before, after = await sync.clone.in_thread(upstreams)
            made = await merge(local_files)
            if ours := await self._without_output(local_files, made.conflicts):
                made = await merge(ours)
            await sync.clone.in_thread(check_files, made.files)
        except (MergeError, editor.YamlError, bounds.ContentError) as exc:
            raise answers.unusable(f'package revision "{names.local}" cannot be upgraded: {exc}') from exc
        return Start(made.files, texts(made.files), _source(names.new, new), made.conflicts)

    async def _without_output(self, local: Files, conflicts: Sequence[Conflict]) -> Files | None:
        """Return the local files with upstream's former values where only the pipeline is in conflict.

        None if there is no such value.
        """
        without = upgrading.before_output(local, conflicts)
        if without is None:
            return None
        return upgrading.without_output(local, conflicts, await self._render(without))

    def _upstream(self, tree: str, files: Files) -> Upstream:
        """Prepare an upstream revision for a merge: once for all packages that are upgraded to it."""
        texts = self.origins.get(f"upgrade {tree}", lambda: upgrading.with_origins(files))
        return Upstream(files, texts)

    async def _find_source(self, wanted: Wanted, role: str, name: str) -> tuple[RepositorySync, Revision]:
        """Find a source of an upgrade, which must be published."""
        found = await self._find(wanted.namespace, name) if name else None
        if found is None:
            raise answers.internal(upgrading.missing(role, wanted.namespace, name))
        source, revision = found
        if problem := upgrading.refusal(
            role,
            source.settings.facts.name,
            name,
            is_published=revision.is_published,
            is_placeholder=revision.is_placeholder,
        ):
            raise answers.internal(problem)
        return source, revision

    async def _ancestor(
        self, source: RepositorySync, old: Revision, local: Revision, names: Names
    ) -> Revision:
        """Return the old upstream with the files that the local package took.

        They are those of the commit in the package's lock if the upstream has changed since: a placeholder, a
        draft before it was published, or a tag that was moved.
        """
        git = (local.kptfile.upstream_lock or {}).get("git") or {}
        ref, commit = str(git.get("ref", "")), str(git.get("commit", ""))
        address = lock_address(source.settings.facts.address)
        is_same_tag = (git.get("repo"), ref) == (address, layout.short_ref(old.ref))
        is_moved = is_same_tag and commit not in ("", old.commit)
        if not (old.is_placeholder or is_moved or ref.startswith(layout.OPEN_REFS)):
            return old
        found = source.clone.mirror.commit_of(commit) if commit else None
        tree = source.clone.mirror.tree_of(found, old.directory)
        if tree is None and not old.is_placeholder and not is_moved:
            return old  # as Porch's server, which reads no commits
        if tree is None:
            what = "a placeholder" if old.is_placeholder else "a tag that was moved"
            raise answers.internal(
                f'old upstream package revision "{names.old}" is {what}, and the commit '
                f'"{commit}" of the upstreamLock of "{names.local}" is not in its repository'
            )
        return msgspec.structs.replace(old, tree=tree)


def _source(name: str, revision: Revision) -> Source:
    return Source(name, revision.commit, revision.revision)


def deferred(metadata: Mapping[str, Any], wanted: Wanted) -> Mapping[str, Any]:
    """Return the metadata of a new revision, with the annotation that defers its first render.

    It gets the annotation if a PackageVariant edits or upgrades it: inject then saves the package with its
    context and injections, which renders it.
    """
    owners = metadata.get("ownerReferences") or ()
    is_controlled = any(owner.get("controller") and owner.get("kind") == OWNER_KIND for owner in owners)
    if not is_controlled or wanted.task.get("type") not in ("edit", "upgrade"):
        return metadata
    annotations = metadata.get("annotations") or {}
    return {**metadata, "annotations": {DEFER_RENDER: "true", **annotations}}


def carry_policy(
    wanted: Wanted, metadata: Mapping[str, Any], repository: Mapping[str, Any], *, deployment: bool
) -> content.CarryPolicy:
    """Return what becomes of the conditions that a new revision has from its source.

    An annotation of the revision decides, else one of its Repository. Without either, a condition becomes
    Unknown in a deployment repository if its inputs, which are the package's files, changed. A clone and an
    upgrade change them, an edit does not. In other repositories all conditions stay, as with Porch's server.

    metadata: the metadata of the new revision
    repository: the annotations of its Repository
    deployment: whether it is a deployment repository
    Raises: StatusError.
    """
    given = metadata.get("annotations") or {}
    for annotations, where in (
        (given, "metadata.annotations"),
        (repository, "the annotations of its Repository"),
    ):
        if (text := annotations.get(COPIED_CONDITIONS)) is not None:
            if text not in _POLICIES:
                problem = f'"{text}" is none of {", ".join(_POLICIES)}'
                raise answers.invalid(wanted.name, f"{where}[{COPIED_CONDITIONS}]", problem)
            return _POLICIES[text]
    return "unknown" if deployment and wanted.task.get("type") in ("clone", "upgrade") else "keep"


_POLICIES: Mapping[str, content.CarryPolicy] = {"keep": "keep", "unknown": "unknown", "remove": "remove"}


def first_files(wanted: Wanted, start: Start, policy: content.CarryPolicy) -> dict[str, str]:
    """Write the request's metadata and readiness gates into the Kptfile. Raises: YamlError.

    policy: what becomes of the conditions that the first files have
    """
    package_metadata = wanted.spec.get("packageMetadata") or {}
    edits = [
        content.with_metadata(field, package_metadata[field], exact=False)
        for field in ("labels", "annotations")
        if package_metadata.get(field)
    ]
    if wanted.spec.get("readinessGates") is not None:
        edits.append(content.with_gates(wanted.spec["readinessGates"]))
    if policy != "keep":
        edits.append(content.with_carried(policy, str(wanted.task.get("type"))))
    first = copies.edit_kptfile(start.texts, *edits) if edits else start.texts
    return dict(copies.without_records(first))
