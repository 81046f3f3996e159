"""Whether a PackageVariant is ready at its present generation."""

from pvbus.core.api.variants import PackageVariant
from pvbus.core.variants.severity import ON_HOLD, PROGRESS

UNREADY_CHARACTERS_MAX = 300


def readiness(living: PackageVariant | None) -> tuple[bool, str, bool]:
    """Return whether a PackageVariant is ready at its present generation, why not (`Reason: message`), and
    whether it reports a failure."""
    if living is None:
        return False, "", False
    by_type = {condition.type: condition for condition in living.status.conditions}
    ready, stalled = by_type.get("Ready"), by_type.get("Stalled")
    for reported in (ready, stalled):
        if reported is not None and 0 < reported.observed_generation < living.metadata.generation:
            return False, "Reconciling: its conditions are for an earlier generation", False
    if stalled is not None and stalled.status == "True":
        return False, f"{stalled.reason}: {stalled.message}"[:UNREADY_CHARACTERS_MAX], True
    if ready is None:
        return False, "Reconciling: it has no condition Ready yet", False
    if ready.status == "True":
        return True, "", False
    words = f"{ready.reason}: {ready.message}"[:UNREADY_CHARACTERS_MAX]
    return False, words, ready.reason not in PROGRESS and ready.reason != ON_HOLD
