"""`pvbus task`: what it asks, answers and lists, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.objects import REVISION
from pvbus.cli.main import run
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import TASK_HISTORY, TASKS
from pvbus.core.kernel.tasks import Change, State, Task
from pvbus.core.variants.revisions.signatures import signed_digest
from pvbus.ports.cluster import Object, Resource

Captured = pytest.CaptureFixture[str]
KEY = "default/edge.web.v1"
AT = "2026-01-01T00:00:00Z"
OTHER = {"type": "Signed", "status": "False", "reason": "NoKey", "message": "no key"}
ASKED = Task(question="Is it licensed?", owner="ann", ticket="NET-1", due="2020-01-01")


def revision(name: str = "edge.web.v1", lifecycle: str = "Draft", namespace: str = "default") -> Object:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {"lifecycle": lifecycle, "readinessGates": [{"conditionType": "Certified"}]},
        "status": {"conditions": [OTHER]},
    }


def asking(obj: Object, task: Task = ASKED, *changes: Change, status: str = "Unknown") -> Object:
    annotations = tasks.with_task({"other": "1"}, "Certified", task)
    if changes:
        annotations[TASK_HISTORY] = tasks.history({}, changes)
    condition = {**tasks.asked("Certified", task), "status": status}
    spec = {**obj["spec"], "packageMetadata": {"annotations": annotations}}
    return {**obj, "spec": spec, "status": {"conditions": [OTHER, condition]}}


class Store(MemoryCluster):
    """A cluster that records the history of tasks as the package store does. user: who sends requests."""

    user = "bob"
    records = True

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        live = await self.get(resource, "default", "edge.web.v1")
        assert live is not None
        before, after = (
            State(tasks.kptfile_annotations(each), each["status"]["conditions"]) for each in (live, obj)
        )
        found = tasks.changes(before, after, self.user, AT)
        if found and self.records:
            annotations = {**after.annotations, TASK_HISTORY: tasks.history(before.annotations, found)}
            obj = {**obj, "spec": {**obj["spec"], "packageMetadata": {"annotations": annotations}}}
        return await super().update(resource, obj, subresource=subresource)


class Desk:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "kubeconfig").write_text("")
        self.folder = folder
        self.has(revision())
        monkeypatch.setattr(HttpCluster, "connect", self._connect)

    def has(self, *objects: Object) -> None:
        self.cluster = Store(objects, now=lambda: AT)

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def run(self, *arguments: str) -> int:
        return run(["task", *arguments, "--data", str(self.folder)])

    def shown(self) -> Any:
        obj = self.cluster.peek(REVISION, "default", "edge.web.v1")
        assert obj is not None
        return obj

    def by_type(self) -> dict[str, Any]:
        return {each["type"]: each for each in self.shown()["status"]["conditions"]}

    def history(self) -> list[tuple[str, str, str]]:
        return [(each.by, each.before, each.after) for each in tasks.of(self.shown()).history]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_question_is_asked_listed_answered_and_listed_as_answered(desk: Desk, capsys: Captured) -> None:
    question = ("--question", "Is it licensed?", "--owner", "ann", "--ticket", "NET-1", "--due", "2999-01-01")
    assert desk.run("open", KEY, "Certified", *question) == 0
    out = capsys.readouterr().out
    assert f"{KEY}: Certified is asked" in out
    assert "not ready: unmet readiness gates: Certified (ann is asked: Is it licensed? (NET-1, due" in out
    assert desk.by_type()["Certified"]["status"] == "Unknown"
    assert desk.by_type()["Signed"] == OTHER
    assert desk.run("open", KEY, "Certified", *question) == 0
    assert "already asked" in capsys.readouterr().out
    assert len(desk.cluster.writes) == 1
    assert desk.run("list") == 0
    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split() == ["REVISION", "TYPE", "STATUS", "OWNER", "TICKET", "DUE", "QUESTION"]
    assert line.split(maxsplit=6) == [
        KEY,
        "Certified",
        "Unknown",
        "ann",
        "NET-1",
        "2999-01-01",
        "Is it licensed?",
    ]

    desk.cluster.user = "ann"
    assert desk.run("answer", KEY, "Certified", "--status", "true", "--message", "until 2030") == 0
    answered = capsys.readouterr()
    assert f"Certified is True (by ann at {AT})\nready: all of 1 readiness gates are met" in answered.out
    assert answered.err == ""
    assert desk.run("list") == 0
    assert capsys.readouterr().out == "no open tasks\n"
    assert desk.run("list", "--answered") == 0
    assert f"Unknown   True   ann   {AT}   until 2030" in capsys.readouterr().out


def test_the_second_of_two_answers_sees_the_first_and_may_replace_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Both read the open task; the second one's write is refused as stale."""
    desk.has(asking(revision()))
    update = desk.cluster.update

    async def late(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        monkeypatch.setattr(desk.cluster, "update", update)
        live = await desk.cluster.get(resource, "default", "edge.web.v1")
        assert live is not None
        said = {"type": "Certified", "status": "False", "reason": "Answered", "message": "it has expired"}
        status = {"conditions": [OTHER, said]}
        await update(resource, {**live, "status": status})
        raise ConflictError("stale")

    monkeypatch.setattr(desk.cluster, "update", late)
    assert desk.run("answer", KEY, "Certified", "--status", "True") == 1
    err = capsys.readouterr().err
    assert f'Certified is False already, by bob at {AT}: "it has expired". --again replaces it' in err
    desk.cluster.user = "eve"
    assert desk.run("answer", KEY, "Certified", "--status", "True", "--again") == 0
    assert desk.history() == [("bob", "Unknown", "False"), ("eve", "False", "True")]
    assert "ann was asked; the answer is recorded as that of eve" in capsys.readouterr().err
    assert desk.run("list", "--answered") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3:5] for line in lines[1:]] == [["False", "bob"], ["True", "eve"]]


