"""How release carries out the orders of rollouts: a table per order, and accidents."""

from typing import Any

import pytest
from msgspec.structs import replace

from pvbus.core.kernel.keys import APPROVE_TOGETHER, RESTORES, WITHDRAWN
from pvbus.core.kernel.records import RELEASES, VARIANTS, DesiredRow
from pvbus.core.promotion.release.controller import OUTCOMES_MAX
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.former import MADE_BY
from tests.kit.deciding import CrashedError
from tests.unit.core.promotion.approving import NEW, OLD, OWNER, V1, V2, ReleaseWorld, planned, published
from tests.unit.core.promotion.promoting import KEY

OTHER = {**NEW, "a.yaml": "a: 3\n"}
FOREIGN = {"ownerReferences": [{**OWNER, "uid": "another"}]}
LEAVING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


def settle(world: ReleaseWorld, rounds: int = 8) -> None:
    """Run as the shell does: after a crash and a conflict again."""
    for _ in range(rounds):
        try:
            world.run()
        except CrashedError:
            world.restart()


# ------------------------------------------------------------ approve


@pytest.mark.parametrize(
    ("lifecycle", "files", "metadata", "outcome", "writes", "reason"),
    [
        ("Proposed", NEW, {}, "done", ["Published"], "as it was planned"),
        ("Published", NEW, {}, "done", [], "an earlier attempt, or a person, approved it"),
        ("DeletionProposed", NEW, {}, "done", [], "it was published"),
        ("Proposed", OTHER, {}, "", [], "rejected, changed and proposed again"),
        ("Published", OTHER, {}, "", [], "published with other content"),
        ("Draft", NEW, {}, "", [], "rejected: it may come back"),
        ("Proposed", NEW, FOREIGN, "", [], "it has another owner now"),
        ("Proposed", NEW, LEAVING, "", [], "it is being deleted"),
        ("", NEW, {}, "", [], "it is deleted"),
    ],
)
def test_an_approval_is_for_a_proposal_with_the_planned_content(
    lifecycle: str, files: Any, metadata: Any, outcome: str, writes: list[str], reason: str
) -> None:
    world = planned()
    world.package.put(V2, lifecycle, files, **metadata)
    if not lifecycle:
        del world.package.revisions[V2]
    world.order("approve", V2, NEW)
    done = world.run()
    assert (world.outcome, [what for _, what in world.package.writes]) == (outcome, writes), reason
    assert done is not None
    assert (done.again_after is not None) == (outcome == ""), reason


def test_the_approval_of_a_member_names_those_that_go_with_it() -> None:
    world = planned()
    world.order("approve", V2, NEW, mates=("edge.db.packagevariant-2", V2))
    settle(world)
    assert (world.outcome, world.package.together) == ("done", [f"edge.db.packagevariant-2,{V2}"])
    world = planned()
    world.order("approve", V2, NEW)
    settle(world)
    assert world.package.together == [""]


def test_an_approval_goes_with_no_others_that_somebody_else_has_named() -> None:
    """Else an annotation on a proposal makes its wave wait for a revision of a later one."""
    world = planned()
    world.package.put(V2, "Proposed", NEW, annotations={APPROVE_TOGETHER: "edge.other.packagevariant-2"})
    world.order("approve", V2, NEW)
    settle(world)
    assert (world.outcome, world.package.together) == ("done", [""])


def test_a_stale_approval_is_carried_out_once_its_revision_is_as_planned_again() -> None:
    world = planned()
    world.package.put(V2, "Draft", NEW)
    world.order("approve", V2, NEW)
    settle(world)
    world.package.put(V2, "Proposed", NEW)
    settle(world)
    assert (world.outcome, world.package.writes) == ("done", [(V2, "Published")])


def test_what_the_server_refuses_is_reported_and_not_tried_again_in_this_attempt() -> None:
    world = planned()
    world.package.refuses = {"Published"}
    world.order("approve", V2, NEW)
    settle(world)
    assert (world.outcome, world.message) == ("refused", "unmet readiness gates: ip")
    world.package.refuses = set()
    settle(world)
    assert world.package.lifecycles()[V2] == "Proposed"
    world.order("approve", V2, NEW, attempt=2)
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("done", "Published")


