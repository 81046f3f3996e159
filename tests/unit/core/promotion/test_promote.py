"""What promote and release do to a draft: a table of verdicts, and accidents between the two."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pvbus.core.kernel.keys import AUTO_LIFECYCLE, GATE_STEPS, HOLD, PROPOSED_CONTENT, RETURNED, TASKS
from pvbus.core.kernel.records import PROMOTIONS, RELEASES, DesiredRow, SyncMarker
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.signatures import signed_digest
from tests.kit.deciding import CrashedError
from tests.unit.core.promotion.promoting import (
    FILES,
    KEY,
    NAME,
    PromoteWorld,
    draft,
    specializer,
    variant,
)

DIGEST = content_digest(FILES)
MET: Any = {"gates": ("ip",), "conditions": (("ip", "True"),)}
UNMET: Any = {"gates": ("ip",), "conditions": (("ip", "False"),)}
OPT_OUT: Any = {"annotations": {AUTO_LIFECYCLE: "false"}}
OPT_IN: Any = {"annotations": {AUTO_LIFECYCLE: "true"}}


@pytest.mark.parametrize(
    ("of", "revision", "reason", "words", "moves"),
    [
        (variant(), draft(), "Proposed", "waits for approval", ["Proposed"]),
        (variant(), draft(**MET), "Proposed", "waits for approval", ["Proposed"]),
        (variant(opted_in=False), draft(), "NotOptedIn", "auto-lifecycle-mgmt=true", []),
        (variant(opted_in=False), draft(**MET), "NotOptedIn", "packagevariant web-edge", []),
        (variant(opted_in=False), draft(**OPT_IN), "Proposed", "waits", ["Proposed"]),
        (variant(), draft(**OPT_OUT), "NotOptedIn", "packagerevision edge.web.packagevariant-1 ", []),
        (variant(), draft(**UNMET), "GateNotMet", "unmet readiness gates: ip", []),
        (
            variant(),
            draft(gates=("ip",)),
            "GateNotMet",
            "no PackageSpecializer of the namespace reports ip",
            [],
        ),
        (variant(), draft(gates=("ip",), conditions=(("ip", "Unknown"),)), "GateNotMet", "ip", []),
        (variant(), draft(conditions=(("Rendered", "False"),)), "NotRendered", "pipeline has not run", []),
        (variant(annotations={**OPT_IN["annotations"], HOLD: "true"}), draft(), "OnHold", "pvbus unhold", []),
        (
            variant(ready={"status": "False", "message": "no upstream"}),
            draft(),
            "NotUpToDate",
            "no upstream",
            [],
        ),
        (
            variant(ready={"observedGeneration": 1}),
            draft(),
            "NotUpToDate",
            "have not done its last change",
            [],
        ),
        (variant(deletionTimestamp="2026-01-02T03:04:05Z"), draft(), "Deleted", "being deleted", []),
        (variant(), draft(deletionTimestamp="2026-01-02T03:04:05Z"), "Deleted", "being deleted", []),
        (variant(), draft(lifecycle="Proposed"), "ProposedByHand", "a person proposed it", []),
        (variant(), draft(lifecycle="Proposed", **UNMET), "ProposedByHand", "a person proposed it", []),
    ],
)
def test_what_becomes_of_a_revision(
    of: Any, revision: Any, reason: str, words: str, moves: list[str]
) -> None:
    world = PromoteWorld(revision, of)
    world.settle()
    assert (world.verdict.reason, world.server.moves) == (reason, moves)
    assert words in world.verdict.message


def test_a_gate_that_a_person_is_asked_for_is_no_programs() -> None:
    """The verdict has the question, though no condition has it; of another gate it still names no program."""
    asked = draft(gates=("licensed", "ip"))
    question = '{"licensed": {"question": "Is it?", "owner": "ann", "due": "2030-01-01"}}'
    asked["spec"]["packageMetadata"] = {"annotations": {TASKS: question}}
    world = PromoteWorld(asked)
    world.settle()
    assert world.verdict.message == (
        "unmet readiness gates: licensed (ann is asked: Is it? (due 2030-01-01)), "
        "ip (nothing was reported of it yet); no PackageSpecializer of the namespace reports ip: "
        "does a program run that sets it?"
    )


def test_a_revision_that_its_variant_does_not_report_yet_is_left_alone() -> None:
    """Porch shows a draft before the variant's content is in it; the status names it afterwards."""
    of = variant()
    of["status"]["downstreamTargets"] = [{"name": "another"}]
    world = PromoteWorld(draft(), of)
    world.settle()
    assert (world.verdict.reason, world.server.moves) == ("NotCurrent", [])


