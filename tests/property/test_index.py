"""The selector index agrees with looking at everything, whatever happens in whatever order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pvbus.core.api.selectors import Requirement, matches
from pvbus.core.errors import PermanentError
from pvbus.core.variants.unroll.index import SelectorChange, SelectorIndex, TargetSelector

KINDS = ("example.org/Site", "/ConfigMap")
SPACES = ("a", "b", "")
KEYS = ("site", "tier", "zone")
VALUES = ("", "x", "y")
NAMES = ("one", "two", "three")
SITE_X = (Requirement("site", "In", frozenset(("x",))),)

labels_of = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
requirements = st.one_of(
    st.builds(
        Requirement,
        key=st.sampled_from(KEYS),
        operator=st.sampled_from(("In", "NotIn")),
        values=st.frozensets(st.sampled_from(VALUES), max_size=3),
    ),
    st.builds(Requirement, key=st.sampled_from(KEYS), operator=st.sampled_from(("Exists", "DoesNotExist"))),
)
selectors_of = st.builds(
    TargetSelector,
    st.sampled_from(KINDS),
    st.sampled_from(SPACES),
    st.lists(requirements, max_size=4).map(tuple),
    st.none() | st.sampled_from(NAMES),
)
ObjectName = tuple[str, str, str]


def holds(requirement: Requirement, labels: dict[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "In":
            return present and labels[requirement.key] in requirement.values
        case "NotIn":
            return not present or labels[requirement.key] not in requirement.values
        case "Exists":
            return present
        case _:
            return not present


def selects(selector: TargetSelector, identity: ObjectName, labels: dict[str, str]) -> bool:
    kind, namespace, name = identity
    return (
        selector.kind == kind
        and namespace in (selector.namespace, "")
        and selector.name in (None, name)
        and all(holds(requirement, labels) for requirement in selector.requirements)
    )


class Model(RuleBasedStateMachine):
    """The index beside two dictionaries and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.index = SelectorIndex()
        self.objects: dict[ObjectName, dict[str, str]] = {}
        self.owners: dict[str, list[TargetSelector]] = {}

    def reported(
        self, identity: ObjectName, before: dict[str, str] | None, after: dict[str, str] | None
    ) -> set[SelectorChange]:
        words: dict[tuple[bool, bool], Any] = {
            (False, True): "entered",
            (True, False): "left",
            (True, True): "changed",
        }
        return {
            SelectorChange(owner, position, "|".join(identity), words[was, now])
            for owner, selectors in self.owners.items()
            for position, selector in enumerate(selectors)
            if (was := before is not None and selects(selector, identity, before))
            | (now := after is not None and selects(selector, identity, after))
        }

    def matches(self, owner: str) -> list[list[str]]:
        return [
            [
                "|".join(identity)
                for space in dict.fromkeys((selector.namespace, ""))
                for identity in sorted(self.objects)
                if identity[1] == space and selects(selector, identity, self.objects[identity])
            ]
            for selector in self.owners[owner]
        ]

    @rule(
        kind=st.sampled_from(KINDS),
        space=st.sampled_from(SPACES),
        name=st.sampled_from(NAMES),
        labels=labels_of,
    )
    def put(self, kind: str, space: str, name: str, labels: dict[str, str]) -> None:
        identity = (kind, space, name)
        changes = self.index.put_object(*identity, labels)
        assert len(changes) == len(set(changes))
        assert set(changes) == self.reported(identity, self.objects.get(identity), labels)
        self.objects[identity] = labels

    @rule(kind=st.sampled_from(KINDS), space=st.sampled_from(SPACES), name=st.sampled_from(NAMES))
    def remove(self, kind: str, space: str, name: str) -> None:
        identity = (kind, space, name)
        changes = self.index.remove_object(*identity)
        assert len(changes) == len(set(changes))
        assert set(changes) == self.reported(identity, self.objects.pop(identity, None), None)

    @rule(selectors=st.lists(selectors_of, max_size=3), count=st.integers(0, 2))
    def prepare(self, selectors: list[TargetSelector], count: int) -> None:
        """A part of the objects becomes ready; the others may change, and go, before they are."""
        self.index.prepare(selectors, count)

    @rule(owner=st.sampled_from("pqr"), selectors=st.lists(selectors_of, max_size=3))
    def select(self, owner: str, selectors: list[TargetSelector]) -> None:
        found = self.index.set_selectors(owner, selectors)
        self.owners[owner] = selectors
        assert found == self.matches(owner)

    @rule(owner=st.sampled_from("pqr"))
    def forget(self, owner: str) -> None:
        self.index.remove_owner(owner)
        self.owners.pop(owner, None)
        assert self.index.matches(owner) == []

    @invariant()
    def the_standing_answer_is_that_of_a_scan(self) -> None:
        for owner in self.owners:
            assert self.index.matches(owner) == self.matches(owner)


TestModel = pytest.mark.slow(Model.TestCase)
TestModel.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@given(
    selectors=st.lists(selectors_of, max_size=4),
    identities=st.dictionaries(st.sampled_from(NAMES), labels_of),
)
@settings(deadline=None)
def test_selectors_before_objects_and_objects_before_selectors_end_alike(
    selectors: list[TargetSelector], identities: dict[str, dict[str, str]]
) -> None:
    early, late = SelectorIndex(), SelectorIndex()
    early.set_selectors("o", selectors)
    for name, labels in identities.items():
        early.put_object(KINDS[0], "a", name, labels)
        late.put_object(KINDS[0], "a", name, labels)
    assert late.set_selectors("o", selectors) == early.matches("o")


@given(
    selector=selectors_of,
    kind=st.sampled_from(KINDS),
    space=st.sampled_from(SPACES),
    name=st.sampled_from(NAMES),
    labels=labels_of,
)
def test_index_and_matcher_judge_one_object_as_the_definition_does(
    selector: TargetSelector, kind: str, space: str, name: str, labels: dict[str, str]
) -> None:
    index = SelectorIndex()
    index.set_selectors("o", [selector])
    found = bool(index.put_object(kind, space, name, labels))
    assert found == selects(selector, (kind, space, name), labels)
    wanted = selector.requirements
    assert matches(wanted, labels) == all(holds(requirement, labels) for requirement in wanted)


def test_an_unknown_operator_is_refused_and_the_owner_keeps_its_selectors() -> None:
    index = SelectorIndex()
    index.put_object(KINDS[0], "a", "one", {"site": "x"})
    index.set_selectors("o", [TargetSelector(KINDS[0], "a", SITE_X)])
    bad = Requirement("site", "Near", frozenset(("x",)))
    with pytest.raises(PermanentError, match='"Near" is not a valid label selector operator'):
        index.set_selectors("o", [TargetSelector(KINDS[0], "a", (bad,))])
    assert index.matches("o") == [[f"{KINDS[0]}|a|one"]]


def test_an_index_that_lost_all_owners_and_objects_holds_nothing() -> None:
    index = SelectorIndex()
    index.set_selectors(
        "o", [TargetSelector(KINDS[0], "a", SITE_X), TargetSelector(KINDS[0], "a", name="one")]
    )
    index.put_object(KINDS[0], "a", "one", {"site": "x"})
    index.remove_owner("o")
    index.remove_object(KINDS[0], "a", "one")
    assert vars(index) == vars(SelectorIndex())
