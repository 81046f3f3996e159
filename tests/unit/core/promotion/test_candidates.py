"""What promote says of a variant to the rollouts: tables of candidates, and accidents with policies."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.keys import GATE_STEPS, HOLD, PROPOSED_CONTENT
from pvbus.core.kernel.promotionrows import Approval, CandidateRow, PromotionRow, ReleaseRow
from pvbus.core.kernel.records import CANDIDATES, POLICIES, PROMOTIONS, RELEASES, DesiredRow, SyncMarker
from pvbus.core.promotion.rollout.candidates import words_of
from pvbus.core.variants.revisions.content import content_digest
from tests.unit.core.promotion.promoting import FILES, KEY, NAME, NOW, PromoteWorld, draft, variant

DIGEST = content_digest(FILES)
OLD = "edge.web.v1"
OLD_FILES = {"a.yaml": "a: 0\n"}
POLICY_KIND = "promotion.pvbus.dev/RolloutPolicy"
REVISION_KIND = "porch.kpt.dev/PackageRevision"
VARIANT_KIND = "config.porch.kpt.dev/PackageVariant"
READY = {"type": "Ready", "status": "True", "reason": "NoErrors", "observedGeneration": 2}
DELETION: Any = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


def policy(name: str = "web", *, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
        },
        "spec": {"revisions": {"all": True}, "approval": "Always", **spec},
    }


def published(name: str = OLD, number: int = 1, *, conditions: Any = (), **metadata: Any) -> dict[str, Any]:
    found = draft(lifecycle="Published", conditions=conditions, **{"name": name, **metadata})
    found["spec"]["revision"] = number
    return found


def proposal(**metadata: Any) -> dict[str, Any]:
    return draft(
        lifecycle="Proposed", annotations={PROPOSED_CONTENT: DIGEST} | metadata.pop("noted", {}), **metadata
    )


def world_of(*policies: Any, revision: Any = None, of: Any = None, old: Any = ()) -> PromoteWorld:
    world = PromoteWorld(revision, of)
    world.server.published = list(old)
    world.server.files_of = {OLD: OLD_FILES}
    world.policies = list(policies)
    world.settle()
    return world


def rows(world: PromoteWorld) -> dict[str, CandidateRow]:
    """Return the candidates of the variant by policy."""
    found = {}
    for (topic, key), value in world.rows.items():
        if topic == CANDIDATES:
            of, _, target = key.partition("|")
            assert target == "web-edge"
            found[of.removeprefix("default/")] = msgspec.json.decode(value, type=CandidateRow)
    return found


def release(world: PromoteWorld, *approvals: Approval, uid: str = "uid-v") -> None:
    """Report outcomes of orders, as release does."""
    value = encode_row(ReleaseRow(uid=uid, approvals=approvals))
    assert value is not None
    world.rows[RELEASES, KEY] = value
    world.promote.load(RELEASES, 0, KEY, value)
    world.observe()
    world.run(world.promote)


def approval(order: Any, outcome: Any, *, of: str = "web", attempt: int = 3, message: str = "") -> Approval:
    return Approval(
        policy=of,
        attempt=attempt,
        order=order,
        revision=NAME,
        digest=DIGEST,
        outcome=outcome,
        message=message,
    )


def mark(world: PromoteWorld, kind: str, **marker: Any) -> None:
    world.markers[kind] = SyncMarker(**{"state": "ok", "epoch": 2, **marker})


# ------------------------------------------------------------ one policy


def test_a_proposal_is_a_candidate_with_the_content_that_was_noted() -> None:
    world = world_of(policy(), revision=draft(), old=[published()])
    assert rows(world) == {
        "web": CandidateRow(
            uid="uid-v",
            revision=NAME,
            digest=DIGEST,
            is_proposed=True,
            published=OLD,
            published_digest=content_digest(OLD_FILES),
            is_good=None,
            verdict="Ready is about a newer revision",
        )
    }


GATED: Any = {"gates": ("ip",), "conditions": (("ip", "False"),)}
NEPHIO = "approval.nephio.org"


@pytest.mark.parametrize(
    ("spec", "of", "revision", "old", "reason", "words"),
    [
        ({}, None, proposal(), (), "", ""),
        ({}, None, draft(lifecycle="Draft", **GATED), (), "", ""),
        ({}, None, draft(lifecycle="Proposed", **GATED), (), "GateNotMet", "unmet readiness gates: ip"),
        ({}, variant(annotations={HOLD: "true"}), proposal(), (), "OnHold", "pvbus unhold default/web-edge"),
        ({}, variant(generation=3), proposal(), (), "NotUpToDate", "have not done its last change"),
        ({}, variant(**DELETION), proposal(), (), "Deleted", "being deleted"),
        ({}, None, proposal(**DELETION), (), "Deleted", "being deleted"),
        ({"approval": "Initial"}, None, proposal(), (), "", ""),
        ({"approval": "Initial"}, None, proposal(), (published(),), "NotInitial", f"{OLD} is published"),
        ({}, None, proposal(noted={f"{NEPHIO}/policy": "never"}), (), "InvalidPolicy", '"never"'),
        ({}, variant(opted_in=False), draft(annotations={f"{NEPHIO}/policy": "always"}), (), "", ""),
        (
            {},
            None,
            draft(lifecycle="Proposed", conditions=(("Rendered", "False"),)),
            (),
            "NotRendered",
            "pipeline has not run",
        ),
        (
            {},
            None,
            draft(lifecycle="Proposed", annotations={CONFLICTS: '[{"file":"a"}]'}),
            (),
            "UpgradeConflict",
            "1 conflict",
        ),
        ({"delay": "1h"}, None, proposal(), (), "Delayed", "younger than 1h"),
        ({"delay": "30s"}, None, proposal(), (), "", ""),
        ({"waves": [{"percent": 10}]}, None, proposal(), (), "InvalidSpec", "100"),
    ],
)
def test_why_a_revision_may_not_be_approved(
    spec: Any, of: Any, revision: Any, old: Any, reason: str, words: str
) -> None:
    row = rows(world_of(policy(**spec), revision=revision, of=of, old=old))["web"]
    is_proposed = revision["spec"]["lifecycle"] == "Proposed" and not reason
    assert (row.reason, row.is_proposed) == (reason, is_proposed)
    assert words in row.message


def test_a_gate_for_the_approval_keeps_every_rollout_from_the_proposal() -> None:
    """It is proposed, and is a candidate once the gate is met."""
    revision = draft(gates=("budget",), conditions=(("budget", "False"),))
    revision["spec"]["packageMetadata"] = {"annotations": {GATE_STEPS: '{"budget": "approve"}'}}
    world = world_of(policy(), revision=revision)
    row = rows(world)["web"]
    assert (world.server.moves, row.reason, row.is_proposed) == (["Proposed"], "ApprovalGateNotMet", False)
    assert "budget" in row.message
    world.set_condition("budget", "True")
    world.settle()
    row = rows(world)["web"]
    assert (world.server.moves, row.reason, row.is_proposed) == (["Proposed"], "", True)


def test_a_set_on_hold_holds_its_candidates() -> None:
    world = world_of(policy(), revision=proposal())
    world.desired = DesiredRow(set_name="web", uid="uid-v", on_hold=True, hold_reason="fair")
    world.settle()
    assert (rows(world)["web"].reason, "(fair)" in rows(world)["web"].message) == ("OnHold", True)


def test_a_delay_is_looked_at_again_when_it_is_over() -> None:
    world = world_of(policy(delay="90s"), revision=proposal())
    outcome = world.run(world.promote)
    assert outcome is not None
    assert outcome.again_after == pytest.approx(30.0)
    world.now = NOW + 30
    world.run(world.promote)
    assert rows(world)["web"].is_proposed


def test_positions_are_canaries_first_then_by_labels() -> None:
    order = [{"label": "stage", "values": ["test", "production"]}]
    of = variant(labels={"stage": "production"})
    world = world_of(policy(order=order), policy("later", canaries=["web-edge"]), revision=proposal(), of=of)
    assert (rows(world)["later"].canary, rows(world)["later"].places) == (0, ())
    world.policies = [policy(order=order, canaries=["another"])]
    world.settle()
    assert (rows(world)["web"].canary, rows(world)["web"].places) == (1, (1,))


LABELLED = {"selector": {"matchLabels": {"a": "b"}}}
CANARY: list[tuple[str, dict[str, Any], dict[str, Any], Any, str]] = [
    ("proposed", {}, {}, proposal(), ""),
    (
        "a draft with an unmet gate",
        {},
        {},
        draft(gates=["Certified"]),
        "GateNotMet: edge.web",
    ),
    (
        "on hold",
        {},
        {"annotations": {HOLD: "true"}},
        proposal(),
        "OnHold: it is on hold: pvbus unhold",
    ),
    ("no revision", {}, {}, None, "NoRevision: it has no package revision"),
    (
        "no revision, not ready",
        {},
        {"ready": {"status": "False"}},
        None,
        "it has no package revision: ",
    ),
    (
        "another label",
        {"selector": {"matchLabels": {"a": "b"}}},
        {"labels": {"a": "c"}},
        proposal(),
        "its label a is c",
    ),
    ("no label", LABELLED, {}, proposal(), "it has no label a"),
    ("another set", {"set": "web"}, {}, proposal(), "it is of no set, not of set web"),
    ("another repository", {"repositories": ["core"]}, {}, proposal(), "its repository is edge"),
]


@pytest.mark.parametrize(
    ("_", "revisions", "of", "revision", "words"), CANARY, ids=[row[0] for row in CANARY]
)
def test_what_stands_in_the_way_of_a_canary_is_said(
    _: str, revisions: Any, of: Any, revision: Any, words: str
) -> None:
    canary = policy(revisions=revisions or {"all": True}, canaries=["web-edge"])
    world = world_of(canary, policy("z"), revision=revision, of=variant(**of))
    assert words in words_of(rows(world)["web"])
    assert bool(words) is not rows(world)["web"].is_proposed


def test_a_canary_that_another_policy_has_names_it() -> None:
    world = world_of(policy(canaries=["web-edge"]), policy("b", priority=1), revision=proposal())
    assert "policy b has it" in words_of(rows(world)["web"])


def test_a_published_canary_is_current_while_it_is_ready_and_has_nothing_open() -> None:
    upstream = {"repo": "blueprints", "package": "web", "revision": 2}
    of = variant()
    of["spec"] = {"upstream": upstream}
    of["status"]["downstreamTargets"] = [{"name": OLD}]
    world = world_of(policy(canaries=["web-edge"]), of=of, old=[published()])
    row = rows(world)["web"]
    assert (row.is_current, row.is_good, row.upstream) == (True, True, "blueprints/web@v2")
    assert words_of(row) == ""
    held = {**of, "metadata": {**of["metadata"], "annotations": {HOLD: "true"}}}
    world = world_of(policy(canaries=["web-edge"]), of=held, old=[published()])
    assert words_of(rows(world)["web"]).startswith("OnHold: it is on hold: pvbus unhold default/web-edge")
    world = world_of(policy(canaries=["web-edge"]), of=of, old=[published()], revision=draft())
    assert not rows(world)["web"].is_current
    of["status"]["conditions"][0]["status"] = "False"
    world = world_of(policy(canaries=["web-edge"]), of=of, old=[published()])
    assert not rows(world)["web"].is_current
    assert "NotUpToDate: its variant is not ready" in words_of(rows(world)["web"])


# ------------------------------------------------------------ which policy


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (policy("a"), policy("b"), "a"),
        (policy("a"), policy("b", priority=1), "b"),
        (policy("a"), policy("b", created="2025-01-01T00:00:00Z"), "b"),
        (policy("a"), policy("b", priority=1, revisions={"repositories": ["core"]}), "a"),
        (policy("a"), policy("b", priority=1, waves=[{"percent": 10}]), "b"),
    ],
)
def test_of_two_policies_one_has_the_target_and_the_other_knows(first: Any, second: Any, winner: str) -> None:
    """A policy with problems keeps its targets from others: it has them, and approves nothing."""
    for policies in ((first, second), (second, first)):
        found = rows(world_of(*policies, revision=proposal()))
        is_valid = (
            "waves" not in next(each for each in policies if each["metadata"]["name"] == winner)["spec"]
        )
        assert found[winner].winner == ""
        assert (found[winner].revision, found[winner].is_proposed) == (NAME, is_valid)
        for loser, row in found.items():
            assert loser == winner or row == CandidateRow(uid="uid-v", winner=winner)
        has_both = "all" in second["spec"]["revisions"]
        assert len(found) == (2 if has_both else 1)


def test_a_policy_of_higher_rank_takes_over_and_gives_back() -> None:
    world = world_of(policy("a"), revision=proposal())
    world.policies.append(policy("b", priority=1))
    world.settle()
    assert (rows(world)["a"].winner, rows(world)["b"].is_proposed) == ("b", True)
    world.policies.pop()
    world.settle()
    assert list(rows(world)) == ["a"]
    assert rows(world)["a"].is_proposed


@pytest.mark.parametrize(
    ("revisions", "is_selected"),
    [
        ({"set": "web"}, True),
        ({"set": "other"}, False),
        ({"repositories": ["edge"]}, True),
        ({"repositories": ["core"]}, False),
        ({"selector": {"matchLabels": {"own": "label"}}}, True),
        ({"selector": {"matchLabels": {"own": "other"}}}, False),
        ({"selector": {"matchLabels": {"of": "revision"}}}, True),
        ({"set": "web", "repositories": ["core"]}, False),
    ],
)
@pytest.mark.parametrize("is_published", [False, True])
def test_a_policy_selects_by_set_labels_and_repository(
    revisions: Any, is_selected: bool, is_published: bool
) -> None:
    owner = {"kind": "PackageVariantSet", "name": "web", "uid": "s"}
    of = variant(labels={"own": "label"}, ownerReferences=[owner])
    labels = {"of": "revision"}
    world = world_of(
        policy(revisions=revisions),
        revision=None if is_published else proposal(labels=labels),
        of=of,
        old=[published(labels=labels)] if is_published else [],
    )
    assert bool(rows(world)) == is_selected


FOREIGN_SET = {"kind": "PackageVariantSet", "name": "other", "uid": "o"}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_reference_that_somebody_adds_to_a_variant_brings_it_into_no_other_set(is_first: bool) -> None:
    """Else an editor takes a target out of a policy, and out of the reach of a quarantine."""
    own = {"kind": "PackageVariantSet", "name": "web", "uid": "s", "controller": True}
    owners = [FOREIGN_SET, own] if is_first else [own, FOREIGN_SET]
    world = world_of(
        policy(revisions={"set": "web"}),
        policy("other", revisions={"set": "other"}),
        revision=proposal(),
        of=variant(ownerReferences=owners),
    )
    assert list(rows(world)) == ["web"]


def test_a_reference_that_somebody_adds_to_a_revision_hides_it_from_no_rollout() -> None:
    revision = published("edge.web.v2", 2)
    (own,) = revision["metadata"]["ownerReferences"]
    own["controller"] = True
    revision["metadata"]["ownerReferences"] = [
        {**own, "name": "another", "uid": "a", "controller": None},
        own,
    ]
    world = world_of(policy(), old=[revision, published()])
    assert rows(world)["web"].published == "edge.web.v2"


FOREIGN_OWNER = {
    "apiVersion": "config.porch.kpt.dev/v1alpha1",
    "kind": "PackageVariant",
    "name": "another",
    "uid": "uid-a",
    "controller": True,
}


@pytest.mark.parametrize("owners", [[], [FOREIGN_OWNER]], ids=["nobody", "another variant"])
def test_what_release_has_published_stays_the_variants_whoever_owns_it_by_then(owners: Any) -> None:
    """Else a target that fails would count as replaced, once an editor has taken its owner away."""
    of = {**variant(), "spec": {"downstream": {"repo": "edge", "package": "web"}}}
    world = world_of(policy(), revision=proposal(), of=of, old=[published()])
    world.server.change(lambda obj: obj["spec"].update(lifecycle="Published", revision=2))
    release(world, approval("approve", "done"))
    world.server.change(lambda obj: obj["metadata"].update(ownerReferences=owners))
    world.settle()
    row = rows(world)["web"]
    assert (row.published, row.published_digest) == (NAME, DIGEST)


def test_a_policy_of_another_namespace_selects_nothing() -> None:
    other = policy()
    other["metadata"]["namespace"] = "other"
    assert rows(world_of(other, revision=proposal())) == {}


# ------------------------------------------------------------ content


def test_the_content_of_a_proposal_by_hand_is_read_once() -> None:
    world = world_of(policy(), revision=draft(lifecycle="Proposed"))
    assert (rows(world)["web"].digest, rows(world)["web"].is_proposed) == (DIGEST, True)
    world.restart()
    world.settle()
    assert world.server.gets == ["PackageRevisionResources"]
    world.server.files["a.yaml"] = "a: 2\n"
    world.commit("another")
    world.settle()
    assert rows(world)["web"].digest == content_digest(world.server.files) != DIGEST


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_rejected_draft_that_a_person_changes_and_proposes_has_its_own_digest(
    is_published: bool, restarted: bool
) -> None:
    """The annotation still has the digest of what promote proposed."""
    world = world_of(policy(), revision=draft())
    world.variant = variant(opted_in=False)
    world.move("Draft")
    world.settle()
    world.server.files["a.yaml"] = "a: 2\n"
    world.commit("another")
    world.settle()
    world.move("Proposed")
    world.settle()
    if restarted:
        world.restart()
    if is_published:
        world.move("Published")
        world.settle()
    row, changed = rows(world)["web"], content_digest(world.server.files)
    assert (row.published_digest if is_published else row.digest) == changed != DIGEST


@pytest.mark.parametrize("noted", [DIGEST, "forged"])
def test_the_note_on_a_published_revision_counts_only_as_release_has_compared_it(noted: str) -> None:
    """Anybody who may edit the revision can write another digest there: a target that fails would count as
    replaced, or one that is rolled back as restored."""
    world = world_of(policy(), revision=proposal())
    world.server.gets.clear()
    world.server.change(lambda obj: obj["spec"].update(lifecycle="Published", revision=2))
    world.annotate({PROPOSED_CONTENT: noted})
    release(world, approval("approve", "done"))
    assert rows(world)["web"].published_digest == DIGEST
    assert world.server.gets == ["PackageRevisionResources"] * (noted != DIGEST)


def test_the_note_on_a_revision_that_nobody_ordered_is_compared_with_its_files() -> None:
    world = world_of(policy(), old=[published(annotations={PROPOSED_CONTENT: DIGEST})])
    assert rows(world)["web"].published_digest == content_digest(OLD_FILES) != DIGEST


def test_without_a_policy_no_file_is_read() -> None:
    world = world_of(
        policy(revisions={"set": "other"}), revision=draft(lifecycle="Proposed"), old=[published()]
    )
    assert (rows(world), world.server.moves, world.server.gets) == ({}, [], [])


def test_without_a_policy_nothing_is_approved_whatever_nephio_does() -> None:
    world = world_of(
        policy(revisions={"set": "other"}), revision=proposal(noted={f"{NEPHIO}/policy": "always"})
    )
    assert (rows(world), world.server.moves, world.server.gets) == ({}, [], [])


def test_files_that_cannot_be_read_hold_up_the_approval_and_no_verdict() -> None:
    world = PromoteWorld(draft(lifecycle="Proposed"))
    world.server.unreadable = {NAME}
    world.policies = [policy()]
    world.settle()
    assert (rows(world)["web"].reason, rows(world)["web"].is_proposed) == ("ContentUnknown", False)
    assert world.verdict.reason == "ProposedByHand"
    outcome = world.run(world.promote)
    assert outcome is not None
    assert outcome.again_after == 60.0
    world.server.unreadable = set()
    world.run(world.promote)
    assert rows(world)["web"].is_proposed


@pytest.mark.parametrize("restarted", [False, True])
def test_the_published_revision_stays_known_after_the_open_one_goes(restarted: bool) -> None:
    world = world_of(policy(), revision=proposal(), old=[published("edge.web.v2", 2), published()])
    world.server.revision = None
    if restarted:
        world.restart()
    world.settle()
    row = rows(world)["web"]
    assert (row.revision, row.published, row.is_proposed) == ("", "edge.web.v2", False)
    world.server.published.pop(0)
    world.settle()
    assert rows(world)["web"].published == OLD


def test_an_approved_proposal_is_the_published_revision_with_the_same_digest() -> None:
    world = world_of(policy(), revision=proposal(), old=[published()])
    world.server.change(lambda obj: obj["spec"].update(lifecycle="Published", revision=2))
    world.settle()
    row = rows(world)["web"]
    assert (row.revision, row.published, row.published_digest) == ("", NAME, DIGEST)
    assert (row.is_good, row.is_proposed) == (True, False)


def test_revisions_of_a_former_downstream_and_a_former_variant_are_no_candidates() -> None:
    of = variant()
    of["spec"] = {"downstream": {"repo": "edge", "package": "new"}}
    assert rows(world_of(policy(), revision=proposal(), of=of, old=[published()])) == {}
    assert rows(world_of(policy(), revision=proposal(), of=variant(uid="new"), old=[published()])) == {}


def test_the_placeholder_of_a_package_is_no_published_revision() -> None:
    assert rows(world_of(policy(), old=[published("edge.web.main", -1)])) == {}


def test_the_newest_of_two_proposals_counts() -> None:
    newer = proposal(name="edge.web.packagevariant-0", creationTimestamp="2026-01-02T03:04:06Z")
    world = world_of(policy(), revision=proposal(), old=[newer])
    assert rows(world)["web"].revision == "edge.web.packagevariant-0"


# ------------------------------------------------------------ evidence


def reports(**condition: Any) -> dict[str, Any]:
    return variant(ready=condition)


OF_OLD: Any = {"downstreamTargets": [{"name": OLD}]}


@pytest.mark.parametrize(
    ("types", "of", "status", "is_open", "is_good", "words"),
    [
        ((), reports(), OF_OLD, False, True, ""),
        ((), reports(), {}, False, True, ""),
        ((), reports(), OF_OLD, True, True, ""),
        ((), reports(), {}, True, None, "about a newer revision"),
        ((), reports(status="False", reason="Failed", message="no"), OF_OLD, False, False, "Failed: no"),
        ((), reports(status="False", reason="Waiting"), OF_OLD, False, None, "Waiting"),
        ((), variant(generation=3), OF_OLD, False, None, "have not done the variant's last change"),
        ((), variant(), {"conditions": []}, False, None, "have not done the variant's last change"),
        (("Tested",), reports(status="False", reason="Failed"), OF_OLD, False, True, ""),
        (("Tested", "Ready"), reports(), OF_OLD, False, True, ""),
        (("Tested", "Ready"), reports(status="False", reason="Bad"), OF_OLD, False, False, "Ready: Bad"),
    ],
)
def test_evidence_is_of_the_published_revision(
    types: Any, of: Any, status: Any, is_open: bool, is_good: bool | None, words: str
) -> None:
    of["status"] |= status
    revision = proposal() if is_open else None
    world = world_of(policy(conditions=types), revision=revision, of=of, old=[published()])
    assert rows(world)["web"].is_good is is_good
    assert words in rows(world)["web"].verdict


def with_condition(message: str, type_: str = "Synced") -> Any:
    of = reports()
    condition = {"type": type_, "status": "True", "reason": "Done", "message": message}
    of["status"]["conditions"].append(condition | {"observedGeneration": of["metadata"]["generation"]})
    return of


@pytest.mark.parametrize(
    ("message", "is_bound"),
    [
        (f"{OLD} is on the cluster.", True),
        (f"synced default/{OLD}", True),
        (f"{OLD}2 is on the cluster", False),
        (f"x{OLD} is on the cluster", False),
        (f"{OLD}.old is on the cluster", False),
        ("synced", False),
        ("", False),
    ],
)
def test_a_condition_of_the_variant_is_bound_by_the_name_in_its_message(message: str, is_bound: bool) -> None:
    """Conditions of any writer are evidence of the revision that they name, not of the one whose name begins
    or ends like it. That they are of the variant's generation of now says nothing of a revision."""
    world = world_of(policy(conditions=["Synced"]), of=with_condition(message), old=[published()])
    evidence = rows(world)["web"].evidence
    assert evidence is not None
    assert [(seen.type, seen.status, seen.is_bound) for seen in evidence.conditions] == [
        ("Synced", "True", is_bound)
    ]


