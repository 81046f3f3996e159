"""CEL: the CPU time of each hostile expression of the tests, until it ends.

    python -m tests.bench.hostile [--runs N]

Prints a line for each: milliseconds (the least of the runs), its cost, and its name. The limits of cost are
set so that the worst takes at most 20 ms.
"""

import argparse
import time
from contextlib import suppress
from typing import NamedTuple

from pvbus.core.cel import Budget, CelError, compile_expression, set_budget
from tests.tools.hostile_expressions import HOSTILE, TARGET


class Measured(NamedTuple):
    milliseconds: float
    cost: int
    name: str


def measure(runs: int) -> list[Measured]:
    """Return the time of each hostile expression, the longest last."""
    return sorted(Measured(*_fastest(hostile.text, runs), hostile.name) for hostile in HOSTILE)


def _fastest(text: str, runs: int) -> tuple[float, int]:
    program = compile_expression(text)
    times = []
    budget = Budget()
    for _ in range(runs):
        budget = Budget()
        variables = {"target": TARGET}
        set_budget(variables, budget)
        started = time.process_time()
        with suppress(CelError):
            program.evaluate(variables)
        times.append((time.process_time() - started) * 1e3)
    return min(times), budget.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    for row in measure(parser.parse_args().runs):
        print(f"{row.milliseconds:8.2f} ms {row.cost:15,} {row.name}")


if __name__ == "__main__":
    main()
