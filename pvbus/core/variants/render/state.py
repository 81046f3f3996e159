"""The state that render holds for one variant key, in `state.py` as that of each service."""

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.echo import ObservedObject
from pvbus.core.kernel.records import DesiredRow, TargetRow

_variant = msgspec.json.Decoder(PackageVariant)


class RenderState(ObservedObject):
    """One variant key: the sets' rows, the living PackageVariant, and the last decision.

    offered: when a spec was written last of which the API server drops fields, wall seconds.
    """

    __slots__ = ("claims", "desired", "offered")

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, TargetRow] = {}
        self.offered = 0.0
        self.desired: DesiredRow | None = None

    def living(self, now: float) -> PackageVariant | None:
        raw = self.current(now)
        return _variant.decode(raw) if raw is not None else None
