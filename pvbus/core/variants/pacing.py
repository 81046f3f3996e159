"""Paces what takes long to decide, so that other keys of the process need not wait for it.

A decision is costly by what its expressions cost. The first one of an origin, such as a set, is made at once;
after it, all costly origins of a controller together get a share of the time, in the order in which they
asked. Whoever is not costly never waits.
"""

from typing import Final

UNIT_SECONDS: Final = 0.2e-6  # of an expression's cost, at most
SHARE: Final = 0.25  # of the time for costly decisions: most of it is for the others
TURN_COST: Final = 50_000  # of one turn, about 10 ms; its last evaluation may exceed it by its own limit
COSTLY: Final = 5_000
"""Cost of a costly evaluation, at least: 1 ms. Usual expressions of a target cost about 30 together."""
ORIGINS_MAX: Final = 10_000  # whose costs are known; the rest is taken for new
_CLOCK_BACK_SECONDS: Final = 1.0


class Pace:
    """Gives costly keys times at which they may go on."""

    def __init__(self) -> None:
        self._costs: dict[str, int] = {}
        self._slots: dict[str, float] = {}
        self._next = self._now = 0.0

    def wait(self, key: str, origin: str, now: float) -> float:
        """Return the seconds until a key may be decided, 0 for now. Until then the key retains its time.

        origin: the name under which the costs of such keys are known
        now: the time of any clock, in seconds
        """
        if now < self._now - _CLOCK_BACK_SECONDS:
            self._slots.clear()
            self._next = now
        self._now = now
        slot = self._slots.pop(key, None)
        if slot is None:
            cost = self._costs.get(origin)
            if cost is None:
                return 0.0
            slot = max(now, self._next)
            self._next = slot + cost * UNIT_SECONDS / SHARE
        if slot <= now:
            return 0.0
        self._slots[key] = slot
        return slot - now

    def note(self, origin: str, cost: int) -> None:
        """Note what a decision has cost."""
        if cost < COSTLY:
            self._costs.pop(origin, None)
            return
        is_first = origin not in self._costs
        if len(self._costs) >= ORIGINS_MAX:
            self._costs.clear()
        self._costs[origin] = cost
        if is_first:
            self._next = max(self._next, self._now) + cost * UNIT_SECONDS / SHARE

    def forget(self, key: str) -> None:
        """Forget a key, and what is known of it as an origin."""
        self._slots.pop(key, None)
        self._costs.pop(key, None)
