"""What edits make is remembered for texts that differ in one name, once two names have shown it."""

from collections.abc import Callable

import pytest

from pvbus.controlplane.packages.alike import AlikeTexts
from pvbus.core.yaml.alike import shape_of


def edit(alike: AlikeTexts, name: str, make: Callable[[str], str] = lambda name: f"b: {name}\n") -> str:
    (made,) = alike.get((f"a: {name}\n",), name, lambda: (make(name),))
    return made


def test_the_third_name_is_not_made() -> None:
    alike = AlikeTexts(1000)
    for name in ("site-1", "site-2", "site-3", "edge-4"):
        assert edit(alike, name) == f"b: {name}\n"
    assert alike.made == 2


def test_the_first_name_alone_shows_nothing() -> None:
    """The same text again is made again: only another name tells whether the name matters."""
    alike = AlikeTexts(1000)
    assert [edit(alike, name) for name in ("site-1", "site-1", "site-2")]
    assert alike.made == 3


def test_what_depends_on_the_name_is_made_for_each() -> None:
    alike, odd = AlikeTexts(1000), lambda name: f"odd: {int(name[-1]) % 2}\n"
    found = [edit(alike, f"site-{number}", odd) for number in range(1, 6)]
    assert found == ["odd: 1\n", "odd: 0\n", "odd: 1\n", "odd: 0\n", "odd: 1\n"]
    assert alike.made == 5


@pytest.mark.parametrize(
    "names",
    [
        ("site-1", "site-10", "place-1", "1-site"),  # another shape, or none that is remembered
        ("true", "none", "name", "site"),  # a word could be a value of another type
        ("a.b-1", "a.b-2", "a.b-3", "A-1"),
    ],
)
def test_other_shapes_and_unusual_names_are_made(names: tuple[str, ...]) -> None:
    alike = AlikeTexts(1000)
    for name in names:
        edit(alike, name)
    assert alike.made == len(names)


def test_other_parts_are_other_edits() -> None:
    alike = AlikeTexts(1000)
    for number in range(3):
        name = f"site-{number}"
        alike.get(("same", f"{number}"), name, lambda: ("x",))
    assert alike.made == 3


def test_the_shape_of_a_name() -> None:
    assert shape_of("edge-asia-07") == shape_of("site-east-12") == "aaaa-aaaa-00"
