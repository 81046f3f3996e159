"""Selectors: one selector alone, the index and a plain reference implementation select the same objects."""

from typing import Any

import pytest

from pvbus.core.api.selectors import Requirement, matches, requirements_of
from pvbus.core.api.variants import LabelSelector, LabelSelectorRequirement
from pvbus.core.variants.unroll.index import SelectorIndex, TargetSelector

SITE = "example.org/Site"
PROD = (Requirement("env", "In", frozenset(("prod",))),)
TEST = (Requirement("env", "In", frozenset(("test",))),)
OBJECTS: dict[str, dict[str, str]] = {
    "plain": {},
    "prod": {"env": "prod"},
    "test": {"env": "test"},
    "both": {"env": "prod", "tier": "gold"},
}


def requirement(key: str, operator: str, *values: str) -> Any:
    return LabelSelectorRequirement(key=key, operator=operator, values=values)


CASES: list[Any] = [
    (
        {},
        (),
        (
            "plain",
            "prod",
            "test",
            "both",
        ),
    ),
    (
        {"env": "prod"},
        (),
        (
            "prod",
            "both",
        ),
    ),
    ({"env": "prod", "tier": "gold"}, (), ("both",)),
    (
        {},
        (requirement("env", "In", "prod", "test"),),
        (
            "prod",
            "test",
            "both",
        ),
    ),
    (
        {},
        (requirement("env", "NotIn", "prod"),),
        (
            "plain",
            "test",
        ),
    ),
    (
        {},
        (requirement("env", "Exists"),),
        (
            "prod",
            "test",
            "both",
        ),
    ),
    ({}, (requirement("env", "DoesNotExist"),), ("plain",)),
    ({"env": "prod"}, (requirement("tier", "DoesNotExist"),), ("prod",)),
    ({"env": "prod"}, (requirement("tier", "NotIn", "gold"),), ("prod",)),
]


@pytest.mark.parametrize(("labels", "expressions", "names"), CASES, ids=str)
@pytest.mark.parametrize("first", ["objects", "selectors"])
def test_a_selector_selects_alike_with_and_without_the_index(
    labels: dict[str, str], expressions: Any, names: tuple[str, ...], first: str
) -> None:
    expected = set(names)
    wanted = requirements_of(LabelSelector(match_labels=labels, match_expressions=expressions))
    selector = TargetSelector(SITE, "default", wanted)
    assert {name for name, own in OBJECTS.items() if matches(wanted, own)} == expected
    index = SelectorIndex()
    if first == "selectors":
        index.set_selectors("set", [selector])
    entered = {
        name
        for name, own in OBJECTS.items()
        for change in index.put_object(SITE, "default", name, own)
        if change.what == "entered"
    }
    assert entered == (expected if first == "selectors" else set())
    found = index.matches("set") if first == "selectors" else index.set_selectors("set", [selector])
    assert found == [[f"{SITE}|default|{name}" for name in sorted(expected)]]


def test_an_operator_that_does_not_exist_matches_nothing() -> None:
    wanted = requirements_of(LabelSelector(match_expressions=(requirement("env", "Near", "prod"),)))
    assert not matches(wanted, {"env": "prod"})


@pytest.mark.parametrize(
    ("kind", "namespace", "is_selected"),
    [
        (SITE, "default", True),
        (SITE, "", True),  # cluster-scoped
        (SITE, "other", False),
        ("example.org/Place", "default", False),
    ],
)
def test_a_selector_sees_its_namespace_and_cluster_scoped_objects(
    kind: str, namespace: str, is_selected: bool
) -> None:
    selector = TargetSelector(SITE, "default", PROD)
    index = SelectorIndex()
    index.set_selectors("set", [selector])
    assert bool(index.put_object(kind, namespace, "one", {"env": "prod"})) is is_selected
    assert any(index.matches("set")[0]) is is_selected


def test_a_name_selects_one_object() -> None:
    selector = TargetSelector(SITE, "default", PROD, name="one")
    index = SelectorIndex()
    index.set_selectors("set", [selector])
    for name in ("one", "two"):
        assert bool(index.put_object(SITE, "default", name, {"env": "prod"})) is (name == "one")
    assert index.matches("set") == [[f"{SITE}|default|one"]]


def test_a_name_selects_one_object_when_the_selector_hangs_on_a_label() -> None:
    """The label is the rarer requirement here: nothing has it when the selector comes."""
    index = SelectorIndex()
    index.put_object(SITE, "default", "one", {})
    index.set_selectors("set", [TargetSelector(SITE, "default", PROD, name="one")])
    assert not index.put_object(SITE, "default", "two", {"env": "prod"})
    assert index.put_object(SITE, "default", "one", {"env": "prod"})
    assert index.matches("set") == [[f"{SITE}|default|one"]]


def test_an_object_that_moves_leaves_the_one_and_enters_the_other() -> None:
    index = SelectorIndex()
    index.set_selectors("prod", [TargetSelector(SITE, "default", PROD)])
    index.set_selectors("test", [TargetSelector(SITE, "default", TEST)])
    index.set_selectors("free", [TargetSelector(SITE, "default", (Requirement("env", "DoesNotExist"),))])

    def put(labels: dict[str, str]) -> dict[Any, str]:
        return {change.owner: change.what for change in index.put_object(SITE, "default", "s", labels)}

    assert put({"env": "prod"}) == {"prod": "entered"}
    assert put({"env": "test"}) == {"prod": "left", "test": "entered"}
    assert index.matches("prod") == [[]]
    assert put({}) == {"test": "left", "free": "entered"}
    assert put({"other": "x"}) == {"free": "changed"}
    assert [change.what for change in index.remove_object(SITE, "default", "s")] == ["left"]
    assert index.matches("free") == [[]]
    assert index.set_selectors("late", [TargetSelector(SITE, "default", PROD)]) == [[]]
