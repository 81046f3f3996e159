"""What a condition means to whoever looks: one table for logs, notices, roll-ups, the page, and commands."""

from pvbus.core.variants.attention import ATTENTION, CONFLICT

FIELDS_DROPPED, DISPUTED, ON_HOLD = "FieldsDropped", "ExpressionDisputed", "OnHold"

WARNINGS = frozenset({FIELDS_DROPPED, DISPUTED})
"""Conditions that ask a person to look while they are True, and change nothing else."""

STOPS = ("Stalled", "DeletionHeld", ON_HOLD)
"""Conditions that keep an object from being ready while they are True; the first one says why."""

TROUBLES = WARNINGS | {*STOPS, ATTENTION, CONFLICT}
"""Conditions that are trouble while they are True; all others are while they are False."""

PROGRESS = frozenset(
    {"Waiting", "InProgress", "Reconciling", "NothingSelected", "VariantsNotReady", "Terminating"}
)
"""Reasons of a condition that is False although nothing failed: work goes on."""