def test_a_veto_before_the_write_is_no_refusal() -> None:
    """A gate turns False before promote has seen it: the approval waits, and nothing counts as failing."""
    world = planned()
    gate = {"readinessGates": [{"conditionType": "ip"}]}
    world.package.revisions[V2]["spec"] |= gate
    world.package.revisions[V2]["status"] = {"conditions": [{"type": "ip", "status": "False"}]}
    world.package.refuses = {"Published"}
    world.order("approve", V2, NEW)
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("", "Proposed")
    world.package.revisions[V2]["status"] = {"conditions": [{"type": "ip", "status": "True"}]}
    world.package.refuses = set()
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("done", "Published")


def test_an_approval_that_was_carried_out_is_not_read_again() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    settle(world)
    reads = world.package.reads
    world.restart()
    settle(world)
    assert (world.package.reads, len(world.package.writes)) == (reads, 1)


def test_content_that_changes_between_the_reads_is_not_approved() -> None:
    """It has another version: the write conflicts, and the next run sees that it is another content."""
    world = planned()
    world.order("approve", V2, NEW)
    world.package.before_write = lambda: world.package.put(V2, "Proposed", OTHER)
    assert world.run() is None
    world.package.before_write = lambda: None
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("", "Proposed")


def test_a_revision_that_is_deleted_before_the_write_is_looked_at_again() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    world.package.before_write = lambda: world.package.revisions.pop(V2, None)
    assert world.run() is None
    world.run()
    assert world.outcome == ""


def test_an_order_for_another_variant_of_that_name_is_not_carried_out() -> None:
    for order in ("approve", "restore"):
        world = published() if order == "restore" else planned()
        world.order(order, V2, NEW, uid="uid-former")
        done = world.run()
        assert done is not None
        assert done.waiting == ("the PackageVariant of the orders",)
        assert (world.outcome, world.package.writes, world.package.reads) == ("", [], 0)


def test_the_note_of_a_stranded_revision_is_no_order() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    world.order("stranded", V2, NEW)
    for _ in range(2):
        world.run()
        assert (world.package.writes, world.package.reads) == ([], 0)
        world.restart()


def test_an_outcome_for_a_former_variant_says_nothing_of_this_one() -> None:
    world = planned()
    world.order("withdraw", V2, NEW)
    settle(world)
    world.variant["metadata"]["uid"] = "uid-w"
    world.package.put(V2, "Proposed", NEW, ownerReferences=[{**OWNER, "uid": "uid-w"}])
    world.hold("false")
    world.order("approve", V2, NEW, uid="uid-w")
    settle(world)
    assert world.outcome == "done"


def test_a_variant_that_is_being_deleted_gets_nothing_approved() -> None:
    world = planned()
    world.variant["metadata"] |= LEAVING
    world.hold("false")
    world.order("approve", V2, NEW)
    settle(world)
    assert (world.outcome, world.package.writes) == ("", [])
    world.order("withdraw", V2, NEW)
    settle(world)
    assert world.outcome == "withdrawn"


@pytest.mark.parametrize(("order", "revision", "files"), [("approve", V2, NEW), ("restore", V1, OLD)])
def test_on_hold_an_order_waits(order: str, revision: str, files: Any) -> None:
    for held_by in ("variant", "set"):
        world = published() if order == "restore" else planned()
        row = DesiredRow(set_name="web", uid="uid-v", on_hold=True)
        world.hold("true") if held_by == "variant" else world.desired(row)
        world.order(order, revision, files)
        done = world.run()
        assert done is not None
        assert done.waiting[0].startswith("the removal of the annotation pvbus.dev/hold from")
        assert (world.outcome, world.package.writes) == ("", [])
        world.hold("false") if held_by == "variant" else world.desired(replace(row, on_hold=False))
        settle(world)
        assert world.outcome == "done"


def test_a_hold_that_comes_between_two_effects_stops_the_write() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    steps = world.release.reconcile(0, "default/web-edge", 0.0)
    effect = next(steps)
    effect = steps.send(world.package.perform(effect))
    world.hold("true")
    with pytest.raises(StopIteration):
        steps.send(world.package.perform(effect))
    assert world.package.writes == []


# ------------------------------------------------------------ withdraw


