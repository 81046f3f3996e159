"""Outcomes that no step can hold are split, and what is left out is named."""

import pytest

from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.records import SETRESULTS, TARGETS, UNROLL, WATCHES
from pvbus.runtime.reconcile.leases import finished
from pvbus.runtime.reconcile.steps import by_child


@pytest.mark.parametrize(
    ("puts", "parts"),
    [
        ([(UNROLL, "ns/s|a"), (TARGETS, "ns/a|s")], [("key", ["ns/s|a", "ns/a|s"])]),
        (
            [(UNROLL, "ns/s|a"), (TARGETS, "ns/a|s"), (UNROLL, "ns/s|b"), (TARGETS, "ns/b|s")],
            [("", ["ns/s|a", "ns/a|s"]), ("key", ["ns/s|b", "ns/b|s"])],
        ),
        (
            [(WATCHES, "g/K|unroll-0"), (UNROLL, "ns/s|a"), (SETRESULTS, "ns/s"), (TARGETS, "ns/a|s")],
            [("", ["g/K|unroll-0", "ns/s"]), ("key", ["ns/s|a", "ns/a|s"])],
        ),
    ],
)
def test_rows_of_a_child_stay_together_and_the_key_is_done_last(
    puts: list[tuple[str, str]], parts: list[tuple[str, list[str]]]
) -> None:
    outcome = finished("key", tuple(Put(topic, key, None) for topic, key in puts), 12)
    found = [(part.key, [put.key for put in part.puts]) for part in by_child(outcome, 12)]
    assert found == parts
