"""Versions and ranges: what our readers answer is what the Go libraries answered, case by case."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.platform.solver import blang
from pvbus.core.platform.solver.languages import BLANG, K14S, LANGUAGES, Language, highest
from pvbus.core.platform.solver.semver import ConstraintError, Version, VersionError

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[4] / "data" / "resolve" / "versions.json").read_text(encoding="utf-8")
)
TABLES: dict[str, Any] = VECTORS["tables"]
STRICT = Language(
    "carvel",
    partial(blang.parse_version, dialect=blang.CARVEL),
    partial(blang.parse_range, dialect=blang.CARVEL),
)
"""The library itself; that a leading v is accepted is vendir's."""


def language(name: str) -> Language:
    return STRICT if name == "carvel" else LANGUAGES[name]


def parsed(table: dict[str, Any], read: Callable[[str], Version]) -> list[Version | None]:
    found: list[Version | None] = []
    for text in table["versions"]:
        try:
            found.append(read(text))
        except VersionError:
            found.append(None)
    return found


def answers(text: str, read: Language, versions: list[Version | None]) -> str:
    try:
        wanted = read.parse_range(text)
    except ConstraintError:
        return "error"
    return "".join("e" if each is None else "t" if wanted.matches(each) else "f" for each in versions)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_range_matches_what_the_go_library_matches(name: str) -> None:
    """113,000 answers per library; where the library panics on a range, the range is refused."""
    table, read = TABLES[name], language(name)
    versions = parsed(table, read.parse_version)
    wrong = []
    for text, expected in table["constraints"]:
        wanted = "error" if "p" in expected else expected
        actual = answers(text, read, versions)
        if actual != wanted:
            wrong.append((text, wanted, actual))
    assert len(table["constraints"]) == 1000
    assert not wrong, f"{len(wrong)} of {len(table['constraints'])}: {wrong[:5]}"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_two_versions_have_the_order_that_the_go_library_gives_them(name: str) -> None:
    """12,769 pairs per library, those with a text that is no version among them."""
    table = TABLES[name]
    versions = parsed(table, language(name).parse_version)
    for a, row in zip(versions, table["order"], strict=True):
        actual = "".join(
            "e" if a is None or b is None else "<" if a.key < b.key else ">" if a.key > b.key else "="
            for b in versions
        )
        assert actual == row, a


def test_a_selection_of_carvel_chooses_what_vendir_chooses() -> None:
    """800 selections with and without prereleases, by identifiers, and of texts that are no versions."""
    chosen = 0
    for case in VECTORS["selections"]["cases"]:
        identifiers = tuple(case["identifiers"] or ()) if case["prereleases"] else None
        try:
            found = highest(case["versions"] or (), case["constraints"], identifiers)
        except ConstraintError:
            found = None
        assert (found is None) == case["refused"], case
        assert (found or "") == case["highest"], case
        chosen += found is not None
    assert chosen > 200


@pytest.mark.parametrize("read", [*LANGUAGES.values()], ids=lambda read: str(read.name))
@pytest.mark.parametrize("text", ["", ">", "foo", ">=1.0.0 &&", "1.0.0 || ", "(1.0.0)"])
def test_what_is_no_range_is_refused_in_words(read: Language, text: str) -> None:
    """Nothing but ConstraintError is raised, and it has a text."""
    with pytest.raises(ConstraintError, match=r"\w+ \w+"):
        read.parse_range(text)


def test_build_metadata_has_precedence_in_carvels_forks_only() -> None:
    """1.0.0+2 is above 1.0.0+1 for k14s, and equal to it for blang."""
    for read, expected in ((BLANG, False), (K14S, True)):
        one, two = read.parse_version("1.0.0+1"), read.parse_version("1.0.0+2")
        assert (one.key < two.key) is expected
