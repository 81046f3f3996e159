"""Conditions of validators at the package store: true of the stored content, and of nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.variants.revisions.validators import PREFIX
from pvbus.ports.cluster import Object
from tests.integration.apiserver.client import Api
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    revision,
)
from tests.integration.packages.test_inject_return import ASKED, VARIANTS, injecting
from tests.integration.packages.test_server import RESOURCES, REVISIONS

NAME = "edge.app-1.ws"
TYPE = f"{PREFIX}size-policy"
GATES = [{"conditionType": TYPE}]
CHECK = """\
apiVersion: fn.kpt.dev/v1alpha1
kind: StarlarkRun
metadata:
  name: size-policy
  annotations:
    config.kubernetes.io/local-config: "true"
source: |
  def result(item):
      return {
          "message": "must be big",
          "severity": "error",
          "resourceRef": {"kind": item["kind"], "name": item["metadata"]["name"]},
          "field": {"path": "data.size", "currentValue": item["data"]["size"], "proposedValue": "big"},
          "file": {"path": "settings.yaml"},
      }
  items = [item for item in ctx.resource_list["items"] if item["metadata"]["name"] == "settings"]
  ctx.resource_list["results"] = [result(item) for item in items if item["data"]["size"] != "big"]
"""
VALIDATOR = {
    "image": "ghcr.io/kptdev/krm-functions-catalog/starlark:v0.5",
    "name": "size-policy",
    "configPath": "check.yaml",
}
FINDING = "1 error: settings.yaml ConfigMap settings data.size: must be big"


def with_validators(text: str, *validators: Object) -> str:
    """Return a Kptfile with these validators."""
    value = yaml.safe_load(text)
    value["pipeline"]["validators"] = list(validators)
    return yaml.safe_dump(value, sort_keys=False)


async def with_validator(fleet: StoreWorld, *more: Object) -> Object:
    """Make a draft with a gate that its validator serves; its content is bad."""
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    files = await fleet.files(NAME)
    kptfile = with_validators(files["spec"]["resources"]["Kptfile"], VALIDATOR, *more)
    await fleet.put(files, {"Kptfile": kptfile, "check.yaml": CHECK})
    return await fleet.update(fleet.present(NAME), readinessGates=GATES)


async def save(fleet: StoreWorld, changes: dict[str, str | None]) -> Object:
    await fleet.put(await fleet.files(NAME), changes)
    return fleet.present(NAME)


async def sized(fleet: StoreWorld, size: str) -> Object:
    text = (await fleet.files(NAME))["spec"]["resources"]["settings.yaml"]
    before = yaml.safe_load(text)["data"]["size"]
    return await save(fleet, {"settings.yaml": text.replace(f"size: {before}", f"size: {size}")})


def found(obj: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in obj["status"]["conditions"]}


def condition(obj: Object, type_: str = TYPE) -> Object:
    (only,) = (each for each in obj["status"]["conditions"] if each["type"] == type_)
    return dict(only)


async def refusal(change: Any) -> str:
    with pytest.raises(StatusError) as refused:
        await change
    assert refused.value.code == 422
    return refused.value.message


async def test_a_failing_validator_keeps_a_draft_from_being_proposed_until_it_is_corrected(
    fleet: StoreWorld,
) -> None:
    draft = await with_validator(fleet)
    assert found(draft) == {TYPE: "False", "Rendered": "True"}
    assert condition(draft) == {"type": TYPE, "status": "False", "reason": "Failed", "message": FINDING}
    message = await refusal(fleet.update(draft, lifecycle="Proposed"))
    assert f"unmet readiness gates: {TYPE} ({FINDING})" in message

    corrected = await sized(fleet, "big")
    assert condition(corrected) == {"type": TYPE, "status": "True", "reason": "Passed"}
    assert (await fleet.publish(corrected))["spec"]["lifecycle"] == "Published"


async def test_programs_find_the_results_in_the_answer_and_in_the_kptfile(fleet: StoreWorld) -> None:
    await with_validator(fleet)
    answer = await fleet.put(await fleet.files(NAME), {"note.txt": "hello\n"})
    *_, item = answer["status"]["renderStatus"]["result"]["items"]
    (result,) = item["results"]
    assert result["field"] == {"path": "data.size", "currentValue": "small", "proposedValue": "big"}
    kptfile = yaml.safe_load((await fleet.files(NAME))["spec"]["resources"]["Kptfile"])
    (step,) = kptfile["status"]["renderStatus"]["validationSteps"]
    assert (step["name"], step["errorResults"]) == ("size-policy", [result])
    assert condition({"status": kptfile["status"]}) == condition(fleet.present(NAME))


async def test_the_same_content_renders_the_same_conditions_and_writes_nothing(
    fleet: StoreWorld, edge: Path
) -> None:
    await with_validator(fleet, {"image": "no-such", "name": "later"})
    assert found(fleet.present(NAME))[f"{PREFIX}later"] == "Unknown"
    before = git(edge, "rev-parse", "drafts/app-1/ws")
    renders = len(fleet.renders)
    for _ in range(2):
        await fleet.put(await fleet.files(NAME), {})
    assert len(fleet.renders) == renders + 2, "a pipeline that failed runs again"
    assert git(edge, "rev-parse", "drafts/app-1/ws") == before


async def test_nobody_sets_a_validators_condition(fleet: StoreWorld) -> None:
    """Neither through the API nor in the Kptfile; and a program that sets its own disturbs none."""
    draft = await with_validator(fleet)
    forged = {"type": TYPE, "status": "True", "reason": "Trust", "message": "me"}
    mine = {"type": "Mine", "status": "True"}
    for change in (forged, {**forged, "type": f"{PREFIX}other"}):
        others = [each for each in draft["status"]["conditions"] if each["type"] != TYPE]
        wrong = {**draft, "status": {**draft["status"], "conditions": [*others, change]}}
        assert "is set by the package store when it runs the validator" in await refusal(fleet.update(wrong))
    alone = await fleet.update({**draft, "status": {**draft["status"], "conditions": [mine]}})
    assert found(alone) == {TYPE: "False", "Rendered": "True", "Mine": "True"}

    kptfile = (await fleet.files(NAME))["spec"]["resources"]["Kptfile"]
    value = yaml.safe_load(kptfile)
    value["status"]["conditions"] = [mine, forged, {**forged, "type": f"{PREFIX}other"}]
    edited = await save(fleet, {"Kptfile": yaml.safe_dump(value, sort_keys=False)})
    assert found(edited) == {TYPE: "False", "Rendered": "True", "Mine": "True"}


async def test_a_validator_that_is_renamed_removed_and_brought_back(fleet: StoreWorld) -> None:
    await with_validator(fleet)
    good = await sized(fleet, "big")
    assert found(good)[TYPE] == "True"
    kptfile = (await fleet.files(NAME))["spec"]["resources"]["Kptfile"]
    renamed = await save(fleet, {"Kptfile": kptfile.replace("name: size-policy", "name: size")})
    assert found(renamed) == {f"{PREFIX}size": "True", "Rendered": "True"}
    assert f"{TYPE} (nothing was reported" in await refusal(fleet.update(renamed, lifecycle="Proposed"))
    removed = await save(fleet, {"Kptfile": with_validators(kptfile)})
    assert found(removed) == {"Rendered": "True"}
    assert TYPE in await refusal(fleet.update(removed, lifecycle="Proposed"))
    back = await save(fleet, {"Kptfile": kptfile})
    assert found(back) == {TYPE: "True", "Rendered": "True"}


async def test_what_did_not_run_is_unknown(fleet: StoreWorld) -> None:
    await with_validator(fleet)
    await sized(fleet, "big")
    kptfile = (await fleet.files(NAME))["spec"]["resources"]["Kptfile"]
    broken = await save(fleet, {"Kptfile": kptfile.replace("set-labels:v0.2", "no-such-function")})
    assert found(broken) == {TYPE: "Unknown", "Rendered": "False"}
    assert "it did not run: pipeline.mutators[0]: no-such-function" in condition(broken)["message"]
    missing = kptfile.replace("catalog/starlark:v0.5", "catalog/kubeconform:v0.1")
    lacking = await save(fleet, {"Kptfile": missing})
    assert found(lacking) == {TYPE: "Unknown", "Rendered": "False"}
    assert "there is no built-in function of this name" in condition(lacking)["message"]
    unread = await save(fleet, {"Kptfile": kptfile, "bad.yaml": "kind: [\n"})
    assert found(unread) == {TYPE: "Unknown", "Rendered": "False"}
    assert "bad.yaml" in condition(unread)["message"]
    mended = await save(fleet, {"bad.yaml": None})
    assert found(mended) == {TYPE: "True", "Rendered": "True"}


async def test_a_program_that_fails_has_its_results_in_the_condition(fleet: StoreWorld) -> None:
    """As validators of the catalog do it: an exit code of 1, and a ResourceList with the results."""
    script = "results: [{message: no good, file: {path: a.yaml}}]"
    fleet.registry = FunctionRegistry(
        {"strict": ["sh", "-c", f"echo 'kind: ResourceList'; echo '{script}'; exit 1"]}
    )
    more = [{"image": "strict:v1"}, {"image": "starlark", "configPath": "check.yaml"}]
    draft = await with_validator(fleet, *more)
    types = {f"{PREFIX}strict": "Unknown", f"{PREFIX}starlark": "Unknown"}
    assert found(draft) == {TYPE: "False", "Rendered": "False", **types, f"{PREFIX}strict": "False"}
    assert condition(draft, f"{PREFIX}strict")["message"] == "1 error: a.yaml: no good"
    kptfile = yaml.safe_load((await fleet.files(NAME))["spec"]["resources"]["Kptfile"])
    assert kptfile["status"]["renderStatus"]["validationSteps"][1]["errorResults"][0]["message"] == "no good"


async def test_content_that_another_program_committed_is_unknown_until_it_is_saved(
    fleet: StoreWorld, edge: Path
) -> None:
    """Somebody pushes a bad change to the draft's branch, with the good condition that was there before."""
    await with_validator(fleet)
    await sized(fleet, "big")
    kptfile = (await fleet.files(NAME))["spec"]["resources"]["Kptfile"]
    assert "reason: Passed" in kptfile
    small = (await fleet.files(NAME))["spec"]["resources"]["settings.yaml"].replace(
        "size: big", "size: small"
    )
    push_files(edge, {"app-1/settings.yaml": small}, branch="drafts/app-1/ws")
    await fleet.until(lambda: found(fleet.present(NAME))[TYPE] == "Unknown")
    pushed = fleet.present(NAME)
    message = await refusal(fleet.update(pushed, lifecycle="Proposed"))
    assert "the store did not write this content: save the package's resources" in message
    mine = [*pushed["status"]["conditions"], {"type": "Mine", "status": "True"}]
    judged = await fleet.update({**pushed, "status": {**pushed["status"], "conditions": mine}})
    assert found(judged)[TYPE] == "Unknown", "a condition of somebody else runs no pipeline"
    saved = await save(fleet, {})
    assert found(saved) == {TYPE: "False", "Rendered": "True", "Mine": "True"}


