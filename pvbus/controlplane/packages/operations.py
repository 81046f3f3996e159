"""Applies the changes of package revisions to branches and tags.

Every function takes the refs as they are (and as earlier changes of the same push leave them), and
stages new values; `commit_all` pushes what is staged together, or calls again on refs that moved. What
was decided before is therefore checked here once more: a revision that is no longer where it was is a
conflict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages import answers, layout
from pvbus.controlplane.packages.filesets import File, Files, texts
from pvbus.controlplane.packages.gitcommand import Failure, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import Author, BareMirror
from pvbus.controlplane.packages.layout import Annotation, RenderNote
from pvbus.controlplane.packages.revisions import Revision
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.controlplane.packages.upgrading import Names
from pvbus.core.variants.inject import history

# A change of refs, built on the present refs; it may be built again.
Build = Callable[["Staging"], object]


class Staging:
    """The refs after a push of the updates collected here.

    Builds of one batch see each other's updates, and `snapshot` and `restore` undo those of one that failed.

    asked: the refs that were looked up
    """

    def __init__(self, refs: Mapping[str, str]) -> None:
        self._refs = refs
        self._new: dict[str, str | None] = {}
        self.asked: set[str] = set()

    def get(self, ref: str) -> str | None:
        self.asked.add(ref)
        return self._new[ref] if ref in self._new else self._refs.get(ref)

    def set(self, ref: str, oid: str | None) -> None:
        self._new[ref] = oid

    def names(self, folder: str) -> Iterator[str]:
        """Yield the refs directly in a folder.

        folder: the beginning of their names, with the final slash
        """
        for ref in {**self._refs, **self._new}:
            if ref.startswith(folder) and "/" not in ref[len(folder) :] and self.get(ref) is not None:
                yield ref

    def updates(self) -> list[RefUpdate]:
        return [
            RefUpdate(ref, self._refs.get(ref), new)
            for ref, new in self._new.items()
            if self._refs.get(ref) != new
        ]

    def snapshot(self) -> dict[str, str | None]:
        return dict(self._new)

    def restore(self, snapshot: dict[str, str | None]) -> None:
        self._new = snapshot


ATTEMPTS_MAX = 4
"""The first attempt and three more: against faster pushes of other clients, the caller gets an error."""


def commit_all(mirror: BareMirror, builds: Sequence[Build]) -> list[object]:
    """Build changes one after the other on the mirror's refs and push them together.

    Return, in order, the result of each build or its exception. If the remote has moved, it is fetched
    and everything is rebuilt. If the remote refuses the push, it is divided, so that one bad change does
    not fail the others.
    """
    outcomes, error = _push_together(mirror, builds)
    if error is None:
        return outcomes
    if len(builds) == 1 or error.failure is Failure.UNREACHABLE:
        return [outcome if isinstance(outcome, Exception) else error for outcome in outcomes]
    return _push_divided(mirror, builds)


def _push_divided(mirror: BareMirror, builds: Sequence[Build]) -> list[object]:
    """Push the halves of changes that the remote refuses together; return the outcome of each.

    Where it takes one half, the search goes on in the other: of 64 changes with one bad one, 13 pushes. Where
    it takes neither, it may take nothing at all: then each change is pushed alone.
    """
    middle = len(builds) // 2
    halves = (builds[:middle], builds[middle:])
    pushed = [_push_together(mirror, half) for half in halves]
    takes_neither = all(error is not None for _, error in pushed)
    results: list[object] = []
    for half, (outcomes, error) in zip(halves, pushed, strict=True):
        if error is None:
            results += outcomes
        elif len(half) == 1 or error.failure is Failure.UNREACHABLE:
            results += [outcome if isinstance(outcome, Exception) else error for outcome in outcomes]
        elif takes_neither:
            results += [commit_all(mirror, [build])[0] for build in half]
        else:
            results += _push_divided(mirror, half)
    return results


def _push_together(mirror: BareMirror, builds: Sequence[Build]) -> tuple[list[object], GitError | None]:
    """Push changes in one push; return the outcome of each build, and why nothing was pushed, if so."""
    error = GitError(Failure.MOVED, "not pushed")
    outcomes: list[object] = []
    for _ in range(ATTEMPTS_MAX):
        staging = Staging(mirror.refs)
        outcomes = [_built(build, staging) for build in builds]
        updates = staging.updates()
        if not updates:
            return outcomes, None
        try:
            mirror.push(updates, staging.asked)
            return outcomes, None
        except GitError as exc:
            error = exc
        try:
            mirror.fetch()
        except GitError as exc:
            return outcomes, exc
        if all(mirror.refs.get(update.ref) == update.new for update in updates):
            return outcomes, None  # the response was lost, not the push
        if error.failure is not Failure.MOVED:
            break
    return outcomes, error


def _built(build: Build, staging: Staging) -> object:
    before = staging.snapshot()
    try:
        return build(staging)
    except Exception as exc:  # the build's caller gets it; the rest of the batch continues
        staging.restore(before)
        return exc


class Branch(NamedTuple):
    """The branch of a Repository in its mirror, and the author of its commits.

    mirror: the mirror
    branch_ref: the full name of the branch's ref
    author: the author
    """

    mirror: BareMirror
    branch_ref: str
    author: Author


class Draft(NamedTuple):
    """The content of a draft's next commit.

    tree: the tree of the package's files. It is in the mirror already, because all changes of a push wait for
        each other.
    task: the task in the API's form
    note: the outcome of the pipeline, None if it is not known
    cause: readable lines for the commit message
    title: the subject of the commit message, "" for that of the task
    """

    tree: str
    task: dict[str, Any]
    note: RenderNote | None
    cause: tuple[str, ...] = ()
    title: str = ""

    def message(self, directory: str, workspace: str) -> str:
        annotation = Annotation(package=directory, workspace_name=workspace, revision="0", task=self.task)
        title = self.title or layout.title_of_task(self.task)
        return layout.draft_message(title, annotation, self.note, self.cause)


README = {"README.md": File(b"Created by porch\n")}
RENDER_TASK: dict[str, Any] = {"type": "render"}


def create_draft(branch: Branch, refs: Staging, directory: str, workspace: str, draft: Draft) -> str:
    """Commit a new draft on top of the branch; return the commit."""
    ref = layout.draft_ref(directory, workspace)
    if refs.get(ref) is not None or refs.get(layout.proposed_ref(directory, workspace)) is not None:
        raise answers.internal(
            f"package revision workspaceNames must be unique; {directory} already has a draft "
            f"with workspaceName {workspace}"
        )
    mirror = branch.mirror
    head = _head(branch, refs)
    root = mirror.graft(head, directory, draft.tree)
    commit = mirror.write_commit(
        root, [head] if head else [], draft.message(directory, workspace), branch.author
    )
    refs.set(ref, commit)
    return commit


def update_draft(branch: Branch, refs: Staging, name: str, revision: Revision, draft: Draft) -> str:
    """Commit new content on top of a draft; return the commit."""
    _expect(refs, name, revision)
    mirror = branch.mirror
    root = mirror.graft(revision.commit, revision.directory, draft.tree)
    message = draft.message(revision.directory, revision.workspace)
    commit = mirror.write_commit(root, [revision.commit], message, branch.author)
    refs.set(revision.ref, commit)
    return commit


def move(refs: Staging, name: str, revision: Revision, lifecycle: str, commit: str) -> None:
    """Propose a draft, or reject a proposal: move its newest commit to the other ref."""
    if refs.get(revision.ref) != commit:
        raise answers.modified(name)
    ref = layout.proposed_ref if lifecycle == layout.PROPOSED else layout.draft_ref
    refs.set(revision.ref, None)
    refs.set(ref(revision.directory, revision.workspace), commit)


def approve(
    branch: Branch, refs: Staging, name: str, revision: Revision, number: int, cause: Sequence[str] = ()
) -> str:
    """Merge a proposal into the branch and tag it; return the commit.

    The proposal replaces the package's folder; everything else stays as it is on the branch.

    number: the lowest revision number that the caller knows to be free
    cause: readable lines for the commit message
    """
    _expect(refs, name, revision)
    directory = revision.directory
    while refs.get(layout.tag_ref(directory, f"v{number}")) is not None:
        number += 1
    head = _head(branch, refs)
    root = branch.mirror.graft(head, directory, revision.tree)
    parents = [head, revision.commit] if head else [revision.commit]
    message = layout.approve_message(directory, revision.workspace, number, cause)
    commit = branch.mirror.write_commit(root, parents, message, branch.author)
    refs.set(branch.branch_ref, commit)
    refs.set(layout.tag_ref(directory, f"v{number}"), commit)
    refs.set(layout.draft_ref(directory, revision.workspace), None)
    refs.set(layout.proposed_ref(directory, revision.workspace), None)
    return commit


def set_deletion_proposed(refs: Staging, name: str, revision: Revision, lifecycle: str) -> None:
    """Propose the deletion of a published revision, or withdraw the proposal."""
    if not revision.is_placeholder:
        _expect(refs, name, revision)
    proposed = lifecycle == layout.DELETION_PROPOSED
    marker = layout.deletion_ref(revision.directory, revision.deletion_identifier)
    refs.set(marker, revision.commit if proposed else None)


def delete(
    branch: Branch, refs: Staging, name: str, revision: Revision, *, with_folder: bool = False
) -> None:
    """Delete a revision.

    A published one leaves its folder on the branch; the placeholder is that folder. A draft that somebody has
    pushed to since stays: whoever asked to delete it does not know the new content.

    with_folder: whether to delete the folder, too, with the last published revision of a package
    """
    marker = layout.deletion_ref(revision.directory, revision.deletion_identifier)
    if revision.is_published and refs.get(marker) is not None:
        refs.set(marker, None)
    if not revision.is_published:
        _expect(refs, name, revision)
    if not revision.is_placeholder:
        refs.set(revision.ref, None)
        if not (with_folder and revision.is_published):
            return
        if any(refs.names(f"{layout.TAGS}{revision.directory}/")):
            return
        folder_marker = layout.deletion_ref(revision.directory, layout.short_ref(branch.branch_ref))
        if refs.get(folder_marker) is not None:
            refs.set(folder_marker, None)
    head = _head(branch, refs)
    if head is None or branch.mirror.tree_of(head, revision.directory) is None:
        return
    root = branch.mirror.graft(head, revision.directory, None)
    message = layout.delete_message(revision.directory)
    refs.set(branch.branch_ref, branch.mirror.write_commit(root, [head], message, branch.author))


def create_branch(branch: Branch, refs: Staging) -> None:
    """Create a repository's branch with only a README."""
    if refs.get(branch.branch_ref) is not None:
        return
    tree = branch.mirror.write_files(README)
    message = "Initial commit: Creating main branch\n"
    refs.set(branch.branch_ref, branch.mirror.write_commit(tree, [], message, Author()))


