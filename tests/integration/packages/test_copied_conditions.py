"""What becomes of gates and conditions when a package is cloned, edited or upgraded."""

from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.core.kernel.keys import COPIED_CONDITIONS
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Object
from tests.integration.packages.support import StoreWorld, clone_of, revision

GATES = [{"conditionType": "Certified"}]
CERTIFIED = {"type": "Certified", "status": "True", "reason": "Audited"}
OPEN = {"type": "Open", "status": "Unknown", "message": "nobody knows"}


async def source(fleet: StoreWorld) -> Object:
    """Publish a package with a gate and two conditions in the repository of blueprints."""
    draft = await fleet.create(revision("blue", "base", "one"))
    changed = {**draft, "status": {**draft["status"], "conditions": [CERTIFIED, OPEN]}}
    return await fleet.publish(await fleet.update(changed, readinessGates=GATES))


def found(obj: Object) -> dict[str, Any]:
    return {
        each["type"]: each["status"] for each in obj["status"]["conditions"] if each["type"] != "Rendered"
    }


def asking(policy: str) -> dict[str, Any]:
    return {"annotations": {COPIED_CONDITIONS: policy}}


@pytest.mark.parametrize(
    ("repository", "policy", "conditions"),
    [
        ("edge", "", {"Certified": "Unknown", "Open": "Unknown"}),
        ("blue", "", {"Certified": "True", "Open": "Unknown"}),
        ("edge", "keep", {"Certified": "True", "Open": "Unknown"}),
        ("blue", "unknown", {"Certified": "Unknown", "Open": "Unknown"}),
        ("edge", "remove", {}),
    ],
)
async def test_a_clone_has_the_gates_and_treats_the_conditions_as_the_policy_says(
    fleet: StoreWorld, repository: str, policy: str, conditions: Any
) -> None:
    await source(fleet)
    metadata = asking(policy) if policy else {}
    clone = await fleet.create(revision(repository, "copy", "ws", clone_of("blue.base.one"), **metadata))
    assert clone["spec"]["readinessGates"] == GATES
    assert found(clone) == conditions
    rendered = next(each for each in clone["status"]["conditions"] if each["type"] == "Rendered")
    assert rendered["status"] == "True"
    kptfile = (await fleet.files(clone["metadata"]["name"]))["spec"]["resources"]["Kptfile"]
    assert ("InputsChanged" in kptfile) == (conditions.get("Certified") == "Unknown")


async def test_the_condition_says_what_it_was(fleet: StoreWorld) -> None:
    await source(fleet)
    clone = await fleet.create(revision("edge", "copy", "ws", clone_of("blue.base.one")))
    by_type = {each["type"]: each for each in clone["status"]["conditions"]}
    assert by_type["Certified"]["message"] == "it was True before this clone, which changed the package"
    assert by_type["Open"] == OPEN, "what nobody knew stays as it is"


async def test_an_edit_keeps_what_an_upgrade_makes_unknown(fleet: StoreWorld) -> None:
    """In a deployment repository: an edit starts as the same files, an upgrade has others."""
    base = await source(fleet)
    clone = await fleet.create(revision("edge", "copy", "ws", clone_of("blue.base.one"), **asking("keep")))
    published = await fleet.publish(clone)
    edit = {"type": "edit", "edit": {"sourceRef": {"name": published["metadata"]["name"]}}}
    edited = await fleet.create(revision("edge", "copy", "two", edit))
    assert found(edited) == {"Certified": "True", "Open": "Unknown"}
    assert edited["spec"]["readinessGates"] == GATES

    onward = {"type": "edit", "edit": {"sourceRef": {"name": base["metadata"]["name"]}}}
    second = await fleet.publish(await fleet.create(revision("blue", "base", "two", onward)))
    names = {"oldUpstreamRef": base, "newUpstreamRef": second, "localPackageRevisionRef": published}
    upgrade = {field: {"name": obj["metadata"]["name"]} for field, obj in names.items()}
    upgraded = await fleet.create(revision("edge", "copy", "three", {"type": "upgrade", "upgrade": upgrade}))
    assert found(upgraded) == {"Certified": "Unknown", "Open": "Unknown"}
    assert upgraded["spec"]["readinessGates"] == GATES
    with pytest.raises(StatusError, match=r"Certified \(it was True before this upgrade"):
        await fleet.update(upgraded, lifecycle="Proposed")


async def test_a_repository_has_a_policy_for_all_that_is_made_in_it(fleet: StoreWorld) -> None:
    await source(fleet)
    repository = fleet.ready("edge")
    assert repository is not None
    repository["metadata"]["annotations"] = {COPIED_CONDITIONS: "remove"}
    await fleet.objects.put(REPOSITORY, repository)
    clone = await fleet.create(revision("edge", "one", "ws", clone_of("blue.base.one")))
    assert found(clone) == {}
    metadata = asking("keep")
    retained = await fleet.create(revision("edge", "two", "ws", clone_of("blue.base.one"), **metadata))
    assert found(retained)["Certified"] == "True", "the revision's own annotation counts first"


async def test_an_unknown_policy_is_refused_before_anything_is_made(fleet: StoreWorld) -> None:
    await source(fleet)
    with pytest.raises(StatusError, match='"forget" is none of keep, unknown, remove') as refused:
        await fleet.create(revision("edge", "copy", "ws", clone_of("blue.base.one"), **asking("forget")))
    assert refused.value.code == 422
    assert fleet.revision("edge.copy.ws") is None