@pytest.mark.parametrize("lifecycle", ["Published", "DeletionProposed"])
def test_a_published_revision_has_no_verdict(lifecycle: str) -> None:
    world = PromoteWorld(draft(lifecycle=lifecycle))
    world.settle()
    assert (PROMOTIONS, KEY) not in world.rows
    assert world.server.moves == []


def test_a_revision_of_a_former_variant_of_that_name_has_no_verdict() -> None:
    world = PromoteWorld(draft(), variant(uid="another"))
    world.settle()
    assert (PROMOTIONS, KEY) not in world.rows


def test_a_set_on_hold_holds_its_variants_drafts() -> None:
    world = PromoteWorld(draft())
    world.desired = DesiredRow(set_name="web", uid="uid-v", on_hold=True)
    world.settle()
    assert (world.verdict.reason, world.server.moves) == ("OnHold", [])
    assert "pvbus unhold --set default/web" in world.verdict.message
    world.desired = replace(world.desired, on_hold=False)
    world.settle()
    assert world.server.moves == ["Proposed"]


# ------------------------------------------------------------ once


def test_a_proposal_notes_its_content_in_the_same_write() -> None:
    world = PromoteWorld(draft(annotations={"a": "b", RETURNED: "it was unready"}))
    world.settle()
    assert world.server.revision is not None
    assert world.server.revision["metadata"]["annotations"] == {"a": "b", PROPOSED_CONTENT: DIGEST}


def test_a_rejected_content_stays_a_draft_and_is_read_once() -> None:
    world = PromoteWorld(draft())
    world.settle()
    world.move("Draft")
    world.server.gets.clear()
    world.settle(rounds=20)
    assert (world.server.moves, world.verdict.reason) == (["Proposed"], "Rejected")
    assert f"{PROPOSED_CONTENT}-" in world.verdict.message
    assert world.server.gets == ["PackageRevisionResources"]


