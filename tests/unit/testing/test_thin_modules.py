"""The list of thin modules that do not say why they stand alone."""

import pytest

from tests.tools.thinmodules import LINES_MIN, thin_modules

THIN = "def half(number: float) -> float:\n    return number / 2\n"
USER = "from pvbus.cli.halves import half\n"


def test_a_thin_module_of_one_sibling_is_listed_with_it() -> None:
    assert thin_modules({"pvbus.cli.halves": THIN, "pvbus.cli.user": USER}) == {
        "pvbus.cli.halves": "pvbus.cli.user"
    }


def test_the_sibling_may_be_the_folder_itself() -> None:
    assert thin_modules({"pvbus.cli.halves": THIN, "pvbus.cli": USER}) == {"pvbus.cli.halves": "pvbus.cli"}


@pytest.mark.parametrize(
    "reason", ["Apart from `user`, which writes.", "Each rule\nis a module.", "It is apart\nfrom `user`."]
)
def test_a_reason_in_the_docstring_lets_it_stand(reason: str) -> None:
    assert thin_modules({"pvbus.cli.halves": f'"""{reason}"""\n{THIN}', "pvbus.cli.user": USER}) == {}


@pytest.mark.parametrize(
    "sources",
    [
        {"pvbus.cli.halves": THIN, "pvbus.cli.user": USER, "pvbus.cli.second": USER},
        {"pvbus.cli.halves": THIN, "pvbus.runtime.user": USER},
        {"pvbus.cli.halves": THIN},
        {"pvbus.cli.halves": f"{THIN}{'#' * 9}\n" + "\n" * LINES_MIN, "pvbus.cli.user": USER},
    ],
    ids=["two importers", "another folder", "nobody", "long enough"],
)
def test_other_modules_are_not_listed(sources: dict[str, str]) -> None:
    assert thin_modules(sources) == {}
