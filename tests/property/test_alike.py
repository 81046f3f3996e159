"""What is remembered of edits and values for one name is, for another name, what its own are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.packages.functions.yamltext import edited_value, load, with_value
from pvbus.core.yaml.alike import read_alike
from pvbus.core.yaml.editor import LIMITS, same
from pvbus.core.yaml.reader import document
from pvbus.core.yaml.scalars import KPT
from pvbus.core.yaml.writer import Style, block
from tests.property.test_yamledit import scalars, styles, words

NAME = "@NAME@"
LETTERS, DIGITS = st.sampled_from("aenotxyz"), st.sampled_from("0123456789")

named = st.sampled_from(
    [NAME, f"{NAME}.example.org", f"https://{NAME}/x", f"a {NAME}: b", f"1{NAME}", f"-{NAME}"]
)
values = st.recursive(
    scalars | named,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | named, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=4)


@st.composite
def names_of_one_shape(draw: st.DrawFn, count: int = 4) -> list[str]:
    """Return names with letters, digits and hyphens at the same positions."""
    parts = draw(st.lists(st.text("a0", min_size=1, max_size=3), min_size=1, max_size=3))
    shape = "-".join(["a" + parts[0], *parts[1:], draw(st.text("a0", min_size=1, max_size=3))])
    drawn = {"a": LETTERS, "0": DIGITS, "-": st.just("-")}
    return ["".join(draw(drawn[kind]) for kind in shape) for _ in range(count)]


def renamed(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {renamed(key, name): renamed(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, name) for item in value]
    return value.replace(NAME, name) if isinstance(value, str) else value


@pytest.mark.slow
@given(st.data(), objects, objects, styles)
def test_an_edit_that_is_remembered_is_the_one_that_is_made(
    data: st.DataObject, old: dict[str, Any], new: dict[str, Any], style: Style
) -> None:
    """Byte for byte, wherever the name stands: a scalar, a part of one, a key."""
    wanted = {**old, **new, "metadata": {"name": NAME}}
    for name in data.draw(names_of_one_shape()):
        text = "\n".join(block({"metadata": {"name": name}, **renamed(old, name)}, "", style)) + "\n"
        before, after = load(text), renamed(wanted, name)
        made = with_value(text, before, after)
        assert made == edited_value(text, before, after)
        assert same(load(made), after)


def read(text: str) -> Any:
    return document(text, LIMITS, KPT).value


@pytest.mark.slow
@given(st.data(), objects, styles)
def test_a_value_that_is_made_of_others_is_the_one_that_is_read(
    data: st.DataObject, value: dict[str, Any], style: Style
) -> None:
    """To the type, wherever the names stand: one of all texts, and one that some have in two places."""
    names, others = data.draw(names_of_one_shape()), data.draw(names_of_one_shape())
    for name, other in zip(names, others, strict=True):
        named = {"metadata": {"name": name, "labels": {other: f"{name}.{other}"}}, **renamed(value, name)}
        text = "\n".join(block(named, "", style)) + f"\n# {other}\n"
        assert same(read_alike(text, read, same), read(text))