def test_only_the_conditions_that_the_policy_names_are_evidence() -> None:
    world = world_of(
        policy(conditions=["Ready", "Tested"]), of=with_condition(OLD, "Synced"), old=[published()]
    )
    evidence = rows(world)["web"].evidence
    assert evidence is not None
    assert evidence.conditions == ()
    assert rows(world_of(policy(), of=with_condition(OLD), old=[published()]))["web"].evidence is None


APPLICATION = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "binding": "Weak", "good": "true"}


@pytest.mark.parametrize(
    ("namespace", "name", "expected", "problem"),
    [
        ("'argocd'", "target.labels['stage'] + '-web'", ("argocd", "prod-web"), ""),
        ("", "target.name", ("", "web-edge"), ""),
        ("'argocd'", "target.labels['cluster'] + '-web'", ("argocd", "c1-web"), ""),
        (
            "'argocd'",
            "target.labels['no-such']",
            ("argocd", ""),
            "spec.evidence.object.name cannot be evaluated",
        ),
        ("target.labels['x'] + ''", "target.name", ("", "web-edge"), "object.namespace cannot be evaluated"),
        ("'argocd'", "''", ("argocd", ""), "spec.evidence.object.name gives an empty text"),
    ],
)
def test_an_expression_over_the_target_names_its_evidence(
    namespace: str, name: str, expected: tuple[str, str], problem: str
) -> None:
    of = reports()
    of["metadata"]["labels"] = {"stage": "prod"}
    wanted = {"object": {**APPLICATION, "namespace": namespace, "name": name}}
    old = [published(labels={"cluster": "c1"})]
    evidence = rows(world_of(policy(evidence=wanted), of=of, old=old))["web"].evidence
    assert evidence is not None
    assert (evidence.namespace, evidence.name) == expected
    assert problem in evidence.problem
    assert bool(evidence.problem) == bool(problem)


