"""Conditions follow the content on a server that binds nothing, as Porch's own: promote notes what each was
found on, and release makes Unknown what was found on other files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.kernel.keys import AUTO_LIFECYCLE, HOLD, PROPOSED_CONTENT, RETURNED, SIGNATURES, SURVIVES
from pvbus.core.promotion.promote.controller import UNREADABLE_RETRY_SECONDS
from pvbus.core.variants.revisions.signatures import Signature, annotation_of, signed_digest
from tests.kit.deciding import CrashedError
from tests.unit.core.promotion.promoting import FILES, NAME, PromoteWorld, draft, variant
from tests.unit.core.promotion.test_candidates import policy, rows, world_of
from tests.unit.core.promotion.test_unowned import Alone, by_hand

BOTH: Any = {"gates": ("certified", "tested"), "conditions": (("certified", "True"),)}
ONE: Any = {"gates": ("ip",), "conditions": (("ip", "True"),)}


def condition(world: PromoteWorld, type_: str) -> dict[str, Any]:
    assert world.server.revision is not None
    (found,) = (each for each in world.server.revision["status"]["conditions"] if each["type"] == type_)
    return dict(found)


def say(world: PromoteWorld, type_: str, status: str = "True", message: str = "") -> None:
    """Report a condition beside the others, as a program does at Porch's server."""

    def edit(obj: Any) -> None:
        others = [each for each in obj["status"]["conditions"] if each["type"] != type_]
        said = {"type": type_, "status": status, **({"message": message} if message else {})}
        obj["status"]["conditions"] = [*others, said]

    world.server.change(edit)


def save(world: PromoteWorld, text: str, file: str = "a.yaml") -> None:
    """Save other content, and leave the conditions as they are."""
    world.server.files[file] = text
    world.commit(text)


def is_proposed(world: PromoteWorld) -> bool:
    return "Proposed" in world.server.moves


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_signed_is_unknown_when_the_content_changes_before_the_proposal(*, restarted: bool) -> None:
    world = PromoteWorld(draft(**BOTH))
    say(world, "certified", message="I looked at v3 of it")
    world.settle()
    if restarted:
        world.restart()
    save(world, "a: 2\n")
    world.settle()
    said = condition(world, "certified")
    assert (said["status"], said["reason"]) == ("Unknown", "InputsChanged")
    assert (
        "it was True (I looked at v3 of it); the content has changed since: whoever set it" in said["message"]
    )
    say(world, "tested")
    world.settle()
    assert not is_proposed(world)
    assert world.verdict.reason == "GateNotMet"
    assert "certified (it was True (I looked at v3 of it)" in world.verdict.message
    say(world, "certified", message="I looked at v4 of it")
    world.settle()
    assert is_proposed(world)


def test_a_condition_of_other_content_counts_for_nothing_before_it_is_made_unknown() -> None:
    """Also where the server refuses that write, and where a person puts the former content back."""
    world = PromoteWorld(draft(**ONE, annotations={AUTO_LIFECYCLE: "false"}))
    world.settle()
    world.server.refuses = "conditions are read-only here"
    world.annotate({AUTO_LIFECYCLE: None})
    save(world, "a: 2\n")
    world.settle()
    assert (world.server.moves, world.verdict.reason) == ([], "InputsChanged")
    assert "its content has changed since ip became True" in world.verdict.message
    assert "whoever set it looks at the draft as it is now" in world.verdict.message
    assert world.outcome is not None
    assert [each.message for each in world.outcome.carried] == ["conditions are read-only here"]
    save(world, FILES["a.yaml"])
    world.settle()
    assert (world.server.moves, world.verdict.reason) == ([], "InputsChanged")


def test_a_draft_that_is_not_opted_in_is_not_written_to() -> None:
    world = PromoteWorld(draft(**ONE), variant(opted_in=False))
    world.settle()
    save(world, "a: 2\n")
    world.settle()
    assert (world.server.moves, condition(world, "ip")["status"]) == ([], "True")


def test_a_hold_keeps_the_condition_as_it_is_and_the_draft_a_draft() -> None:
    world = PromoteWorld(draft(**ONE), variant(annotations={AUTO_LIFECYCLE: "true", HOLD: "true"}))
    world.settle()
    save(world, "a: 2\n")
    world.settle()
    assert (world.server.moves, world.verdict.reason) == ([], "OnHold")
    world.variant = variant()
    world.settle()
    assert condition(world, "ip")["reason"] == "InputsChanged"
    assert not is_proposed(world)


