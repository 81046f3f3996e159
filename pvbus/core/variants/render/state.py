"""The state that render holds for one variant key, apart from `controller` as that of each service."""

from sys import intern

import msgspec
from msgspec.structs import force_setattr

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.codec import share_texts
from pvbus.core.kernel.echo import ObservedObject
from pvbus.core.kernel.records import DesiredRow, TargetRow

_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)

IDLE: dict[str, TargetRow] = {}
"""The decoded rows of a key without a decision in flight."""


def desired_row(value: bytes) -> DesiredRow:
    """Decode a decision. It shares its texts with those on other variants of the set."""
    row = share_texts(_desired.decode(value), "set_name", "set_uid")
    force_setattr(row, "reported", {intern(name): digest for name, digest in row.reported.items()})
    return row


class RenderState(ObservedObject):
    """One variant key: the sets' rows, the living PackageVariant, and the last decision.

    The rows are stored as JSON, and decoded while a decision is in flight: decoded they take four times the
    bytes.

    rows: (set, its row) for each set that has one
    claims: set -> its row decoded, while a decision is in flight, else `IDLE`
    offered: when a spec was written last of which the API server drops fields, wall seconds.
    """

    __slots__ = ("claims", "desired", "offered", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[tuple[str, bytes], ...] = ()
        self.claims: dict[str, TargetRow] = IDLE
        self.offered = 0.0
        self.desired: DesiredRow | None = None

    def living(self, now: float) -> PackageVariant | None:
        raw = self.current(now)
        return _variant.decode(raw) if raw is not None else None