@pytest.mark.parametrize(
    ("lifecycle", "files", "outcome", "writes", "reason"),
    [
        ("Proposed", NEW, "withdrawn", ["noted"], "no request that read it before can arrive"),
        ("Proposed", OTHER, "withdrawn", ["noted"], "nothing approves other content"),
        ("Draft", NEW, "withdrawn", [], "a person was faster"),
        ("", NEW, "withdrawn", [], "it is deleted"),
        ("Published", NEW, "done", [], "it was carried out"),
        ("Published", OTHER, "withdrawn", [], "a person published other content"),
        ("DeletionProposed", NEW, "done", [], "it is the last published revision until it is deleted"),
    ],
)
def test_a_withdrawal_says_what_became_of_the_approval(
    lifecycle: str, files: Any, outcome: str, writes: list[str], reason: str
) -> None:
    world = planned()
    world.package.put(V2, lifecycle, files)
    if not lifecycle:
        del world.package.revisions[V2]
    world.order("withdraw", V2, NEW)
    settle(world)
    assert (world.outcome, [what for _, what in world.package.writes]) == (outcome, writes), reason


def test_after_a_withdrawal_its_attempt_approves_no_more() -> None:
    world = planned()
    world.order("withdraw", V2, NEW)
    settle(world)
    world.order("approve", V2, NEW)
    settle(world)
    world.restart()
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("withdrawn", "Proposed")
    world.order("approve", V2, NEW, attempt=2)
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("done", "Published")


def test_an_approval_that_was_on_its_way_when_it_was_withdrawn_conflicts() -> None:
    """A worker that has lost its lease has read the proposal, and is slow to write."""
    world = planned()
    world.order("approve", V2, NEW)
    slow = world.release.reconcile(0, "default/web-edge", 0.0)
    effect = next(slow)
    effect = slow.send(world.package.perform(effect))
    late = slow.send(world.package.perform(effect))
    world.restart()
    world.order("withdraw", V2, NEW)
    settle(world)
    assert world.outcome == "withdrawn"
    annotations = world.package.revisions[V2]["metadata"]["annotations"]
    assert annotations[WITHDRAWN].startswith("fleet.1@")
    with pytest.raises(Exception, match="it has changed"):
        world.package.perform(late)
    assert world.package.lifecycles()[V2] == "Proposed"


def test_a_withdrawal_that_arrives_between_two_effects_stops_the_approval() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    steps = world.release.reconcile(0, "default/web-edge", 0.0)
    effect = next(steps)
    effect = steps.send(world.package.perform(effect))
    world.order("withdraw", V2, NEW)
    with pytest.raises(StopIteration):
        steps.send(world.package.perform(effect))
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("withdrawn", "Proposed")


def test_an_approval_before_its_withdrawal_is_done() -> None:
    world = planned()
    world.order("approve", V2, NEW)
    settle(world)
    world.order("withdraw", V2, NEW)
    settle(world)
    assert (world.outcomes[0].order, world.outcome) == ("withdraw", "done")


def test_a_withdrawal_is_confirmed_on_hold_without_a_write() -> None:
    world = planned()
    world.hold("true")
    world.order("withdraw", V2, NEW)
    settle(world)
    assert (world.outcome, world.package.writes) == ("withdrawn", [])


def test_a_withdrawal_that_cannot_be_noted_is_not_confirmed() -> None:
    """By a webhook, for example: then an approval on its way could still arrive."""
    world = planned()
    world.package.refuses = {"noted"}
    world.order("withdraw", V2, NEW)
    done = world.run()
    assert done is not None
    assert (world.outcome, done.result, done.again_after) == ("", "waiting", 10.0)
    assert WITHDRAWN in done.waiting[0]
    world.package.refuses = set()
    settle(world)
    assert world.outcome == "withdrawn"


def test_a_withdrawal_for_a_former_variant_is_confirmed() -> None:
    world = planned()
    world.order("withdraw", V2, NEW, uid="uid-former")
    settle(world)
    assert (world.outcome, world.package.writes) == ("withdrawn", [])


def test_what_was_published_and_replaced_before_the_rollout_saw_it_counts_as_withdrawn() -> None:
    """Else the rollout would wait for a revision that is not the latest any more."""
    world = published()
    world.order("withdraw", V2, NEW)
    outcome = world.run()
    assert outcome is not None
    assert (world.outcome, outcome.again_after) == ("done", 10.0)
    world.package.put("edge.web.packagevariant-3", "Published", OTHER)
    settle(world)
    assert world.outcome == "withdrawn"
    assert "not the last published revision any more" in world.message


