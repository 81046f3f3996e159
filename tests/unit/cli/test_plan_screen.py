"""A plan for a screen: groups of equal writes, a limit of lines, the part that is asked for."""

import random
from typing import Any

import pytest
from rich.text import Text

from pvbus.cli.plan import selected
from pvbus.cli.plandocument import Document
from pvbus.cli.plangroups import Selection, groups_of
from pvbus.cli.planscreen import LINES_MAX, screen_lines, shares_of
from pvbus.cli.plantext import plan_lines
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import UsageError

CONFLICT = {"file": "a.yaml", "field": "spec.x", "old": 1, "local": 2, "new": 3}


def variant_name(number: int, set_name: str = "web") -> str:
    return f"{set_name}-edge-c{number}-app"


def update(number: int, value: str, *, set_name: str = "web", path: str = "spec.tier") -> Document:
    name = variant_name(number, set_name)
    return {
        "verb": "update",
        "kind": "PackageVariant",
        "namespace": "default",
        "name": name,
        "variant": f"default/{name}",
        "reason": f"PackageVariantSet {set_name} renders it so",
        "differences": [
            {"path": path, "before": "silver", "after": value},
            {"path": "metadata.annotations.at", "before": "", "after": f"c{number} is here"},
        ],
    }


def draft(number: int, **more: Any) -> Document:
    name = variant_name(number)
    return {
        "verb": "create",
        "kind": "PackageRevision",
        "namespace": "default",
        "name": f"edge.c{number}-app.packagevariant-2",
        "variant": f"default/{name}",
        "reason": f"upgrade draft of PackageVariant {name} from blue.web.v1 to blue.web.v2",
        **more,
    }


def removal(number: int) -> Document:
    name = variant_name(number)
    reason = "no target of PackageVariantSet web wants it any more"
    return {
        "verb": "delete",
        "kind": "PackageVariant",
        "namespace": "default",
        "name": name,
        "variant": f"default/{name}",
        "reason": reason,
    }


def document(
    *actions: Document, sets: tuple[str, ...] = ("web",), count: int = 5_000, **more: Any
) -> Document:
    variants = {
        f"default/{variant_name(number, set_name)}": {
            "set": f"default/{set_name}",
            "labels": {"region": "asia" if number % 2 else "europe"},
            "package": f"c{number}-app",
            "target": f"c{number}",
        }
        for set_name in sets
        for number in range(count)
    }
    rest: Document = {"conditions": {}, "packages": {}, "held": [], "troubles": [], "notes": []}
    return {"actions": list(actions), "variants": variants, **rest, **more}


def shown(plan: Document) -> list[str]:
    return [Text.from_markup(line).plain for line in screen_lines(plan)]


def test_equal_changes_of_many_variants_are_one_group_with_one_example_in_full() -> None:
    """Names of the variant, its package and its target do not make a change another one."""
    actions = [update(number, "gold") for number in range(180)]
    random.Random(1).shuffle(actions)
    lines = shown(document(*actions, count=180))
    assert lines[0] == "Plan: 180 to update."
    assert lines[1] == "  PackageVariantSet default/web: 180 of 180 variants change"
    assert lines[2].startswith("~ update 180 PackageVariants, such as default/web-edge-c0-app: ")
    assert '    spec.tier: "silver" -> "gold"' in lines
    assert len(lines) == 5


def test_changes_of_other_values_are_groups_of_their_own() -> None:
    groups = groups_of(document(*(update(n, "gold" if n < 3 else "bronze") for n in range(10))))
    assert sorted(len(group.actions) for group in groups) == [3, 7]
    assert all(group.is_same for group in groups)


def test_many_different_values_of_one_field_are_one_group_that_says_so() -> None:
    plan = document(*(update(number, f"tier-{number * 7}") for number in range(100)))
    (group,) = groups_of(plan)
    assert not group.is_same
    assert "    the values differ from variant to variant; in this one:" in shown(plan)


