"""The upstream that a revision holds, by its `status.upstreamLock`: compared with the wanted one, and found.

An upstream is its commit: a branch goes on, a draft is saved, and a tag can be moved, also one with a number.
Where one of the commits is unknown, a number stands for its content. A lock on a draft is out of date once
the draft is published, as in Porch; until then the variant says what it takes of it.

A merge starts from the commit of the lock, never from what has its name now.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import Effect, Get
from pvbus.core.kernel.records import RevisionFacts
from pvbus.core.variants.revisions.former import PLACEHOLDER, PUBLISHED
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import RESOURCES
from pvbus.core.variants.revisions.states import OldContent, UpstreamState

OPEN_REFS = ("drafts/", "proposed/")
Revisions = Sequence[ObservedRevision]


class Lock(NamedTuple):
    """The upstream that a revision records in its `status.upstreamLock`.

    repo: the URL of the repository
    directory: the path of the package in the repository
    ref: the ref of the clone or upgrade, without `refs/heads/`
    commit: the commit of the content, "" if it is not recorded
    """

    repo: str
    directory: str
    ref: str
    commit: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Lock | None":
        """Return the lock of a live PackageRevision, None if it records no ref."""
        git = ((obj.get("status") or {}).get("upstreamLock") or {}).get("git") or {}
        repo, directory, ref, commit = (git.get(key) or "" for key in cls._fields)
        return cls(repo, directory, ref.removeprefix("refs/heads/"), commit) if ref else None

    @property
    def is_open(self) -> bool:
        """Whether it is of a draft or a proposal."""
        return self.ref.startswith(OPEN_REFS)

    @property
    def number(self) -> int:
        """The revision number: the integer after the last slash; -1 for a ref that has none."""
        return PLACEHOLDER if self.is_open else _number(self.tail)

    @property
    def tail(self) -> str:
        return self.ref.rpartition("/")[2]

    def is_in(self, facts: RevisionFacts) -> bool:
        """Compare the directory; one that is not recorded is assumed to be equal."""
        return facts.self_directory in ("", self.directory) or not self.directory

    def is_at(self, facts: RevisionFacts) -> bool:
        """Compare repository and directory, in the same way."""
        return self.is_in(facts) and (facts.self_repo in ("", self.repo) or not self.repo)

    def is_named(self, facts: RevisionFacts) -> bool:
        return self.number < 0 and facts.workspace == self.tail

    @property
    def is_tag(self) -> bool:
        """Whether it is of a tag: no draft, and no branch."""
        return self.number >= 0 or (not self.is_open and self.ref.endswith(f"{self.directory}/{self.tail}"))

    def is_retagged(self, facts: RevisionFacts) -> bool:
        """Return whether a revision is the tag of this lock, on another commit."""
        is_same = facts.revision == self.number if self.number >= 0 else self.is_named(facts)
        is_known = bool(self.commit and facts.self_commit)
        return self.is_tag and is_same and is_known and self.is_at(facts) and not self.has_commit(facts)

    def has_commit(self, facts: RevisionFacts) -> bool:
        return bool(self.commit) and self.commit == facts.self_commit


def _number(tail: str) -> int:
    digits = tail.removeprefix("v")
    return int(digits) if digits.isdecimal() else PLACEHOLDER


def holds(lock: Lock, facts: RevisionFacts) -> bool:
    """Return whether a revision with this lock holds this upstream.

    A commit is the same in every repository: one may have moved to another address.
    """
    if lock.has_commit(facts) and lock.is_in(facts):
        return True
    if not lock.is_at(facts):
        return False
    if lock.is_open:
        is_unknown = not (lock.commit and facts.self_commit)
        return is_unknown and facts.lifecycle not in PUBLISHED and lock.is_named(facts)
    if facts.revision > 0 and lock.number >= 0:
        return lock.number == facts.revision and not lock.is_retagged(facts)
    return not facts.self_commit or not lock.commit


def upstream_state(lock: Lock, wanted: RevisionFacts, *, saves: bool, refuses: bool = False) -> UpstreamState:
    """Return how the upstream that a lock records relates to the wanted one.

    saves: whether the variant follows what is saved to a draft
    refuses: whether the variant refuses tags that were moved
    """
    if holds(lock, wanted):
        return UpstreamState.HELD
    if lock.is_retagged(wanted):
        return UpstreamState.REFUSED if refuses else UpstreamState.RETAGGED
    if wanted.lifecycle in PUBLISHED:
        return UpstreamState.RELEASED
    is_taken = lock.is_open and lock.is_named(wanted) and lock.is_at(wanted)
    return UpstreamState.UNPUBLISHED if is_taken and not saves else UpstreamState.OPEN


# ------------------------------------------------------------ the content that a lock records


class Old(NamedTuple):
    """The content that a lock records.

    revision: the revision that has the content, or through which git was read. Of lost content, it is the
        revision whose tag was moved away from it
    files: path -> text at the commit; {} for a merge without a base; None if the files of `revision` are
        the content
    """

    kind: OldContent
    revision: ObservedRevision | None = None
    files: Mapping[str, str] | None = None


def find_old(
    lock: Lock, wanted: ObservedRevision, near: Revisions, far: Callable[[], Revisions], *, published: bool
) -> Generator[Effect, Any, Old]:
    """Find the content that a lock records: by revision, then by commit, then by workspace.

    near: the revisions of the package that is asked for
    far: returns the revisions of the lock's repository and directory
    published: whether the merge may be an upgrade task, whose sources must be published. Without a commit in
        the lock, such a task gets the revision that Porch gives it
    """
    old = yield from _find_in(lock, near, published=published)
    if old is not None:
        return old
    others = [revision for revision in far() if revision not in near]
    old = yield from _find_in(lock, others, published=published)
    if old is not None:
        return old
    every = [*near, *others]
    moved = next((revision for revision in every if lock.is_retagged(revision.facts)), None)
    return Old(OldContent.LOST, moved) if moved else _namesake(lock, wanted, every, published=published)


def _find_in(lock: Lock, revisions: Revisions, *, published: bool) -> Generator[Effect, Any, Old | None]:
    named = _best(lock, [revision for revision in revisions if not lock.is_retagged(revision.facts)])
    if named is not None and (published or not _has_moved(lock, named.facts)):
        return Old(OldContent.NAMED, named)
    for revision in revisions:
        if lock.has_commit(revision.facts) and lock.is_in(revision.facts):
            return Old(OldContent.COMMIT, revision)
    for revision in readers(lock, revisions):
        if files := (yield from _files_at(revision, lock.commit)):
            is_named = lock.is_open and revision.facts.lifecycle in PUBLISHED
            return Old(OldContent.NAMED if is_named else OldContent.COMMIT, revision, files)
    return None


def _best(lock: Lock, revisions: Revisions) -> ObservedRevision | None:
    """Return the published revision that fits a lock best."""
    ranks = [(_rank(lock, revision.facts), revision) for revision in revisions]
    known = [(rank, revision) for rank, revision in ranks if rank is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def _rank(lock: Lock, facts: RevisionFacts) -> int | None:
    """Return how well a published revision fits, 0 is best; None: it does not."""
    if facts.lifecycle not in PUBLISHED or not lock.is_in(facts):
        return None
    is_numbered = facts.revision > 0
    if lock.is_at(facts) and is_numbered and facts.revision == lock.number:
        return 0
    if lock.has_commit(facts):
        return 1 if is_numbered else 2 if lock.is_named(facts) else 3
    return 4 if lock.is_at(facts) and lock.is_named(facts) and not is_numbered else None


def _has_moved(lock: Lock, facts: RevisionFacts) -> bool:
    """Return whether a base has another content now than the lock records."""
    is_number = facts.revision > 0 and facts.revision == lock.number
    return not is_number and not lock.has_commit(facts)


def readers(lock: Lock, revisions: Iterable[ObservedRevision]) -> list[ObservedRevision]:
    """Return the revision of each repository to read a lock's commit through: all others read the same git.
    A task can name a published one; that of the lock's own workspace is what a person expects there."""
    if not lock.commit:
        return []
    best: dict[str, ObservedRevision] = {}

    def order(revision: ObservedRevision) -> tuple[bool, bool, str]:
        facts = revision.facts
        return facts.lifecycle not in PUBLISHED, not lock.is_named(facts), revision.name

    for revision in sorted((r for r in revisions if lock.is_in(r.facts)), key=order):
        best.setdefault(revision.facts.repository, revision)
    return list(best.values())