@pytest.mark.parametrize("has_commits", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_rejected_draft_is_proposed_again_when_its_content_changes(
    restarted: bool, *, has_commits: bool
) -> None:
    """Porch's database cache has no commits of drafts: there only the resourceVersion changes."""
    world = PromoteWorld(draft())
    world.settle()
    world.move("Draft")
    world.settle()
    assert world.verdict.reason == "Rejected"
    world.server.files["a.yaml"] = "a: 2\n"
    if has_commits:
        world.commit("another")
    else:
        world.server.change(lambda obj: None)
    if restarted:
        world.restart()
    world.settle()
    assert world.server.moves == ["Proposed", "Proposed"]


def test_a_condition_is_no_content() -> None:
    """A program that reports again, or whose condition goes and comes, does not overrule a person."""
    world = PromoteWorld(draft(**MET))
    world.settle()
    world.move("Draft")
    for status in ("False", "True"):
        world.set_condition("ip", status)
        world.settle()
    assert (world.server.moves, world.verdict.reason) == (["Proposed"], "Rejected")


def test_a_person_asks_again_by_removing_the_annotation() -> None:
    world = PromoteWorld(draft())
    world.settle()
    world.move("Draft")
    world.settle()
    world.annotate({PROPOSED_CONTENT: None})
    world.settle()
    assert world.server.moves == ["Proposed", "Proposed"]


@pytest.mark.parametrize("crash_after", [1, 2, 3])
@pytest.mark.parametrize("meanwhile", ["nothing", "rejected", "deleted"])
def test_a_crash_at_any_effect_of_release_proposes_once(crash_after: int, meanwhile: str) -> None:
    """The third effect is the write: its step is lost. A person who rejects it then is not overruled."""
    world = PromoteWorld(draft())
    world.run(world.promote)
    world.run(world.promote)
    with pytest.raises(CrashedError):
        world.run(world.release, crash_after=crash_after)
    was_written = world.server.moves == ["Proposed"]
    assert was_written == (crash_after == 3)
    if meanwhile == "deleted":
        world.server.revision = None
    elif meanwhile == "rejected" and was_written:
        world.move("Draft")
    world.restart()
    for _ in range(3):  # release is there before promote
        world.run(world.release)
    world.settle()
    proposed_later = [] if meanwhile == "deleted" else ["Proposed"]
    assert world.server.moves == (["Proposed"] if was_written else proposed_later)


def test_an_order_on_an_older_state_does_nothing() -> None:
    """Each of these is written after promote has decided, and before release reads."""
    edits: dict[str, Any] = {
        "gate": lambda obj: obj["spec"].update(readinessGates=[{"conditionType": "late"}]),
        "opt out": lambda obj: obj["metadata"].update(annotations={AUTO_LIFECYCLE: "false"}),
        "commit": lambda obj: obj["status"].update(selfLock={"git": {"commit": "new"}}),
        "owner": lambda obj: obj["metadata"].update(ownerReferences=[]),
        "deletion": lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-02T03:04:05Z"),
    }
    for name, edit in edits.items():
        world = PromoteWorld(draft())
        world.run(world.promote)
        world.run(world.promote)
        world.server.change(edit)
        outcome = world.run(world.release)
        assert outcome is not None
        assert (outcome.result, world.server.moves) == ("waiting", []), name


def test_a_change_between_read_and_write_is_a_conflict_and_no_proposal() -> None:
    world = PromoteWorld(draft())
    world.run(world.promote)
    world.run(world.promote)
    world.server.before_write = lambda: world.server.change(
        lambda obj: obj["spec"].update(readinessGates=[{"conditionType": "late"}])
    )
    assert world.run(world.release) is None
    assert world.server.moves == []


@pytest.mark.parametrize("change", [{"generation": 3}, {"uid": "another"}, {"annotations": {HOLD: "true"}}])
def test_an_order_for_a_variant_that_has_changed_is_not_carried_out(change: Any) -> None:
    world = PromoteWorld(draft())
    world.run(world.promote)
    world.run(world.promote)
    world.variant = variant(**change)
    world.observe()
    outcome = world.run(world.release)
    assert outcome is not None
    assert (outcome.result, world.server.moves) == ("waiting", [])


def test_a_refusal_of_the_api_server_is_reported_and_tried_again() -> None:
    world = PromoteWorld(draft())
    world.server.refuses = "unmet gates: late"
    world.settle()
    assert world.outcome is not None
    assert [(each.outcome, each.message) for each in world.outcome.carried] == [
        ("refused", "unmet gates: late")
    ]
    world.server.refuses = ""
    world.settle()
    assert world.server.moves == ["Proposed"]


def test_rows_end_with_their_variant_and_not_before_its_list_is_complete() -> None:
    world = PromoteWorld(draft())
    world.settle()
    world.variant = None
    world.server.revision = None
    world.markers["config.porch.kpt.dev/PackageVariant"] = SyncMarker(state="syncing", epoch=1)
    world.settle()
    assert (PROMOTIONS, KEY) in world.rows
    world.markers["config.porch.kpt.dev/PackageVariant"] = SyncMarker(state="ok", epoch=2)
    world.settle()
    assert not {(PROMOTIONS, KEY), (RELEASES, KEY)} & world.rows.keys()


# ------------------------------------------------------------ back to Draft


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda obj: obj["status"].update(conditions=[{"type": "ip", "status": "False"}]),
            "GateNotMet: unmet",
        ),
        (lambda obj: obj["status"].update(conditions=[]), "GateNotMet: unmet readiness gates: ip"),
        (
            lambda obj: obj["status"]["conditions"].append({"type": "Rendered", "status": "False"}),
            "NotRendered",
        ),
    ],
)
def test_a_proposal_that_loses_its_readiness_is_a_draft_with_the_reason(edit: Any, why: str) -> None:
    world = PromoteWorld(draft(**MET))
    world.settle()
    world.server.change(edit)
    world.settle()
    assert world.server.moves == ["Proposed", "Draft"]
    assert world.server.revision is not None
    annotations = world.server.revision["metadata"]["annotations"]
    assert annotations[RETURNED].startswith(why)
    assert PROPOSED_CONTENT not in annotations
    world.set_condition("ip", "True")
    world.settle()
    assert world.server.moves == ["Proposed", "Draft", "Proposed"]


