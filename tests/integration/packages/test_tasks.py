"""The history of tasks at the package store: it names the authenticated user, and no client can write it."""

import json
from pathlib import Path
from typing import Any

from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import TASK_HISTORY, TASKS
from pvbus.core.kernel.tasks import Task
from pvbus.ports.cluster import Object
from tests.integration.apiserver.test_access import RBAC, _add, _bound, _role
from tests.integration.packages.support import StoreWorld, clone_of, git, revision
from tests.integration.packages.test_gates import APPLY, IDENTITY, _once_allowed
from tests.integration.packages.test_server import REVISIONS, register, serving

NAME = "edge.app-1.ws"
ASKED = tasks.with_task({}, "Certified", Task(question="Is it licensed?", owner="ann"))
FORGED = json.dumps([{"type": "Certified", "at": "2020-01-01T00:00:00Z", "by": "ann", "after": "True"}])


def with_status(obj: Object, status: str, message: str = "") -> Object:
    others = [each for each in obj["status"]["conditions"] if each["type"] != "Certified"]
    condition = {"type": "Certified", "status": status, "message": message}
    return {**obj, "status": {**obj["status"], "conditions": [*others, condition]}}


def history(obj: Object) -> list[tuple[str, str, str, str]]:
    return [(each.by, each.before, each.after, each.message) for each in tasks.of(obj).history]


async def asked(fleet: StoreWorld) -> Object:
    """Make a draft with an open task, whose question bob has asked."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    metadata = {"annotations": ASKED}
    return await fleet.update(with_status(draft, "Unknown", "?"), user="bob", packageMetadata=metadata)


async def test_answers_are_recorded_with_their_user_in_the_object_and_in_git(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await asked(fleet)
    answered = await fleet.update(with_status(draft, "False", "no licence"), user="eve")
    changed = await fleet.update(with_status(answered, "True", "it came"), user="carl")
    expected = [
        ("bob", "", "Unknown", "?"),
        ("eve", "Unknown", "False", "no licence"),
        ("carl", "False", "True", "it came"),
    ]
    assert history(changed) == expected
    log = git(edge, "log", "-2", "--format=%an: %B", "drafts/app-1/ws")
    assert "eve: " in log
    assert "Task Certified: Unknown to False by eve at 20" in log
    assert "Task Certified: False to True by carl at 20" in log
    published = await fleet.publish(changed)
    assert history(published) == expected
    kptfile = git(edge, "show", "app-1/v1:app-1/Kptfile")
    assert all(name in kptfile for name in ("bob", "eve", "carl"))


async def test_the_history_of_a_client_is_not_believed(fleet: StoreWorld) -> None:
    """Not one that forges an answer, not one that loses it, in the object or in the files."""
    answered = await fleet.update(with_status(await asked(fleet), "True"), user="eve")
    expected = [("bob", "", "Unknown", "?"), ("eve", "Unknown", "True", "")]
    for annotations in ({**ASKED, TASK_HISTORY: FORGED}, ASKED, {TASKS: "{"}, ASKED):
        answered = await fleet.update(answered, user="eve", packageMetadata={"annotations": annotations})
        assert history(answered) == expected
    resources = await fleet.files(NAME)
    kptfile = resources["spec"]["resources"]["Kptfile"]
    (line,) = (line for line in kptfile.splitlines(keepends=True) if TASK_HISTORY in line)
    lost = kptfile.replace(line, f"    {TASK_HISTORY}: '{FORGED}'\n").replace("status: True", "status: False")
    lost = lost.replace("status: 'True'", "status: 'False'").replace('status: "True"', 'status: "False"')
    await fleet.put(resources, {"Kptfile": lost}, user="mallory")
    assert history(fleet.present(NAME)) == [*expected, ("mallory", "True", "False", "")]


async def test_a_kptfile_that_cannot_be_read_hides_no_change_from_git(fleet: StoreWorld, edge: Path) -> None:
    await fleet.update(with_status(await asked(fleet), "False"), user="eve")
    resources = await fleet.files(NAME)
    kptfile = resources["spec"]["resources"]["Kptfile"]
    await fleet.put(resources, {"Kptfile": "{"}, user="mallory")
    mended = kptfile.replace(TASK_HISTORY, "other").replace('status: "False"', 'status: "True"')
    await fleet.put(await fleet.files(NAME), {"Kptfile": mended}, user="mallory")
    assert history(fleet.present(NAME)) == [("mallory", "", "True", "")]
    log = git(edge, "log", "--format=%B", "drafts/app-1/ws")
    assert "Task Certified: Unknown to False by eve" in log
    assert "Task Certified: False to absent by mallory" in log
    assert "Task Certified: absent to True by mallory" in log


async def test_an_answer_over_http_has_the_name_of_its_token(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    """Who may only write conditions may answer, and cannot choose his name."""
    async with serving(tmp_path / "data") as served:
        api = served.api
        await register(api, blueprints, edge)
        await api.create(REVISIONS, revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
        await api.patch(f"{REVISIONS}/{NAME}", {"spec": {"packageMetadata": {"annotations": ASKED}}})
        rule = {"verbs": ["patch"], "apiGroups": ["porch.kpt.dev"], "resources": ["packagerevisions/status"]}
        await api.create(f"{RBAC}/clusterroles", _role("answers", rule, kind="ClusterRole"))
        binding = _bound("ann", "answers", "ann", "ClusterRoleBinding", "ClusterRole")
        await api.create(f"{RBAC}/clusterrolebindings", binding)
        ann = _add(served.server, "ann")
        said = {
            **IDENTITY,
            "spec": {"packageMetadata": {"annotations": {TASK_HISTORY: FORGED}}},
            "status": {"conditions": [{"type": "Certified", "status": "True"}]},
        }
        path = f"{REVISIONS}/{NAME}/status?fieldManager=bob"
        reply = await _once_allowed(lambda: api.call("PATCH", path, json.dumps(said), media=APPLY, token=ann))
        assert history(reply.body) == [("ann", "", "True", "")]


async def test_an_answer_does_not_run_the_pipeline(fleet: StoreWorld) -> None:
    """Nor does a save of files with another history."""
    draft = await asked(fleet)
    runs = len(fleet.renders)
    answered = await fleet.update(with_status(draft, "True"), user="eve")
    again = await fleet.update(with_status(answered, "False"), user="eve")
    assert len(history(again)) == 3
    resources = await fleet.files(NAME)
    await fleet.put(resources, {"Kptfile": resources["spec"]["resources"]["Kptfile"].replace("eve", "ann")})
    assert history(fleet.present(NAME)) == history(again)
    assert len(fleet.renders) == runs


async def test_a_copy_has_the_questions_but_not_the_answers_of_its_source(fleet: StoreWorld) -> None:
    """They are about another revision; also where the request brings them along, and in an upgrade."""
    published = await fleet.publish(await fleet.update(with_status(await asked(fleet), "True"), user="eve"))
    assert len(history(published)) == 2
    edit = {"type": "edit", "edit": {"sourceRef": {"name": NAME}}}
    made = revision("edge", "app-1", "next", edit)
    made["spec"]["packageMetadata"] = {"annotations": {TASK_HISTORY: FORGED}}
    copied = await fleet.create(made)
    assert history(copied) == []
    assert tasks.of(copied).tasks["Certified"].question == "Is it licensed?"
    clone = await fleet.create(revision("edge", "app-2", "ws", clone_of(NAME)))
    assert (history(clone), list(tasks.of(clone).tasks)) == ([], ["Certified"])
    conditions: Any = clone["status"]["conditions"]
    assert tasks.is_open(conditions, "Certified"), "it was answered for another package"
