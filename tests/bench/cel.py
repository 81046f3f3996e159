"""CEL: a variant with five expressions, ours beside the oracles of the tests, as ratios in one run."""

from typing import Any

from tests.bench import expressions, hostile
from tests.bench.report import Row
from tests.tools.cel_oracles import ORACLES

GOAL_MS = 0.2
WORST_GOAL_MS = 20  # what the limits of cost are set by
GOALS_TIMES = {"cel-cpp": 2.0}  # at least twice as fast as Google's C++ evaluator
RUNS = 5


async def cel(*, small: bool) -> list[Row]:
    """Milliseconds to render, how often an expression was compiled, and how much slower the oracles are."""
    runs, variants = (1, 200) if small else (RUNS, 5_000)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (expressions.OURS, *ORACLES)}
    for _ in range(runs):  # in turns, so that a busy machine slows all of them
        for name, those in found.items():
            those.append(expressions.measure(name, variants))
    best = {name: min(one["microsecondsPerVariant"] for one in those) for name, those in found.items()}
    ours = best[expressions.OURS]
    rows = [
        Row(
            *("cel", "a variant with five expressions", ours / 1000, "ms", GOAL_MS, "less"),
            *(ours / 1000 / 0.62, "Porch's", "0.62 ms CPU"),
        ),
        Row(
            "cel",
            "compilations for one set generation",
            found[expressions.OURS][0]["compilations"],
            "",
            5,
            "equal",
            porch="one per evaluation",
        ),
        Row(
            "cel",
            "the worst of the hostile expressions",
            hostile.measure(runs)[-1].milliseconds,
            "ms CPU",
            WORST_GOAL_MS,
            "less",
        ),
    ]
    return rows + [
        Row("cel", f"{name}, as a multiple of ours", best[name] / ours, "", GOALS_TIMES.get(name), "more")
        for name in ORACLES
    ]
