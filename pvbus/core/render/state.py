"""What render holds of one variant key."""

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.records import DesiredRow, TargetRow

_variant = msgspec.json.Decoder(PackageVariant)


class RenderState:
    """One variant key: its claims, the living PackageVariant, and what was last decided."""

    __slots__ = ("claims", "desired", "expires", "response", "variant")

    def __init__(self) -> None:
        self.claims: dict[str, TargetRow] = {}
        self.variant: bytes | None = None
        self.response: bytes | None = None
        self.expires = 0.0
        self.desired: DesiredRow | None = None

    def stored(self, now: float) -> bytes | None:
        """Return the object as last seen: our own write's response stands in for the echo."""
        if self.response is not None and now >= self.expires:
            self.response = None
        return self.response if self.response is not None else self.variant

    def living(self, now: float) -> PackageVariant | None:
        raw = self.stored(now)
        return _variant.decode(raw) if raw is not None else None
