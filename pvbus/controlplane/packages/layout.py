"""Porch's git layout: names, refs and commit messages, as pure text.

A package revision is stored in git as a branch (drafts, proposals, proposed deletions), as a tag
(published revisions), or as a folder on the main branch (the placeholder). Everything that the API
shows is read from the ref's name, the folder and the `kpt:` lines of commit messages, so a repository
can move between Porch and this store.

Here `directory` is a package's folder from the root of the git tree: the Repository's own directory
followed by the package's path.

Source: Porch v1.5.8, pkg/externalrepo/git/{ref,annotation,draft}.go, pkg/util/util.go.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid5

import msgspec

from pvbus.core.api.packages import Task
from pvbus.core.variants.inject.history import NOT_CHANGED

KPTFILE = "Kptfile"
DRAFT, PROPOSED, PUBLISHED, DELETION_PROPOSED = "Draft", "Proposed", "Published", "DeletionProposed"
LATEST_LABEL = "kpt.dev/latest-revision"
PLACEHOLDER_REVISION = -1

HEADS = "refs/heads/"
TAGS = "refs/tags/"
DRAFTS = f"{HEADS}drafts/"
PROPOSALS = f"{HEADS}proposed/"
OPEN_REFS = (DRAFTS.removeprefix(HEADS), PROPOSALS.removeprefix(HEADS))
"""How the ref of a lock on a draft or proposal begins."""
DELETIONS = f"{HEADS}deletionProposed/"

SERVICE_NAME = "Package Orchestration Service"
SERVICE_EMAIL = "porch@kpt.dev"

_UID_SPACE = UUID("aac71d91-5c67-456f-8fd2-902ef6da820e")
_CONTENT_TASKS = frozenset({"init", "clone", "edit", "upgrade"})

TITLE_BY_TASK = {
    "init": "Creating new empty revision",
    "clone": "Creating new revision by cloning",
    "edit": "Creating new revision by copying previous revision",
    "upgrade": "Upgrading revision",
}
RENDER_TITLE = NOT_CHANGED
CAUSE = "pvbus.dev/cause"
"""Annotation of a request that creates or saves a draft: the writer and the reason."""
FUNCTIONS_CHANGED = "the functions of the package store changed"
"""The cause of a draft that the package store itself renders again."""
PROGRAMS = ("system:serviceaccount:", "system:kube-", "system:node:", "system:apiserver")
"""Prefixes of the users that are no people. Some clusters have a person called system:admin."""
LINE_CHARACTERS_MAX = 300


def revision_uid(namespace: str, name: str) -> str:
    """Return the uid of the PackageRevision of this name: the same at every creation."""
    return str(
        uuid5(_UID_SPACE, f"packagerevision:porch.kpt.dev/v1alpha1/{namespace.lower()}/{name.lower()}")
    )


def join(directory: str, path: str) -> str:
    """Join a folder and a path below it, without leading and trailing slashes."""
    return "/".join(part for part in (directory.strip("/"), path.strip("/")) if part)


def draft_ref(directory: str, workspace: str) -> str:
    return f"{DRAFTS}{directory}/{workspace}"


def proposed_ref(directory: str, workspace: str) -> str:
    return f"{PROPOSALS}{directory}/{workspace}"


def tag_ref(directory: str, tag: str) -> str:
    return f"{TAGS}{directory}/{tag}"


def deletion_ref(directory: str, identifier: str) -> str:
    """Return the ref that marks a proposed deletion.

    identifier: `vN` for a published revision with a number, else its workspace
    """
    return f"{DELETIONS}{directory}/{identifier}"


def short_ref(ref: str) -> str:
    """Return a ref's name in locks: without `refs/heads/` or `refs/tags/`."""
    return ref.removeprefix(HEADS).removeprefix(TAGS)


class PackageRef(NamedTuple):
    """The parts of a ref's name.

    kind: what the ref is, by its prefix
    directory: the directory of the package
    identifier: a workspace; for tags and deletions mostly `vN`
    """

    kind: Literal["draft", "proposed", "tag", "deletion"]
    directory: str
    identifier: str


_PREFIXES: tuple[tuple[str, Literal["draft", "proposed", "tag", "deletion"]], ...] = (
    (DRAFTS, "draft"),
    (PROPOSALS, "proposed"),
    (DELETIONS, "deletion"),
    (TAGS, "tag"),
)


def parse_ref(ref: str) -> PackageRef | None:
    """Parse a ref's name; None if it is not a package's."""
    for prefix, kind in _PREFIXES:
        if ref.startswith(prefix):
            directory, separator, identifier = ref.removeprefix(prefix).rpartition("/")
            return PackageRef(kind, directory, identifier) if separator and directory else None
    return None


def is_foreign_branch(ref: str) -> bool:
    """Return whether a ref is a branch, but not a package revision's."""
    return ref.startswith(HEADS) and not ref.startswith((DRAFTS, PROPOSALS, DELETIONS))


