"""What promote says of the targets of one policy: the live facts and the evidence of its rollout."""

from collections.abc import Iterable, Mapping

from pvbus.core.kernel.promotionrows import CandidateRow, EvidenceSource
from pvbus.core.kernel.rolloutrows import Evidence, Target, TargetFacts
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.quarantines import QUARANTINED
from pvbus.core.promotion.protocol.selection import NOT_SELECTED, lost_to
from pvbus.core.promotion.protocol.trains import banned_by
from pvbus.core.promotion.protocol.units import units

_ON_ITS_WAY = (TargetState.ORDERED, TargetState.CANCELLING)


class Candidates:
    """The candidates of one policy, by target. A target that another policy has counts as not seen, and so
    does one that is not selected any more.

    lost: the policies that have targets instead, by target
    runs: the quarantines that cover what targets run, by target
    """

    def __init__(self) -> None:
        self._rows: dict[str, CandidateRow] = {}
        self._seen: dict[str, TargetFacts] = {}
        self._is_ordered = True
        self._evidence: dict[str, Evidence] = {}
        self._attempt = 0
        self.lost: dict[str, str] = {}
        self.runs: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, target: str, row: CandidateRow | None) -> None:
        """Apply one row, None for a candidate that is gone."""
        former = self._rows.pop(target, None)
        self.lost.pop(target, None)
        if row is not None:
            self._rows[target] = row
            if row.winner:
                self.lost[target] = row.winner
        self.runs.pop(target, None)
        if row is None or row.winner or row.reason == NOT_SELECTED:
            self._seen.pop(target, None)
        else:
            if row.runs:
                self.runs[target] = row.runs
            if target not in self._seen or _position(former, target) != _position(row, target):
                self._is_ordered = False
            self._seen[target] = _facts(row)
        self._prove(target)

    def uid(self, target: str) -> str:
        """Return the uid of a target's PackageVariant, "" if that is not known."""
        row = self._rows.get(target)
        return row.uid if row is not None else ""

    def rows(self) -> Iterable[CandidateRow]:
        return self._rows.values()

    def published(self, target: str) -> tuple[str, str]:
        """Return the published revision of a target and the digest of its content, "" for none."""
        row = self._rows.get(target)
        return (row.published, row.published_digest) if row is not None else ("", "")

    def source(self, target: str) -> EvidenceSource | None:
        """Return where the evidence of a target is, None if that is not known."""
        row = self._rows.get(target)
        return row.evidence if row is not None else None

    def failure(self, target: str) -> str:
        """Return what a target lacks, or why its last order failed, "" for nothing."""
        row = self._rows.get(target)
        return (row.failure or row.verdict) if row is not None else ""

    def words(self, targets: Iterable[str]) -> dict[str, str]:
        """Return what stands in the way of targets, where promote says anything of them."""
        return {target: words_of(self._rows[target]) for target in targets if target in self._rows}

    def runs_in(self, rows: Iterable[Target]) -> dict[str, str]:
        """Return the quarantines that cover what targets run, by target: alone, or as a whole train."""
        found = dict(self.runs)
        for members in units(row for row in rows if row.combination).values():
            seen = [self._seen[row.target] for row in members if row.target in self._seen]
            is_whole = all(self.published(row.target) == (row.revision, row.digest) for row in members)
            if is_whole and (name := banned_by(members[0].combination, seen)):
                found |= dict.fromkeys((row.target for row in members), name)
        return found

    def resting_members(self) -> list[str]:
        """Return the members of trains that want nothing but what they run."""
        return [target for target, row in self._rows.items() if row.part and row.is_current]

    def unready_members(self) -> list[str]:
        """Return the members of trains that have no proposal, or do not run theirs well."""
        rows = ((target, row) for target, row in self._rows.items() if row.part)
        return [
            target for target, row in rows if not row.is_proposed and not (row.is_current and row.is_good)
        ]

    def live_facts(self, rows: Mapping[str, Target]) -> Mapping[str, TargetFacts]:
        """Return the live facts by target, in the order of the rollout.

        rows: of the targets. An order for one that is not seen any more is taken back; where nothing is left
        of the target, nobody can confirm that, and it counts as confirmed.
        """
        if not self._is_ordered:
            names = sorted(self._seen, key=lambda name: _position(self._rows[name], name))
            self._seen = {name: self._seen[name] for name in names}
            self._is_ordered = True
        leaving = {
            target: self._last_facts(rows[target])
            for target in rows.keys() - self._seen.keys()
            if rows[target].state in _ON_ITS_WAY
        }
        return {**self._seen, **leaving} if leaving else self._seen

    def _last_facts(self, row: Target) -> TargetFacts:
        found = self._rows.get(row.target)
        if found is None:
            return TargetFacts(withdrawn=row.attempt)
        return _facts(found)._replace(is_proposed=False)

    def evidence(self, attempt: int) -> Mapping[str, Evidence]:
        """Return the evidence of an attempt: what is said now of the published revisions."""
        if attempt != self._attempt:
            self._attempt = attempt
            for target in self._rows:
                self._prove(target)
        return self._evidence

    def _prove(self, target: str) -> None:
        row = self._rows.get(target)
        if row is None or row.is_good is None:
            self._evidence.pop(target, None)
        else:
            self._evidence[target] = Evidence(row.published, row.published_digest, self._attempt, row.is_good)


def _position(row: CandidateRow | None, target: str) -> tuple[int, tuple[int, ...], str]:
    return (row.canary, row.places, target) if row is not None else (0, (), "")


def words_of(row: CandidateRow) -> str:
    """Return what stands in the way of a target, "" for nothing."""
    if row.winner:
        return lost_to(row.winner)
    if row.reason == NOT_SELECTED:
        return row.message
    return f"{row.reason}: {row.message}" if row.reason else row.failure or row.verdict


def _facts(row: CandidateRow) -> TargetFacts:
    return TargetFacts(
        row.revision,
        row.digest,
        row.is_proposed,
        row.published,
        row.published_digest,
        row.refused,
        row.withdrawn,
        row.unrestored,
        row.upstream,
        row.is_current,
        row.source,
        row.files,
        row.published_source,
        row.reason == QUARANTINED,
        row.runs,
        row.unit,
        row.part,
        row.release,
        row.published_release,
        row.banned,
        row.is_upstream_held,
    )
