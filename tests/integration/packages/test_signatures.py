"""Conditions of a draft follow its content, whoever changes it and how, on a real store."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.layout import CAUSE
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import CONDITION_ORDER, SIGNATURES, SIGNED_CONTENT, SURVIVES, TASKS
from pvbus.core.kernel.tasks import Task
from pvbus.core.variants.revisions.signatures import shown_digest, signed_digest
from pvbus.ports.cluster import Object
from tests.integration.packages.support import StoreWorld, clone_of, git, push_files, revision

NAME = "edge.app-1.ws"
BRANCH = "drafts/app-1/ws"
APP = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: app\ndata:\n  size: '{}'\n"


def signing(obj: Object, type_: str, status: str = "True", message: str = "") -> Object:
    """Return an update of a PackageRevision that sets one condition."""
    others = [each for each in obj["status"]["conditions"] if each["type"] != type_]
    condition = {"type": type_, "status": status} | ({"message": message} if message else {})
    return {**obj, "status": {**obj["status"], "conditions": [*others, condition]}}


def named(obj: Object, digest: str) -> Object:
    metadata = obj["metadata"]
    annotations = {**metadata.get("annotations", {}), SIGNED_CONTENT: digest}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def condition(obj: Object, type_: str = "Certified") -> dict[str, str]:
    (found,) = [each for each in obj["status"]["conditions"] if each["type"] == type_]
    return dict(found)


def signatures(obj: Object) -> dict[str, Any]:
    annotations = obj["spec"].get("packageMetadata", {}).get("annotations", {})
    return dict(json.loads(annotations.get(SIGNATURES, "{}")))


def annotated(obj: Object, added: dict[str, str]) -> dict[str, Any]:
    """Return the metadata of a package with more annotations in its Kptfile."""
    return {"annotations": {**obj["spec"].get("packageMetadata", {}).get("annotations", {}), **added}}


async def texts(fleet: StoreWorld) -> dict[str, str]:
    return dict((await fleet.files(NAME))["spec"]["resources"])


async def drafted(fleet: StoreWorld, size: str = "1") -> Object:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    await fleet.put(await fleet.files(NAME), {"app.yaml": APP.format(size)})
    return fleet.present(NAME)


async def certified(fleet: StoreWorld, *types: str) -> Object:
    """Make a draft whose conditions ann has signed."""
    draft = await drafted(fleet)
    for type_ in types or ("Certified",):
        draft = await fleet.update(signing(draft, type_, message="I looked at it"), user="ann")
    return draft


async def edit(fleet: StoreWorld, size: str, **options: Any) -> Object:
    await fleet.put(await fleet.files(NAME), {"app.yaml": APP.format(size)}, **options)
    return fleet.present(NAME)


async def test_a_change_of_a_file_makes_what_was_signed_unknown(fleet: StoreWorld) -> None:
    """Its message has the former value, who signed it, and the file; and old content restores nothing."""
    signed = await certified(fleet)
    assert signatures(signed)["Certified"] == {"content": signed_digest(await texts(fleet)), "by": "ann"}
    changed = condition(await edit(fleet, "2"))
    assert (changed["status"], changed["reason"]) == ("Unknown", "InputsChanged")
    assert changed["message"] == (
        "it was True by ann (I looked at it); the content has changed since: app.yaml"
    )
    restored = await edit(fleet, "1")
    assert condition(restored) == changed
    assert signatures(restored) == {}
    again = await fleet.update(signing(restored, "Certified", message="I looked at it"), user="ann")
    assert condition(again)["status"] == "True"


async def test_what_is_no_content_voids_nothing(fleet: StoreWorld) -> None:
    """Another condition, a gate, a task, an order, and a Kptfile that kpt has written anew."""
    draft = await certified(fleet)
    draft = await fleet.update(signing(draft, "Tested", "False"), user="bob")
    draft = await fleet.update(draft, readinessGates=[{"conditionType": "Certified"}])
    asked = tasks.with_task({}, "Budget", Task(question="Is it paid?"))
    draft = await fleet.update(draft, packageMetadata=annotated(draft, asked))
    order = {CONDITION_ORDER: '{"Certified": ["Tested"]}'}
    draft = await fleet.update(draft, packageMetadata=annotated(draft, order))
    kptfile = (await texts(fleet))["Kptfile"]
    rewritten = kptfile.replace("description: an example", "description:   'an example' # as kpt")
    assert rewritten != kptfile
    await fleet.put(await fleet.files(NAME), {"Kptfile": rewritten})
    assert condition(fleet.present(NAME))["status"] == "True"
    assert signatures(fleet.present(NAME))["Certified"]["by"] == "ann"


async def test_who_removes_a_gate_of_a_signed_draft_is_in_its_commit(fleet: StoreWorld, edge: Path) -> None:
    gates = [{"conditionType": "Certified"}, {"conditionType": "Tested"}]
    draft = await fleet.update(await certified(fleet), readinessGates=gates)
    await fleet.update(draft, user="eve", readinessGates=gates[:1])
    log = git(edge, "log", "--all", "--format=%B")
    assert "Gate Tested: removed by eve from a signed draft" in log
    assert "Gate Certified" not in log


async def test_a_signature_runs_no_pipeline(fleet: StoreWorld) -> None:
    draft = await drafted(fleet)
    runs = len(fleet.renders)
    await fleet.update(signing(draft, "Certified"), user="ann")
    await fleet.put(await fleet.files(NAME), {})
    assert len(fleet.renders) == runs


@pytest.mark.parametrize("user", ["bob", "ann"])
async def test_labels_of_the_package_are_content(fleet: StoreWorld, user: str) -> None:
    """The signer's own edit counts as anybody's."""
    draft = await fleet.update(await certified(fleet), user=user, packageMetadata={"labels": {"a": "b"}})
    assert condition(draft)["reason"] == "InputsChanged"
    assert condition(draft)["message"].endswith(": Kptfile")


async def test_who_sets_a_condition_with_new_content_signs_the_new_content(fleet: StoreWorld) -> None:
    """As kpt and porchctl do: files and the Kptfile's status in one update. Other conditions are void."""
    await certified(fleet, "Certified", "Tested")
    kptfile = (await texts(fleet))["Kptfile"]
    stale = kptfile.replace("I looked at it", "I filled it in", 1)
    await fleet.put(await fleet.files(NAME), {"Kptfile": stale, "app.yaml": APP.format("2")}, user="filler")
    draft = fleet.present(NAME)
    assert condition(draft, "Certified")["status"] == "True"
    assert condition(draft, "Tested")["status"] == "Unknown"
    found = signatures(draft)
    assert {type_: each["by"] for type_, each in found.items() if each["content"]} == {"Certified": "filler"}