def test_what_a_person_must_look_at_comes_before_the_other_writes() -> None:
    """Summary, errors, conflicts, held removals, removals, updates."""
    held = [{"kind": "PackageVariant", "namespace": "default", "name": variant_name(9), "set": "web"}]
    trouble = "PackageVariant/default/web-edge-c7-app: Stalled=True: no such key"
    lines = shown(
        document(
            *(update(number, "gold") for number in range(3)),
            *(draft(number, conflicts=[CONFLICT]) for number in (4, 5)),
            removal(6),
            held=held,
            troubles=[trouble],
        )
    )
    text = "\n".join(lines)
    places = [
        text.index(word) for word in ("Plan:", "Stalled", "conflict a.yaml", "hold", "- delete", "~ update")
    ]
    assert places == sorted(places)
    assert sum("conflict a.yaml" in line for line in lines) == 1
    assert "default/edge.c4-app.packagevariant-2 and 1 more" in text


def test_equal_troubles_are_counted() -> None:
    troubles = [
        f"PackageVariant/default/{variant_name(n)}: Stalled=True: {variant_name(n)} has no key"
        for n in range(99)
    ]
    lines = shown(document(troubles=troubles))
    assert [line for line in lines if "Stalled" in line] == [f"! {troubles[0]} (and 98 more like it)"]


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_of_5000_variants_fits_a_screen_whatever_it_is(seed: int) -> None:
    """Many sets, kinds of changes, conflicts, troubles, notes and diffs: never more than LINES_MAX lines."""
    choice = random.Random(seed)
    sets = tuple(f"set-{number}" for number in range(choice.choice((1, 3, 40))))
    variety = choice.choice((1, 5, 500))
    actions = [
        choice.choice(
            (
                lambda n: update(n, f"v{choice.randrange(variety)}", set_name=choice.choice(sets)),
                lambda n: update(
                    n, "x", path=f"spec.f{choice.randrange(variety)}", set_name=choice.choice(sets)
                ),
                lambda n: draft(n, conflicts=[{**CONFLICT, "new": choice.randrange(variety)}]),
                removal,
            )
        )(number)
        for number in range(5_000)
    ]
    diffs = {
        f"default/edge.c{n}-app.packagevariant-2": "--- a/x\n+++ b/x\n" + "+line\n" * 200
        for n in range(5_000)
    }
    troubles = [f"PackageVariant/default/x{n}: Stalled=True: reason {n % variety}" for n in range(5_000)]
    notes = [f"note {number}" for number in range(300)]
    plan = document(*actions, sets=sets, diffs=diffs, troubles=troubles, notes=notes)
    lines = shown(plan)
    assert len(lines) <= LINES_MAX
    assert "--details" in "\n".join(lines)


def test_details_list_every_write_in_order() -> None:
    actions = [update(number, "gold") for number in range(12)]
    random.Random(3).shuffle(actions)
    lines = [line for line in plan_lines(document(*actions)) if "update PackageVariant" in line]
    assert lines == sorted(lines)
    assert len(lines) == 12


def test_a_selector_leaves_its_variants_and_their_problems() -> None:
    conditions = {
        f"PackageVariant/default/{variant_name(n)}": [
            {"type": "Stalled", "status": "True", "message": f"broken {n}"}
        ]
        for n in (1, 2)
    }
    plan = document(*(update(number, "gold") for number in range(10)), conditions=conditions)
    part = selected(plan, Selection(selector=parse_label_selector("region=asia"), text="-l region=asia"))
    assert [action["name"] for action in part["actions"]] == [variant_name(n) for n in (1, 3, 5, 7, 9)]
    assert part["troubles"] == ["PackageVariant/default/web-edge-c1-app: Stalled=True: broken 1"]
    assert plan["actions"] != part["actions"]


def test_a_set_leaves_its_variants() -> None:
    plan = document(update(1, "gold"), update(1, "gold", set_name="db"), sets=("web", "db"))
    assert [a["name"] for a in selected(plan, Selection(set_key="default/db"))["actions"]] == [
        "db-edge-c1-app"
    ]


def test_a_selection_without_any_variant_is_refused() -> None:
    """A mistyped label must not read as `no changes`."""
    selection = Selection(selector=parse_label_selector("region=aisa"), text="-l region=aisa")
    with pytest.raises(UsageError, match="-l region=aisa: matches none of the 5000 variants"):
        selected(document(update(1, "gold")), selection)


@pytest.mark.parametrize(
    ("lengths", "room", "shares"),
    [([2, 50, 1], 40, [2, 37, 1]), ([30, 30], 40, [20, 20]), ([], 9, []), ([5, 5, 5], 2, [0, 1, 1])],
)
def test_long_examples_get_what_short_ones_leave(lengths: list[int], room: int, shares: list[int]) -> None:
    assert shares_of(lengths, room) == shares
