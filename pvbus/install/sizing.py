"""Computes what an installation of a size needs, from measured coefficients.

`coefficients.json` has the measured figures, which the benchmarks write (`tests/bench/coefficients.py`), each
with its source, date, machine and the fleet that it was measured on. This module has the arithmetic alone. A
quantity of a larger fleet than that of its coefficients is extrapolated, and says so.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

from pvbus.runtime.process.assembly import partition_count

FILE = "coefficients.json"
EXTRAPOLATED = "*"
VARIANTS_MAX = 100_000_000
CHANGES_MAX = 1_000_000.0

CHAIN = ("ingest", "unroll", "render", "conditions")
"""The services whose CPU and memory were measured one by one. inject and those of promotion were measured
with the package store, whose work is git."""

BUSY_SHARE = 0.5
"""The part of a core that a worker uses on average: the rest is for restarts, and for the leases of one that
fails."""

WORKERS_MIN = 2
"""Of each service, so that one may fail."""

LEASES_MIN = 3
"""Leases of each worker: with fewer, one that has a lease more than the others has much more work."""

SHARED_SECONDS = 0.025
"""Changes within this time share requests: the time of one label's change from event to write."""

REPLICAS = 3
"""Copies of each record on Kafka, and of each object in etcd."""

SLACK = 2.0
"""Bytes of a compacted topic against those of its last rows: half of a log may wait for its compaction."""

ETCD_BYTES_MAX = 8e9
"""What etcd's authors recommend at most. Source: https://etcd.io/docs/v3.6/dev-guide/limit/"""


