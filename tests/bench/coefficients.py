"""Writes the coefficients of `pvbus size` from the rows of a run: `python -m tests.bench --coefficients`.

A coefficient whose row is not in the run stays as it is, with its own source, date and machine.
"""

import datetime
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.install import sizing
from tests.bench import approvals
from tests.bench.fleet import CHAIN
from tests.bench.report import Row, machine

FILE = Path(sizing.__file__).with_name(sizing.FILE)


class Origin(NamedTuple):
    """The row that a coefficient is read from: its scenario and name.

    variants: the size of that fleet
    factor: from the row's unit to that of the coefficient
    """

    scenario: str
    name: str
    variants: int
    factor: float = 1.0


_KAFKA = "cluster, Kafka, a process each"
ORIGINS: Mapping[str, Origin] = {
    **{f"cpu.{name}": Origin("tables", f"{name}: CPU per variant", 10_000) for name in CHAIN},
    **{
        f"memory.{name}": Origin("tables", f"{name}: memory per variant after a restart", 10_000)
        for name in CHAIN
    },
    "memory.empty": Origin("tables", "a process without variants: memory", 10_000),
    "bus.bytes": Origin("tables", "all topics: bytes per variant on the bus", 10_000),
    "object.variant": Origin("tables", "pvbus.variants: bytes per row on the bus", 10_000),
    "cpu.kafka.variant": Origin(_KAFKA, "CPU of the services per variant", 10_000),
    "cpu.kafka.broker": Origin(_KAFKA, "CPU of the broker per variant", 10_000),
    "cpu.kafka.label": Origin(_KAFKA, "label change among 10,000 variants: CPU of the services each", 10_000),
    "speed.kafka.variants": Origin(_KAFKA, "fan-out of 10,000: variants/s", 10_000),
    "restart.kafka": Origin(
        _KAFKA, "10,000 variants, services restarted: until nothing is left to do", 10_000, 1000 / 10_000
    ),
    "git.bytes": Origin("upgrades", "bytes per draft in a packed repository", 1_000),
    "git.drafts": Origin("upgrades", "upgrade drafts/s", 1_000),
    "git.approvals": Origin(approvals.NAME, approvals.PER_SECOND, 2_000),
}


def updated(
    known: Mapping[str, Any], rows: Iterable[Row], date: str, where: str
) -> dict[str, dict[str, Any]]:
    """Return the coefficients with those that a run has measured."""
    by_name = {(row.scenario, row.name): row for row in rows}
    result = {name: dict(each) for name, each in known.items()}
    for name, origin in ORIGINS.items():
        row = by_name.get((origin.scenario, origin.name))
        if row is not None:
            result[name] = {
                **known[name],
                "value": round(row.figure * origin.factor, 3),
                "variants": origin.variants,
                "source": f'make bench ARGS={origin.scenario.split(",")[0]}: "{origin.scenario}: {row.name}"',
                "date": date,
                "machine": where,
            }
    return result


def write_coefficients(rows: Iterable[Row]) -> None:
    """Update the file with what a run has measured."""
    where = f"{machine()['cores']} cores, {platform.system()} {platform.machine()}"
    where += f", Python {platform.python_version()}, load average {machine()['loadAverage']}"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    known = msgspec.json.decode(FILE.read_bytes())
    text = json.dumps(updated(known, rows, today, where), indent=2, ensure_ascii=False)
    FILE.write_text(f"{text}\n", encoding="utf-8")
