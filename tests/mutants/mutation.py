"""One mutation, and the tables of all: `*.toml` beside this file."""

import tomllib
from pathlib import Path
from typing import NamedTuple

TABLES = (
    "accounts",
    "shell",
    "core",
    "removal",
    "apply",
    "aggregated",
    "gates",
    "promotion",
    "rollout",
    "checks",
    "evidence",
    "checker",
    "web",
    "sink",
    "resolve",
    "lockgroups",
    "carvel",
    "establish",
    "locking",
    "families",
    "packages",
    "sources",
    "trains",
    "model",
    "platform",
    "porch",
)


class Mutation(NamedTuple):
    """Replaces one piece of text in one file. old: occurs there exactly once.

    killed_by: tests, as pytest names them, relative to `tests/`; each alone need not find it, together
    they must. equivalent: why no test can find it; then nothing is run. pending: the code that it changes
    is not there yet; then it is only listed. table: where it stands.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...] = ()
    equivalent: str = ""
    pending: str = ""
    table: str = ""


def read_tables(folder: Path = Path(__file__).parent) -> list[Mutation]:
    """Read all tables. Raises ValueError where two mutations have one name, or a field is unknown."""
    found: list[Mutation] = []
    for table in TABLES:
        for entry in tomllib.loads((folder / f"{table}.toml").read_text()).get("mutation", []):
            unknown = set(entry) - {*Mutation._fields} | {*entry} & {"table"}
            if unknown:
                raise ValueError(f"{table}.toml: {entry.get('name')}: unknown fields {sorted(unknown)}")
            killed_by = tuple(entry.get("killed_by", ()))
            found.append(Mutation(**{**entry, "killed_by": killed_by, "table": table}))
    names = [mutation.name for mutation in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two mutations have one name: {', '.join(twice)}")
    return found
