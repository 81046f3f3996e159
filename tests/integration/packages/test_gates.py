"""Readiness gates at the package store: refused in deployment repositories, and overridden by right only."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.core.kernel.keys import GATE_STEPS, OVERRIDE_GATES
from pvbus.ports.cluster import Object
from tests.integration.apiserver.client import Api
from tests.integration.apiserver.test_access import RBAC, _add, _bound, _role
from tests.integration.packages.support import StoreWorld, clone_of, git, push_files, refs, revision, tree
from tests.integration.packages.test_server import RESOURCES, REVISIONS, Served, register, serving

NAME = "edge.app-1.ws"
GATES = [{"conditionType": "Certified"}, {"conditionType": "Tested"}]
UNMET = "unmet readiness gates: Certified (nothing was reported of it yet), Tested (no machine)"
TESTED = {"type": "Tested", "status": "False", "reason": "Busy", "message": "no machine"}
IDENTITY = {"apiVersion": "porch.kpt.dev/v1alpha1", "kind": "PackageRevision", "metadata": {"name": NAME}}
APPLY = "application/apply-patch+yaml"
WRITES = 20


def with_conditions(obj: Object, *conditions: Object) -> Object:
    return {**obj, "status": {**obj["status"], "conditions": [*conditions]}}


def asking(obj: Object, reason: str) -> Object:
    """Ask for an override in the object of a request."""
    return {**obj, "metadata": {**obj["metadata"], "annotations": {OVERRIDE_GATES: reason}}}


async def gated(fleet: StoreWorld, repository: str = "edge") -> Object:
    draft = await fleet.create(revision(repository, "app-1", "ws", clone_of("blue.app.v1")))
    return await fleet.update(with_conditions(draft, TESTED), readinessGates=GATES)


async def refusal(change: Awaitable[Object]) -> StatusError:
    with pytest.raises(StatusError) as refused:
        await change
    return refused.value


async def test_a_deployment_repository_refuses_a_proposal_and_lists_the_unmet_gates(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await gated(fleet)
    before = refs(edge)
    refused = await refusal(fleet.update(draft, lifecycle="Proposed"))
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert UNMET in refused.message
    assert [message for _, _, message in refused.causes] == [
        "unmet readiness gate: Certified (nothing was reported of it yet)",
        "unmet readiness gate: Tested (no machine)",
    ]
    assert refs(edge) == before

    conditions = [{**TESTED, "status": "True"}, {"type": "Certified", "status": "True"}]
    ready = await fleet.update(with_conditions(draft, *conditions))
    assert (await fleet.publish(ready))["spec"]["lifecycle"] == "Published"


async def test_the_request_that_proposes_counts_with_its_own_gates_and_conditions(fleet: StoreWorld) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    gate = [{"conditionType": "Late"}]
    assert "Late" in (await refusal(fleet.update(draft, lifecycle="Proposed", readinessGates=gate))).message
    late = with_conditions(draft, {"type": "Late", "status": "True"})
    proposed = await fleet.update(late, lifecycle="Proposed", readinessGates=gate)
    assert proposed["spec"]["lifecycle"] == "Proposed"


async def test_a_gate_for_the_approval_lets_the_proposal_pass_and_stops_the_approval(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await gated(fleet)
    steps = {"annotations": {GATE_STEPS: '{"Certified": "approve"}'}}
    tested = with_conditions(draft, {**TESTED, "status": "True"})
    proposed = await fleet.update(tested, lifecycle="Proposed", packageMetadata=steps)
    refused = await refusal(fleet.update(proposed, lifecycle="Published", subresource="approval"))
    assert "unmet readiness gates: Certified (nothing was reported of it yet)" in refused.message

    certified = {"type": "Certified", "status": "True"}
    lost = with_conditions(proposed, TESTED, certified)
    refused = await refusal(fleet.update(lost, subresource="status"))
    assert "of a Proposed revision those of gates for its approval alone" in refused.message
    files = tree(edge, "refs/heads/proposed/app-1/ws", "app-1")
    reported = with_conditions(proposed, *proposed["status"]["conditions"], certified)
    signed = await fleet.update(reported, subresource="status")
    assert certified in signed["status"]["conditions"]
    changed = {
        path
        for path, text in tree(edge, "refs/heads/proposed/app-1/ws", "app-1").items()
        if files[path] != text
    }
    assert changed == {"Kptfile"}
    approved = await fleet.update(signed, lifecycle="Published", subresource="approval")
    assert approved["spec"]["lifecycle"] == "Published"


async def test_a_blueprint_repository_is_exempt(fleet: StoreWorld) -> None:
    published = await fleet.publish(await gated(fleet, "blue"))
    assert published["spec"]["readinessGates"] == GATES
    assert published["spec"]["lifecycle"] == "Published"


async def test_what_was_proposed_in_git_by_hand_is_not_published(fleet: StoreWorld, edge: Path) -> None:
    """Whoever moves a draft past the API meets the gates when it is approved."""
    await gated(fleet)
    draft, proposed = "refs/heads/drafts/app-1/ws", "refs/heads/proposed/app-1/ws"
    git(edge, "update-ref", proposed, draft)
    git(edge, "update-ref", "-d", draft)
    await fleet.until(lambda: fleet.present(NAME)["spec"]["lifecycle"] == "Proposed")
    obj = fleet.present(NAME)
    refused = await refusal(fleet.update(obj, lifecycle="Published", subresource="approval"))
    assert (refused.code, UNMET in refused.message) == (422, True)
    rejected = await fleet.update(obj, lifecycle="Draft", subresource="approval")
    assert rejected["spec"]["lifecycle"] == "Draft"


async def test_an_override_is_for_one_move_and_git_and_the_objects_history_have_it(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await gated(fleet)
    proposed = await fleet.update(asking(draft, "the lab\nburnt down"), lifecycle="Proposed", user="ann")
    assert OVERRIDE_GATES not in (proposed["metadata"].get("annotations") or {})
    log = git(edge, "log", "-1", "--format=%an%n%B", "proposed/app-1/ws")
    assert "overridden by system:apiserver: Certified, Tested" in log
    assert "Reason: the lab burnt down" in log
    assert log.startswith("ann")
    assert tree(edge, "proposed/app-1/ws", "app-1") == tree(edge, "proposed/app-1/ws~1", "app-1")

    refused = await refusal(fleet.update(proposed, lifecycle="Published", subresource="approval"))
    assert refused.code == 422, "an override of the proposal is none of the approval"
    published = await fleet.update(
        asking(proposed, "still"), lifecycle="Published", subresource="approval", user="bob"
    )
    assert published["spec"]["revision"] == 1
    assert OVERRIDE_GATES not in (published["metadata"].get("annotations") or {})
    approval = git(edge, "log", "-1", "--format=%an%n%B", "main")
    assert "Tested" in approval
    assert "Reason: still" in approval
    assert approval.startswith("bob")


async def test_an_annotation_that_somebody_left_overrides_nothing(fleet: StoreWorld) -> None:
    left = await fleet.update(asking(await gated(fleet), "I may not"))
    assert left["metadata"]["annotations"] == {OVERRIDE_GATES: "I may not"}
    assert (await refusal(fleet.update(left, lifecycle="Proposed"))).code == 422


async def test_an_override_needs_a_reason(fleet: StoreWorld) -> None:
    refused = await refusal(fleet.update(asking(await gated(fleet), " \n"), lifecycle="Proposed"))
    assert (refused.code, "say why" in refused.message) == (422, True)


def _count(obj: Object, type_: str) -> int:
    return [each["type"] for each in obj["status"]["conditions"]].count(type_)


async def test_duplicate_conditions_are_not_ready_and_can_be_mended(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    gate = [{"conditionType": "Certified"}]
    draft = await fleet.update(draft, readinessGates=gate)
    kptfile = (await fleet.files(NAME))["spec"]["resources"]["Kptfile"]
    twice = "status:\n  conditions:\n" + 2 * "  - type: Certified\n    status: 'True'\n"
    files = {"app-1/Kptfile": kptfile[: kptfile.index("status:")] + twice}
    push_files(edge, files, branch="drafts/app-1/ws")
    await fleet.until(lambda: _count(fleet.present(NAME), "Certified") == 2)
    shown = fleet.present(NAME)
    assert "2 conditions" in (await refusal(fleet.update(shown, lifecycle="Proposed"))).message
    once = {each["type"]: each for each in shown["status"]["conditions"]}
    mended = await fleet.update(with_conditions(shown, *once.values()))
    assert _count(mended, "Certified") == 1
    assert (await fleet.update(mended, lifecycle="Proposed"))["spec"]["lifecycle"] == "Proposed"


async def test_a_new_condition_needs_a_valid_status(fleet: StoreWorld) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    wrong = with_conditions(draft, {"type": "Certified", "status": "Yes"})
    refused = await refusal(fleet.update(wrong))
    assert (refused.code, "status.conditions[0].status" in refused.message) == (422, True)


UNREADY = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: unready
info:
  readinessGates:
  - conditionType: Certified
  - conditionType: Tested
status:
  conditions:
  - type: Certified
    status: "True"
  - type: Tested
    status: "False"
"""