def require_branch(mirror: BareMirror, ref: str, settings: RepositorySettings, *, had_branch: bool) -> None:
    """Create the branch of a repository that has none, if its settings say so.

    had_branch: whether the remote had it before
    Raises: GitError, if it is lost or another one is there.
    """
    if settings.create_branch:
        branch = Branch(mirror, ref, Author())
        outcome = commit_all(mirror, [lambda refs: create_branch(branch, refs)])[0]
        if isinstance(outcome, Exception):
            raise outcome
    elif had_branch or any(layout.is_foreign_branch(each) for each in mirror.refs):
        raise GitError(
            Failure.UNREACHABLE,
            f'branch "{settings.branch}" is not in the git repository of "{settings.facts.name}": push it, '
            "or recreate the Repository with another spec.git.branch or with createBranch: true",
        )


def _head(branch: Branch, refs: Staging) -> str | None:
    oid = refs.get(branch.branch_ref)
    return branch.mirror.commit_of(oid) if oid else None


def _expect(refs: Staging, name: str, revision: Revision) -> None:
    oid = refs.get(revision.ref)
    if oid is None or oid != revision.oid:
        raise answers.modified(name)


def allowed(old: str, new: str, *, approval: bool) -> bool:
    """Return whether a package revision may go from one lifecycle to another."""
    if old == new:
        return True
    if approval:
        return (old, new) in _APPROVALS
    return (old, new) in _UPDATES


