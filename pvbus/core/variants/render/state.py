"""The state that render holds for one variant key, apart from `controller` as that of each service."""

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.codec import recent_decoder
from pvbus.core.kernel.echo import ObservedObject
from pvbus.core.kernel.records import DesiredRow, TargetRow

_variant = msgspec.json.Decoder(PackageVariant)
desired_row = recent_decoder(DesiredRow)

IDLE: dict[str, TargetRow] = {}
"""The decoded rows of a key without a decision in flight."""


class RenderState(ObservedObject):
    """One variant key: the sets' rows, the living PackageVariant, and the last decision.

    The rows are stored as JSON, and decoded while a decision is in flight: decoded they take four times the
    bytes.

    rows: (set, its row) for each set that has one
    decision: the row of the last decision, None without one
    claims: set -> its row decoded, while a decision is in flight, else `IDLE`
    offered: when a spec was written last of which the API server drops fields, wall seconds.
    """

    __slots__ = ("claims", "decision", "offered", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[tuple[str, bytes], ...] = ()
        self.claims: dict[str, TargetRow] = IDLE
        self.offered = 0.0
        self.decision: bytes | None = None

    @property
    def desired(self) -> DesiredRow | None:
        """The last decision, decoded."""
        return None if self.decision is None else desired_row(self.decision)

    def living(self, now: float) -> PackageVariant | None:
        raw = self.current(now)
        return _variant.decode(raw) if raw is not None else None