def files(text: str) -> Object:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevisionResources",
        "metadata": {"name": "edge.web.v1", "namespace": "default"},
        "spec": {"resources": {"app.yaml": text}},
    }


@pytest.mark.parametrize(
    "command",
    [("task", "answer", KEY, "Certified", "--status", "True"), ("condition", "set", KEY, "Certified=True")],
)
def test_what_is_said_of_other_files_than_the_draft_has_is_refused(
    command: tuple[str, ...], desk: Desk, capsys: Captured
) -> None:
    desk.has(asking(revision()), files("size: 1"))
    seen, stored = signed_digest({"app.yaml": "size: 1"}), signed_digest({"app.yaml": "size: 2"})
    desk.cluster.put(files("size: 2"))
    words = (*command, "--content", seen, "--data", str(desk.folder))
    assert run([*words]) == 1
    said = capsys.readouterr().err
    assert seen in said
    assert stored in said
    assert desk.cluster.writes == []
    desk.cluster.put(files("size: 1"))
    assert run([*words]) == 0
    assert desk.by_type()["Certified"]["status"] == "True"
    desk.cluster.put(files("size: 2"))
    assert run([*words]) == 1, "also what has been said already was said of other files"


def test_the_same_answer_again_writes_nothing(desk: Desk, capsys: Captured) -> None:
    """A repeated command succeeds, also when the response to the first was lost."""
    desk.has(asking(revision()))
    for words in ("is True (by bob", "is already True (by bob"):
        assert desk.run("answer", KEY, "Certified", "--status", "True") == 0
        assert words in capsys.readouterr().out
    assert len(desk.cluster.writes) == 1


def test_a_server_without_a_history_is_not_believed(desk: Desk, capsys: Captured) -> None:
    desk.has(asking(revision()))
    desk.cluster.records = False
    assert desk.run("answer", KEY, "Certified", "--status", "True") == 0
    assert "does not record who has answered" in capsys.readouterr().err