def test_files_that_cannot_be_read_make_no_condition_count() -> None:
    world = PromoteWorld(draft(**ONE))
    world.server.unreadable = {NAME}
    world.observe()
    world.run(world.promote)
    outcome = world.run(world.promote)
    assert outcome is not None
    assert outcome.again_after == UNREADABLE_RETRY_SECONDS
    world.settle()
    assert (world.server.moves, world.verdict.reason) == ([], "GateNotMet")
    assert "its files cannot be read, so nobody knows what it was found on" in world.verdict.message
    assert condition(world, "ip")["status"] == "True", "nothing says that it is of other files"
    world.server.unreadable = set()
    world.settle()
    assert is_proposed(world)


def test_what_was_bound_stays_bound_while_the_files_cannot_be_read() -> None:
    world = PromoteWorld(draft(**BOTH))
    world.settle()
    world.server.unreadable = {NAME}
    save(world, "a: 2\n")
    world.settle()
    world.server.unreadable = set()
    world.settle()
    assert condition(world, "certified")["reason"] == "InputsChanged"


def test_release_compares_the_files_that_it_proposes() -> None:
    """Promote may have read older files than the row is of, as from a cache."""
    world = PromoteWorld(draft(**ONE))
    world.run(world.promote)
    world.run(world.promote)
    assert world.verdict.order == "propose"
    world.server.files["a.yaml"] = "a: 2\n"
    outcome = world.run(world.release)
    assert outcome is not None
    assert (outcome.result, world.server.moves) == ("waiting", [])


def test_the_files_of_a_revision_are_read_once_for_its_conditions() -> None:
    world = PromoteWorld(draft(**BOTH))
    world.settle()
    assert world.server.gets == ["PackageRevisionResources"]
    without = PromoteWorld(draft(gates=("ip",), conditions=(("ip", "Unknown"), ("Rendered", "True"))))
    without.settle()
    assert without.server.gets == []


@pytest.mark.parametrize(
    ("survives", "file", "status"),
    [
        ({"ip": ["README.md"]}, "README.md", "True"),
        ({"ip": ["README.md"]}, "a.yaml", "Unknown"),
        ({"other": ["README.md"]}, "README.md", "Unknown"),
        ({"ip": ["*"]}, "README.md", "Unknown"),
    ],
    ids=["named", "another file", "another type", "everything"],
)
def test_a_condition_survives_what_its_signer_said(survives: Any, file: str, status: str) -> None:
    world = PromoteWorld(draft(**ONE, annotations={AUTO_LIFECYCLE: "true"}), variant(opted_in=False))
    world.annotate({AUTO_LIFECYCLE: "false"})
    kptfile = FILES["Kptfile"] + f"  annotations:\n    {SURVIVES}: '{json.dumps(survives)}'\n"
    world.server.files |= {"Kptfile": kptfile, "README.md": "one\n"}
    world.settle()
    save(world, "two\n", file)
    world.annotate({AUTO_LIFECYCLE: "true"})
    world.settle()
    assert condition(world, "ip")["status"] == status
    assert is_proposed(world) == (status == "True")


def test_other_words_are_a_new_statement() -> None:
    world = PromoteWorld(draft(**BOTH))
    world.settle()
    world.server.files["a.yaml"] = "a: 2\n"
    say(world, "certified", message="I looked at v4 of it")
    say(world, "tested")
    world.settle()
    assert is_proposed(world)


def test_what_the_package_store_has_bound_counts_as_it_says() -> None:
    """Between two looks of promote it was Unknown and set again, with the same words."""
    world = PromoteWorld(draft(**BOTH))
    world.settle()
    world.server.files["a.yaml"] = "a: 2\n"
    record = annotation_of({"certified": Signature(content=signed_digest(world.server.files), by="ann")})
    kptfile = FILES["Kptfile"] + f"  annotations:\n    {SIGNATURES}: '{record}'\n"
    save(world, kptfile, "Kptfile")
    world.settle()
    assert condition(world, "certified")["status"] == "True"
    save(world, "a: 3\n")
    world.settle()
    assert condition(world, "certified")["status"] == "Unknown", "a record of other files says nothing"


