"""Texts that are equal but for names are read twice; the values of the others are made of these."""

import re
from typing import Any

import pytest

from pvbus.core.yaml.alike import read_alike
from pvbus.core.yaml.editor import LIMITS, same
from pvbus.core.yaml.reader import document
from pvbus.core.yaml.scalars import KPT

TEXT = "kind: Site\nmetadata:\n  name: {0}\ndata: {{ {0}: '{0}.example.org', at: /{0}/{1} }}\n# {1}\n"


def plain(text: str) -> Any:
    return document(text, LIMITS, KPT).value


class Reading:
    """Reads texts, and counts those that it reads."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, text: str) -> Any:
        self.read += 1
        return plain(text)

    def value(self, text: str) -> Any:
        return read_alike(text, self, same)


def test_the_third_text_is_not_read() -> None:
    reading = Reading()
    for number in range(10, 15):
        text = TEXT.format(f"site-{number}", f"zone-of-{number + 1}")
        assert same(reading.value(text), plain(text))
    assert reading.read == 2


def test_each_caller_has_a_value_of_its_own() -> None:
    reading = Reading()
    texts = [TEXT.format(f"area-{number}", "same-for-all") for number in (1, 2, 3, 3)]
    values = [reading.value(text) for text in texts]
    values[2]["metadata"]["name"] = "changed"
    assert values[3]["metadata"]["name"] == "area-3"
    assert reading.read == 2


@pytest.mark.parametrize(
    "texts",
    [
        ("a: site-1, b\n", "a: site-10, b\n", "a: sites-1, b\n"),  # other shapes
        ("a: n1\n", "a: n2\n", "a: n3\n"),  # no names that cannot be values of other types
        ('a: "\\xfa-1"\nb: me-1\n', 'a: "\\xfa-1"\nb: me-2\n', 'a: "\\xfb-1"\nb: me-3\n'),  # escapes
        ("a: x-.inf\nb: .nan\nk: site-1\n", "a: x-.inf\nb: .nan\nk: site-2\n", "a: x\nb: .nan\nk: site-3\n"),
        ("a: place-1\nb: place-1\n", "a: place-2\nb: place-3\n", "a: place-4\nb: other-4\n"),
    ],
)
def test_what_may_differ_in_more_than_names_is_read(texts: tuple[str, ...]) -> None:
    reading = Reading()
    for text in texts:
        assert same(reading.value(text), plain(text))
    assert reading.read == len(texts)


def test_what_reads_names_otherwise_is_not_made_of_others() -> None:
    """The second text shows it."""
    read: list[str] = []

    def odd(text: str) -> Any:
        read.append(text)
        return {"is_odd": int(re.findall("[0-9]", text)[0]) % 2 == 1}

    found = [read_alike(f"odd: edge-{number}\n", odd, same) for number in range(1, 5)]
    assert [value["is_odd"] for value in found] == [True, False, True, False]
    assert len(read) == 4