def test_nothing_published_is_neither_good_nor_bad() -> None:
    row = rows(world_of(policy(), revision=proposal()))["web"]
    assert (row.is_good, row.verdict) == (None, "")


# ------------------------------------------------------------ outcomes


@pytest.mark.parametrize(
    ("order", "outcome", "fields"),
    [
        ("approve", "done", {}),
        ("approve", "refused", {"refused": 3, "failure": "no"}),
        ("withdraw", "withdrawn", {"withdrawn": 3, "failure": "no"}),
        ("withdraw", "done", {}),
        ("restore", "unrestored", {"unrestored": 3, "failure": "no"}),
        ("restore", "done", {}),
    ],
)
def test_outcomes_of_orders_are_part_of_their_policys_row(order: Any, outcome: Any, fields: Any) -> None:
    world = world_of(policy(), policy("other"), revision=proposal())
    before = rows(world)
    assert before["web"].winner == "other"
    release(world, approval(order, outcome, of="other", message="no"))
    assert rows(world)["other"] == msgspec.structs.replace(before["other"], **fields)
    assert rows(world)["web"] == before["web"]


def test_outcomes_for_a_former_variant_of_that_name_do_not_count() -> None:
    world = world_of(policy(), revision=proposal())
    before = rows(world)
    release(world, approval("approve", "refused"), uid="another")
    assert rows(world) == before