def _files_at(revision: ObservedRevision, commit: str) -> Generator[Effect, Any, Mapping[str, str]]:
    """Read the files of a commit; {} if git has it no more. Servers other than pvbus' own answer 404."""
    found = yield Get(RESOURCES, revision.namespace, f"{revision.name}@{commit}")
    files: Mapping[str, str] = ((found or {}).get("spec") or {}).get("resources") or {}
    return files


def _namesake(lock: Lock, wanted: ObservedRevision, revisions: Revisions, *, published: bool) -> Old:
    """Find a revision of the workspace of a lost draft; without a commit in the lock, that of Porch, which
    takes the workspace for a number. Where it is the wanted one, it cannot tell what has changed: everything
    that differs is taken, and reported as a conflict."""
    if not lock.is_open:
        return Old(OldContent.LOST)
    there = [revision for revision in revisions if lock.is_at(revision.facts)]
    named = [revision for revision in there if revision.facts.workspace == lock.tail]
    released = [revision for revision in there if revision.facts.lifecycle in PUBLISHED]
    if published:
        number = _number(lock.tail) if not lock.commit else None
        sources = [r for r in released if r in named or r.facts.revision == number]
        if lock.commit:
            sources = [r for r in sources if r.name != wanted.name]
        if sources:
            return Old(OldContent.NAMED, min(sources, key=lambda source: source not in named))
    if not named:
        return Old(OldContent.LOST)
    revision = min(named, key=lambda namesake: namesake not in released)
    return Old(OldContent.NAMESAKE, revision, {} if revision.name == wanted.name else None)
