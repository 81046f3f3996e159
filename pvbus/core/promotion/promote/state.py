"""The state that promote holds for one variant, apart from `controller` as that of each service."""

from collections.abc import Mapping

from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, PromotionRow, ReleaseRow, Verdict
from pvbus.core.kernel.records import DesiredRow


class PromoteState:
    """What promote knows of one variant.

    raw: the PackageVariant, as encoded on the bus
    desired: the row of its set, for the hold
    row: the last decision
    release: outcomes of the rollouts' orders, None if there are none
    freezes: policy -> its order that a revision stays proposed as planned
    """

    __slots__ = ("desired", "freezes", "raw", "release", "row")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.row: PromotionRow | None = None
        self.release: ReleaseRow | None = None
        self.freezes: dict[str, ApprovalRow] = {}

    @property
    def is_empty(self) -> bool:
        parts = (self.raw, self.desired, self.row, self.release)
        return all(part is None for part in parts) and not self.freezes

    def take(self, row: ReleaseRow | None) -> bool:
        """Take the outcomes of release; return whether those of a rollout changed."""
        before = self.release
        has_any = row is not None and bool(row.approvals)
        self.release = ReleaseRow(uid=row.uid, approvals=row.approvals) if row and has_any else None
        return self.release != before

    def freeze(self, policy: str, row: ApprovalRow | None) -> bool:
        """Take an order of a rollout; return whether that changes what stays proposed."""
        before = self.freezes.pop(policy, None)
        if row is not None and row.keeps_proposed:
            self.freezes[policy] = row
        return self.freezes.get(policy) != before

    def frozen(self, uid: str) -> Mapping[str, ApprovalRow]:
        """Return by policy what stays proposed of this very variant."""
        return {policy: row for policy, row in self.freezes.items() if row.uid == uid}

    def outcomes(self, uid: str) -> Mapping[str, Approval]:
        """Return the outcomes of orders for this very variant, by policy."""
        if self.release is None or self.release.uid != uid:
            return {}
        return {each.policy: each for each in self.release.approvals}

    def former(self, revision: str) -> Verdict | None:
        """Return the last verdict on a revision."""
        verdicts = self.row.verdicts if self.row is not None else ()
        return next((verdict for verdict in verdicts if verdict.revision == revision), None)