_UPDATES = frozenset(
    {
        (layout.DRAFT, layout.PROPOSED),
        (layout.PROPOSED, layout.DRAFT),
        (layout.PUBLISHED, layout.DELETION_PROPOSED),
        (layout.DELETION_PROPOSED, layout.PUBLISHED),
    }
)
_APPROVALS = (_UPDATES - {(layout.DRAFT, layout.PROPOSED)}) | {(layout.PROPOSED, layout.PUBLISHED)}


# ------------------------------------------------------------ what a commit message says to people


class Source(NamedTuple):
    """What was cloned, copied or upgraded to.

    name: the name of the package revision or the repository
    commit: its commit
    revision: its number, 0 if it has none
    """

    name: str
    commit: str
    revision: int = 0


def cause_of_creation(
    task: Mapping[str, Any], source: Source | None, metadata: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name the task and its source, None for a new package."""
    kind = task.get("type", "")
    if kind == "clone":
        line = f"Clone of {_line(source.name) if source else ''}{_at(source)}"
    elif kind == "edit":
        line = f"Edit of {((task.get('edit') or {}).get('sourceRef') or {}).get('name', '')}{_at(source)}"
    elif kind == "upgrade":
        names = Names.of(task)
        line = f"Upgrade of {names.local} from {names.old} to {names.new}{_at(source)}"
    else:
        line = "New package"
    return (line, *_owners(metadata))


def description_of_update(
    before: Files, after: Files, metadata: Mapping[str, Any], editor: str
) -> history.Description:
    """Return the subject and lines of a draft's next commit: what changed, by whom, and for which variant.

    editor: the user who changed it, "" for a service of pvbus
    """
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    old, new = (texts({path: files[path] for path in changed if path in files}) for files in (before, after))
    description = history.describe(changed, old, new, editor)
    return description._replace(lines=(*description.lines, *_owners(metadata)))


def _at(source: Source | None) -> str:
    if source is None:
        return ""
    number = f"revision {source.revision}, " if source.revision > 0 else ""
    return f" ({number}commit {source.commit[:12]})"


def _owners(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    namespace = metadata.get("namespace", "")
    return tuple(
        f"For {_line(str(owner.get('kind', '')))} {namespace}/{_line(str(owner.get('name', '')))}"
        for owner in metadata.get("ownerReferences") or []
        if owner.get("controller")
    )


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
