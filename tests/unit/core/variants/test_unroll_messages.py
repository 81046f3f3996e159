"""The messages of a set about kinds that are not served, missing inputs, and failing targets."""

from typing import Any

import pytest

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.records import OBJECTS, SyncMarker
from tests.simulation.parts import REPOSITORY, SET, SITE, UnrollPart, obj, site, site_set
from tests.unit.core.variants.unrolling import change, downstreams, live_on, part, reported, selecting


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        ("", "NoMatchingTargets", 'no matches for kind "Site" in version "example.org/v1"'),
        (
            'no matches for kind "Site" in group "example.org"',
            "NoMatchingTargets",
            'no matches for kind "Site" in version "example.org/v1"',
        ),
        (
            "403 Forbidden: sites is forbidden",
            "UnexpectedError",
            "example.org/Site cannot be read: 403 Forbidden: sites is forbidden",
        ),
    ],
)
def test_a_kind_that_cannot_be_selected_is_named(said: str, reason: str, message: str) -> None:
    """If it is not served, with the version, which the set knows and the observer does not. Where a right is
    missing, the kind is served, and another reason says so."""
    unroll = part(sites=("s1",))
    value = encode_row(SyncMarker(state="unavailable", epoch=2, message=said))
    unroll.controller.load(OBJECTS, 0, sync_key(*SITE), value)
    assert reported(unroll) == (reason, message)


@pytest.mark.parametrize("versions", [("v1", "v9"), ("v9", "v1")])
def test_a_kind_at_two_versions_is_selected_at_the_one_that_is_served(versions: tuple[str, str]) -> None:
    """Whichever target comes first; at the other version alone the kind is unknown."""
    targets = [selecting(api=f"example.org/{v}", name=f"s{n}") for n, v in enumerate(versions, 1)]
    unroll = part(*targets, sites=("s1", "s2"))
    assert reported(unroll) == ("Valid", "")
    assert downstreams(unroll) == {("r1", "s1"), ("r1", "s2")}
    change(unroll, selecting(api="example.org/v9"), generation=2)
    unknown = 'no matches for kind "Site" in version "example.org/v9"'
    assert reported(unroll) == ("NoMatchingTargets", unknown)


def labelled(template: dict[str, Any], *, env: str = "prod") -> dict[str, Any]:
    return {**selecting(matchLabels={"env": env}), "template": {"downstream": template}}


def test_a_failing_expression_names_its_target_and_counts_the_others() -> None:
    """Those of the same text apart from those of another one; the first target is the one that is named."""
    unroll = part(
        labelled({"repo": "r1", "packageExpr": "target.labels['pkg']"}),
        labelled({"repo": "r1", "packageExpr": "target.labels['name']"}, env="test"),
    )

    def said() -> str:
        reason, message = reported(unroll)
        assert reason == "UnexpectedError"
        where, _, rest = message.partition(": template.downstream.packageExpr: ")
        assert where == "spec.targets[0] with Site default/s3"
        return rest[rest.index("(") :] if "(" in rest else ""

    unroll.tell(SITE, site("s2", env="prod", pkg="fine"))
    unroll.tell(SITE, site("s3", env="prod"))
    assert said() == ""
    for number in range(4, 8):
        unroll.tell(SITE, site(f"s{number}", env="prod"))
    assert said() == "(and 4 more like it)"
    unroll.tell(SITE, site("t1", env="test"))
    assert said() == "(and 4 more like it and 1 other error)"
    unroll.tell(SITE, site("t2", env="test"))
    assert said() == "(and 4 more like it and 2 other errors)"
    assert downstreams(unroll) == {("r1", "fine")}


def test_a_target_whose_repository_is_missing_says_so_until_it_comes() -> None:
    unroll = part(labelled({"repo": "nowhere", "packageExpr": "target.name"}), sites=("s1",))
    missing = 'no Repository named "nowhere" in namespace "default"'
    assert reported(unroll) == ("UnexpectedError", f"spec.targets[0] with Site default/s1: {missing}")
    unroll.tell(REPOSITORY, obj(REPOSITORY, "nowhere", spec={}))
    assert reported(unroll) == ("Valid", "")


def test_an_upstream_whose_package_is_missing_says_so() -> None:
    upstream = {"repo": "up", "package": "absent", "revision": 1}
    unroll = part({"repositories": [{"name": "r1"}]}, up=upstream)
    unroll.tell(REPOSITORY, obj(REPOSITORY, "up", spec={}))
    missing = "could not find upstream package revision 'absent/1' in repo 'up'"
    message = f'{missing}: the repository has no package "absent"'
    assert reported(unroll) == ("UpstreamNotFound", message)


def test_objects_that_give_one_downstream_are_named_both() -> None:
    """Also of more than two, and whether or not one target selects them."""
    targets = [labelled({"repo": "r1", "packageExpr": "'same'"}, env=env) for env in ("prod", "test")]
    found: UnrollPart = part(*targets, sites=("s1",))
    assert downstreams(found) == {("r1", "same")}
    where = 'give the same downstream: package "same" in repository "r1"'
    first = "spec.targets[0] with Site default/s1"
    found.tell(SITE, site("s0", env="test"))
    second = "spec.targets[1] with Site default/s0"
    assert reported(found) == ("ValidationError", f"{first} and {second} {where}")
    found.tell(SITE, site("s2", env="prod"))
    third = "spec.targets[0] with Site default/s2"
    assert reported(found) == ("ValidationError", f"{first} and {third} (and 1 more) {where}")
    live_on(found)
    assert found.orders() == {"alpha-r1-same": "present"}


def test_a_set_in_the_old_form_says_so_and_keeps_its_variants() -> None:
    """An old Porch stored it as v1alpha1, and the API server shows it as v1alpha2: it says what to write."""
    unroll = part(sites=("s1", "s2"))
    before = dict(unroll.children)
    old = site_set(generation=2)
    old["spec"] = {"upstream": {"package": {"repo": "up", "name": "base"}, "revision": 1}, "targets": []}
    unroll.tell(SET, old)
    reason, message = reported(unroll)
    assert reason == "ValidationError"
    assert "$.spec.upstream.package" in message
    assert "form of v1alpha1" in message
    assert "write it anew in the form of v1alpha2" in message
    live_on(unroll)
    assert unroll.children == before
    change(unroll, generation=3)
    assert reported(unroll)[0] != "ValidationError"
    assert unroll.children.keys() == before.keys()


def test_a_set_with_another_wrong_type_names_the_field() -> None:
    unroll = part(sites=("s1",))
    wrong = site_set(generation=2)
    wrong["spec"]["upstream"]["revision"] = "one"
    unroll.tell(SET, wrong)
    reason, message = reported(unroll)
    assert reason == "ValidationError"
    assert message.startswith("the spec cannot be read: ")
    assert "$.spec.upstream.revision" in message
    assert "v1alpha1" not in message