@pytest.mark.parametrize("lost_to", ["priority", "selection", "revisions"])
def test_a_policy_that_lost_a_target_still_learns_what_its_order_came_to(lost_to: str) -> None:
    world = world_of(policy(), revision=proposal(), old=[published()])
    if lost_to == "priority":
        world.policies.append(policy("first", priority=1))
    elif lost_to == "selection":
        world.policies = [policy(revisions={"set": "other"})]
    else:
        world.server.revision = None
        world.server.published.clear()
    world.settle()
    assert "web" not in rows(world) or rows(world)["web"].winner == "first"
    release(world, approval("withdraw", "withdrawn"))
    row = rows(world)["web"]
    assert (row.withdrawn, row.is_proposed, row.revision) == (3, False, "")
    if lost_to != "revisions":
        assert (row.published, row.published_digest) == (OLD, content_digest(OLD_FILES))
    release(world)
    assert "web" not in rows(world) or rows(world)["web"] == CandidateRow(uid="uid-v", winner="first")


# ------------------------------------------------------------ what is not known


def test_rows_end_with_their_policy_once_the_list_is_complete() -> None:
    world = world_of(policy("a"), policy("b"), revision=proposal())
    world.policies.pop(0)
    mark(world, POLICY_KIND, state="syncing")
    before = rows(world)
    world.settle()
    assert rows(world) == before
    mark(world, POLICY_KIND, epoch=3)
    world.settle()
    assert list(rows(world)) == ["b"]
    assert rows(world)["b"].is_proposed


