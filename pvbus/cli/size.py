"""`pvbus size`: workers, memory, partitions and load of a fleet, from measured coefficients."""

import math
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from pvbus.cli.output import FORMATS, columns, emit
from pvbus.core.errors import UsageError
from pvbus.install.sizing import (
    CHANGES_MAX,
    EXTRAPOLATED,
    VARIANTS_MAX,
    Quantity,
    Size,
    amount_text,
    coefficients,
    quantities,
)

TEXT_CHARACTERS_MAX = 40


@click.command()
@click.option("--variants", type=str, required=True, metavar="N", help="How many PackageVariants there are.")
@click.option(
    "--changes-per-second",
    type=str,
    default="1",
    show_default=True,
    metavar="R",
    help="Changes of one variant each, such as a label, in the busiest minute.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", help="Format of the output.")
def size(variants: str, changes_per_second: str, output: str) -> None:
    """Compute what a fleet needs on Kafka and a cluster.

    The figures follow from coefficients that the benchmarks have measured. A * marks a figure for a
    larger fleet than was measured. -o json has the source, date and machine of each coefficient.

    \b
    Examples:
      pvbus size --variants 10000
      pvbus size --variants 100000 --changes-per-second 50 -o json
    """
    wanted = Size(_variants(variants), _changes(changes_per_second))
    needed = quantities(wanted, coefficients())
    if output != "text":
        emit(document(wanted, needed), output)
        return
    columns(("WHAT", "AMOUNT", "UNIT", "BY"), [_row(quantity) for quantity in needed])
    if any(quantity.extrapolated for quantity in needed):
        click.echo(f"\n{EXTRAPOLATED} extrapolated: measured with fewer variants; -o json says with how many")


def document(wanted: Size, needed: Sequence[Quantity]) -> dict[str, Any]:
    """Return the answer for programs: the quantities, and the coefficients that they are made from."""
    names = dict.fromkeys(name for quantity in needed for name in quantity.coefficients)
    plain: dict[str, Any] = {
        "variants": wanted.variants,
        "changesPerSecond": wanted.changes_per_second,
        "quantities": msgspec.to_builtins(needed),
        "coefficients": {name: msgspec.to_builtins(coefficients()[name]) for name in names},
    }
    return plain


def _row(quantity: Quantity) -> tuple[str, ...]:
    return quantity.name, amount_text(quantity), quantity.unit, quantity.how


def _variants(text: str) -> int:
    """Read the number of variants. Raises: UsageError."""
    try:
        number = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise UsageError(f'--variants {_cut(text)}: not a whole number, such as "10000"') from None
    if not 1 <= number <= VARIANTS_MAX:
        raise UsageError(f"--variants {_cut(text)}: give a number from 1 to {VARIANTS_MAX:,}")
    return number


def _changes(text: str) -> float:
    """Read the rate of changes. Raises: UsageError."""
    try:
        rate = float(text)
    except ValueError:
        raise UsageError(f'--changes-per-second {_cut(text)}: not a number, such as "0.5" or "20"') from None
    if not (math.isfinite(rate) and 0 <= rate <= CHANGES_MAX):
        raise UsageError(f"--changes-per-second {_cut(text)}: give a number from 0 to {CHANGES_MAX:,.0f}")
    return rate


def _cut(text: str) -> str:
    """Return what was typed, as a message shows it."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}..."