def package_path(directory: str, base: str) -> str | None:
    """Return a folder relative to the Repository's directory; None if it is outside."""
    base = base.strip("/")
    if not base:
        return directory
    return directory.removeprefix(f"{base}/") if directory.startswith(f"{base}/") else None


def revision_number(tag: str) -> int:
    """Return N of `vN`; -1 for every other tag, and for N with more than 18 digits."""
    match = re.fullmatch(r"v([0-9]{1,18})", tag)
    return int(match[1]) if match else PLACEHOLDER_REVISION


class Annotation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The JSON after `kpt:` in a commit message.

    package: the package's directory
    workspace_name: the workspace of the revision
    revision: the number of the revision, as text
    task: the task that made the commit, None for an approval
    """

    package: str = ""
    workspace_name: str = ""
    revision: str = ""
    task: dict[str, Any] | None = None


class RenderNote(NamedTuple):
    """The pipeline's outcome for the content of a draft's commit.

    It is stored with the draft, as lines of our own in the commit message.

    state: `done`, `failed` or `deferred`
    digest: the digest of the pipeline's inputs, "" if deferred
    remarks: how functions ran; texts of `one_line`
    warning: why a second run would change the package, "" if it would not; a text of `one_line`
    """

    state: str
    digest: str
    remarks: tuple[str, ...] = ()
    warning: str = ""


_RENDER_LINE = re.compile(r"pvbus-render: (done|failed|deferred)(?: ([0-9a-f]+))?")
_REMARK = "pvbus-render-remark: "
_WARNING = "pvbus-render-warning: "


def one_line(text: str) -> str:
    """Return a text as one printable line of limited length."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[
        :LINE_CHARACTERS_MAX
    ].strip()


def cause_line(text: str) -> tuple[str, ...]:
    """Return a request's cause as one line that cannot be a `kpt:` annotation; () if it is empty."""
    words = one_line(text)
    return (f"Cause: {words}",) if words else ()


def override_lines(user: str, gates: str, reason: str) -> tuple[str, ...]:
    """Return the lines about an override of readiness gates.

    gates: the gates that were not met, separated by commas
    """
    return one_line(f"Readiness gates overridden by {user}: {gates}"), one_line(f"Reason: {reason}")


def draft_message(
    title: str, annotation: Annotation, note: RenderNote | None = None, cause: Sequence[str] = ()
) -> str:
    """Return the message of a draft's commit.

    cause: readable lines with its author and reason
    """
    body = "".join(f"{line}\n" for line in cause)
    lines = f"{title}\n\n{body}\nkpt:{msgspec.json.encode(annotation).decode()}\n"
    if note is None:
        return lines
    remarks = "".join(f"{_REMARK}{remark}\n" for remark in note.remarks)
    warning = f"{_WARNING}{note.warning}\n" if note.warning else ""
    return f"{lines}pvbus-render: {note.state} {note.digest}".rstrip() + f"\n{remarks}{warning}"


def approve_message(directory: str, workspace: str, revision: int, cause: Sequence[str] = ()) -> str:
    annotation = Annotation(package=directory, workspace_name=workspace, revision=str(revision))
    title = f"Approving package revision {directory}/{revision}"
    body = "".join(f"{line}\n" for line in (*cause, "")) if cause else ""
    return f"{title}\n\n{body}kpt:{msgspec.json.encode(annotation).decode()}\n"


def delete_message(directory: str) -> str:
    return f"Delete {directory}\n"


def title_of_task(task: dict[str, Any]) -> str:
    return TITLE_BY_TASK.get(task.get("type", ""), RENDER_TITLE)


def _annotation(text: str) -> Annotation:
    """Parse an annotation. Raises: DecodeError, RecursionError; also for an invalid task."""
    annotation = msgspec.json.decode(text, type=Annotation)
    if annotation.task is not None:
        msgspec.convert(annotation.task, Task)
    return annotation


def parse_annotations(message: str) -> list[Annotation]:
    """Read every `kpt:` line of a commit message; broken ones are skipped."""
    found = []
    for line in message.splitlines():
        text = line.strip()
        if text.startswith("kpt:"):
            try:
                found.append(_annotation(text.removeprefix("kpt:")))
            except (msgspec.DecodeError, RecursionError):
                continue
    return found


def parse_render_note(message: str) -> RenderNote | None:
    lines = [line.strip() for line in message.splitlines()]
    match = next(filter(None, map(_RENDER_LINE.fullmatch, lines)), None)
    if match is None:
        return None
    remarks = tuple(line.removeprefix(_REMARK) for line in lines if line.startswith(_REMARK))
    warnings = [line.removeprefix(_WARNING) for line in lines if line.startswith(_WARNING)]
    return RenderNote(match[1], match[2] or "", remarks, "".join(warnings[:1]))


def is_content_task(task: dict[str, Any] | None) -> bool:
    """Return whether a task made a revision, and did not only change it (render, push)."""
    return task is not None and task.get("type") in _CONTENT_TASKS


def starts_history(task: dict[str, Any]) -> bool:
    """Return whether this task is the first in a package revision's history."""
    return task.get("type") in ("init", "clone")