@pytest.mark.parametrize(
    "marker",
    [
        {"state": "syncing"},
        {"state": "unavailable", "message": "rolloutpolicies is forbidden"},
        {"state": "ok", "coverage": {"namespaces": ["other"]}},
    ],
)
def test_on_a_partial_list_of_policies_nothing_is_handed_over_and_drafts_are_proposed(marker: Any) -> None:
    """The policy that is missing may be the one of the highest rank."""
    world = PromoteWorld(draft())
    world.policies = [policy()]
    world.markers[POLICY_KIND] = msgspec.convert({"epoch": 2, **marker}, SyncMarker)
    world.settle()
    assert (world.server.moves, rows(world)) == (["Proposed"], {})


def test_on_a_partial_list_of_revisions_nothing_changes() -> None:
    world = world_of(policy(), revision=proposal(), old=[published()])
    before = rows(world)
    world.server.published.clear()
    mark(world, REVISION_KIND, state="syncing")
    world.settle()
    assert rows(world) == before
    mark(world, REVISION_KIND, epoch=3)
    world.settle()
    assert rows(world)["web"].published == ""


def test_where_policies_are_not_installed_drafts_are_proposed_and_rows_of_former_ones_end() -> None:
    world = world_of(policy(), revision=proposal())
    assert list(rows(world)) == ["web"]
    world.policies = []
    mark(world, POLICY_KIND, state="unavailable", message='no matches for kind "RolloutPolicy"')
    world.server.revision = draft()
    world.settle()
    assert (world.server.moves, rows(world)) == (["Proposed"], {})