def is_ready_for_porchctl(obj: Object) -> bool:
    """Decide as porchctl does before it proposes or approves.

    Source: Porch, api/porch/v1alpha1/util.go, PackageRevisionIsReady.
    """
    statuses = {each["type"]: each["status"] for each in obj["status"].get("conditions", ())}
    return all(
        statuses.get(gate["conditionType"]) == "True" for gate in obj["spec"].get("readinessGates", ())
    )


async def test_porchctl_proposes_an_unready_package_after_a_push_has_made_it_ready(
    fleet: StoreWorld, blueprints: Path
) -> None:
    """The story of Porch's recorded case rpkg-unready: clone, copy, refusals, pull, push, propose, approve.

    The repository is no deployment, so that porchctl alone looks at the gates.
    """
    push_files(blueprints, {"unready/Kptfile": UNREADY}, tag="unready/v1")
    await fleet.until(lambda: fleet.revision("blue.unready.v1"))
    cloned = await fleet.create(revision("blue", "unready-edit", "clone-1", clone_of("blue.unready.v1")))
    source = {"sourceRef": {"name": cloned["metadata"]["name"]}}
    await fleet.publish(cloned)
    copied = await fleet.create(revision("blue", "unready-edit", "copy-2", {"type": "edit", "edit": source}))
    assert copied["spec"]["readinessGates"] == [{"conditionType": "Certified"}, {"conditionType": "Tested"}]
    assert not is_ready_for_porchctl(copied)

    name = copied["metadata"]["name"]
    pulled = await fleet.files(name)
    before, gate, after = pulled["spec"]["resources"]["Kptfile"].rpartition('status: "False"')
    assert gate
    await fleet.put(pulled, {"Kptfile": f'{before}status: "True"{after}'})
    ready = fleet.present(name)
    assert is_ready_for_porchctl(ready)
    assert (await fleet.publish(ready))["spec"]["lifecycle"] == "Published"


