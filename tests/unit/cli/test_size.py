"""`pvbus size`: what fleets need, from measured coefficients."""

import json
import re
from itertools import pairwise

import click.testing
import pytest

from pvbus.cli.size import size
from pvbus.core.errors import UsageError
from pvbus.install.sizing import Size, coefficients, partitions, quantities, workers


def answer(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(size, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--variants", "many"), '--variants many: not a whole number, such as "10000"'),
        (("--variants", "1.5"), "--variants 1.5: not a whole number"),
        (("--variants", "0"), "--variants 0: give a number from 1 to 100,000,000"),
        (("--variants", "-5"), "--variants -5: give a number from 1"),
        (("--variants", "1" * 5000), "not a whole number|give a number from 1"),
        (("--variants", "10", "--changes-per-second", "fast"), "--changes-per-second fast: not a number"),
        (("--variants", "10", "--changes-per-second", "nan"), "nan: give a number from 0 to 1,000,000"),
        (("--variants", "10", "--changes-per-second", "-1"), "-1: give a number from 0"),
        (("--variants", "10", "--changes-per-second", "1e99"), "1e99: give a number from 0"),
    ],
)
def test_bad_input_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    """The message names the option, what was given, and what to give."""
    with pytest.raises(UsageError, match=words) as refused:
        answer(*arguments)
    assert len(str(refused.value)) < 300


def test_programs_get_each_figure_with_its_sources() -> None:
    """-o json has every quantity, and the coefficients that it names, with source, date and machine."""
    document = json.loads(answer("--variants", "10_000", "--changes-per-second", "20", "-o", "json").output)
    assert (document["variants"], document["changesPerSecond"]) == (10_000, 20)
    named = {name for each in document["quantities"] for name in each["coefficients"]}
    assert named == set(document["coefficients"]) == set(coefficients())
    for each in document["coefficients"].values():
        assert each["value"] > 0
        assert each["variants"] > 0
        assert all(each[field] for field in ("what", "unit", "source", "machine"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", each["date"])


def test_what_was_not_measured_is_marked() -> None:
    """A fleet larger than the measured one is extrapolated, and the text says so; a small one is not."""
    small, large = answer("--variants", "500").output, answer("--variants", "5000000").output
    assert "*" not in small
    assert "* extrapolated: measured with fewer variants" in large
    limits = {name: each.variants for name, each in coefficients().items()}
    for quantity in quantities(Size(5_000, 1.0), coefficients()):
        assert quantity.extrapolated is any(limits[name] < 5_000 for name in quantity.coefficients)


@pytest.mark.parametrize("rate", [0.0, 1.0, 40.0, 5_000.0])
def test_a_larger_fleet_never_needs_less(rate: float) -> None:
    """Of nothing, whatever the rate; and more changes need no fewer workers, partitions or cores."""
    measured, counts = coefficients(), (1, 1_000, 10_000, 100_000, 1_000_000)
    for before, after in pairwise(counts):
        sizes = (Size(before, rate), Size(after, rate), Size(after, rate * 2 + 1))
        for row in zip(*(quantities(each, measured) for each in sizes), strict=True):
            amounts = [quantity.amount for quantity in row]
            name = row[0].name
            assert amounts[0] <= amounts[1], name
            assert amounts[1] <= amounts[2] or name == "memory of the largest worker"


@pytest.mark.parametrize("rate", [0.0, 30.0, 1_000.0, 100_000.0])
def test_there_are_leases_for_all_workers(rate: float) -> None:
    """Each worker of a service gets three leases at least, and each service has two workers."""
    wanted, measured = Size(10_000, rate), coefficients()
    assert partitions(wanted, measured) >= 3 * max(workers(wanted, measured).values())
    assert min(workers(wanted, measured).values()) >= 2