def test_rows_end_with_their_variant_once_the_list_is_complete() -> None:
    world = world_of(policy("a"), policy("b"), revision=proposal())
    world.variant = world.server.revision = None
    mark(world, VARIANT_KIND, state="syncing")
    world.settle()
    assert set(rows(world)) == {"a", "b"}
    mark(world, VARIANT_KIND, epoch=3)
    world.settle()
    assert rows(world) == {}
    assert (PROMOTIONS, KEY) not in world.rows


def test_a_new_variant_of_the_same_name_has_rows_of_its_own() -> None:
    world = world_of(policy(), revision=proposal())
    world.variant = variant(uid="new")
    world.server.change(lambda obj: obj["metadata"]["ownerReferences"][0].update(uid="new"))
    world.settle()
    assert rows(world)["web"].uid == "new"


# ------------------------------------------------------------ silence


def test_a_restart_writes_and_reads_nothing() -> None:
    world = world_of(policy(), policy("b"), revision=draft(lifecycle="Proposed"), old=[published()])
    world.server.gets.clear()
    world.restart()
    outcomes = [world.run(world.promote) for _ in range(2)]
    assert [outcome.puts if outcome else None for outcome in outcomes] == [(), ()]
    assert world.server.gets == []


def test_an_update_of_a_policys_status_concerns_no_variant() -> None:
    world = world_of(policy(), revision=proposal())
    changed = policy()
    changed["metadata"] |= {"resourceVersion": "2", "annotations": {"promotion.pvbus.dev/pause": "true"}}
    changed["status"] = {"phase": "Rolling"}
    value = msgspec.json.encode(changed)
    assert list(world.promote.load(POLICIES, 0, "default/web", value)) == []
    changed["spec"]["priority"] = 1
    assert list(world.promote.load(POLICIES, 0, "default/web", msgspec.json.encode(changed))) == [KEY]