async def test_a_service_of_pvbus_signs_nothing(fleet: StoreWorld) -> None:
    """What a rebase brings along is no statement on the draft, and what was signed before it is void."""
    await certified(fleet)
    resources = await fleet.files(NAME)
    entry = "  conditions:\n  - type: Brought\n    status: 'True'\n"
    brought = resources["spec"]["resources"]["Kptfile"].replace("  conditions:\n", entry)
    rebase = {**resources, "metadata": {**resources["metadata"], "annotations": {CAUSE: "a rebase"}}}
    await fleet.put(rebase, {"Kptfile": brought, "app.yaml": APP.format("2")})
    assert condition(fleet.present(NAME), "Brought")["status"] == "Unknown"
    assert condition(fleet.present(NAME))["reason"] == "InputsChanged"


async def test_a_client_can_neither_forge_nor_lose_a_signature(fleet: StoreWorld) -> None:
    draft = await certified(fleet)
    expected = signatures(draft)
    future = signed_digest({**await texts(fleet), "app.yaml": APP.format("2")})
    forged = {SIGNATURES: json.dumps({"Certified": {"content": future}})}
    draft = await fleet.update(draft, packageMetadata=annotated(draft, forged))
    assert signatures(draft) == expected
    lost = annotated(draft, {})
    del lost["annotations"][SIGNATURES]
    draft = await fleet.update(draft, packageMetadata=lost)
    assert signatures(draft) == expected
    assert condition(await edit(fleet, "2"))["status"] == "Unknown"


