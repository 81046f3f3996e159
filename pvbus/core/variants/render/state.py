"""The state that render holds for one variant key."""

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.echo import is_awaited
from pvbus.core.kernel.records import DesiredRow, TargetRow

_variant = msgspec.json.Decoder(PackageVariant)


class RenderState:
    """One variant key: the sets' rows, the living PackageVariant, and the last decision.

    offered: when a spec was written last of which the API server drops fields, wall seconds.
    """

    __slots__ = ("claims", "desired", "expires", "offered", "response", "variant")

    def __init__(self) -> None:
        self.claims: dict[str, TargetRow] = {}
        self.variant: bytes | None = None
        self.response: bytes | None = None
        self.expires = 0.0
        self.offered = 0.0
        self.desired: DesiredRow | None = None

    def stored(self, now: float) -> bytes | None:
        """Return the object as last seen: the response to our own write counts until its echo."""
        if self.response is not None and not is_awaited(self.expires, now):
            self.response = None
        return self.response if self.response is not None else self.variant

    def living(self, now: float) -> PackageVariant | None:
        raw = self.stored(now)
        return _variant.decode(raw) if raw is not None else None