class Coefficient(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A measured figure.

    what: what was measured
    value, unit: the figure
    variants: the size of the fleet that it was measured on
    source: the benchmark and its row, or the document
    date: when, as YYYY-MM-DD
    machine: on what
    """

    what: str
    value: float
    unit: str
    variants: int
    source: str
    date: str
    machine: str


class Quantity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that an installation needs.

    how: the arithmetic, in words
    coefficients: the names of those that it is made from
    extrapolated: whether the fleet is larger than the smallest one of their measurements
    """

    name: str
    amount: float
    unit: str
    how: str
    coefficients: tuple[str, ...]
    extrapolated: bool


class Size(NamedTuple):
    """The input: PackageVariants, and changes of one variant each per second."""

    variants: int
    changes_per_second: float


@cache
def coefficients() -> Mapping[str, Coefficient]:
    """Return the measured coefficients, by name."""
    text = files("pvbus.install").joinpath(FILE).read_bytes()
    return msgspec.json.decode(text, type=dict[str, Coefficient])


def quantities(size: Size, measured: Mapping[str, Coefficient]) -> list[Quantity]:
    """Return what an installation on Kafka needs, a process for each worker."""
    return [quantity for part in _PARTS for quantity in part(size, measured)]


def quantity(
    size: Size,
    measured: Mapping[str, Coefficient],
    name: str,
    amount: float,
    unit: str,
    how: str,
    *names: str,
) -> Quantity:
    limit = min((measured[each].variants for each in names), default=size.variants)
    return Quantity(
        name=name,
        amount=amount,
        unit=unit,
        how=how,
        coefficients=names,
        extrapolated=size.variants > limit,
    )


def change_ms(size: Size, measured: Mapping[str, Coefficient]) -> float:
    """Return the CPU time of a change in the services: single ones pay for their own requests."""
    streamed, single = measured["cpu.kafka.variant"].value, measured["cpu.kafka.label"].value
    sharing = max(1.0, size.changes_per_second * SHARED_SECONDS)
    return streamed + max(0.0, single - streamed) / sharing


def workers(size: Size, measured: Mapping[str, Coefficient]) -> dict[str, int]:
    """Return the workers of each service, by its share of the CPU time."""
    own = {name: measured[f"cpu.{name}"].value for name in CHAIN}
    cores = size.changes_per_second * change_ms(size, measured) / 1000
    needed = {name: cores * share / sum(own.values()) / BUSY_SHARE for name, share in own.items()}
    return {name: max(WORKERS_MIN, math.ceil(amount)) for name, amount in needed.items()}


def partitions(size: Size, measured: Mapping[str, Coefficient]) -> int:
    """Return the partitions of each topic: a multiple of the default."""
    step = partition_count()
    return step * math.ceil(max(workers(size, measured).values()) * LEASES_MIN / step)


def _services(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    shares = tuple(f"cpu.{name}" for name in CHAIN)
    cpu = ("cpu.kafka.variant", "cpu.kafka.label")
    counts = workers(size, measured)
    each = ", ".join(f"{count} {name}" for name, count in counts.items())
    rate, cost = size.changes_per_second, change_ms(size, measured)
    how = f"{rate:g} changes/s at {cost:.1f} ms; those within {SHARED_SECONDS * 1000:.0f} ms share requests"
    yield quantity(size, measured, "CPU of the services", rate * cost / 1000, "cores", how, *cpu)
    how = f"{each}: half a core each, two of each at least; inject and promotion apart"
    yield quantity(size, measured, "workers", sum(counts.values()), "processes", how, *cpu, *shares)
    how = f"{LEASES_MIN} leases of each worker of the largest service; fixed when the topics are made"
    yield quantity(
        size, measured, "partitions", partitions(size, measured), "of each topic", how, *cpu, *shares
    )


def _memory(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    """Every worker of unroll has all objects; of the other services each has its part of the variants."""
    counts = workers(size, measured)
    empty = measured["memory.empty"].value * 1e6
    own = {name: measured[f"memory.{name}"].value * 1000 * size.variants for name in CHAIN}
    total = sum(empty * count for count in counts.values()) + sum(
        bytes_ * (counts[name] if name == "unroll" else 1) for name, bytes_ in own.items()
    )
    names = ("memory.empty", *(f"memory.{name}" for name in CHAIN))
    how = "empty processes, and rows; each worker of unroll has all objects; inject and promotion apart"
    yield quantity(size, measured, "memory of the services", total / 1e9, "GB", how, *names)
    largest = empty + max(b / (1 if name == "unroll" else counts[name]) for name, b in own.items())
    yield quantity(
        size,
        measured,
        "memory of the largest worker",
        largest / 1e9,
        "GB",
        "the limit of a container",
        *names,
    )


def _times(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    made = size.variants / measured["speed.kafka.variants"].value / 60
    how = "all variants are new: four processes on two cores, with broker and API server"
    yield quantity(size, measured, "time to make all variants", made, "min", how, "speed.kafka.variants")
    restart = size.variants * measured["restart.kafka"].value / 1000
    how = "until nothing is left to do, one worker of each service"
    yield quantity(size, measured, "restart of all services", restart, "s", how, "restart.kafka")


def _broker(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    rate, row_bytes = size.changes_per_second, measured["bus.bytes"].value
    cores = rate * measured["cpu.kafka.broker"].value / 1000
    how = "while changes stream; single ones cost more"
    yield quantity(size, measured, "CPU of the brokers", cores, "cores", how, "cpu.kafka.broker")
    how = "a change writes each row of its variant once at most"
    yield quantity(size, measured, "writes to the brokers", rate * row_bytes / 1e6, "MB/s", how, "bus.bytes")
    disk = size.variants * row_bytes * SLACK * REPLICAS / 1e9
    how = f"the last rows, as much again that waits for compaction, {REPLICAS} copies; events apart"
    yield quantity(size, measured, "disk of the brokers", disk, "GB", how, "bus.bytes")


def _etcd(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    stored = size.variants * measured["object.variant"].value
    how = "PackageVariants without managedFields, one version; package revisions and targets apart"
    if stored > ETCD_BYTES_MAX:
        how += "; more than the 8 GB that etcd recommends: use several API servers"
    yield quantity(size, measured, "etcd", stored / 1e9, "GB", how, "object.variant")
    how = "one write of the object of each change; statuses apart"
    yield quantity(size, measured, "writes to the API server", size.changes_per_second, "1/s", how)


def _git(size: Size, measured: Mapping[str, Coefficient]) -> Iterable[Quantity]:
    drafts = measured["git.drafts"].value
    how = "packed, of one draft of each variant; each later version as much again"
    stored = size.variants * measured["git.bytes"].value / 1e9
    yield quantity(size, measured, "git", stored, "GB", how, "git.bytes")
    how = "all variants get an upgrade draft: one package store"
    yield quantity(
        size, measured, "time to draft all variants", size.variants / drafts / 60, "min", how, "git.drafts"
    )
    how = "in waves, without pauses: one package store"
    approved = size.variants / measured["git.approvals"].value / 60
    yield quantity(size, measured, "time to approve all variants", approved, "min", how, "git.approvals")


def amount_text(quantity: Quantity) -> str:
    """Return an amount with some three digits, and the mark of what is extrapolated."""
    amount = quantity.amount
    digits = 2 if amount < 10 else 1 if amount < 100 else 0
    text = f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.{digits}f}"
    text = f"{amount:.2g}" if 0 < amount < 0.1 else text
    return f"{text}{EXTRAPOLATED if quantity.extrapolated else ''}"


_PARTS: tuple[Callable[[Size, Mapping[str, Coefficient]], Iterable[Quantity]], ...] = (
    _services,
    _memory,
    _times,
    _broker,
    _etcd,
    _git,
)
