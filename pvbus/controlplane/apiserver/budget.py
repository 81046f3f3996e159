"""What the validation of one object may cost: definitions and objects both come from clients."""

import time
from typing import Any

from pvbus.controlplane.apiserver.formats import Pattern
from pvbus.controlplane.apiserver.rules import Rule

RULE_SECONDS_MAX = 1.0
"""Time that the rules of one object may take. An object of the usual size takes a millisecond."""

MATCH_STEPS_MAX = 300_000_000
"""Steps that the patterns of one object may take, size of the pattern times length of the text: RE2 takes
about a second for them at worst."""


class OutOfBudgetError(Exception):
    """The validation of an object takes too long."""


class Budget:
    """What the validation of one object may still cost."""

    def __init__(self) -> None:
        self._seconds = RULE_SECONDS_MAX
        self._steps = MATCH_STEPS_MAX

    def matches(self, pattern: Pattern, value: str) -> bool:
        self._steps -= pattern.steps * len(value)
        if self._steps < 0:
            raise OutOfBudgetError
        return pattern.found_in(value)

    def broken(self, rule: Rule, value: Any, old: Any, *, is_root: bool) -> str | None:
        if self._seconds < 0:
            raise OutOfBudgetError
        begun = time.monotonic()
        message = rule.broken(value, old, is_root=is_root)
        self._seconds -= time.monotonic() - begun
        return message
