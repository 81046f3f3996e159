"""How often Python searches for cycles of objects. It imports nothing of pvbus: processes call it first."""

import gc

THRESHOLDS = (50_000, 50, 100)
"""Python's defaults, (700, 10, 10), search for cycles every few variants: this takes a sixth of a service's
CPU, also at start, and finds almost nothing, as tables are plain data. With higher values, the cycles that
exceptions leave would stay for longer."""


def relax_collector() -> None:
    """Set the thresholds of this process."""
    gc.set_threshold(*THRESHOLDS)


def end_collector() -> None:
    """Let this process end without a last search: what a command has read goes with its process."""
    gc.freeze()
