"""Python's search for cycles of garbage, as rare as suits processes whose tables are plain data."""

import gc

THRESHOLDS = (50_000, 50, 100)
"""Python's own, (700, 10, 10), look for cycles every few variants: a sixth of a service's CPU, and of its
start, and find next to nothing, as tables are plain data. Higher, and what exceptions leave in cycles would
stay for longer."""


def relax_collector() -> None:
    """Set the thresholds of this process."""
    gc.set_threshold(*THRESHOLDS)
