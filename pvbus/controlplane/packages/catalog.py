"""The package revisions of one Repository, found from the refs and folders of its mirror.

`apply` takes the refs and returns the changed revisions. What is at a ref and a commit is read once
(`pvbus.controlplane.packages.tips`), so the cost depends on the size of a change, not of the repository.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from pvbus.controlplane.packages import layout, publications, skipping
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.gitcommand import Failure, GitError
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.controlplane.packages.leftovers import Approvals
from pvbus.controlplane.packages.revisions import Revision, RevisionKey
from pvbus.controlplane.packages.tips import Tip, TipReader

UNPACKAGED_SHOWN_MAX = 3


class Catalog:
    """The package revisions of one Repository.

    Each revision is at a ref or, as a placeholder, in a folder of the branch. `apply` finds the directories
    whose ref or folder changed, and computes the revisions of these directories only. An error in between
    loses nothing: the directories stay in `_undone`, and the next call computes them.

    by_directory: the revisions, by directory and workspace
    tips: what was read at refs
    """

    def __init__(
        self, mirror: BareMirror, base: str, branch: str, pins: Mapping[str, str], file: Path
    ) -> None:
        """Load what the file has, and continue with the given commits of the placeholders.

        base: the Repository's directory
        branch: the name of its branch, without `refs/heads/`
        pins: directory -> the last commit of its placeholder, which stays while the folder's tree is the same
        file: the cache of a `TipReader`
        """
        self._mirror = mirror
        self._base = base.strip("/")
        self.tips = TipReader(mirror, self._base, branch, file)
        self._pins = {item.directory: item.commit for item in self.tips.placeholders()} | dict(pins)
        self._folders = {
            item.directory: item.tree
            for item in self.tips.placeholders()
            if self._pins[item.directory] == item.commit
        }
        self._refs: dict[str, str] = {}
        self._refs_by_directory: dict[str, set[str]] = {}
        self._approvals = Approvals(mirror)
        self._undone: set[str] = set(self._folders)
        self._above: Counter[str] = Counter()
        self.by_directory: dict[str, dict[str, Revision]] = {}

    def revisions(self) -> Iterable[Revision]:
        for found in list(self.by_directory.values()):  # a worker thread may change it meanwhile
            yield from found.values()

    def find(self, directory: str, workspace: str) -> Revision | None:
        return self.by_directory.get(directory, {}).get(workspace)

    def nested_with(self, directory: str) -> str | None:
        """Return a package above or below a directory, None if there is none."""
        above = next((each for each in _folders_above(directory) if each in self.by_directory), None)
        if above is not None or not self._above[directory]:
            return above
        return next((each for each in list(self.by_directory) if each.startswith(f"{directory}/")), None)

    @property
    def branch_ref(self) -> str:
        return self.tips.branch_ref

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

    def skipped(self) -> dict[str, str]:
        """Return the packages that cannot be served, by folder or ref, with the reason."""
        _, found = self.tips.not_served(self._refs)
        for directory in self._folders:
            if problem := skipping.problem_of(directory, self._base):
                found[directory] = problem
        tree = self._mirror.tree_of(self.tips.head, self._base)
        if tree is not None and self._mirror.blob(tree, layout.KPTFILE) is not None:
            found[self._base or "/"] = skipping.ROOT
        return found

    def readiness(self) -> str:
        """Return the message of the condition Ready, with refs that look like packages but are not."""
        missing, _ = self.tips.not_served(self._refs)
        broken = sorted(
            f"{ref} ({problem})"
            for (ref, oid), problem in self.tips.unreadable.items()
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

    def apply(self, refs: Mapping[str, str]) -> set[RevisionKey]:
        """Apply the mirror's refs; return the revisions that are new, changed or gone.

        The result holds (directory, workspace) of each.
        """
        moved = {ref for ref, oid in refs.items() if self._refs.get(ref) != oid}
        moved |= self._refs.keys() - refs.keys()
        return self.apply_moved(refs, moved)

    def apply_moved(self, refs: Mapping[str, str], moved: Iterable[str]) -> set[RevisionKey]:
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
            former = Tip(ref, self._refs.pop(ref, ""))
            if ref in refs:
                self._refs[ref] = refs[ref]
            if refs.get(ref) != former.oid:
                self.tips.forget(former)
        changed: set[RevisionKey] = set()
        for directory in directories:
            changed |= self._recompute(directory)
        self._undone = set()
        self.tips.forget_left()
        self.tips.save_if_due()
        return changed

    def _recompute(self, directory: str) -> set[RevisionKey]:
        old = self.by_directory.get(directory, {})
        new = self._read_directory(directory)
        for folder in _folders_above(directory):
            self._above[folder] += bool(new) - bool(old)
            if not self._above[folder]:
                del self._above[folder]
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
                revision = self.tips.at(Tip(ref, self._refs[ref]))
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
        return self.tips.placeholder(directory, self._folders.get(directory), self._pins.get(directory, ""))

    def _read_branch(self, oid: str | None) -> set[str]:
        """Read the packages on the branch; return the folders that changed or were published again.

        A commit of an unchanged folder is on the branch while the branch only grows; after a rewritten
        history, all are checked.
        """
        try:
            head = self._mirror.commit_of(oid) if oid else None
            folders = self._mirror.packages(head, self._base) if head else {}
        except ContentError as exc:  # not one package: without the branch none is known
            raise GitError(Failure.UNREACHABLE, f"the branch cannot be read: {exc}") from exc
        if oid and head is None:  # such as one with a date out of range; the packages are still there
            raise GitError(
                Failure.UNREACHABLE, f"the branch is at {oid}, which is not a commit that git can read"
            )
        changed = {
            name
            for name in folders.keys() | self._folders.keys()
            if folders.get(name) != self._folders.get(name)
        }
        grew = self.tips.head and head and self._mirror.is_ancestor(self.tips.head, head)
        retained: dict[str, bool] = {}
        for directory in changed & folders.keys() if grew else folders.keys():
            pin = self._pins.get(directory)
            if pin is not None and head and self._mirror.tree_of(pin, directory) == folders[directory]:
                if pin not in retained:
                    retained[pin] = self._mirror.is_ancestor(pin, head)
                if retained[pin]:
                    continue
            self._pins[directory] = head or ""
            changed.add(directory)
        changed |= self._read_publications(head, self.tips.head if grew else None) & folders.keys()
        self._folders, self.tips.head = folders, head
        return changed

    def _read_publications(self, head: str | None, last: str | None) -> set[str]:
        """Read who published what on the branch; return the directories where that may have changed.

        head: the branch's commit
        last: the commit up to which it was read before, None if that is no part of the branch
        """
        found, is_continued = publications.read(self._mirror, head, last)
        if is_continued:
            self.tips.publications.update(found)
            return set(found)
        before, self.tips.publications = self.tips.publications, found
        return before.keys() | found.keys()

    def adopt(self, directory: str, commit: str) -> None:
        """Take over the commit of a folder's placeholder, if the folder is there as it is on the branch.

        Which commit it is depends on when the branch was read: replicas would correct each other forever.
        """
        tree, head = self._folders.get(directory), self.tips.head
        if tree is None or head is None or self._mirror.tree_of(commit, directory) != tree:
            return
        if self._mirror.is_ancestor(commit, head):
            self._pins[directory] = commit
            self._recompute(directory)

    def save(self) -> None:
        """Write the revisions to the file, for the next start."""
        self.tips.save()


def _folders_above(directory: str) -> Iterator[str]:
    """Yield the folders that a directory is in, the outermost first."""
    parts = directory.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))