async def test_a_push_voids_what_was_signed_until_somebody_signs_anew(fleet: StoreWorld, edge: Path) -> None:
    draft = await certified(fleet, "Certified", "Tested")
    push_files(edge, {"app-1/app.yaml": APP.format("2")}, branch=BRANCH)
    await fleet.until(lambda: condition(fleet.present(NAME))["status"] == "Unknown")
    pushed = fleet.present(NAME)
    assert condition(pushed)["reason"] == "InputsChanged"
    assert condition(pushed)["message"].endswith("somebody has pushed to its branch since: app.yaml")
    assert "status: Unknown" in (await texts(fleet))["Kptfile"].replace('"', ""), "its files say the same"
    labelled = await fleet.update(pushed, packageMetadata={"labels": {"a": "b"}})
    assert condition(labelled, "Tested")["status"] == "Unknown", "a save of something else signs nothing"
    signed = await fleet.update(signing(labelled, "Certified", message="I looked at it"), user="ann")
    assert condition(signed)["status"] == "True"
    await fleet.restart()
    assert condition(fleet.present(NAME))["status"] == "True"
    assert draft["metadata"]["uid"] == signed["metadata"]["uid"]


async def test_a_proposal_with_pushed_content_is_not_approved(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.update(await certified(fleet), readinessGates=[{"conditionType": "Certified"}])
    proposed = await fleet.update(draft, lifecycle="Proposed")
    push_files(edge, {"app-1/app.yaml": APP.format("2")}, branch="proposed/app-1/ws")
    await fleet.until(lambda: fleet.present(NAME)["status"]["selfLock"] != proposed["status"]["selfLock"])
    with pytest.raises(StatusError) as refused:
        await fleet.update(fleet.present(NAME), lifecycle="Published", subresource="approval")
    assert refused.value.code == 422
    assert "it was True by ann" in refused.value.message


async def test_a_writer_who_names_other_content_is_refused_with_both_digests(fleet: StoreWorld) -> None:
    draft = await drafted(fleet)
    looked_at = signed_digest(await texts(fleet))
    draft = await edit(fleet, "2")
    present = signed_digest(await texts(fleet))
    with pytest.raises(StatusError) as refused:
        await fleet.update(named(signing(draft, "Certified"), looked_at), user="ann")
    assert refused.value.code == 422
    assert looked_at in refused.value.message
    assert present in refused.value.message
    signed = await fleet.update(named(signing(draft, "Certified"), present), user="ann")
    assert condition(signed)["status"] == "True"
    assert SIGNED_CONTENT not in signed["metadata"].get("annotations", {}), "it is for one request"
    with pytest.raises(StatusError, match=looked_at):
        await fleet.update(named(signed, looked_at), lifecycle="Proposed")
    resources = named(await fleet.files(NAME), present)
    with pytest.raises(StatusError, match=present):
        await fleet.put(resources, {"app.yaml": APP.format("3")}, user="ann")


async def test_an_approval_is_of_the_content_that_it_names(fleet: StoreWorld) -> None:
    await drafted(fleet)
    looked_at = signed_digest(await texts(fleet))
    proposed = await fleet.update(await edit(fleet, "2"), lifecycle="Proposed")
    with pytest.raises(StatusError, match=looked_at) as refused:
        await fleet.update(named(proposed, looked_at), lifecycle="Published", subresource="approval")
    assert refused.value.code == 422
    present = signed_digest(await texts(fleet))
    approved = await fleet.update(named(proposed, present), lifecycle="Published", subresource="approval")
    assert approved["spec"]["lifecycle"] == "Published"
    assert SIGNED_CONTENT not in approved["metadata"].get("annotations", {}), "it is for one request"


async def test_a_save_since_a_client_looked_at_the_files_is_a_conflict(fleet: StoreWorld) -> None:
    """So a client may compare the files itself, if its write names the version that it read before."""
    draft = await drafted(fleet)
    await edit(fleet, "2")
    with pytest.raises(StatusError) as refused:
        await fleet.update(signing(draft, "Certified"), user="ann")
    assert refused.value.code == 409


async def test_what_a_signer_lets_survive_voids_nothing(fleet: StoreWorld) -> None:
    """As said at the signing: a later wish changes nothing, not even in the edit that it is for."""
    draft = await drafted(fleet)
    wish = {SURVIVES: json.dumps({"Certified": ["docs/*", "app.yaml#/data/size"]})}
    draft = await fleet.update(signing(draft, "Tested"), packageMetadata=annotated(draft, wish), user="bob")
    draft = await fleet.update(signing(draft, "Certified"), user="ann")
    later = {SURVIVES: json.dumps({"Tested": ["docs/*", "app.yaml"]})}
    await fleet.update(draft, packageMetadata=annotated(draft, later))
    await fleet.put(await fleet.files(NAME), {"docs/a.md": "a"})
    draft = await edit(fleet, "2")
    assert condition(draft, "Certified")["status"] == "True"
    assert condition(draft, "Tested")["status"] == "Unknown"
    await fleet.put(
        await fleet.files(NAME), {"app.yaml": APP.format("2").replace("name: app", "name: other")}
    )
    assert condition(fleet.present(NAME))["status"] == "Unknown"


async def test_a_wish_in_the_edit_that_it_is_for_comes_too_late(fleet: StoreWorld) -> None:
    await certified(fleet)
    kptfile = (await texts(fleet))["Kptfile"]
    wish = f"    {SURVIVES}: '{json.dumps({'Certified': ['app.yaml']})}'\n"
    asking = kptfile.replace(f"    {SIGNATURES}", f"{wish}    {SIGNATURES}")
    assert asking != kptfile
    await fleet.put(await fleet.files(NAME), {"Kptfile": asking, "app.yaml": APP.format("2")})
    assert condition(fleet.present(NAME))["status"] == "Unknown"


async def test_a_wish_that_comes_after_the_look_is_other_content(fleet: StoreWorld) -> None:
    """Else somebody lets survive what he wants to change, and a person signs it unseen."""
    draft = await drafted(fleet)
    looked_at = shown_digest(await texts(fleet))
    wish = {SURVIVES: json.dumps({"Certified": ["app.yaml"]})}
    draft = await fleet.update(draft, packageMetadata=annotated(draft, wish), user="eve")
    with pytest.raises(StatusError, match="look at it anew"):
        await fleet.update(named(signing(draft, "Certified"), looked_at), user="ann")
    present = shown_digest(await texts(fleet))
    await fleet.update(named(signing(draft, "Certified"), present), user="ann")
    assert signatures(fleet.present(NAME))["Certified"]["survives"] == ["app.yaml"]


async def test_a_wish_that_everything_survives_is_refused(fleet: StoreWorld) -> None:
    draft = await drafted(fleet)
    wish = {SURVIVES: json.dumps({"Certified": ["*"]})}
    draft = await fleet.update(draft, packageMetadata=annotated(draft, wish))
    with pytest.raises(StatusError, match="name single files, or fields"):
        await fleet.update(signing(draft, "Certified"), user="ann")


async def test_the_history_of_a_task_has_the_end_of_its_answer(fleet: StoreWorld) -> None:
    draft = await drafted(fleet)
    asked = tasks.with_task({}, "Certified", Task(question="Is it licensed?"))
    draft = await fleet.update(
        signing(draft, "Certified"), packageMetadata=annotated(draft, asked), user="ann"
    )
    assert TASKS in draft["spec"]["packageMetadata"]["annotations"]
    await edit(fleet, "2", user="bob")
    (*_, last) = tasks.of(fleet.present(NAME)).history
    assert (last.by, last.before, last.after) == ("bob", "True", "Unknown")


async def test_a_copy_that_keeps_its_conditions_is_bound_to_its_own_content(
    fleet: StoreWorld, edge: Path
) -> None:
    published = await fleet.publish(await certified(fleet))
    edited = {"type": "edit", "edit": {"sourceRef": {"name": published["metadata"]["name"]}}}
    copied = await fleet.create(revision("edge", "app-1", "two", edited))
    assert condition(copied)["status"] == "True"
    push_files(edge, {"app-1/app.yaml": APP.format("2")}, branch="drafts/app-1/two")
    await fleet.until(lambda: condition(fleet.present("edge.app-1.two"))["status"] == "Unknown")
