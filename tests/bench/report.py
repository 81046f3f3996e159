"""What a benchmark says: rows with a figure, a goal and, where there is one, Porch's figure."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple


class Row(NamedTuple):
    """One figure. ratio: of the figure to something else of the same run, which ratio_of names.

    goal: at least, at most or exactly this much, as `better` says. porch: what Porch's controller (Go)
    gives on two cores with a real kube-apiserver, in words.
    """

    scenario: str
    name: str
    figure: float
    unit: str
    goal: float | None = None
    better: Literal["more", "less", "equal"] = "less"
    ratio: float | None = None
    ratio_of: str = ""
    porch: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        if self.better == "equal":
            return self.figure == self.goal
        return self.figure >= self.goal if self.better == "more" else self.figure <= self.goal


_SIGNS = {"more": ">=", "less": "<=", "equal": "="}


def _number(figure: float) -> str:
    if figure == int(figure) and abs(figure) < 1e9:
        return f"{int(figure):,}"
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.3g}"


def _cells(row: Row) -> tuple[str, ...]:
    goal = "" if row.goal is None else f"{_SIGNS[row.better]} {_number(row.goal)}"
    met = {None: "", True: "met", False: "MISSED"}[row.met]
    ratio = "" if row.ratio is None else f"{_number(row.ratio)} of {row.ratio_of}"
    return row.scenario, row.name, _number(row.figure), row.unit, goal, met, ratio, row.porch


def table(rows: Iterable[Row]) -> str:
    """Return the rows as aligned columns."""
    header = ("scenario", "what", "figure", "unit", "goal", "", "ratio", "Porch")
    lines = [header, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if column == 2 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(texts)


def machine() -> dict[str, object]:
    """Return what the figures depend on besides the program."""
    return {
        "cores": os.cpu_count(),
        "loadAverage": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def write_json(file: Path, rows: Sequence[Row], before: dict[str, object]) -> None:
    """Write rows, with the machine before and after the run."""
    document = {
        "before": before,
        "after": machine(),
        "rows": [{**row._asdict(), "met": row.met} for row in rows],
    }
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