def test_a_change_of_candidates_alone_is_nothing_to_release() -> None:
    row = PromotionRow(uid="uid-v", generation=2)
    world = world_of(revision=None)
    assert list(world.release.load(PROMOTIONS, 0, KEY, encode_row(row))) == [KEY]
    again = msgspec.structs.replace(row, candidates={"web": "1"}, contents={"a": "b"})
    assert list(world.release.load(PROMOTIONS, 0, KEY, encode_row(again))) == []
    assert list(world.release.load(PROMOTIONS, 0, KEY, None)) == []


# ------------------------------------------------------------ any history

OTHERS = (
    policy("b"),
    policy("b", priority=1),
    policy("b", waves=[{"percent": 10}]),
    policy("b", revisions={"set": "other"}),
)
STEPS = st.one_of(
    st.sampled_from(["Draft", "Proposed", "Published", "edit", "restart", "look", "partial", "ok", "hold"]),
    st.sampled_from(["unpublish", "republish", "web", "no web", "no other"]),
    st.integers(0, len(OTHERS) - 1),
)


def take(world: PromoteWorld, step: str | int) -> None:
    """Let one thing happen, seen by nobody yet."""
    match step:
        case "Draft" | "Proposed" | "Published":
            world.move(str(step))
        case "edit":
            world.server.files["a.yaml"] += "b: 1\n"
            world.commit(content_digest(world.server.files))
        case "restart":
            world.restart()
        case "look":
            world.settle(rounds=1)
        case "partial" | "ok":
            mark(world, POLICY_KIND, state="syncing" if step == "partial" else "ok")
        case "hold":
            world.variant = variant(opted_in=False, annotations={HOLD: "true"})
        case "unpublish" | "republish":
            world.server.published = [published()] if step == "republish" else []
        case _:
            name = "web" if step in ("web", "no web") else "b"
            world.policies = [each for each in world.policies if each["metadata"]["name"] != name]
            if step == "web":
                world.policies.append(policy())
            elif isinstance(step, int):
                world.policies.append(OTHERS[step])


@given(st.lists(STEPS, max_size=25))
def test_after_any_history_the_rows_are_those_of_the_present_state(steps: list[str | int]) -> None:
    world = world_of(policy(), revision=draft(), of=variant(opted_in=False))
    for step in steps:
        take(world, step)
    mark(world, POLICY_KIND, epoch=9)
    world.settle()
    fresh = PromoteWorld(world.server.revision, world.variant)
    fresh.server, fresh.policies = world.server, world.policies
    fresh.settle()
    assert rows(world) == rows(fresh)
