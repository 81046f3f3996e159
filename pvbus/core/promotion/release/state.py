"""The state that release holds for one variant, apart from `controller` as that of each service."""

from msgspec.structs import replace

from pvbus.core.kernel.promotionrows import ApprovalRow, PromotionRow, ReleaseRow
from pvbus.core.kernel.records import DesiredRow


class ReleaseState:
    """What release knows of one variant.

    raw: the PackageVariant, as encoded on the bus
    desired: the row of its set, for the hold
    promotion: promote's orders
    orders: name of a RolloutPolicy -> the order of its rollout
    row: the last outcomes
    """

    __slots__ = ("desired", "orders", "promotion", "raw", "row")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.promotion: PromotionRow | None = None
        self.orders: dict[str, ApprovalRow] = {}
        self.row: ReleaseRow | None = None

    def take(self, row: PromotionRow | None) -> bool:
        """Take the orders of a row; return whether it says anything new to release: the candidates are the
        rollouts' concern."""
        before = self.promotion
        self.promotion = replace(row, candidates={}, contents={}) if row is not None else None
        return self.promotion is None or self.promotion != before

    @property
    def is_empty(self) -> bool:
        return self.raw is None and self.desired is None and not self.is_asked

    @property
    def is_asked(self) -> bool:
        """Whether there is an order, or an outcome of one."""
        return self.promotion is not None or self.row is not None or bool(self.orders)

    @property
    def has_orders(self) -> bool:
        verdicts = self.promotion.verdicts if self.promotion is not None else ()
        return bool(self.orders) or any(verdict.order for verdict in verdicts)

    @property
    def is_over(self) -> bool:
        """Whether no outcome is of interest any more. Those of rollouts are while the variant is there."""
        if self.promotion is not None or self.orders:
            return False
        return self.raw is None or self.row is None or not self.row.approvals