def test_the_outcome_stays_when_its_order_goes() -> None:
    """The rollout reports it, and its attempt approves no more even then."""
    world = planned()
    world.order("withdraw", V2, NEW)
    settle(world)
    world.no_order()
    settle(world)
    world.restart()
    settle(world)
    assert world.outcome == "withdrawn"
    world.order("approve", V2, NEW)
    settle(world)
    assert (world.outcome, world.package.lifecycles()[V2]) == ("withdrawn", "Proposed")


def test_the_outcomes_of_policies_that_are_gone_are_few_and_go_with_the_variant() -> None:
    world = planned()
    for number in range(OUTCOMES_MAX + 5):
        world.order("withdraw", V2, NEW, policy=f"policy-{number}")
        settle(world, 1)
        world.no_order(policy=f"policy-{number}")
    assert len(world.outcomes) == OUTCOMES_MAX
    assert world.outcomes[0].policy == f"policy-{OUTCOMES_MAX + 4}"
    world.write(VARIANTS, KEY, None)
    world.run()
    assert (RELEASES, KEY) not in world.rows


# ------------------------------------------------------------ restore


def restored(world: ReleaseWorld) -> str:
    (name,) = [each for each in world.package.revisions if ".rollback-" in each]
    return name


def test_former_content_is_published_again_as_a_revision_of_the_variant() -> None:
    world = published()
    world.order("restore", V1, OLD, attempt=3)
    settle(world)
    name = restored(world)
    assert name.startswith("edge.web.rollback-3-")
    assert world.package.writes == [(name, "created"), (name, "Proposed"), (name, "Published")]
    made = world.package.revisions[name]
    assert (world.outcome, made["spec"]["revision"], world.package.files[name]) == ("done", 3, OLD)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-v"
    assert made["metadata"]["annotations"][RESTORES] == V1
    assert made["metadata"]["annotations"][MADE_BY] == "web-edge@uid-v"


@pytest.mark.parametrize(
    ("replaces", "is_restored"), [(V2, True), ("", True), (V1, False), ("another", False)]
)
def test_a_restore_replaces_only_what_its_attempt_published(replaces: str, is_restored: bool) -> None:
    """An order of an older version names nothing, and is carried out as before."""
    world = published()
    world.order("restore", V1, OLD, replaces=replaces)
    settle(world)
    assert bool(world.package.writes) == is_restored
    assert world.outcome == ("done" if is_restored else "")


def test_what_is_published_between_the_writes_of_a_restore_stays() -> None:
    """The rollout sees it later, and names it."""
    world = published()

    def publish_another() -> None:
        if world.package.writes[-1:] and world.package.writes[-1][1] == "created":
            world.package.put("edge.web.by-hand", "Published", {"a.yaml": "a: 3\n"})

    world.package.before_write = publish_another
    world.order("restore", V1, OLD, replaces=V2)
    outcome = world.run()
    assert outcome is not None
    assert outcome.waiting == (
        "the rollout to take notice of edge.web.by-hand, which is published (Replaced)",
    )
    assert world.package.lifecycles()[restored(world)] == "Proposed"
    assert outcome.again_after, "it is looked at again, as no record may come"


def test_a_draft_of_a_rollback_has_no_owner() -> None:
    """Its variant would bring it up to date."""
    world = published()
    world.order("restore", V1, OLD)
    with pytest.raises(CrashedError):
        world.run(crash_after=3)
    assert "ownerReferences" not in world.package.revisions[restored(world)]["metadata"]


@pytest.mark.parametrize("effects", range(1, 7))
def test_a_kill_between_any_two_effects_makes_no_second_revision(effects: int) -> None:
    """The last effect was carried out: its response is lost."""
    world = published()
    world.order("restore", V1, OLD)
    with pytest.raises(CrashedError):
        world.run(crash_after=effects)
    world.restart()
    settle(world)
    name = restored(world)
    assert world.package.writes == [(name, "created"), (name, "Proposed"), (name, "Published")]
    assert world.outcome == "done"


@pytest.mark.parametrize("effects", range(1, 4))
def test_a_kill_between_any_two_effects_of_an_approval_approves_once(effects: int) -> None:
    world = planned()
    world.order("approve", V2, NEW)
    with pytest.raises(CrashedError):
        world.run(crash_after=effects)
    world.restart()
    settle(world)
    assert (world.outcome, world.package.writes) == ("done", [(V2, "Published")])


