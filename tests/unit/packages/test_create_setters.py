"""create-setters v0.1.0."""

import pytest

from pvbus.controlplane.packages.functions.apply_setters import apply_setters
from pvbus.controlplane.packages.functions.create_setters import create_setters
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config_map, items, text

HEAD = "apiVersion: m.io/v\nkind: Thing\nmetadata:\n  name: m\n"


def created(body: str, **setters: str) -> str:
    (changed,) = after(create_setters, config_map(**setters), HEAD + text(body))
    assert changed.startswith(HEAD)
    return changed.removeprefix(HEAD).rstrip()


@pytest.mark.parametrize(
    ("reason", "before", "setters", "expected"),
    [
        ("a whole value", "a: u", {"n": "u"}, "a: u # kpt-set: ${n}"),
        ("parts", "a: img:1.2", {"i": "img", "t": "1.2"}, "a: img:1.2 # kpt-set: ${i}:${t}"),
        ("quotes stay", "a: '1.2' # c", {"t": "1.2"}, "a: '1.2' # kpt-set: ${t}"),
        ("numbers", "a: 12", {"t": "2"}, "a: 12 # kpt-set: 1${t}"),
        ("twice", "a: u-u", {"n": "u"}, "a: u-u # kpt-set: ${n}-${n}"),
        ("the longest", "a: dev-u", {"r": "dev", "s": "dev-u"}, "a: dev-u # kpt-set: ${s}"),
        ("names are no values", "a: u", {"n": "u", "q": "${n"}, "a: u # kpt-set: ${n}"),
        ("special characters", "a: u.p", {"n": "u.", "q": "+"}, "a: u.p # kpt-set: ${n}p"),
        (
            "several lines get none",
            "b: u\na: |\n  u\n  u",
            {"n": "u"},
            "b: u # kpt-set: ${n}\na: |\n  u\n  u",
        ),
        ("a list", "a:\n- p # c\n- q", {"l": "[q, p]"}, "a: # kpt-set: ${l}\n- p # c\n- q"),
        ("a flow list", "a: [p, q]\nb: 1", {"l": "[q, p]"}, "a: # kpt-set: ${l}\n- p\n- q\nb: 1"),
        ("an empty list", "a: [] # c", {"l": "[]"}, "a: [] # kpt-set: ${l}"),
        ("another comment on the key", "a: # c\n- p", {"l": "[p]"}, "a: # kpt-set: ${l}\n- p"),
        (
            "list and elements",
            "a: [p, q]",
            {"l": "[p, q]", "e": "q"},
            "a: # kpt-set: ${l}\n- p\n- q # kpt-set: ${e}",
        ),
        ("elements only", "a: [p, q] # c", {"e": "q"}, "a: # c\n- p\n- q # kpt-set: ${e}"),
        ("a list with more", "b: s\na: [p, q]", {"l": "[p]", "n": "s"}, "b: s # kpt-set: ${n}\na: [p, q]"),
        ("in a flow map", "a: {b: u, c: 1}", {"n": "u"}, "a:\n  b: u # kpt-set: ${n}\n  c: 1"),
        ("a map as value is no setter", "a: u", {"n": "u", "o": "{u: p}"}, "a: u # kpt-set: ${n}"),
        ("keys stay", "u: 1\nb: u", {"n": "u"}, "u: 1\nb: u # kpt-set: ${n}"),
    ],
)
def test_comments(reason: str, before: str, setters: dict[str, str], expected: str) -> None:
    assert created(before, **setters) == expected, reason


def test_annotations_of_the_tools_get_no_comment() -> None:
    before = text("""
        apiVersion: x.org/v1
        kind: Thing
        metadata:
          name: m
          annotations:
            config.kubernetes.io/local-config: "true"
        a: true
        """)
    assert after(create_setters, config_map(n="true"), before) == [
        before.replace("a: true", "a: true # kpt-set: ${n}")
    ]


def test_what_it_creates_apply_setters_reads() -> None:
    (made,) = create_setters(items(f"{HEAD}a: img:1\nl: [y, z]\n"), config_map(i="img", l="[y, z]")).items
    (applied,) = apply_setters([made], config_map(i="other", l="[q]")).items
    assert (applied.value["a"], applied.value["l"]) == ("other:1", ["q"])


def test_each_comment_is_a_result() -> None:
    output = create_setters(items(f"{HEAD}a: u\nl: [q, p]\n"), config_map(n="u", l="[p, q]"))
    assert [(result.message, result.field["path"], result.file["path"]) for result in output.results] == [
        ('Added line comment "kpt-set: ${l}" for field with value "[p q]"', "l", "0.yaml"),
        ('Added line comment "kpt-set: ${n}" for field with value "u"', "a", "0.yaml"),
    ]


@pytest.mark.parametrize(
    ("setters", "problem"),
    [
        ({}, "config map cannot be empty"),
        ({"n": "none"}, "no matches for the input list of setters"),
        ({"n": ""}, "parsing error: the value of `n`"),
        ({"n": "[x"}, "parsing error: the value of `n`"),
    ],
)
def test_a_configuration_it_cannot_use_fails(setters: dict[str, str], problem: str) -> None:
    with pytest.raises(PermanentError, match=f"failed to create setters: {problem}"):
        create_setters(items(HEAD), config_map(**setters))
