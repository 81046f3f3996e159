"""What an attempt finds out about one of the variant's revisions, and what it tells a person about it."""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, reported
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.variants.following import MOVED_TAGS, UPDATE
from pvbus.core.variants.inject.later import Later
from pvbus.core.variants.inject.locks import Lock, Old
from pvbus.core.variants.inject.mutations import Mutation
from pvbus.core.variants.revisions.owning import Object
from pvbus.core.variants.revisions.states import DownstreamState, Finding

TAG_MOVED = "TagMoved"


class Look(NamedTuple):
    """What an attempt found out about one revision of the variant.

    obj: the live PackageRevision
    old: the upstream content that the revision holds
    resources: the live PackageRevisionResources, None if the revision is behind, as they are not read then
    mutation: what the mutations make of its files
    conflicts: the open conflicts, once they are compared with the files
    causes: the changes beside the mutation, in words
    later: a newer revision, None if there is none
    """

    obj: Object
    state: DownstreamState
    finding: Finding
    old: Old | None = None
    resources: Object | None = None
    mutation: Mutation | None = None
    conflicts: tuple[Conflict, ...] = ()
    causes: tuple[str, ...] = ()
    later: Later | None = None

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def files(self) -> Mapping[str, str]:
        return ((self.resources or {}).get("spec") or {}).get("resources") or {}

    def problem(self, upstream: str) -> tuple[str, str]:
        """Return reason and message of a revision that needs what only a person can do."""
        if self.later is not None:
            return self._behind(self.later)
        if self.finding is Finding.TAG_MOVED:
            return TAG_MOVED, (
                f'the tag of {upstream} was moved, and "{self.name}" has what it was before (commit '
                f"{self._commit()}): put the tag back, or have the variant take it with the annotation "
                f"{MOVED_TAGS}: {UPDATE}"
            )
        if self.finding is Finding.CHANGED:
            return "NotDraft", f'"{self.name}" is {self.state}, but needs a change: reject it, or publish it'
        news = f"the upstream is now {upstream}"
        if self.finding in (Finding.BEHIND, Finding.OUTSIDE):
            return "UpstreamChanged", (
                f'{news}, but "{self.name}" is {self.state}: reject it to have the upstream merged into '
                "it, or publish it to have it upgraded"
            )
        # a published package without a base is an error of Porch's controller, too
        reason = "Error" if self.state is DownstreamState.PUBLISHED else "UpstreamChanged"
        return reason, f'{news}, but "{self.name}" {self._lost()}'

    def _behind(self, later: Later) -> tuple[str, str]:
        what = f"{later.name} is the last published revision of the package"
        if later.obstacle is None:
            return "LaterRevision", (
                f'{what}, and "{self.name}", which is {self.state}, lacks its edits: reject it to have them '
                "merged into it"
            )
        reason, words = later.obstacle
        return reason, f'"{self.name}" needs a change, but {what}, {words}'

    def _commit(self) -> str:
        lock = Lock.of(self.obj)
        return (lock.commit if lock is not None else "") or "unknown"

    def _lost(self) -> str:
        """Return why the change cannot be merged, with Porch's words, and the ways out."""
        lock = Lock.of(self.obj)
        ref, number = (lock.ref, lock.number) if lock is not None else ("", -1)
        moved = self.old.revision if self.old is not None else None
        if moved is not None:
            return (
                f"was made of {ref} (commit {self._commit()}), which cannot be read any more: the tag was "
                f"moved to commit {moved.facts.self_commit}, and a merge starts from what it had: push that "
                "commit again, with any branch or tag, or delete the package to have it made anew"
            )
        why = f"could not find upstream package revision {ref}"
        if number == 0:
            why = "upstream cannot be published with revision number 0"
        words = (
            f"was made of {ref} (commit {self._commit()}), which cannot be read any more ({why}), "
            "so the change cannot be merged: "
        )
        if self.state is DownstreamState.PUBLISHED:
            return f"{words}bring that revision back, or set spec.upstream back, or delete the package"
        return f"{words}delete it to have it made anew, or set spec.upstream back"


def conflicts_of(obj: Object) -> tuple[Conflict, ...]:
    """Return the conflicts that are reported on a revision."""
    return reported(annotations_of(obj).get(CONFLICTS, ""))