async def test_a_copy_has_the_conditions_of_its_own_content_whatever_the_policy(fleet: StoreWorld) -> None:
    await with_validator(fleet)
    await fleet.publish(await sized(fleet, "big"))
    edit = {"type": "edit", "edit": {"sourceRef": {"name": NAME}}}
    for workspace, policy in (("two", "keep"), ("three", "unknown"), ("four", "remove")):
        annotations = {"pvbus.dev/copied-conditions": policy}
        copy = await fleet.create(revision("edge", "app-1", workspace, edit, annotations=annotations))
        assert found(copy) == {TYPE: "True", "Rendered": "True"}
    annotations = {"pvbus.dev/defer-render": "true"}
    later = await fleet.create(revision("edge", "app-1", "five", edit, annotations=annotations))
    assert condition(later)["reason"] == "Deferred"
    assert found(later) == {TYPE: "Unknown", "Rendered": "Unknown"}


async def put_file(api: Api, name: str, path: str, text: str) -> None:
    files = await api.get(f"{RESOURCES}/{name}")
    files["spec"]["resources"][path] = text
    reply = await api.call("PUT", f"{RESOURCES}/{name}", files)
    assert reply.code == 200, reply.body


async def test_a_variant_whose_validators_fail_writes_nothing_more(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    """Inject sets conditions of injections; a second look at the same draft changes nothing."""
    point = CHECK_POINT
    kptfile = with_validators(KPTFILE.format(name="app"), VALIDATOR)
    push_files(
        blueprints, {"app/Kptfile": kptfile, "app/check.yaml": CHECK, "app/point.yaml": point}, tag="app/v2"
    )
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        pipeline = {"validators": [{"name": "again", "image": "set-labels:v0.2", "configMap": {"a": "b"}}]}
        upstream = {**ASKED["spec"]["upstream"], "workspaceName": "v2"}
        await api.create(
            VARIANTS, {**ASKED, "spec": {**ASKED["spec"], "upstream": upstream, "pipeline": pipeline}}
        )
        await world.converge()
        name = "edge.web.packagevariant-1"
        draft = await api.get(f"{REVISIONS}/{name}")
        injected = "config.injection.ConfigMap.point"
        types = {TYPE: "False", f"{PREFIX}again": "True", "Rendered": "True", injected: "False"}
        assert found(draft) == types
        world.restart(observe=False)
        await world.converge()
        assert await api.get(f"{REVISIONS}/{name}") == draft
        settings = (await api.get(f"{RESOURCES}/{name}"))["spec"]["resources"]["settings.yaml"]
        await put_file(api, name, "settings.yaml", settings.replace("size: small", "size: big"))
        await world.converge()
        draft = await api.get(f"{REVISIONS}/{name}")
        assert found(draft) == {**types, TYPE: "True"}
        world.restart(observe=False)
        await world.converge()
        assert await api.get(f"{REVISIONS}/{name}") == draft


CHECK_POINT = f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: point
  namespace: {NAMESPACE}
  annotations:
    kpt.dev/config-injection: required
data: {{}}
"""
