"""Bytes that one variant takes in the tables of the services, beside its records themselves."""

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

import pvbus
from pvbus.core.api.variants import Downstream
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.records import (
    DESIRED,
    OBJECTS,
    TARGETS,
    ChildResult,
    ChildRow,
    ChildState,
    DesiredRow,
    ObjectRow,
)
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.children import child_result, child_row
from pvbus.core.variants.unroll.controller import UnrollController
from tests.unit.core.variants.test_render_controller import row

COUNT = 2_000  # many more than stay decoded
Loader = Callable[[str, bytes], object]
OURS = [tracemalloc.Filter(True, each) for each in (str(Path(pvbus.__file__).parent / "*"), "<string>")]
"""What pvbus allocates, its named tuples too: threads of former tests may import modules meanwhile."""


def render_load() -> Loader:
    controller = RenderController()
    controller.open(0)
    return lambda name, value: controller.load(TARGETS, 0, f"default/{name}|alpha", value)


def decision_load() -> Loader:
    controller = RenderController()
    controller.open(0)
    return lambda name, value: controller.load(DESIRED, 0, f"default/{name}", value)


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


def decisions() -> Iterable[bytes]:
    for number in range(COUNT):
        text = f"{number:016}"
        decision = DesiredRow(
            set_name="fleet", set_uid="s" * 36, input_digest=text, spec_digest=text, reported={"fleet": text}
        )
        yield encode_row(decision) or b""


@pytest.mark.parametrize(
    ("load", "values", "bytes_max"),
    [(render_load, set_rows, 450), (unroll_load, targets, 450), (decision_load, decisions, 450)],
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
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    taken = sum(found.size for found in snapshot.filter_traces(OURS).statistics("filename"))
    assert COUNT < taken < COUNT * bytes_max


def test_rows_of_a_set_share_what_repeats_in_them() -> None:
    """Each would have a copy of the set's uid and its repository, and of a digest a second one."""

    def values_of(number: int) -> tuple[bytes, bytes]:
        digest, downstream = f"{number:016}", Downstream(repo="deploy", package=f"app-{number}")
        child = ChildRow(set_uid="s" * 36, state=ChildState.PRESENT, downstream=downstream, digest=digest)
        result = ChildResult(set_uid="s" * 36, evaluated=digest, applied=digest, unready="not ready yet")
        return msgspec.json.encode(child), msgspec.json.encode(result)

    first, second = values_of(1), values_of(2)
    children = [child_row(values[0]) for values in (first, second)]
    results = [child_result(values[1]) for values in (first, second)]
    assert children == [msgspec.json.decode(values[0], type=ChildRow) for values in (first, second)]
    assert results == [msgspec.json.decode(values[1], type=ChildResult) for values in (first, second)]
    uids = {id(row.set_uid) for row in children} | {id(row.set_uid) for row in results}
    repositories = {id(row.downstream.repo) for row in children}
    assert [len(texts) for texts in (uids, repositories)] == [1, 1]
    assert all(row.applied is row.evaluated for row in results)
    assert results[0].unready is results[1].unready
