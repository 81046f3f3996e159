"""The recorded answers of Go to YAML: the field `made` of the data says how they were made."""

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parents[1] / "data" / "yaml" / "scalars.json"


class GoAnswer(NamedTuple):
    """What Go reads in a text. is_doubled: whether its strict reader refuses duplicate fields."""

    text: str
    value: Any
    is_refused: bool
    is_doubled: bool


def go_answers(*groups: str) -> list[GoAnswer]:
    """Return the answers of groups: c10, scalars, keys, documents."""
    data = json.loads(FILE.read_text())
    return [_answer(row) for group in groups for row in data[group]]


def _answer(row: dict[str, Any]) -> GoAnswer:
    own = row.get("reader")
    if own is not None:  # `why` in the row says why the reader answers otherwise than Go
        return GoAnswer(row["text"], own["json"], False, own.get("doubled", False))
    refused = "error" in row
    return GoAnswer(row["text"], _stored(row.get("json")), refused, "strict" in row)


def _stored(value: Any) -> Any:
    """Return a value with Go's numbers: integers of 63 bits, and floats."""
    if isinstance(value, dict):
        return {key: _stored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**63:
        return float(value)
    return value
