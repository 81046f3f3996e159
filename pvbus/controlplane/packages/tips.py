"""Reads the package revisions at refs and folders of a mirror; a ref and a commit are read once.

What was read is kept in a file, too, so that a restart reads only what has changed meanwhile. The file is a
cache: whatever is missing or damaged in it is read from git again.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pygit2

import pvbus
from pvbus.adapters.files import SEAL_CHARACTERS, seal_of
from pvbus.controlplane.packages import bounds, layout, signing, skipping
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.content import KptfileFacts, facts_of, unreadable_kptfile
from pvbus.controlplane.packages.editors import editor_of
from pvbus.controlplane.packages.filesets import texts
from pvbus.controlplane.packages.gitrepo import BareMirror, Commit
from pvbus.controlplane.packages.layout import Annotation
from pvbus.controlplane.packages.publications import Publication
from pvbus.controlplane.packages.revisions import Revision
from pvbus.core.kernel.keys import SIGNATURES
from pvbus.core.yaml.rawtext import text_of

HISTORY_COMMITS_MAX = 200
"""Commits that are searched for a revision's task: with more edits than this, a draft has no task in the
listing; with a higher limit, histories without annotations would be slow to read."""

PUSHES_MAX = 20
"""Commits of others in a row that are searched for the store's last one, to name the files that they changed:
with more of them, nobody reads the list."""

FACTS_CACHE_BYTES_MAX = 4 * 1024 * 1024
"""Cache of one Repository's Kptfiles: most revisions of a package have the same one."""

UNSAVED_MAX = 256
UNSAVED_SHARE = 10
"""Revisions read since the file was written, at most this number and this part of all: after a kill they are
read again, at a millisecond each. Writing 10,000 takes 100 ms."""

FORMAT = "3"
"""The format of the file, which stands beside the version. Each new field of a revision makes a new one, as
older files lack the field."""
VERSION = f"{pvbus.__version__}/{FORMAT}"

_OPEN: Mapping[str, str] = {"draft": layout.DRAFT, "proposed": layout.PROPOSED}
"""Lifecycle by kind of the ref."""

_UNREADABLE = (ContentError, LookupError, ValueError, RecursionError, AssertionError, pygit2.GitError)


