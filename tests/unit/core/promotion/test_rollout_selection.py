"""Which revisions a policy is for, which of them may be approved, and what Nephio's annotations mean here."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.api.variants import PackageVariant
from pvbus.core.promotion.protocol.selection import Selection, conditions_of, packages_of, select

CREATED = "2026-01-01T00:00:00Z"
NOW = 1_767_225_600.0 + 3600  # an hour later


def policy(name: str = "p", created: str = CREATED, **spec: Any) -> RolloutPolicy:
    metadata = {"name": name, "creationTimestamp": created}
    wanted = {"revisions": {"all": True}, "approval": "Always", **spec}
    return msgspec.convert({"metadata": metadata, "spec": wanted}, RolloutPolicy)


def revision(package: str, lifecycle: str = "Proposed", *, number: int = 0, **meta: Any) -> dict[str, Any]:
    name = f"edge.{package}.v{number or 9}"
    return {
        "metadata": {"name": name, "creationTimestamp": CREATED, **meta},
        "spec": {
            "repository": "edge",
            "packageName": package,
            "lifecycle": lifecycle,
            "revision": number,
            "readinessGates": [],
        },
        "status": {"selfLock": {"type": "git", "git": {"commit": f"c-{name}"}}},
    }


def variant(name: str, *, ready: str = "True", **labels: str) -> PackageVariant:
    owner = {"kind": "PackageVariantSet", "name": "web", "uid": "set"}
    condition = {"type": "Ready", "status": ready, "reason": "Why", "message": "no upstream"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [owner]},
            "status": {"conditions": [condition]},
        },
        PackageVariant,
    )


def owned(name: str) -> list[dict[str, str]]:
    return [{"kind": "PackageVariant", "name": name, "uid": f"uid-{name}"}]


def selected(
    *revisions: dict[str, Any], variants: list[PackageVariant] | None = None, **spec: Any
) -> Selection:
    (found,) = select([policy(**spec)], packages_of(revisions, variants or []), NOW)
    return found


def reasons(selection: Selection) -> dict[str, str]:
    return {each.target: each.reason for each in selection.left_out}


def annotated(**annotations: str) -> dict[str, Any]:
    return revision(
        "a", annotations={f"approval.nephio.org/{key}": value for key, value in annotations.items()}
    )


PUBLISHED = revision("a", "Published", number=1)
NEPHIO: list[tuple[str, dict[str, Any], bool, str, str]] = [
    ("no annotation, Always", revision("a"), True, "Always", ""),
    ("no annotation, Initial, published before", revision("a"), True, "Initial", "NotInitial"),
    ("no annotation, Initial, first", revision("a"), False, "Initial", ""),
    ("no annotation, Manual", revision("a"), True, "Manual", ""),
    ("always, Manual", annotated(policy="always"), True, "Manual", ""),
    ("initial, published before", annotated(policy="initial"), True, "Always", "NotInitial"),
    ("initial, first", annotated(policy="initial"), False, "Always", ""),
    ("always goes before Initial", annotated(policy="always"), True, "Initial", ""),
    ("an unknown value approves nothing", annotated(policy="Initial"), False, "Always", "InvalidPolicy"),
    ("a delay that has passed", annotated(delay="59m"), False, "Always", ""),
    ("a delay that has just passed", annotated(delay="1h"), False, "Always", ""),
    ("a delay that has not passed", annotated(delay="61m"), False, "Always", "Delayed"),
    ("no duration", annotated(delay="foo"), False, "Always", "InvalidDelay"),
    ("a negative delay", annotated(delay="-5s"), False, "Always", "InvalidDelay"),
]


@pytest.mark.parametrize(
    ("_", "proposed", "has_published", "approval", "reason"), NEPHIO, ids=[n[0] for n in NEPHIO]
)
def test_the_annotations_of_nephio(
    _: str, proposed: dict[str, Any], has_published: bool, approval: str, reason: str
) -> None:
    revisions = [proposed, PUBLISHED] if has_published else [proposed]
    found = selected(*revisions, approval=approval)
    assert reasons(found).get("edge/a", "") == reason
    assert found.seen["edge/a"].is_proposed is not bool(reason)


def test_a_delay_says_when_it_is_over_and_an_unknown_age_waits() -> None:
    (left,) = selected(annotated(delay="2h")).left_out
    assert left.due == NOW + 3600
    assert not selected(annotated(delay="59m"), delay="2h").left_out, "it goes before the policy's"
    (left,) = selected(revision("a", creationTimestamp=None), delay="2h").left_out
    assert "creation time is not known" in left.message


def test_unmet_gates_and_variants_that_are_not_ready_are_left_out() -> None:
    gated = revision("b")
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/checked"}]
    mine = revision("c", ownerReferences=owned("v"))
    found = selected(revision("a"), gated, mine, variants=[variant("v", ready="False")])
    assert reasons(found) == {"edge/b": "GateNotMet", "v": "NotUpToDate"}
    assert [target for target, facts in found.seen.items() if facts.is_proposed] == ["edge/a"]


def test_the_published_revision_is_the_highest_and_drafts_do_not_count() -> None:
    found = selected(
        revision("a"),
        revision("a", "Published", number=2),
        revision("a", "DeletionProposed", number=10),
        revision("a", "Draft", number=0, name="draft"),
    )
    facts = found.seen["edge/a"]
    assert (facts.revision, facts.published) == ("edge.a.v9", "edge.a.v10")
    assert facts.published_digest == "c-edge.a.v10"


def test_targets_are_canaries_then_ordered_by_labels_then_by_name() -> None:
    found = selected(
        *(revision(name, labels={"tier": tier}) for name, tier in zip("abcdef", "ptpt?t", strict=True)),
        canaries=["edge/e", "edge/c"],
        order=[{"label": "tier", "values": ["t", "p"]}],
    )
    assert [target[-1] for target in found.seen] == ["e", "c", "b", "d", "f", "a"]


def test_a_policy_selects_by_set_labels_and_repository_together() -> None:
    packages = packages_of(
        [revision("a", ownerReferences=owned("v")), revision("b", labels={"x": "y"})], [variant("v", x="y")]
    )
    for wanted, targets in (
        ({"set": "web"}, ["v"]),
        ({"selector": {"matchLabels": {"x": "y"}}}, ["edge/b", "v"]),
        ({"selector": {"matchLabels": {"x": "y"}}, "set": "web"}, ["v"]),
        ({"repositories": ["core"]}, []),
        ({"all": True}, ["edge/b", "v"]),
    ):
        (found,) = select([policy(revisions=wanted)], packages, NOW)
        assert list(found.seen) == targets, wanted


@pytest.mark.parametrize(
    "wanted", [{}, {"selector": {}}, {"selector": {"matchLabels": {}}, "repositories": []}]
)
def test_an_empty_selection_approves_nothing_says_what_to_write_and_hands_nothing_over(wanted: Any) -> None:
    packages = packages_of([revision("a")], [])
    empty, other = select([policy("a", revisions=wanted, priority=1), policy("b")], packages, NOW)
    assert (empty.seen, other.seen, other.lost) == ({}, {}, {"edge/a": "a"})
    accepted = {c.type: c for c in conditions_of(empty, NOW)}["Accepted"]
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert "write `revisions: {all: true}`" in accepted.message


def test_a_policy_whose_windows_never_open_says_so_and_stays_accepted() -> None:
    shut = {"firstDate": "2000-01-01", "lastDate": "2100-01-01"}
    (found,) = select([policy("a", denyWindows=[shut])], packages_of([revision("a")], []), NOW)
    accepted = {c.type: c for c in conditions_of(found, NOW)}["Accepted"]
    assert (accepted.status, accepted.reason) == ("True", "NeverOpens")
    assert "no time window opens in the next 90 days" in accepted.message


def test_of_two_policies_the_higher_priority_wins_then_the_older_then_the_name() -> None:
    packages = packages_of([revision("a")], [])
    for policies, winner in (
        ([policy("a"), policy("b", priority=1)], "b"),
        ([policy("a", created="2026-02-01T00:00:00Z"), policy("b")], "b"),
        ([policy("b"), policy("a")], "a"),
    ):
        found = {each.policy.metadata.name: each for each in select(policies, packages, NOW)}
        assert list(found[winner].seen) == ["edge/a"]
        (loser,) = set(found) - {winner}
        assert (found[loser].seen, found[loser].lost) == ({}, {"edge/a": winner})
        overlap = {c.type: c for c in conditions_of(found[loser], NOW)}["Overlapping"]
        assert overlap.status == "True"
        assert f"(edge/a) belong to {winner}: the highest priority wins" in overlap.message


def test_a_wrong_policy_approves_nothing_and_hands_nothing_over() -> None:
    packages = packages_of([revision("a")], [])
    wrong, other = select([policy("a", delay="soon", priority=1), policy("b")], packages, NOW)
    assert (wrong.seen, other.seen, other.lost) == ({}, {}, {"edge/a": "a"})
    accepted = {c.type: c for c in conditions_of(wrong, NOW)}["Accepted"]
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert accepted.message.startswith('spec.delay: "soon"')