def test_who_may_only_write_conditions_may_answer_but_not_ask(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    update = desk.cluster.update

    async def restricted(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if subresource != "status":
            raise PermanentError("no", reason="Forbidden")
        live = await desk.cluster.get(resource, "default", "edge.web.v1")
        assert live is not None
        return await update(resource, {**live, "status": obj["status"]})

    monkeypatch.setattr(desk.cluster, "update", restricted)
    assert desk.run("open", KEY, "Certified", "--question", "?") == 1
    assert "did not store the question: it takes the right to update" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("open", KEY, "--question", "?"), "the TYPE of the condition is missing"),
        (("open", "pv/edge", "A", "--question", "?"), "takes no PackageVariant"),
        (("open", KEY, "A"), "Missing option '--question'"),
        (("open", KEY, "A", "--question", " "), "a task needs a question"),
        (("open", KEY, "A", "--question", "x" * 301), "at most 300 fit"),
        (("open", KEY, "A B", "--question", "?"), "cannot be the type of a condition"),
        (("open", KEY, "Rendered", "--question", "?"), "Rendered is set by the package store"),
        (
            ("open", KEY, "A", "--question", "?", "--due", "soon"),
            "--due: soon is no due time such as 2030-12-01",
        ),
        (("open", KEY, "Published", "--question", "?"), "is the condition of the lifecycle in events"),
        (("open", KEY, "A", "--question", "?", "--due", "2999-01-01T00:00:00"), "has no time zone"),
        (("open", KEY, "A", "--question", "?", "--due", "2020-01-01"), "has passed already"),
        (("answer", KEY, "A"), "Missing option '--status'"),
        (("answer", KEY, "A", "--status", "Unknown"), "'Unknown' is not one of"),
        (("list", "--overdue", "--answered"), "omit it, or omit --answered"),
    ],
)
def test_bad_usage_is_refused_in_words(
    desk: Desk, capsys: Captured, arguments: tuple[str, ...], words: str
) -> None:
    assert desk.run(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not desk.cluster.writes


@pytest.mark.parametrize(
    ("obj", "command", "words"),
    [
        (
            revision(),
            ("answer", KEY, "Certified", "--status", "True"),
            "Certified is no task, it has no task",
        ),
        (asking(revision()), ("answer", KEY, "A", "--status", "True"), "A is no task, the tasks are Certif"),
        (asking(revision()), ("answer", "default/no", "A", "--status", "True"), "there is no PackageRev"),
        (
            asking(revision(lifecycle="Published")),
            ("answer", KEY, "Certified", "--status", "True"),
            "is Published, and only a Draft's",
        ),
        (
            asking(revision(lifecycle="Proposed")),
            ("open", KEY, "B", "--question", "?"),
            "is Proposed, and only a Draft's conditions change: reject it first",
        ),
        (
            asking(revision(), status="True"),
            ("open", KEY, "Certified", "--question", "And now?"),
            "Certified is True already. --again asks it anew",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    desk: Desk, capsys: Captured, obj: Object, command: tuple[str, ...], words: str
) -> None:
    desk.has(obj)
    assert desk.run(*command) == 1
    assert words in capsys.readouterr().err
    assert not desk.cluster.writes


def test_the_list_has_open_tasks_by_due_time_and_filters(desk: Desk, capsys: Captured) -> None:
    later = Task(question="Later?", owner="bob", due="2999-01-01T00:00:00+01:00")
    desk.has(
        asking(revision("never"), Task(question="Whenever?")),
        asking(revision("later", "Proposed"), later),
        asking(revision("late")),
        asking(revision("elsewhere", namespace="other"), Task(question="There?", owner="ann")),
        asking(revision("answered"), status="True"),
        asking(revision("out", "Published")),
        revision("plain"),
    )

    def listed(*arguments: str) -> list[str]:
        assert desk.run("list", *arguments, "-o", "json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["problems"] == []
        return [each["revision"].partition("/")[2] for each in document["tasks"]]

    assert listed() == ["late", "later", "never", "elsewhere"]
    assert listed("-n", "other") == ["elsewhere"]
    assert listed("--owner", "ann") == ["late", "elsewhere"]
    assert listed("--overdue") == ["late"]
    assert listed("--owner", "nobody") == []
    assert listed("--answered") == [], "it was answered, but nobody knows by whom"
    assert desk.run("list") == 0
    assert "2020-01-01 (overdue)" in capsys.readouterr().out


def test_an_answer_in_a_published_revision_is_listed_once(desk: Desk, capsys: Captured) -> None:
    """The placeholder of the branch has the same Kptfile."""
    said = Change(type="Certified", at=AT, by="ann", before="Unknown", after="True")
    one = asking(revision("edge.web.v1", "Published"), ASKED, said, status="True")
    other = asking(revision("edge.web.main", "Published"), ASKED, said, status="True")
    desk.has(one, {**other, "spec": {**other["spec"], "revision": -1}})
    assert desk.run("list", "--answered") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [KEY]


def test_a_malformed_task_is_a_warning_and_can_be_asked_anew(desk: Desk, capsys: Captured) -> None:
    broken = revision()
    broken["spec"]["packageMetadata"] = {"annotations": {TASKS: "{"}}
    desk.has(broken, asking(revision("good")))
    assert desk.run("list") == 0
    captured = capsys.readouterr()
    assert "default/good" in captured.out
    assert f"warning: {KEY}: the annotation {TASKS} is not like" in captured.err
    assert desk.run("answer", KEY, "Certified", "--status", "True") == 1
    assert "pvbus task open asks the question anew" in capsys.readouterr().err
    assert desk.run("open", KEY, "Certified", "--question", "?") == 0
    assert desk.run("answer", KEY, "Certified", "--status", "True") == 0


def test_an_answer_can_be_asked_for_anew_and_a_task_without_a_gate_is_said_to_hold_nothing(
    desk: Desk, capsys: Captured
) -> None:
    desk.has(asking(revision(), status="True"))
    assert desk.run("open", KEY, "Certified", "--question", "Still?", "--again", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["changed"], answer["open"], answer["question"]) == (True, True, "Still?")
    assert desk.history() == [("bob", "True", "Unknown")]
    assert desk.run("open", KEY, "Signed", "--question", "Whose?", "--again") == 0
    assert "note: Signed is no readiness gate" in capsys.readouterr().err
    assert set(tasks.of(desk.shown()).tasks) == {"Certified", "Signed"}
    assert tasks.kptfile_annotations(desk.shown())["other"] == "1"


def test_one_question_too_many_is_refused_and_one_of_those_is_not(desk: Desk, capsys: Captured) -> None:
    """More than so many would be stored and not count."""
    full = revision()
    asked = {f"T{n}": {"question": "?"} for n in range(tasks.TASKS_MAX)}
    full["spec"]["packageMetadata"] = {"annotations": {TASKS: json.dumps(asked)}}
    desk.has(full)
    assert desk.run("open", KEY, "Certified", "--question", "?") == 1
    assert f"{KEY} has {tasks.TASKS_MAX} tasks, and no more count" in capsys.readouterr().err
    assert desk.run("open", KEY, "T7", "--question", "Is it?") == 0