def test_a_restart_after_a_rollback_writes_nothing() -> None:
    world = published()
    world.order("restore", V1, OLD)
    settle(world)
    world.restart()
    settle(world)
    assert len(world.package.writes) == 3


@pytest.mark.parametrize(
    ("accident", "words", "writes"),
    [
        ("no drafts", "no drafts here", []),
        (
            "gate at the proposal",
            "unmet readiness gates: ip; PackageRevision edge.web.rollback-",
            ["created"],
        ),
        ("gate at the approval", "approve it by hand, or delete it", ["created", "Proposed"]),
        ("another content", "its pipeline or somebody else changed it", ["created"]),
        ("source deleted", f"PackageRevision {V1} is not published any more", []),
        ("source made again", f"PackageRevision {V1} is not published any more", []),
    ],
)
def test_what_cannot_be_restored_is_reported_and_left_to_a_person(
    accident: str, words: str, writes: list[str]
) -> None:
    world = published()
    match accident:
        case "no drafts":
            world.package.refuses = {"Draft"}
        case "gate at the proposal":
            world.package.refuses = {"Proposed"}
        case "gate at the approval":
            world.package.refuses = {"Published"}
        case "another content":
            world.package.renders = lambda files: {**files, "log.yaml": "runs: 2\n"}
        case "source deleted":
            del world.package.revisions[V1]
        case "source made again":
            world.package.put(V1, "Draft", OLD)
    world.order("restore", V1, OLD)
    settle(world)
    assert (world.outcome, [what for _, what in world.package.writes]) == ("unrestored", writes)
    assert words in world.message


def test_a_draft_of_a_rollback_that_somebody_changes_is_not_published() -> None:
    world = published()
    world.order("restore", V1, OLD)
    with pytest.raises(CrashedError):
        world.run(crash_after=3)
    name = restored(world)
    world.package.put(name, "Draft", OTHER, ownerReferences=[])
    settle(world)
    assert (world.outcome, world.package.lifecycles()[name]) == ("unrestored", "Draft")


@pytest.mark.parametrize(
    ("lifecycle", "writes", "reason"),
    [
        ("DeletionProposed", 3, "it is the last published revision until it is deleted"),
        ("Draft", 0, "v1 is the last published revision"),
        ("Published", 3, "v2 is"),
    ],
)
def test_what_is_published_already_is_not_published_again(lifecycle: str, writes: int, reason: str) -> None:
    world = published()
    world.package.revisions[V2]["spec"]["lifecycle"] = lifecycle
    world.order("restore", V1, OLD)
    settle(world)
    assert (world.outcome, len(world.package.writes)) == ("done", writes), reason


@pytest.mark.parametrize("files", [OLD, OTHER])
def test_what_a_person_published_before_the_rollback_is_not_overruled(files: Any) -> None:
    world = published()
    world.package.put("edge.web.fix", "Published", files, ownerReferences=[])
    world.order("restore", V1, OLD)
    settle(world)
    assert (world.outcome, world.package.writes) == ("unrestored", [])
    assert "edge.web.fix, which the variant does not own, was published since" in world.message


def test_a_good_revision_whose_deletion_is_proposed_is_restored() -> None:
    world = published()
    world.package.put(V1, "DeletionProposed", OLD)
    world.order("restore", V1, OLD)
    settle(world)
    assert world.outcome == "done"


def test_a_person_who_publishes_after_the_rollback_is_not_overruled() -> None:
    world = published()
    world.order("restore", V1, OLD)
    settle(world)
    world.package.put("edge.web.fix", "Published", OTHER)
    settle(world)
    assert (world.outcome, len(world.package.writes)) == ("unrestored", 3)
    assert "is not the last published revision any more" in world.message


def test_a_rollback_of_a_policy_that_was_made_again_finds_nothing_of_the_former() -> None:
    """Both are attempt 1. The second one's good revision is what the first one published."""
    world = published()
    world.order("restore", V1, OLD)
    settle(world)
    first = restored(world)
    world.no_order()
    settle(world)
    world.package.put("edge.web.packagevariant-3", "Published", OTHER)
    world.order("restore", first, OLD)
    settle(world)
    assert world.outcome == "done"
    assert content_digest(world.package.files[first]) == world.outcomes[0].digest
    assert len([name for name in world.package.revisions if ".rollback-1-" in name]) == 2