def _stepped(step: str, status: str) -> Any:
    made = draft(gates=("ip", "budget"), conditions=(("ip", "True"), ("budget", status)))
    made["spec"]["packageMetadata"] = {"annotations": {GATE_STEPS: f'{{"budget": "{step}"}}'}}
    return made


@pytest.mark.parametrize(
    ("step", "before", "after", "moves"),
    [
        ("approve", "False", "False", ["Proposed"]),
        ("approve", "True", "False", ["Proposed"]),
        ("propose", "True", "False", ["Proposed"]),
        ("propose", "False", "False", []),
        ("neither", "True", "False", ["Proposed", "Draft"]),
        ("neither", "False", "False", []),
    ],
)
def test_a_gate_for_one_step_counts_for_this_step(
    step: str, before: str, after: str, moves: list[str]
) -> None:
    """An annotation that cannot be read leaves the gate to both."""
    world = PromoteWorld(_stepped(step, before))
    world.settle()
    world.server.change(lambda obj: obj["status"].update(_stepped(step, after)["status"]))
    world.settle()
    assert world.server.moves == moves


def test_a_proposal_that_keeps_its_variant_from_a_change_is_taken_back() -> None:
    """Inject changes drafts only: it says so in the variant's condition Ready."""
    world = PromoteWorld(draft())
    world.settle()
    needs_draft = {"status": "False", "reason": "UpstreamChanged", "message": "the upstream is now v2"}
    world.variant = variant(ready=needs_draft)
    world.settle()
    assert world.server.moves == ["Proposed", "Draft"]


@pytest.mark.parametrize(
    "of",
    [
        variant(ready={"status": "False", "reason": "Waiting"}),
        variant(ready={"observedGeneration": 1}),
        variant(annotations={HOLD: "true"}, ready={"status": "False", "reason": "UpstreamChanged"}),
        variant(opted_in=False),
    ],
)
def test_what_is_no_loss_of_readiness_leaves_a_proposal_alone(of: Any) -> None:
    world = PromoteWorld(draft())
    world.settle()
    world.variant = of
    world.settle()
    assert (world.server.moves, world.verdict.reason) == (["Proposed"], "Proposed")


def test_the_setting_leaves_unready_proposals_to_people() -> None:
    world = PromoteWorld(draft(**MET), returns=False)
    world.settle()
    world.set_condition("ip", "False")
    world.settle()
    assert world.server.moves == ["Proposed"]
    assert "lost its readiness: GateNotMet" in world.verdict.message


def test_a_proposal_of_a_person_is_never_taken_back() -> None:
    world = PromoteWorld(draft(lifecycle="Proposed", **MET))
    world.settle()
    world.set_condition("ip", "False")
    world.settle()
    assert world.server.moves == []


def test_a_person_may_propose_before_the_barrier_opens() -> None:
    world = PromoteWorld(draft(lifecycle="Proposed"), variant(), specializer())
    world.settle()
    assert (world.verdict.reason, world.server.moves) == ("ProposedByHand", [])


def test_a_proposal_that_is_approved_in_the_middle_is_not_taken_back() -> None:
    world = PromoteWorld(draft(**MET))
    world.settle()
    world.set_condition("ip", "False")
    world.observe()
    world.run(world.promote)
    world.move("Published")
    world.run(world.release)
    assert world.server.moves == ["Proposed"]


# ------------------------------------------------------------ any history

STEPS = st.sampled_from(
    [
        *("look", "look", "look", "reject", "reject", "ready"),
        *("promote", "release", "observe", "restart", "crash", "unready", "edit", "hold", "unhold"),
    ]
)
"""look: one round of all; alone, its parts come in any order. The frequent ones make most of a history."""