# ---------------------------------------------------------------- over HTTP: rights, and two writers


@pytest.fixture
async def served(tmp_path: Path, blueprints: Path, edge: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data") as served:
        await register(served.api, blueprints, edge)
        yield served


async def _gated(api: Api) -> Object:
    draft = revision("edge", "app-1", "ws", clone_of("blue.app.v1"))
    draft["spec"]["readinessGates"] = [{"conditionType": "Certified"}]
    return dict(await api.create(REVISIONS, draft))


def _override_role(name: str) -> Any:
    rule = {"verbs": ["update"], "apiGroups": ["porch.kpt.dev"], "resources": ["packagerevisions/override"]}
    return _role(name, rule, kind="ClusterRole")


async def test_only_who_has_the_right_overrides_and_the_log_has_it(served: Served) -> None:
    """An approver may not; with one more rule he may, for one request, and the log says so."""
    api = served.api
    await _gated(api)
    ann = _add(served.server, "ann", "approver")
    ask = {"metadata": {"annotations": {OVERRIDE_GATES: "on call"}}, "spec": {"lifecycle": "Proposed"}}
    merge = "application/merge-patch+json"
    refused = await api.call("PATCH", f"{REVISIONS}/{NAME}", ask, media=merge, token=ann)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert "unmet readiness gates: Certified (nothing was reported of it yet)" in refused.body["message"]
    assert 'User "ann" cannot update resource "packagerevisions/override"' in refused.body["message"]
    stored = await api.get(f"{REVISIONS}/{NAME}")
    assert OVERRIDE_GATES not in (stored["metadata"].get("annotations") or {})

    await api.create(f"{RBAC}/clusterroles", _override_role("overrides"))
    binding = _bound("ann", "overrides", "ann", "ClusterRoleBinding", "ClusterRole")
    await api.create(f"{RBAC}/clusterrolebindings", binding)

    async def passes() -> Any:
        return await api.call("PATCH", f"{REVISIONS}/{NAME}", ask, media=merge, token=ann)

    with capture_logs() as lines:
        reply = await _once_allowed(passes)
    assert reply.body["spec"]["lifecycle"] == "Proposed"
    (line,) = (each for each in lines if each["event"] == "package written")
    assert (line["user"], line["override"], line["unmet_gates"]) == ("ann", "on call", "Certified")
    approval = f"{REVISIONS}/{NAME}/approval"
    body = {**ask, "spec": {"lifecycle": "Published"}}
    approved = await api.call("PATCH", approval, body, media=merge, token=ann)
    assert (approved.code, approved.body["spec"]["lifecycle"]) == (200, "Published"), approved.body


async def _once_allowed(request: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a request until the server has noticed the new role."""
    async with asyncio.timeout(10):
        while (reply := await request()).code == 403:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)
        assert reply.code == 200, reply.body
        return reply


async def test_the_administrator_is_refused_too_unless_he_asks(served: Served) -> None:
    await _gated(served.api)
    merge = "application/merge-patch+json"
    body = {"spec": {"lifecycle": "Proposed"}}
    refused = await served.api.call("PATCH", f"{REVISIONS}/{NAME}", body, media=merge)
    assert refused.code == 422
    assert refused.body["details"]["kind"] == "PackageRevision"


async def test_conditions_are_writable_through_a_right_of_their_own(served: Served) -> None:
    """The right to `packagerevisions/status` writes conditions, and nothing else of the revision."""
    api = served.api
    await _gated(api)
    rule = {"verbs": ["patch"], "apiGroups": ["porch.kpt.dev"], "resources": ["packagerevisions/status"]}
    await api.create(f"{RBAC}/clusterroles", _role("resolver", rule, kind="ClusterRole"))
    binding = _bound("bot", "resolver", "bot", "ClusterRoleBinding", "ClusterRole")
    await api.create(f"{RBAC}/clusterrolebindings", binding)
    bot = _add(served.server, "bot")
    config = {
        **IDENTITY,
        "spec": {"lifecycle": "Proposed"},
        "status": {"conditions": [{"type": "Certified", "status": "True"}]},
    }
    path = f"{REVISIONS}/{NAME}/status"

    async def applied() -> Any:
        apply = f"{path}?fieldManager=bot"
        return await api.call("PATCH", apply, json.dumps(config), media=APPLY, token=bot)

    reply = await _once_allowed(applied)
    assert reply.body["spec"]["lifecycle"] == "Draft"
    assert {each["type"] for each in reply.body["status"]["conditions"]} == {"Certified", "Rendered"}
    assert (await api.call("PATCH", f"{REVISIONS}/{NAME}", config, media=APPLY, token=bot)).code == 403
    await api.patch(f"{REVISIONS}/{NAME}", {"spec": {"lifecycle": "Proposed"}})
    config["status"] = {"conditions": [{"type": "Certified", "status": "False"}]}
    late = await api.call("PATCH", f"{path}?fieldManager=bot&force=true", json.dumps(config), media=APPLY)
    assert late.code == 422
    assert "only those of a Draft can change" in late.body["message"]


async def _by_apply(api: Api, type_: str, message: str) -> Any:
    """Write a condition by server-side apply of this condition alone."""
    condition = {"type": type_, "status": "True", "reason": "Written", "message": message}
    config = {
        **IDENTITY,
        "status": {"conditions": [condition]},
    }
    path = f"{REVISIONS}/{NAME}?fieldManager={type_}&force=true"
    return await api.call("PATCH", path, json.dumps(config), media=APPLY)


async def _by_json_patch(api: Api, type_: str, message: str) -> Any:
    """Write a condition by a JSON patch, which tests that its place in the list is what it was."""
    conditions = (await api.get(f"{REVISIONS}/{NAME}"))["status"]["conditions"]
    value = {"type": type_, "status": "True", "reason": "Written", "message": message}
    index = next((at for at, each in enumerate(conditions) if each["type"] == type_), None)
    at = f"/status/conditions/{index}"
    if index is None:
        patch: Any = [{"op": "add", "path": "/status/conditions/-", "value": value}]
    else:
        patch = [
            {"op": "test", "path": f"{at}/type", "value": type_},
            {"op": "replace", "path": at, "value": value},
        ]
    return await api.call("PATCH", f"{REVISIONS}/{NAME}", patch, media="application/json-patch+json")


async def _by_put(api: Api, type_: str, message: str) -> Any:
    """Write a condition into the object as it was read; the resourceVersion guards the others."""
    obj = await api.get(f"{REVISIONS}/{NAME}/status")
    others = [each for each in obj["status"]["conditions"] if each["type"] != type_]
    value = {"type": type_, "status": "True", "reason": "Written", "message": message}
    obj["status"]["conditions"] = [*others, value]
    return await api.call("PUT", f"{REVISIONS}/{NAME}/status", obj)


async def test_writers_of_different_types_never_lose_each_others_update(served: Served) -> None:
    """Three ways at full speed: after each answer, all that was answered before is there."""
    api = served.api
    await _gated(api)
    acknowledged: dict[str, int] = {}

    async def writer(type_: str, write: Callable[[Api, str, str], Awaitable[Any]]) -> None:
        for number in range(1, WRITES + 1):
            before = dict(acknowledged)
            reply = await write(api, type_, str(number))
            while reply.code in (409, 422):
                reply = await write(api, type_, str(number))
            assert reply.code == 200, reply.body
            acknowledged[type_] = number
            seen = {each["type"]: each.get("message") for each in reply.body["status"]["conditions"]}
            for other, value in before.items():
                assert int(seen[other]) >= value, (type_, other, seen)
            assert seen[type_] == str(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(writer("Applied", _by_apply))
        group.create_task(writer("Patched", _by_json_patch))
        group.create_task(writer("Put", _by_put))
    final = {
        each["type"]: each.get("message")
        for each in (await api.get(f"{REVISIONS}/{NAME}"))["status"]["conditions"]
    }
    assert {final[type_] for type_ in ("Applied", "Patched", "Put")} == {str(WRITES)}
    files = (await api.get(f"{RESOURCES}/{NAME}"))["spec"]["resources"]
    assert files["Kptfile"].count("reason: Written") == 3


async def test_files_that_were_read_before_a_condition_do_not_take_it_back(served: Served) -> None:
    api = served.api
    await _gated(api)
    files = await api.get(f"{RESOURCES}/{NAME}")
    assert (await _by_apply(api, "Certified", "1")).code == 200
    files["spec"]["resources"]["note.txt"] = "hello\n"
    assert (await api.call("PUT", f"{RESOURCES}/{NAME}", files)).code == 409


async def test_an_apply_of_one_condition_leaves_the_others_and_asks_before_it_overwrites(
    served: Served,
) -> None:
    api = served.api
    await _gated(api)
    assert (await _by_apply(api, "A", "1")).code == 200
    config = {
        **IDENTITY,
        "status": {"conditions": [{"type": "A", "status": "False"}]},
    }
    path = f"{REVISIONS}/{NAME}?fieldManager=other"
    refused = await api.call("PATCH", path, json.dumps(config), media=APPLY)
    assert refused.code == 409
    assert '.status.conditions[type="A"].status' in refused.body["message"]
    forced = await api.call("PATCH", f"{path}&force=true", json.dumps(config), media=APPLY)
    found = {each["type"]: each["status"] for each in forced.body["status"]["conditions"]}
    assert found == {"Rendered": "True", "A": "False"}
