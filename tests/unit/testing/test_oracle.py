"""The oracle gives the answers worked out by hand; each case is one rule of the semantics."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import Downstream, PackageVariant, PackageVariantSet
from pvbus.core.kernel.keys import HOLD, SET_UID_LABEL, colliding_variant_name
from tests.kit.oracle import Expected, Thing, expected_variants

LONG_AGO, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
SITE = "example.org/Site"
BASE = msgspec.convert(
    {
        "metadata": {"name": "blueprints.base.v1", "namespace": "default"},
        "spec": {"repository": "blueprints", "packageName": "base", "revision": 1, "workspaceName": "v1"},
    },
    PackageRevision,
)


def a_set(name: str = "fleet", *targets: Any, created: str = LONG_AGO, **metadata: Any) -> PackageVariantSet:
    """A set of the package `base`, revision 1; its uid is `uid-<name>`."""
    obj = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            **metadata,
        },
        "spec": {"upstream": {"repo": "blueprints", "package": "base", "revision": 1}, "targets": targets},
    }
    return msgspec.convert(obj, PackageVariantSet)


def listed(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"repositories": [{"name": repo, "packageNames": [package]} for repo, package in pairs]}


def repository(name: str, **labels: str) -> Repository:
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "labels": labels}}, Repository)


def child(name: str, owner: str, repo: str, package: str = "base", **metadata: Any) -> PackageVariant:
    """A PackageVariant of the set named `owner`, or of a person where that is empty."""
    mine: dict[str, Any] = {}
    if owner:
        mine = {
            "labels": {SET_UID_LABEL: f"uid-{owner}"},
            "ownerReferences": [
                {"kind": "PackageVariantSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
            ],
        }
    obj = {
        "metadata": {"name": name, "namespace": "default", **mine, **metadata},
        "spec": {"downstream": {"repo": repo, "package": package}, "labels": {"as": "it was"}},
    }
    return msgspec.convert(obj, PackageVariant)


def outcome(*sets: PackageVariantSet, **more: Any) -> dict[str, Expected]:
    revisions = more.pop("revisions", [BASE])
    found = expected_variants(sets, more.pop("objects", ()), more.pop("repositories", ()), revisions, **more)
    return {vkey.removeprefix("default/"): expected for vkey, expected in found.items()}


def downstreams(found: dict[str, Expected]) -> dict[str, tuple[str, str]]:
    out = {}
    for name, expected in found.items():
        assert expected.spec.downstream is not None
        out[name] = (expected.spec.downstream.repo, expected.spec.downstream.package)
    return out


def retained(found: dict[str, Expected]) -> set[str]:
    """Names of the variants that are as they were."""
    return {name for name, expected in found.items() if expected.spec.labels == {"as": "it was"}}


def test_a_list_gives_one_variant_per_package_and_the_upstreams_name_where_none_is_given() -> None:
    found = outcome(
        a_set("fleet", {"repositories": [{"name": "r1", "packageNames": ["a", "b"]}, {"name": "r2"}]})
    )
    assert downstreams(found) == {
        "fleet-r1-a": ("r1", "a"),
        "fleet-r1-b": ("r1", "b"),
        "fleet-r2-base": ("r2", "base"),
    }
    assert {expected.owner for expected in found.values()} == {"uid-fleet"}


def test_selected_objects_are_rendered_with_their_repository() -> None:
    template = {
        "downstream": {"repoExpr": "'repo-' + target.labels['site']"},
        "labelExprs": [{"key": "zone", "valueExpr": "repository.labels['zone']"}],
    }
    target = {
        "objectSelector": {
            "apiVersion": "example.org/v1",
            "kind": "Site",
            "matchLabels": {"fleet": "edge"},
            "matchExpressions": [{"key": "retired", "operator": "DoesNotExist"}],
        },
        "template": template,
    }
    things = [
        Thing(SITE, "default", "one", {"fleet": "edge", "site": "n"}),
        Thing(SITE, "default", "two", {"fleet": "edge", "site": "s", "retired": ""}),
        Thing(SITE, "elsewhere", "three", {"fleet": "edge", "site": "n"}),
        Thing("example.org/Town", "default", "four", {"fleet": "edge", "site": "n"}),
    ]
    found = outcome(
        a_set("fleet", target),
        objects=things,
        repositories=[repository("repo-n", zone="z1")],
    )
    assert downstreams(found) == {"fleet-repo-n-base": ("repo-n", "base")}
    assert found["fleet-repo-n-base"].spec.labels == {"zone": "z1"}


def test_one_failing_target_leaves_the_others_but_nothing_is_removed() -> None:
    target = {
        "repositorySelector": {"matchLabels": {"fleet": "edge"}},
        "template": {"labelExprs": [{"key": "site", "valueExpr": "target.labels['site']"}]},
    }
    found = outcome(
        a_set("fleet", target),
        repositories=[repository("r1", fleet="edge", site="n"), repository("r2", fleet="edge")],
        existing_children=[child("fleet-r2-base", "fleet", "r2"), child("fleet-r9-base", "fleet", "r9")],
    )
    assert set(found) == {"fleet-r1-base", "fleet-r2-base", "fleet-r9-base"}
    assert retained(found) == {"fleet-r2-base", "fleet-r9-base"}


def test_a_child_that_no_target_wants_goes_and_a_persons_variant_stays() -> None:
    found = outcome(
        a_set("fleet", listed(("r1", "base"))),
        existing_children=[child("fleet-r2-base", "fleet", "r2"), child("mine", "", "r3")],
    )
    assert set(found) == {"fleet-r1-base", "mine"}
    assert found["mine"].owner == ""


def test_two_targets_for_one_downstream_keep_its_child_and_the_others_go_on() -> None:
    twice = a_set("fleet", listed(("r1", "base")), listed(("r1", "base"), ("r2", "base")))
    found = outcome(twice, existing_children=[child("fleet-r1-base", "fleet", "r1")])
    assert set(found) == {"fleet-r1-base", "fleet-r2-base"}
    assert retained(found) == {"fleet-r1-base"}
    assert set(outcome(twice)) == {"fleet-r2-base"}


def test_of_two_downstreams_with_one_name_the_first_target_gets_it() -> None:
    found = outcome(a_set("s", listed(("a-b", "c")), listed(("a", "b-c"))))
    assert downstreams(found) == {
        "s-a-b-c": ("a-b", "c"),
        colliding_variant_name("s", "a", "b-c"): ("a", "b-c"),
    }


def test_a_name_in_use_stays_with_its_downstream() -> None:
    obj = a_set("s", listed(("a-b", "c")), listed(("a", "b-c")))
    found = outcome(obj, existing_children=[child("s-a-b-c", "s", "a", "b-c")])
    assert downstreams(found) == {
        "s-a-b-c": ("a", "b-c"),
        colliding_variant_name("s", "a-b", "c"): ("a-b", "c"),
    }


def test_a_remembered_child_that_was_edited_by_hand_is_set_back() -> None:
    names = {"default/fleet": {"fleet-r1-base": Downstream(repo="r1", package="base")}}
    found = outcome(
        a_set("fleet", listed(("r1", "base"))),
        existing_children=[child("fleet-r1-base", "fleet", "r7")],
        remembered_names=names,
    )
    assert downstreams(found) == {"fleet-r1-base": ("r1", "base")}
    assert retained(found) == set()


@pytest.mark.parametrize(
    ("obj", "more"),
    [
        pytest.param(a_set("fleet"), {}, id="invalid"),
        pytest.param(a_set("fleet", listed(("r1", "base"))), {"revisions": []}, id="no upstream"),
        pytest.param(
            a_set("fleet", {"objectSelector": {"apiVersion": "example.org/v1", "kind": "Site"}}),
            {"unknown_kinds": [SITE]},
            id="unknown kind",
        ),
        pytest.param(
            a_set("fleet", {**listed(("r1", "base")), "template": {"downstream": {"repoExpr": "nobody"}}}),
            {"repositories": [repository("r1")]},
            id="bad expression",
        ),
        pytest.param(a_set("fleet", listed(("r1", "base")), annotations={HOLD: "true"}), {}, id="on hold"),
    ],
)
def test_a_set_that_cannot_be_evaluated_writes_and_removes_nothing(
    obj: PackageVariantSet, more: dict[str, Any]
) -> None:
    found = outcome(obj, existing_children=[child("fleet-r2-base", "fleet", "r2")], **more)
    assert retained(found) == set(found) == {"fleet-r2-base"}


def test_the_upstream_must_have_every_half_that_is_given() -> None:
    draft = msgspec.structs.replace(BASE, spec=msgspec.structs.replace(BASE.spec, revision=0))
    assert outcome(a_set("fleet", listed(("r1", "base"))), revisions=[draft]) == {}


def test_between_two_sets_the_living_childs_owner_wins_and_without_one_the_older() -> None:
    old = a_set("a", listed(("b-c", "base")), created=LONG_AGO)
    new = a_set("a-b", listed(("c", "base")), created=LATER)
    assert outcome(old, new)["a-b-c-base"].owner == "uid-a"
    theirs = [child("a-b-c-base", "a-b", "c")]
    assert outcome(old, new, existing_children=theirs)["a-b-c-base"].owner == "uid-a-b"


def test_a_name_that_its_owner_gives_up_goes_to_the_set_that_claims_it() -> None:
    leases = a_set("a", listed(("b-c", "base")))
    leaves = a_set("a-b", listed(("r1", "base")), created=LATER)
    found = outcome(leases, leaves, existing_children=[child("a-b-c-base", "a-b", "c")])
    assert found["a-b-c-base"].owner == "uid-a"
    assert set(found) == {"a-b-c-base", "a-b-r1-base"}


def test_a_persons_variant_is_never_overwritten_and_other_removals_of_the_losing_set_go_on() -> None:
    mine = child("fleet-r1-base", "", "r1")
    found = outcome(
        a_set("fleet", listed(("r1", "base"))),
        existing_children=[mine, child("fleet-r2-base", "fleet", "r2")],
    )
    assert set(found) == {"fleet-r1-base"}
    assert found["fleet-r1-base"] == Expected(mine.spec, "")


def test_children_of_a_set_that_is_gone_or_going_are_gone() -> None:
    children = [child("fleet-r1-base", "fleet", "r1")]
    assert outcome(existing_children=children) == {}
    going = a_set("fleet", listed(("r1", "base")), deletionTimestamp=LATER)
    assert outcome(going, existing_children=children) == {}


def test_a_variant_on_hold_is_left_as_it_is() -> None:
    children = [
        child("fleet-r1-base", "fleet", "r1", annotations={HOLD: "true"}),
        child("fleet-r2-base", "fleet", "r2", annotations={HOLD: "true"}),
    ]
    found = outcome(a_set("fleet", listed(("r1", "base"))), existing_children=children)
    assert retained(found) == set(found) == {"fleet-r1-base", "fleet-r2-base"}


def test_the_order_of_the_inputs_does_not_matter() -> None:
    target: dict[str, Any] = {"repositorySelector": {}}
    sets = [a_set("a", target), a_set("a-b", target, created=LATER)]
    repositories = [repository("b-c"), repository("c"), repository("d")]
    assert outcome(*sets, repositories=repositories) == outcome(*sets[::-1], repositories=repositories[::-1])