@given(st.lists(STEPS, max_size=40))
def test_after_any_history_no_content_is_proposed_again_that_a_person_rejected(steps: list[str]) -> None:
    """At most once per attempt: a new attempt takes new content, or promote's own return to Draft."""
    world = PromoteWorld(draft(**MET))
    proposed: set[str] = set()
    number = 0
    for step in steps:
        assert world.server.revision is not None
        before = len(world.server.moves)
        match step:
            case "look":
                world.settle(rounds=1)
            case "promote":
                world.run(world.promote)
            case "release":
                world.run(world.release)
            case "crash":
                try:
                    world.run(world.release, crash_after=3)
                except CrashedError:
                    world.restart()
            case "observe":
                world.observe()
            case "restart":
                world.restart()
            case "ready" | "unready":
                world.set_condition("ip", "True" if step == "ready" else "False")
            case "reject" if world.server.revision["spec"]["lifecycle"] == "Proposed":
                world.move("Draft")
            case "edit" if world.server.revision["spec"]["lifecycle"] == "Draft":
                number += 1
                world.server.files["a.yaml"] = f"a: {number}\n"
                world.commit(str(number))
            case "hold" | "unhold":
                value = "true" if step == "hold" else "false"
                world.variant = variant(annotations={AUTO_LIFECYCLE: "true", HOLD: value})
        for move in world.server.moves[before:]:
            content = content_digest(world.server.files)
            if move == "Proposed":
                assert content not in proposed, steps
                assert world.server.revision["status"]["conditions"][0]["status"] == "True"
                proposed.add(content)
            else:
                proposed.discard(content)


# ------------------------------------------------------------ the opening barrier


ACKNOWLEDGED = {"acknowledged.promotion.pvbus.dev/ipam": NAME}
LATER = 10_000.0


@pytest.mark.parametrize(
    ("spec", "annotations", "seconds", "moves", "words"),
    [
        (
            {},
            {},
            0,
            [],
            "default/ipam has not acknowledged it yet; after 2026-01-02T03:14:05Z it stays closed",
        ),
        ({"afterDeadline": "Open"}, {}, 0, [], "it is proposed without"),
        ({}, ACKNOWLEDGED, 0, ["Proposed"], ""),
        ({}, {"acknowledged.promotion.pvbus.dev/ipam": "another"}, 0, [], "has not acknowledged it yet"),
        ({}, {"acknowledged.promotion.pvbus.dev/other": NAME}, 0, [], "has not acknowledged it yet"),
        ({}, {}, LATER, [], "within 600 s: see whether its program runs"),
        ({"afterDeadline": "Open"}, {}, LATER, ["Proposed"], ""),
        ({"afterDeadline": "Open", "deadlineSeconds": 20_000}, {}, LATER, [], "it is proposed without"),
        ({"selector": {"matchLabels": {"region": "asia"}}}, {}, 0, [], "has not acknowledged it yet"),
        ({"selector": {"matchLabels": {"region": "europe"}}}, {}, 0, ["Proposed"], ""),
        ({"selector": {"matchLabels": {"own": "label"}}}, {}, 0, [], "has not acknowledged it yet"),
        (
            {"selector": {"matchExpressions": [{"key": "region", "operator": "Is"}]}},
            {},
            0,
            [],
            'its selector is invalid: spec.selector.matchExpressions[0].operator: Invalid value: "Is"',
        ),
        ({"deadlineSeconds": "soon"}, {}, 0, [], "its selector is invalid"),
    ],
)
def test_a_draft_waits_for_each_specializer_that_selects_it(
    spec: Any, annotations: Any, seconds: float, moves: list[str], words: str
) -> None:
    revision = draft(annotations=annotations, labels={"region": "asia"})
    world = PromoteWorld(revision, variant(labels={"region": "europe", "own": "label"}), specializer(**spec))
    world.now += seconds
    world.settle()
    assert world.server.moves == moves
    if words:
        assert world.verdict.reason == "NotOpened"
        assert words in world.verdict.message


ACKNOWLEDGEMENT = "acknowledged.promotion.pvbus.dev/ipam"
CHANGED = "default/ipam acknowledged other content"


def acknowledged(
    value: str = NAME, *, types: tuple[str, ...] = (), gates: tuple[str, ...] = ()
) -> PromoteWorld:
    """A draft that waits for the gate `tested`, and that a program has acknowledged and promote has seen."""
    world = PromoteWorld(
        draft(gates=("tested", *gates), annotations={ACKNOWLEDGEMENT: value}),
        variant(),
        specializer(conditionTypes=types),
    )
    world.settle()
    assert world.server.moves == []
    return world


def change_files(world: PromoteWorld, text: str) -> None:
    """Change the content, as a rebase, an edit or a push does; what the program tested is True of that."""
    world.server.files["a.yaml"] = text
    world.commit(text)
    world.set_condition("tested", "True")
    world.settle()