def _bytes_of(facts: KptfileFacts) -> int:
    return len(msgspec.json.encode(facts)) + 500


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    version: the program version and the format; a file of another one is not used
    branch: the name of the branch
    base: the Repository's directory
    head: the commit of the branch whose folders are among the revisions
    revisions: the revisions at refs and the placeholders
    publications: the last publication of each package up to the head
    """

    version: str
    branch: str
    base: str
    head: str | None
    revisions: list[Revision]
    publications: dict[str, Publication]


class Tip(NamedTuple):
    """A ref, and the object that it points to."""

    ref: str
    oid: str


class TipReader:
    """The revisions of one Repository, by tip, and the placeholders of its folders.

    The content of a tip never changes, so a known tip is not read again. A tip that its ref has left is
    dropped, but stays in `_left` until the whole change was applied: a draft that is proposed has the same
    commit at another ref, and is taken from there.

    unreadable: why a tip cannot be read, of each such tip
    head: the commit of the branch whose folders are among the placeholders, None if it was not read
    publications: the last publication of each package up to that commit
    """

    def __init__(self, mirror: BareMirror, base: str, branch: str, file: Path) -> None:
        """Load the file, if it can be used.

        base: the Repository's directory
        branch: the name of its branch
        file: the file that `save` writes
        """
        self._mirror = mirror
        self._base = base
        self._branch = branch
        self._file = file
        self._facts: SizedCache[str, KptfileFacts] = SizedCache(FACTS_CACHE_BYTES_MAX, _bytes_of)
        self._tips: dict[Tip, Revision | None] = {}
        self._left: dict[tuple[str, str, str], Revision] = {}
        self._placeholders: dict[str, Revision] = {}
        self._unsaved = 0
        self.unreadable: dict[Tip, str] = {}
        self.publications: dict[str, Publication] = {}
        self.head = self._load()

    @property
    def branch_ref(self) -> str:
        return f"{layout.HEADS}{self._branch}"

    def __len__(self) -> int:
        return len(self._tips)

    # The file.

    def _load(self) -> str | None:
        """Load the revisions in the file.

        Return the head of the branch that the file has, None without a usable file.
        """
        try:
            content = self._file.read_bytes()
            seal, body = content[:SEAL_CHARACTERS], content[SEAL_CHARACTERS:]
            saved = msgspec.msgpack.decode(body, type=Saved) if seal == seal_of(body).encode() else None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        if saved is None:
            return None
        if (saved.version, saved.branch, saved.base) != (VERSION, self._branch, self._base):
            return None
        for revision in saved.revisions:
            if revision.is_placeholder:
                self._placeholders[revision.directory] = revision
            else:
                self._tips[Tip(revision.ref, revision.oid)] = revision
        self.publications = saved.publications
        return saved.head

    def placeholders(self) -> Iterable[Revision]:
        return self._placeholders.values()

    def save_if_due(self) -> None:
        if self._unsaved > max(UNSAVED_MAX, len(self) // UNSAVED_SHARE):
            self.save()

    def save(self) -> None:
        """Write the file, if anything was read since it was written."""
        if not self._unsaved:
            return
        revisions = [
            *self._placeholders.values(),
            *(item for item in self._tips.values() if item is not None),
        ]
        saved = Saved(
            version=VERSION,
            branch=self._branch,
            base=self._base,
            head=self.head,
            revisions=revisions,
            publications=self.publications,
        )
        scratch = self._file.with_suffix(".new")
        with suppress(OSError):  # a full disk: everything is in git
            body = msgspec.msgpack.encode(saved)
            scratch.write_bytes(seal_of(body).encode() + body)
            scratch.replace(self._file)
            self._unsaved = 0

    # Reading.

    def at(self, tip: Tip) -> Revision | None:
        """Return the revision at a tip; cached, as it never changes."""
        if tip not in self._tips:
            self._unsaved += 1
            if (moved := self._moved(tip)) is not None:
                self._tips[tip] = moved
                return moved
            try:
                self._tips[tip] = self.read_tip(tip.ref, tip.oid)
            except _UNREADABLE as exc:
                # A bad push to one ref must not affect the other packages.
                self._tips[tip] = None
                self.unreadable[tip] = (str(exc) or type(exc).__name__)[:200]
        return self._tips[tip]

    def forget(self, tip: Tip) -> None:
        """Drop what is known of a tip that its ref has left; `at` may need it until `forget_left`."""
        revision = self._tips.pop(tip, None)
        if revision is not None:
            self._unsaved += 1
            self._left[revision.oid, revision.directory, revision.workspace] = revision
        self.unreadable.pop(tip, None)

    def forget_left(self) -> None:
        """Drop the tips that refs have left: all refs of the change have been looked up."""
        self._left.clear()

    def _moved(self, tip: Tip) -> Revision | None:
        """Return the revision at a tip if its commit was a draft or proposal of the same name just before.

        A change of lifecycle moves a commit to another ref, and nothing else: reading it costs a millisecond.
        """
        parsed = layout.parse_ref(tip.ref)
        lifecycle = _OPEN.get(parsed.kind) if parsed is not None else None
        if parsed is None or lifecycle is None:
            return None
        left = self._left.get((tip.oid, parsed.directory, parsed.identifier))
        if left is None or left.lifecycle not in _OPEN.values():
            return None
        return msgspec.structs.replace(left, lifecycle=lifecycle, ref=tip.ref)

    def not_served(self, refs: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return the refs that no PackageRevision can be made of.

        First those that name a folder without a Kptfile; then, with the reason, those of packages whose name
        or workspace is invalid.
        """
        without, misnamed = [], {}
        for tip, revision in self._tips.items():
            parsed = layout.parse_ref(tip.ref)
            if revision is not None or parsed is None or refs.get(tip.ref) != tip.oid:
                continue
            commit = self._mirror.commit_of(tip.oid)
            tree = self._mirror.tree_of(commit, parsed.directory) if commit else None
            if tree is None:
                continue
            if self._mirror.blob(tree, layout.KPTFILE) is None:
                without.append(tip.ref)
            elif problem := skipping.problem_of(parsed.directory, self._base, parsed.identifier):
                misnamed[layout.short_ref(tip.ref)] = problem
        return sorted(without), misnamed

    def placeholder(self, directory: str, tree: str | None, pin: str) -> Revision | None:
        """Return the placeholder of a folder, None if it has none.

        directory: the folder
        tree: the folder's tree, None if the folder is gone
        pin: the placeholder's commit
        """
        known = self._placeholders.get(directory)
        if tree is None and known is None:
            return None
        if known is not None and (known.tree, known.commit) == (tree, pin):
            return self._with_publication(known)
        self._unsaved += 1
        self._placeholders.pop(directory, None)
        commit = self._mirror.commit(pin) if tree else None
        if tree is None or commit is None:
            return None
        number, lifecycle = layout.PLACEHOLDER_REVISION, layout.PUBLISHED
        found = self._revision(
            directory, self._branch, number, lifecycle, self.branch_ref, commit.id, commit, tree
        )
        if found is None:
            return None
        self._placeholders[directory] = found
        return self._with_publication(found)

    def _with_publication(self, placeholder: Revision) -> Revision:
        """Return a placeholder, whose commit may be another package's, with who published its own."""
        last = self.publications.get(placeholder.directory)
        if last is None:
            return msgspec.structs.replace(placeholder, published_by="")
        return msgspec.structs.replace(placeholder, published_by=last.by, authored=last.at)

    def read_tip(self, ref: str, oid: str) -> Revision | None:
        """Read a revision, whether or not it is known; None if there is none."""
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
            lifecycle = _OPEN.get(parsed.kind, layout.PROPOSED)
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
        if package is None or skipping.problem_of(directory, self._base, workspace):
            return None
        published = lifecycle == layout.PUBLISHED
        task, editors = self._history(directory, workspace, commit) if ref != self.branch_ref else (None, ())
        blob = self._mirror.blob(tree, layout.KPTFILE)
        kptfile = self._facts.get(blob, lambda: self._read_facts(blob)) if blob else KptfileFacts()
        note = layout.parse_render_note(commit.message)
        if note is None and not published and SIGNATURES in kptfile.annotations:
            kptfile = self._judged_push(kptfile, directory, tree, commit)
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
            kptfile=kptfile,
            task=task,
            note=note,
            published_by=commit.author_email if published else "",
            authored=commit.authored,
            editors=() if published else editors,
        )

    def _history(
        self, directory: str, workspace: str, commit: Commit
    ) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Return the task that made a revision, and the people who wrote commits since, the last one first.

        The task is the oldest one in the revision's own commits. Without a task, the tip's author is the one
        editor.

        The walk follows the last parent, because an approval merges the draft into the branch as such. Below
        the revision's own commits is the branch, which says nothing more about it: it is read only while no
        task was found.
        """
        task: dict[str, Any] | None = None
        editors: dict[str, None] = {}
        current: Commit | None = commit
        for _ in range(HISTORY_COMMITS_MAX):
            if current is None:
                break
            own = [
                note
                for note in layout.parse_annotations(current.message)
                if _is_about(note, directory, workspace)
            ]
            if task is not None and not own:
                break
            made = next((note.task for note in reversed(own) if layout.is_content_task(note.task)), None)
            task = made or task
            editors[editor_of(current, workspace, is_own=bool(own), is_first=made is not None)] = None
            if task is not None and layout.starts_history(task):
                break
            current = self._mirror.commit(current.parents[-1]) if current.parents else None
        if task is None:  # pushed by a git client: below its own commits is the branch
            editors = {editor_of(commit, workspace, is_own=False, is_first=False): None}
        return task, tuple(filter(None, editors))

    def _judged_push(self, facts: KptfileFacts, directory: str, tree: str, commit: Commit) -> KptfileFacts:
        """Return the facts of a pushed draft, whose conditions follow its content."""
        former: str | None = None
        current: Commit | None = commit
        for _ in range(PUSHES_MAX):
            current = self._mirror.commit(current.parents[-1]) if current and current.parents else None
            if current is not None and layout.parse_render_note(current.message) is not None:
                former = self._mirror.tree_of(current.id, directory)
                break
        return signing.judged_edit(facts, self._texts(tree), self._texts(former))

    def _texts(self, tree: str | None) -> Mapping[str, str]:
        """Return the files of a tree, {} for none and for one that no package may have."""
        try:
            return texts(self._mirror.files(tree)) if tree is not None else {}
        except ContentError:
            return {}

    def _read_facts(self, blob: str) -> KptfileFacts:
        try:
            data = self._mirror.data(blob, bounds.KPTFILE_BYTES_MAX)
        except ContentError as exc:
            return unreadable_kptfile(str(exc))
        return facts_of(text_of(data))


def _is_about(note: Annotation, directory: str, workspace: str) -> bool:
    return note.package == directory and note.workspace_name == workspace
