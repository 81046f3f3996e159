"""CEL: a variant with five expressions, each engine that is installed, side by side."""

from pvbus.core.cel import available_engines
from tests.bench import expressions
from tests.bench.report import Row

GOALS_MS = {"cel-python": 1.0, "cel-cpp": 0.2}
RUNS = 3


async def cel(*, small: bool) -> list[Row]:
    """Milliseconds to render, and how often an expression was compiled."""
    rows = []
    for engine in available_engines():
        found = [expressions.measure(engine, 200 if small else 5_000) for _ in range(1 if small else RUNS)]
        best = min(one["microsecondsPerVariant"] for one in found) / 1000
        rows += [
            Row(
                *(
                    "cel",
                    f"{engine}: a variant with five expressions",
                    best,
                    "ms",
                    GOALS_MS.get(engine),
                    "less",
                ),
                *(best / 0.62, "Porch's", "0.62 ms CPU"),
            ),
            Row(
                *(
                    "cel",
                    f"{engine}: compilations for one set generation",
                    found[0]["compilations"],
                    "",
                    5,
                    "equal",
                ),
                porch="one per evaluation",
            ),
        ]
    return rows