@pytest.mark.parametrize(
    ("reason", "types", "gates", "is_open"),
    [
        ("without a gate of the program it is of the content", (), (), False),
        ("that it could add one is none", ("ip",), (), False),
        ("its gate follows the content by itself", ("tested",), (), True),
    ],
)
def test_an_acknowledgement_is_of_the_content_that_there_was(
    reason: str, types: tuple[str, ...], gates: tuple[str, ...], is_open: bool
) -> None:
    world = acknowledged(types=types, gates=gates)
    world.restart()
    change_files(world, "a: other\n")
    assert world.server.moves == (["Proposed"] if is_open else []), reason
    if not is_open:
        assert world.verdict.reason == "NotOpened", reason
        assert CHANGED in world.verdict.message, reason
        content = signed_digest(world.server.files)
        value = f"{NAME}@{content}"
        assert f"{ACKNOWLEDGEMENT}={value}" in world.verdict.message, "what to do"
        world.annotate({ACKNOWLEDGEMENT: value})
        world.settle()
        assert world.server.moves == ["Proposed"], reason


def test_an_acknowledgement_without_its_gate_any_more_is_of_the_content() -> None:
    world = acknowledged(types=("ip",), gates=("ip",))
    world.server.change(lambda obj: obj["spec"].update(readinessGates=[{"conditionType": "tested"}]))
    world.settle()
    change_files(world, "a: other\n")
    assert (world.server.moves, world.verdict.reason) == ([], "NotOpened")
    assert CHANGED in world.verdict.message


def test_conditions_gates_and_tasks_are_no_content_of_an_acknowledgement() -> None:
    world = acknowledged()
    world.set_condition("tested", "True")
    world.settle()
    assert world.server.moves == ["Proposed"]


@pytest.mark.parametrize(("after", "moves"), [("Open", ["Proposed"]), ("Closed", [])])
def test_an_acknowledgement_of_other_content_counts_as_none_after_the_deadline(
    after: str, moves: list[str]
) -> None:
    world = PromoteWorld(
        draft(gates=("tested",), annotations={ACKNOWLEDGEMENT: NAME}),
        variant(),
        specializer(afterDeadline=after),
    )
    world.settle()
    change_files(world, "a: other\n")
    assert (world.server.moves, world.verdict.reason) == ([], "NotOpened")
    assert CHANGED in world.verdict.message
    world.now += LATER
    world.settle()
    assert world.server.moves == moves
    if not moves:
        assert CHANGED in world.verdict.message


def test_an_acknowledgement_that_is_given_anew_is_of_the_content_then() -> None:
    world = acknowledged()
    world.annotate({ACKNOWLEDGEMENT: None})
    change_files(world, "a: other\n")
    assert world.server.moves == []
    world.annotate({ACKNOWLEDGEMENT: NAME})
    world.settle()
    assert world.server.moves == ["Proposed"]


def test_an_acknowledgement_may_name_the_content_and_counts_for_no_other() -> None:
    files = signed_digest(FILES)
    for content, moves in ((files, ["Proposed"]), ("0" * 32, [])):
        world = PromoteWorld(
            draft(annotations={ACKNOWLEDGEMENT: f"{NAME}@{content}"}), variant(), specializer()
        )
        world.settle()
        assert world.server.moves == moves


def test_a_draft_whose_files_cannot_be_read_is_not_acknowledged() -> None:
    world = PromoteWorld(draft(annotations={ACKNOWLEDGEMENT: NAME}), variant(), specializer())
    world.server.unreadable = {NAME}
    world.settle()
    assert world.server.moves == []
    assert CHANGED in world.verdict.message


def test_files_are_read_once_for_an_acknowledgement() -> None:
    world = acknowledged()
    reads = len(world.server.gets)
    world.settle()
    assert len(world.server.gets) == reads


