"""The upstream that a revision holds, by its `status.upstreamLock`: compared with the wanted one, and found.

A numbered revision is immutable; any other upstream (branch, tag without a number, draft) is its commit.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.inject.former import PLACEHOLDER, PUBLISHED
from pvbus.core.inject.view import ObservedRevision
from pvbus.core.records import RevisionFacts

_OPEN = ("drafts/", "proposed/")


class Lock(NamedTuple):
    """repo: the URL of the repository. ref: of the clone or upgrade, without `refs/heads/`."""

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
    def number(self) -> int:
        """The revision number: the integer after the last slash; -1 for a ref that has none."""
        tail = self.tail.removeprefix("v")
        return int(tail) if tail.isdecimal() and not self.ref.startswith(_OPEN) else PLACEHOLDER

    @property
    def tail(self) -> str:
        return self.ref.rpartition("/")[2]

    def is_at(self, facts: RevisionFacts) -> bool:
        """Compare repository and directory; one that is not recorded is assumed to be equal."""
        pairs = ((self.repo, facts.self_repo), (self.directory, facts.self_directory))
        return all(not recorded or not own or recorded == own for recorded, own in pairs)

    def has_commit(self, facts: RevisionFacts) -> bool:
        return bool(self.commit) and self.commit == facts.self_commit


def holds(lock: Lock, facts: RevisionFacts) -> bool:
    """Return whether a revision with this lock holds this upstream."""
    if not lock.is_at(facts):
        return False
    if facts.revision > 0 and lock.number >= 0:
        return lock.number == facts.revision
    return not facts.self_commit or lock.commit in ("", facts.self_commit)


def base_of(lock: Lock, revisions: Iterable[ObservedRevision], *, published: bool) -> ObservedRevision | None:
    """Find the revision with the content that a lock records, for a merge.

    A branch or draft may have moved on: the content is that of the commit in the lock, see `has_moved`.
    published: the merge is an upgrade task, whose sources must be published, and without a number if they
    have moved on.
    """
    found: tuple[int, ObservedRevision] | None = None
    for revision in revisions:
        rank = _rank(lock, revision.facts, published=published)
        if rank is not None and (found is None or rank < found[0]):
            found = rank, revision
    return found[1] if found is not None else None


def _rank(lock: Lock, facts: RevisionFacts, *, published: bool) -> int | None:
    """Return how well a revision fits, 0 is best; None: it does not."""
    is_published = facts.lifecycle in PUBLISHED
    if not lock.is_at(facts) or (published and not is_published):
        return None
    is_numbered = is_published and facts.revision > 0
    is_named = lock.number < 0 and facts.workspace == lock.tail
    if is_numbered and facts.revision == lock.number:
        return 0
    if lock.has_commit(facts):
        return 1 if is_numbered else 2 if is_named else 3
    return 4 if is_named and not (published and is_numbered) else None


def has_moved(lock: Lock, facts: RevisionFacts) -> bool:
    """Return whether a base has another content now than the lock records."""
    is_number = facts.revision > 0 and facts.revision == lock.number
    return not is_number and not lock.has_commit(facts)
