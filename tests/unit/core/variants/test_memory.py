"""Bytes that one variant takes in the tables of the services, beside its records themselves."""

import tracemalloc
from collections.abc import Callable, Iterable

import pytest

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.records import OBJECTS, TARGETS, ObjectRow
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import UnrollController
from tests.unit.core.variants.test_render_controller import row

COUNT = 2_000  # many more than stay decoded
Loader = Callable[[str, bytes], object]


def render_load() -> Loader:
    controller = RenderController()
    controller.open(0)
    return lambda name, value: controller.load(TARGETS, 0, f"default/{name}|alpha", value)


def unroll_load() -> Loader:
    controller = UnrollController(partitions=1, elapsed=lambda: 0.0, nonce=lambda: "")
    return lambda name, value: controller.load(OBJECTS, 0, okey("", "ConfigMap", "default", name), value)


def target(number: int) -> ObjectRow:
    labels = {"env": "prod", "region": f"r{number % 7}", "tier": "gold"}
    return ObjectRow(uid=f"00000000-0000-4000-9000-{number:012}", resource_version=str(number), labels=labels)


def targets() -> Iterable[bytes]:
    return (encode_row(target(number)) or b"" for number in range(COUNT))


def set_rows() -> Iterable[bytes]:
    return (encode_row(row(digest=f"{number:016}")) or b"" for number in range(COUNT))


@pytest.mark.parametrize(
    ("load", "values", "bytes_max"), [(render_load, set_rows, 450), (unroll_load, targets, 450)]
)
def test_a_row_takes_little_more_than_its_record(
    load: Callable[[], Loader], values: Callable[[], Iterable[bytes]], bytes_max: int
) -> None:
    """A table has a row as its JSON, and decoded only what indexes need: so it takes at most these bytes
    beside the JSON, which other services of the process share."""
    records = [(f"cluster-{number:06}", value) for number, value in enumerate(values())]
    apply = load()
    tracemalloc.start()
    try:
        for name, value in records:
            apply(name, value)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / COUNT < bytes_max