@pytest.mark.parametrize(("status", "seconds"), [("True", 60.0), ("False", 0.0)])
def test_a_draft_from_which_a_gate_is_removed_while_it_is_signed_settles_anew(
    status: str, seconds: float
) -> None:
    """Who removed it is in git; others have a minute to see it. A restart does not shorten that."""
    world = PromoteWorld(draft(gates=("tested", "ip")), variant())
    world.set_condition("tested", status)
    world.settle()
    assert world.verdict.reason == "GateNotMet"
    gates = [{"conditionType": "tested"}] if seconds else []
    world.server.change(lambda obj: obj["spec"].update(readinessGates=gates))
    world.settle()
    if seconds:
        assert world.server.moves == []
        assert world.verdict.reason == "NotOpened"
        assert "a readiness gate was removed from it while it was signed" in world.verdict.message
        world.now += seconds - 1
        world.restart()
        world.settle()
        assert world.server.moves == []
        world.now += 2
        world.settle()
    assert world.server.moves == ["Proposed"]


def test_a_clock_that_is_set_back_neither_ends_nor_prolongs_the_settling_of_a_draft() -> None:
    world = PromoteWorld(draft(gates=("tested", "ip")), variant())
    world.set_condition("tested", "True")
    world.settle()
    world.server.change(lambda obj: obj["spec"].update(readinessGates=[{"conditionType": "tested"}]))
    world.settle()
    world.now -= 86_400
    world.restart()
    world.settle()
    assert (world.server.moves, world.verdict.reason) == ([], "NotOpened")
    world.now += 61
    world.settle()
    assert world.server.moves == ["Proposed"]


def test_the_next_decision_is_at_the_deadline() -> None:
    world = PromoteWorld(
        draft(), variant(), specializer(deadlineSeconds=90), specializer("other", deadlineSeconds=300)
    )
    world.observe()
    outcome = world.run(world.promote)
    assert outcome is not None
    assert outcome.again_after == pytest.approx(30.0)


def test_a_gate_that_a_specializer_reports_is_said_to_be_served() -> None:
    world = PromoteWorld(draft(gates=("ip",)), variant(), specializer(conditionTypes=["ip"]))
    world.settle()
    assert world.verdict.reason == "GateNotMet"
    assert "no PackageSpecializer" not in world.verdict.message


@pytest.mark.parametrize(
    ("marker", "moves"),
    [
        (None, []),
        (SyncMarker(state="syncing", epoch=1), []),
        (SyncMarker(state="unavailable", epoch=1, message="packagespecializers is forbidden"), []),
        (
            SyncMarker(state="unavailable", epoch=1, message='no matches for kind "PackageSpecializer"'),
            ["Proposed"],
        ),
        (SyncMarker(state="ok", epoch=1), ["Proposed"]),
    ],
)
def test_nothing_is_proposed_before_the_specializers_are_known(
    marker: SyncMarker | None, moves: list[str]
) -> None:
    """A missing row counts only while the list is complete; a kind that is not installed has no objects."""
    world = PromoteWorld()
    kind = "promotion.pvbus.dev/PackageSpecializer"
    del world.markers[kind]
    world.rows = {at: value for at, value in world.rows.items() if kind not in at[1]}
    world.restart()
    world.server.revision = draft()
    if marker is not None:
        world.markers[kind] = marker
    world.settle()
    assert world.server.moves == moves
    if marker is not None and "forbidden" in marker.message:
        assert world.verdict.reason == "NotOpened"
        assert "packagespecializers is forbidden" in world.verdict.message
    assert any(topic == "pvbus.watches" for topic, _ in world.rows)


@given(
    st.lists(
        st.sampled_from(["promote", "release", "observe", "restart", "acknowledge", "gate"]), max_size=30
    )
)
def test_in_any_order_nothing_is_proposed_before_an_acknowledgement(steps: list[str]) -> None:
    """The program adds its gate in the write that acknowledges: the gate holds from the first moment."""
    world = PromoteWorld(draft(), variant(), specializer())
    for step in steps:
        match step:
            case "promote":
                world.run(world.promote)
            case "release":
                world.run(world.release)
            case "observe":
                world.observe()
            case "restart":
                world.restart()
            case "acknowledge" if not world.server.moves:
                world.annotate(ACKNOWLEDGED)
                world.server.change(lambda obj: obj["spec"].update(readinessGates=[{"conditionType": "ip"}]))
            case "gate":
                world.set_condition("ip", "True")
        assert world.server.revision is not None
        if world.server.moves:
            assert ACKNOWLEDGED.items() <= world.server.revision["metadata"]["annotations"].items()
            assert world.server.revision["status"]["conditions"][0]["status"] == "True"
