"""The coefficients of `pvbus size` that benchmarks write."""

import msgspec

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import TARGETS, TargetRow
from pvbus.install.sizing import coefficients
from pvbus.ports.bus import Record
from pvbus.runtime.process.assembly import partition_count
from tests.bench.coefficients import ORIGINS, updated
from tests.bench.report import Row
from tests.bench.tables import CONTROLLERS, loaded_bytes, record_bytes


def test_a_run_changes_the_coefficients_that_it_has_measured() -> None:
    """With their source, date and machine; the others stay as they are."""
    known = msgspec.to_builtins(coefficients())
    origin = ORIGINS["memory.unroll"]
    rows = [Row(origin.scenario, origin.name, 1.23456, "kB"), Row("tables", "another row", 5, "")]
    after = updated(known, rows, "2030-01-02", "a machine")
    changed = {name: each for name, each in after.items() if known[name] != each}
    assert list(changed) == ["memory.unroll"]
    given = {"value": 1.235, "unit": "kB", "date": "2030-01-02", "machine": "a machine"}
    assert changed["memory.unroll"].items() >= given.items()
    assert changed["memory.unroll"]["variants"] == origin.variants


def test_a_row_in_another_unit_is_converted() -> None:
    """The restart of a fleet takes seconds; the coefficient is milliseconds of each variant."""
    known, origin = msgspec.to_builtins(coefficients()), ORIGINS["restart.kafka"]
    after = updated(known, [Row(origin.scenario, origin.name, 3.5, "s")], "2030-01-02", "a machine")
    assert (after["restart.kafka"]["value"], after["restart.kafka"]["unit"]) == (0.35, "ms")


def test_a_benchmark_measures_each_coefficient() -> None:
    assert set(ORIGINS) == set(coefficients())


def test_the_bytes_of_a_table_have_those_of_its_rows() -> None:
    """What a controller keeps of its rows counts, and a row that it does not read takes nothing."""
    value = encode_row(TargetRow(state="present", set_name="fleet", set_uid="u" * 400))
    names = [f"default/v{number}" for number in range(200)]
    records = [
        Record(TARGETS, partition(name, partition_count()), 0, f"{name}|fleet".encode(), value, (), 0)
        for name in names
    ]
    assert loaded_bytes(CONTROLLERS["render"](), records) > sum(map(record_bytes, records))
    other = [record._replace(topic="pvbus.desired", key=b"default/v") for record in records]
    assert loaded_bytes(CONTROLLERS["conditions"](), other) < 100 * len(records)