def test_a_condition_without_a_gate_is_made_unknown_before_the_proposal() -> None:
    world = PromoteWorld(draft(conditions=(("ip", "True"),), annotations={AUTO_LIFECYCLE: "false"}))
    world.settle()
    save(world, "a: 2\n")
    world.annotate({AUTO_LIFECYCLE: "true"})
    world.settle()
    assert (condition(world, "ip")["status"], world.server.moves) == ("Unknown", ["Draft", "Proposed"])


@pytest.mark.parametrize("type_", ["Rendered", "config.injection.ConfigMap.a"])
def test_what_follows_the_content_by_itself_stays(type_: str) -> None:
    world = PromoteWorld(draft(gates=("late",), conditions=((type_, "True"),)))
    world.settle()
    save(world, "a: 2\n")
    world.settle()
    assert condition(world, type_)["status"] == "True"


def test_a_proposal_whose_content_changes_goes_back_and_its_condition_is_unknown() -> None:
    world = PromoteWorld(draft(**ONE))
    world.settle()
    assert is_proposed(world)
    save(world, "a: 2\n")
    world.settle()
    assert world.server.revision is not None
    assert world.server.revision["spec"]["lifecycle"] == "Draft"
    assert "the content has changed since" in world.server.revision["metadata"]["annotations"][RETURNED]
    assert condition(world, "ip")["reason"] == "InputsChanged"
    say(world, "ip")
    world.settle()
    assert world.server.revision["spec"]["lifecycle"] == "Proposed"


def test_no_rollout_approves_what_a_person_proposed_after_the_content_changed() -> None:
    world = world_of(policy(), revision=draft(**ONE), of=variant(opted_in=False))
    save(world, "a: 2\n")
    world.move("Proposed")
    world.settle()
    row = rows(world)["web"]
    assert (world.verdict.reason, row.is_proposed, row.reason) == ("ProposedByHand", False, "GateNotMet")
    assert "the content has changed since: whoever set it" in row.message
    assert PROPOSED_CONTENT not in (world.server.revision or {})["metadata"].get("annotations", {})


def test_a_revision_without_a_variant_is_bound_too() -> None:
    world = Alone(by_hand(**BOTH))
    world.settle()
    save(world, "a: 2\n")
    say(world, "tested")
    world.settle()
    assert condition(world, "certified")["reason"] == "InputsChanged"
    assert (is_proposed(world), world.said.reason) == (False, "GateNotMet")


@pytest.mark.parametrize("crash_after", [1, 2])
def test_a_crash_at_any_effect_of_release_makes_it_unknown_once(crash_after: int) -> None:
    world = PromoteWorld(draft(**BOTH))
    world.settle()
    save(world, "a: 2\n")
    world.observe()
    world.run(world.promote)
    with pytest.raises(CrashedError):
        world.run(world.release, crash_after=crash_after)
    world.restart()
    world.settle()
    assert (world.server.moves, condition(world, "certified")["status"]) == (["Draft"], "Unknown")


@given(
    st.lists(st.sampled_from(["save", "sign", "unsign", "return", "restart", "reject", "promote", "release"]))
)
def test_in_any_order_nothing_is_proposed_with_a_condition_of_other_content(steps: list[str]) -> None:
    """What promote has seen a signature on is what counts for it, however often it fails or starts again."""
    world, signed = PromoteWorld(draft(gates=("ip",))), ""

    def is_sound() -> bool:
        assert world.server.revision is not None
        is_open = world.server.revision["spec"]["lifecycle"] == "Draft"
        return is_open or signed == world.server.files["a.yaml"]

    for number, step in enumerate(steps):
        is_draft = world.server.revision is not None and world.server.revision["spec"]["lifecycle"] == "Draft"
        if step in ("save", "return") and is_draft:
            save(world, f"a: {number}\n" if step == "save" else FILES["a.yaml"])
        elif step in ("sign", "unsign") and is_draft:
            say(world, "ip", "True" if step == "sign" else "Unknown")
            signed = world.server.files["a.yaml"] if step == "sign" else ""
            world.observe()
            world.run(world.promote)
        elif step == "reject":
            world.move("Draft")
        elif step == "restart":
            world.restart()
        elif step in ("promote", "release"):
            world.observe()
            world.run(world.promote if step == "promote" else world.release)
        assert is_sound()
    world.settle()
    assert is_sound()
