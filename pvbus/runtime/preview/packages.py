"""The package server's handling of PackageRevisions, for a simulated cluster in memory.

Rules and files come from the functions of the embedded package store; no git is involved. A server that is
not ours is assumed to be Porch, whose merge is not repeated here: an upgrade draft starts as a copy of the
local revision, and `unmerged` names it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from pvbus.adapters.kubernetes.errors import error_of
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.objects import RESOURCES as FILES
from pvbus.adapters.memory.objects import REVISION, copy_of, source_of
from pvbus.adapters.memory.packages import Files
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import answers, bounds, content, layout, upgrading
from pvbus.controlplane.packages.alike import AlikeTexts, Texts
from pvbus.controlplane.packages.content import RENDERED, facts_of, shown_conditions
from pvbus.controlplane.packages.creation import Start as FirstFiles
from pvbus.controlplane.packages.creation import (
    Wanted,
    carry_policy,
    clone_exists,
    deferred,
    first_files,
    parse,
    workspace_exists,
)
from pvbus.controlplane.packages.filesets import File, texts
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.layout import RenderNote
from pvbus.controlplane.packages.operations import allowed
from pvbus.controlplane.packages.render import (
    DEFERRED,
    Rendering,
    defer,
    rendering_of,
    unrendered,
)
from pvbus.controlplane.packages.render import render as run_pipeline
from pvbus.controlplane.packages.revisions import blocking_references
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.controlplane.packages.upgrading import Names, Upstream
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import TransientError
from pvbus.core.kernel.conflicts import CONFLICTS, annotation
from pvbus.core.kernel.keys import sha1_head
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.variants.merge import MergeError, copies
from pvbus.core.yaml import editor
from pvbus.core.yaml.rawtext import bytes_of
from pvbus.ports.cluster import Kind, Object

CLONES_BYTES_MAX = 16 << 20
"""Of the clones that are remembered: one of each upstream, for each length of names."""
REPOSITORY = Kind(CONFIG_GROUP, "Repository")


class StoreRules:
    """Implements `PackageRules` over the objects of a cluster in memory.

    is_embedded: whether the server is pvbus' own, whose upgrades are computed
    registry: the functions that it can run
    unmerged: `<namespace>/<name>` of the upgrade drafts whose files are those of the local revision
    """

    def __init__(self, cluster: MemoryCluster, registry: FunctionRegistry, *, is_embedded: bool) -> None:
        self.unmerged: set[str] = set()
        self._cluster = cluster
        self._registry = registry
        self._is_embedded = is_embedded
        self._notes: dict[tuple[str, str], RenderNote | None] = {}
        self._origins: dict[tuple[str, str, str], Mapping[str, str]] = {}
        self._clones = AlikeTexts(CLONES_BYTES_MAX)
        self._upstreams: set[str] | None = None

    # ------------------------------------------------------------ creating

    def create(self, obj: Object) -> Files:
        try:
            return self._create(obj)
        except StatusError as exc:
            _refuse(exc, "POST")

    def _create(self, obj: Object) -> Files:
        wanted = parse(obj)
        repository = self._cluster.peek(REPOSITORY, wanted.namespace, wanted.repository)
        if repository is None:
            raise answers.not_found(wanted.repository, plural=f"repositories.{CONFIG_GROUP}")
        self._check_package(wanted)
        annotations = annotations_of(repository)
        deployment = bool((repository.get("spec") or {}).get("deployment"))
        carried: content.CarryPolicy = "keep"  # as at Porch's server
        if self._is_embedded:
            carried = carry_policy(wanted, obj["metadata"], annotations, deployment=deployment)
        start = self._start(wanted, repository)
        try:
            first = first_files(wanted, start, carried)
        except editor.YamlError as exc:
            raise answers.unusable(f"Kptfile: {exc}") from exc
        metadata = deferred(obj["metadata"], wanted)
        is_deferred = (metadata.get("annotations") or {}).get(DEFER_RENDER) == "true"
        made = defer(first) if is_deferred else self._run(first)
        if problem := bounds.paths_problem(list(made.texts)):
            raise answers.invalid(wanted.name, "spec.resources", problem)
        self._notes[wanted.namespace, wanted.name] = made.note
        if self._upstreams is not None:
            self._upstreams.add(source_of(wanted.task))
        new = copy_of({**obj, "metadata": metadata})
        if start.conflicts:
            reported = {CONFLICTS: annotation(start.conflicts)}
            new["metadata"]["annotations"] = annotations_of(new) | reported
        new["spec"]["lifecycle"] = layout.DRAFT
        new["spec"].setdefault("revision", 0)
        git = (repository.get("spec") or {}).get("git") or {}
        new["status"] = {
            "selfLock": {
                "type": "git",
                "git": {
                    "repo": git.get("repo", ""),
                    "directory": wanted.package,
                    "ref": f"drafts/{wanted.package}/{wanted.workspace}",
                    "commit": _commit(made.texts),
                },
            },
            "deployment": deployment,
        }
        return self._files(new, made)

    def _check_package(self, wanted: Wanted) -> None:
        """Check a new revision against those of its package."""
        siblings = self._cluster.package(wanted.namespace, wanted.repository, wanted.package)
        workspaces = {obj["spec"].get("workspaceName") for obj in siblings}
        if wanted.workspace in workspaces:
            raise workspace_exists(wanted)
        if wanted.task.get("type") == "clone" and siblings:
            raise clone_exists(wanted)

    def _start(self, wanted: Wanted, repository: Object) -> FirstFiles:
        if wanted.task.get("type") == "upgrade" and self._is_embedded:
            return self._upgrade(wanted, repository)
        return FirstFiles({}, dict(self._copy(wanted, repository)))

    def _upgrade(self, wanted: Wanted, repository: Object) -> FirstFiles:
        """Merge three revisions; where the files of one are not known, start as the local one."""
        names = Names.of(wanted.task)
        self._upgrade_source(wanted, upgrading.OLD, names.old)
        new = self._upgrade_source(wanted, upgrading.NEW, names.new)
        local = self._upgrade_source(wanted, upgrading.LOCAL, names.local)
        stored = [
            self._ancestor(wanted.namespace, names.old, local),
            *(self._read_files(wanted.namespace, name) for name in (names.local, names.new)),
        ]
        lock = (new.get("status") or {}).get("selfLock") or {}
        if not all(stored) or not lock.get("git"):
            self.unmerged.add(f"{wanted.namespace}/{wanted.name}")
            return FirstFiles({}, dict(stored[1]))
        old_files, local_files, new_files = (
            {path: File(bytes_of(text)) for path, text in files.items()} for files in stored
        )

        def merge(ours: Mapping[str, File]) -> upgrading.Upgraded:
            return upgrading.upgraded(
                Upstream(old_files, upgrading.with_origins(old_files)),
                ours,
                Upstream(new_files, upgrading.with_origins(new_files)),
                lock,
                names.strategy,
                deployment=bool((repository.get("spec") or {}).get("deployment")),
            )

        try:
            made = merge(local_files)
            without = upgrading.before_output(local_files, made.conflicts)
            if without is not None:
                ours = upgrading.without_output(local_files, made.conflicts, self._run(without))
                made = merge(ours) if ours is not None else made
        except (MergeError, editor.YamlError, KeyError) as exc:
            raise answers.unusable(f'package revision "{names.local}" cannot be upgraded: {exc}') from exc
        return FirstFiles({}, texts(made.files), conflicts=made.conflicts)

    def _ancestor(self, namespace: str, old: str, local: Object) -> Mapping[str, str]:
        """Return the files of an old upstream.

        If that is a draft or a tag that moved since, they are those of the commit that was cloned.
        """
        git = ((local.get("status") or {}).get("upstreamLock") or {}).get("git") or {}
        named = self._cluster.peek(REVISION, namespace, old) or {}
        now = ((named.get("status") or {}).get("selfLock") or {}).get("git") or {}
        is_moved = all(git.get(key) == now.get(key) for key in ("repo", "directory", "ref")) and git != now
        if is_moved or str(git.get("ref", "")).startswith(layout.OPEN_REFS):
            at = self._cluster.peek(FILES, namespace, f"{old}@{git.get('commit', '')}")
            if at is not None:
                files: Mapping[str, str] = at["spec"]["resources"]
                return files
        return {} if is_moved and git.get("commit") else self._read_files(namespace, old)

    def _upgrade_source(self, wanted: Wanted, role: str, name: str) -> Object:
        """Find a source of an upgrade, which must be published."""
        found = self._cluster.peek(REVISION, wanted.namespace, name)
        if found is None:
            raise answers.internal(upgrading.missing(role, wanted.namespace, name))
        spec = found["spec"]
        if problem := upgrading.refusal(
            role,
            spec.get("repository", ""),
            name,
            is_published=spec.get("lifecycle") in (layout.PUBLISHED, layout.DELETION_PROPOSED),
            is_placeholder=spec.get("revision") == layout.PLACEHOLDER_REVISION,
        ):
            raise answers.internal(problem)
        return found

    def _copy(self, wanted: Wanted, repository: Object) -> Mapping[str, str]:
        task = wanted.task
        kind = task.get("type")
        if kind == "init":
            return content.initial_files(wanted.package.rpartition("/")[2], task.get("init") or {})
        source = source_of(task)
        revision = self._cluster.peek(REVISION, wanted.namespace, source)
        if revision is None:
            what = "upstream" if kind == "clone" else "source"
            raise answers.internal(f'{what} package revision "{wanted.namespace}/{source}" not found')
        files = self._read_files(wanted.namespace, source)
        if kind == "upgrade":
            self.unmerged.add(f"{wanted.namespace}/{wanted.name}")
        if kind != "clone":
            return files
        deployment = bool((repository.get("spec") or {}).get("deployment"))
        try:
            return self._clone_alike(files, revision, wanted.package, deployment=deployment)
        except (editor.YamlError, KeyError) as exc:
            raise answers.unusable(f'upstream package revision "{source}" cannot be cloned: {exc}') from exc

    def _clone_alike(
        self, files: Mapping[str, str], source: Object, package: str, *, deployment: bool
    ) -> Mapping[str, str]:
        """Return a clone's files, made as those of another package of the same upstream were."""

        def make() -> Texts:
            made = self._clone(files, source, package, deployment=deployment)
            return (*made, *made.values())

        version = (_namespace(source), source["metadata"]["name"], source["metadata"]["resourceVersion"])
        made = self._clones.get((*version, str(deployment), package), package.rpartition("/")[2], make)
        half = len(made) // 2
        return dict(zip(made[:half], made[half:], strict=True))

    def _clone(
        self, files: Mapping[str, str], source: Object, package: str, *, deployment: bool
    ) -> Mapping[str, str]:
        lock = (source.get("status") or {}).get("selfLock")
        edits = [copies.named(package.rpartition("/")[2])]
        if lock and lock.get("git"):
            edits.append(copies.derived_from(lock))
        kptfile = {layout.KPTFILE: copies.edit_kptfile(files, *edits)[layout.KPTFILE]}
        result = {**self._with_origins(source, files), **copies.with_origins(kptfile)}
        return content.with_package_context(result, package) if deployment else result

    def _with_origins(self, source: Object, files: Mapping[str, str]) -> Mapping[str, str]:
        """Record origins in all files but the Kptfile: the same for every clone."""
        meta = source["metadata"]
        key = (_namespace(source), meta["name"], meta.get("resourceVersion", ""))
        if key not in self._origins:
            others = {path: text for path, text in files.items() if path != layout.KPTFILE}
            self._origins[key] = copies.with_origins(others)
        return self._origins[key]

    def _read_files(self, namespace: str, name: str) -> Mapping[str, str]:
        found = self._cluster.peek(FILES, namespace, name)
        if found is None:
            self._cluster.without_files.add((namespace, name))
            return {}
        files: Mapping[str, str] = (found.get("spec") or {}).get("resources") or {}
        return files

    # ------------------------------------------------------------ changing

    def update(self, old: Object, new: Object) -> None:
        before, after = (obj["spec"].get("lifecycle") or layout.DRAFT for obj in (old, new))
        name = old["metadata"]["name"]
        if not allowed(before, after, approval=False):
            problem = f'cannot go from "{before}" to "{after}" through an update'
            _refuse(answers.invalid(name, "spec.lifecycle", problem), "PUT")

    def delete(self, obj: Object) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if obj["spec"].get("lifecycle") == layout.PUBLISHED:
            text = "a published package revision can be deleted only after its deletion was proposed"
            _refuse(answers.forbidden(name, text), "DELETE")
        if self._upstreams is None:
            self._upstreams = {source_of(t) for o in self._cluster.objects_of(REVISION) for t in _tasks(o)}
        if name not in self._upstreams:
            return
        others = [one for one in self._cluster.objects_of(REVISION) if _namespace(one) == namespace]
        if names := blocking_references(name, others):
            text = f"cannot delete package revision, it is referenced as upstream by: {', '.join(names)}"
            _refuse(answers.forbidden(name, text), "DELETE")

    def save(self, revision: Object, stored: Mapping[str, str], wanted: Mapping[str, str]) -> Files:
        lifecycle = revision["spec"].get("lifecycle") or layout.DRAFT
        name = revision["metadata"]["name"]
        if lifecycle != layout.DRAFT:
            text = (
                f'cannot update a package revision with lifecycle value "{lifecycle}"; package must be Draft'
            )
            _refuse(answers.internal(text), "PUT")
        if problem := bounds.path_problem(list(wanted)):
            _refuse(answers.invalid(name, "spec.resources", problem), "PUT")
        try:
            made = self._made(revision, stored, wanted)
        except StatusError as exc:
            _refuse(exc, "PUT")
        self._notes[_namespace(revision), name] = made.note
        lock = ((revision.get("status") or {}).get("selfLock") or {}).get("git")
        if lock is not None:
            lock["commit"] = _commit(made.texts)
        return self._files(revision, made)

    def _made(self, revision: Object, stored: Mapping[str, str], wanted: Mapping[str, str]) -> Rendering:
        own = facts_of(stored.get(layout.KPTFILE, "")).own
        return unrendered(wanted, stored, self._note(revision), own) or self._run(wanted)

    def _note(self, revision: Object) -> RenderNote | None:
        """Return the render note of a revision; one of the live system has it in its conditions."""
        key = (_namespace(revision), revision["metadata"]["name"])
        if key in self._notes:
            return self._notes[key]
        for condition in (revision.get("status") or {}).get("conditions") or ():
            if condition.get("type") == RENDERED:
                if condition.get("reason") == DEFERRED.reason:
                    return RenderNote("deferred", "")
                return RenderNote("done" if condition.get("status") == "True" else "failed", "")
        return None

    def _run(self, texts: Mapping[str, str]) -> Rendering:
        """Run the pipeline; a package that cannot be rendered keeps its files and records the error."""
        try:
            return rendering_of(run_pipeline(texts, registry=self._registry))
        except TransientError as exc:
            raise answers.unavailable(f"the package cannot be rendered now: {exc}") from exc

    # ------------------------------------------------------------ status

    def _files(self, revision: Object, made: Rendering) -> Files:
        """Copy the facts of the Kptfile to the revision's status."""
        facts = facts_of(made.texts.get(layout.KPTFILE, ""))
        status = dict(revision.get("status") or {})
        status.pop("conditions", None)
        if facts.upstream_lock is not None:
            status["upstreamLock"] = facts.upstream_lock
        warning = made.note.warning if made.note is not None else ""
        if conditions := shown_conditions(facts, warning):
            status["conditions"] = conditions
        shown: dict[str, Any] = {**revision, "status": status}
        return Files(shown, made.texts, {"renderStatus": made.status} if made.status is not None else {})


def _tasks(obj: Object) -> Sequence[Mapping[str, Any]]:
    tasks: Sequence[Mapping[str, Any]] = obj["spec"].get("tasks") or ()
    return tasks


def _commit(texts: Mapping[str, str]) -> str:
    """Return a stand-in for a commit, a digest of the files."""
    return sha1_head(msgspec.json.encode(dict(texts), order="sorted").decode())


def _namespace(obj: Object) -> str:
    return str(obj["metadata"].get("namespace", ""))


def _refuse(status: StatusError, method: str) -> NoReturn:
    """Raise the error that the HTTP adapter raises for this response."""
    body = msgspec.json.encode({"message": status.message, "reason": status.reason})
    raise error_of(status.code, body, method=method) from status
