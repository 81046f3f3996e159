"""`pvbus condition`: what it writes beside other writers, what it says, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.objects import REVISION
from pvbus.cli.main import run
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.ports.cluster import Object, Resource

Captured = pytest.CaptureFixture[str]
KEY = "default/edge.web.v1"
RENDERED = {"type": "Rendered", "status": "True", "reason": "RenderSuccess"}
SIGNED = {"type": "Signed", "status": "False", "reason": "NoKey", "message": "no key"}


def revision(lifecycle: str = "Draft", *conditions: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": "edge.web.v1", "namespace": "default", "uid": "1"},
        "spec": {"lifecycle": lifecycle, "readinessGates": [{"conditionType": "Certified"}], **spec},
        "status": {"deployment": True, "conditions": [RENDERED, *conditions]},
    }


class Desk:
    """A cluster with one package revision, and what others do to it before each write."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "kubeconfig").write_text("")
        self.folder = folder
        self.has(revision("Draft", SIGNED))
        monkeypatch.setattr(HttpCluster, "connect", self._connect)

    def has(self, obj: Object) -> None:
        self.cluster = MemoryCluster([obj], now=lambda: "2026-01-01T00:00:00Z")

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def run(self, *arguments: str) -> int:
        return run(["condition", *arguments, "--data", str(self.folder)])

    def conditions(self) -> Any:
        obj = self.cluster.peek(REVISION, "default", "edge.web.v1")
        assert obj is not None
        return obj["status"]["conditions"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_condition_is_set_and_the_others_stay(desk: Desk, capsys: Captured) -> None:
    words = ("--reason", "Audited", "--message", "by ann")
    assert desk.run("set", KEY, "Certified=true", *words) == 0
    certified = {"type": "Certified", "status": "True", "reason": "Audited", "message": "by ann"}
    assert desk.conditions() == [RENDERED, SIGNED, certified]
    out = capsys.readouterr().out
    assert out == f"{KEY}: Certified is True\nready: all of 1 readiness gates are met\n"
    assert desk.run("set", KEY, "Certified=True", *words) == 0
    assert "Certified is already True" in capsys.readouterr().out
    assert len(desk.cluster.writes) == 1
    assert desk.run("set", KEY, "Certified=Unknown", "Signed=True", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["changed"], answer["ready"]) == (True, False)
    assert desk.conditions() == [
        RENDERED,
        {"type": "Signed", "status": "True"},
        {"type": "Certified", "status": "Unknown"},
    ], "an old reason and message would be untrue"


def test_a_write_in_the_same_moment_is_merged(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sets another condition between read and write: both are there."""
    update, theirs = desk.cluster.update, {"type": "Tested", "status": "True"}

    async def late(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        monkeypatch.setattr(desk.cluster, "update", update)
        live = await desk.cluster.get(resource, "default", "edge.web.v1")
        assert live is not None
        status = {**live["status"], "conditions": [*live["status"]["conditions"], theirs]}
        await update(resource, {**live, "status": status})
        return await update(resource, obj)

    monkeypatch.setattr(desk.cluster, "update", late)
    assert desk.run("set", KEY, "Certified=True") == 0
    assert desk.conditions() == [RENDERED, SIGNED, theirs, {"type": "Certified", "status": "True"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((KEY,), "what to set is missing: TYPE=STATUS"),
        (("a/b/c", "A=True"), "names no object: give NAMESPACE/NAME"),
        ((KEY, "A"), '"A" is no TYPE=STATUS, for example Certified=True'),
        ((KEY, "A=yes"), "a status is True, False or Unknown"),
        ((KEY, "=True"), "cannot be the type of a condition"),
        ((KEY, "A B=True"), "cannot be the type of a condition"),
        ((KEY, "A=True", "A=False"), "A is given twice"),
        ((KEY, "Rendered=True"), "Rendered is set by the package store"),
        ((KEY, "A=True", "--reason", "two words"), "put sentences into --message"),
        ((KEY, "A=True", "--message", "x" * 40_000), "at most 32000 fit"),
    ],
)
def test_bad_usage_says_what_is_wrong_and_writes_nothing(
    desk: Desk, capsys: Captured, arguments: tuple[str, ...], words: str
) -> None:
    assert desk.run("set", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not desk.cluster.writes


@pytest.mark.parametrize(
    ("lifecycle", "then"), [("Proposed", "reject it first"), ("Published", "only a Draft")]
)
def test_what_is_no_draft_is_refused(desk: Desk, capsys: Captured, lifecycle: str, then: str) -> None:
    desk.has(revision(lifecycle))
    assert desk.run("set", KEY, "A=True") == 1
    err = capsys.readouterr().err
    assert f"is {lifecycle}" in err
    assert then in err
    assert not desk.cluster.writes


def test_a_revision_that_does_not_exist_is_named(desk: Desk, capsys: Captured) -> None:
    for command in (("set", "default/none", "A=True"), ("get", "default/none")):
        assert desk.run(*command) == 1
        assert "there is no PackageRevision default/none" in capsys.readouterr().err


def test_a_server_that_drops_the_condition_is_not_believed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    async def deaf(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        return revision()

    monkeypatch.setattr(desk.cluster, "update", deaf)
    assert desk.run("set", KEY, "A=True") == 1
    assert "did not set A" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (None, 0, ""),
        (ConflictError("PUT x: 404 NotFound: no such path"), 1, "may not update packagerevisions"),
        (PermanentError("no", reason="Forbidden"), 1, "may not update packagerevisions"),
        (PermanentError("422 Invalid", reason="Invalid"), 1, "422 Invalid"),
    ],
)
def test_who_may_write_conditions_only_writes_them_through_the_subresource(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured, status: Any, code: int, words: str
) -> None:
    update = desk.cluster.update

    async def restricted(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if not subresource:
            raise PermanentError("bot may not update packagerevisions", reason="Forbidden")
        if status is not None:
            raise status
        return await update(resource, obj)

    monkeypatch.setattr(desk.cluster, "update", restricted)
    assert desk.run("set", KEY, "A=True") == code
    assert words in capsys.readouterr().err


def test_get_shows_gates_order_and_readiness(desk: Desk, capsys: Captured) -> None:
    order = '{"Deployed": ["Signed"], "Signed": ["Rendered"]}'
    desk.has(revision("Draft", SIGNED, packageMetadata={"annotations": {"pvbus.dev/condition-order": order}}))
    assert desk.run("get", KEY) == 0
    assert capsys.readouterr().out.splitlines() == [
        "TYPE        STATUS   GATE   REASON          MESSAGE",
        "Rendered    True     -      RenderSuccess   -",
        "Signed      False    -      NoKey           no key",
        "Certified   -        yes    -               -",
        "Deployed    -        -      -               -",
        "Signed comes after Rendered: may be set now",
        "Deployed comes after Signed: waits for Signed (no key)",
        "not ready: unmet readiness gates: Certified (nothing was reported of it yet)",
    ]
    assert desk.run("get", KEY, "Deployed", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "revision": KEY,
        "lifecycle": "Draft",
        "ready": False,
        "unmetGates": [{"type": "Certified", "why": "nothing was reported of it yet"}],
        "conditions": [
            {
                "type": "Deployed",
                "gate": False,
                "after": ["Signed"],
                "engaged": False,
                "waitsFor": ["Signed (no key)"],
            }
        ],
    }
    assert desk.run("get", KEY, "Certifed") == 1
    assert "no condition or gate Certifed; there are Certified, Deployed" in capsys.readouterr().err


def test_an_unreadable_order_is_named(desk: Desk, capsys: Captured) -> None:
    desk.has(revision(packageMetadata={"annotations": {"pvbus.dev/condition-order": "Signed"}}))
    assert desk.run("get", KEY) == 1
    assert "pvbus.dev/condition-order is not like" in capsys.readouterr().err


def test_a_gate_for_the_approval_is_shown_and_set_on_a_proposal(desk: Desk, capsys: Captured) -> None:
    steps = {"annotations": {"pvbus.dev/gate-steps": '{"Certified": "approve"}'}}
    desk.has(revision("Draft", SIGNED, packageMetadata=steps))
    assert desk.run("get", KEY) == 0
    out = capsys.readouterr().out
    assert "Certified   -        approve" in out
    assert "to propose it; before its approval: unmet readiness gates: Certified (nothing" in out
    desk.has(revision("Proposed", SIGNED, packageMetadata=steps))
    assert desk.run("set", KEY, "Certified=True") == 0
    assert capsys.readouterr().out.endswith("ready: all of 1 readiness gates are met\n")
    assert desk.run("set", KEY, "Signed=True") == 1
    assert "only a Draft's conditions change" in capsys.readouterr().err


ORDERED = {"packageMetadata": {"annotations": {"pvbus.dev/condition-order": '{"Signed": ["Tested"]}'}}}
TESTED = {"type": "Tested", "status": "True"}


@pytest.mark.parametrize(
    ("tested", "wanted", "code"),
    [("False", "True", 1), ("False", "False", 1), ("False", "Unknown", 0), ("True", "True", 0)],
)
def test_in_order_a_condition_is_set_when_all_that_it_comes_after_is_true(
    desk: Desk, capsys: Captured, tested: str, wanted: str, code: int
) -> None:
    desk.has(revision("Draft", {**TESTED, "status": tested}, **ORDERED))
    assert desk.run("set", KEY, f"Signed={wanted}", "--in-order") == code
    refused = "Signed is not set, as it comes after Tested (its status is False)"
    assert (refused in capsys.readouterr().err) == bool(code)
    assert len(desk.cluster.writes) == (0 if code else 1)


def test_in_order_counts_what_is_there_when_the_write_arrives(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition before it turns False between read and write: nothing is set on the old state."""
    desk.has(revision("Draft", TESTED, **ORDERED))
    update, theirs = desk.cluster.update, {**TESTED, "status": "False"}

    async def late(resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        monkeypatch.setattr(desk.cluster, "update", update)
        live = await desk.cluster.get(resource, "default", "edge.web.v1")
        assert live is not None
        await update(resource, {**live, "status": {**live["status"], "conditions": [theirs]}})
        return await update(resource, obj)

    monkeypatch.setattr(desk.cluster, "update", late)
    assert desk.run("set", KEY, "Signed=True", "--in-order") == 1
    assert "it comes after Tested" in capsys.readouterr().err
    assert desk.conditions() == [theirs]


def test_a_watch_has_a_line_for_each_change_until_the_revision_is_gone(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.has(revision("Draft", {**TESTED, "status": "False"}, **ORDERED))
    states = iter(["False", "True", "True", "False", None])

    async def pause(seconds: float) -> None:
        status = next(states)
        if status is None:
            desk.cluster.remove(REVISION, "default", "edge.web.v1")
        else:
            desk.cluster.put(revision("Draft", {**TESTED, "status": status}, **ORDERED))

    monkeypatch.setattr("pvbus.cli.condition.asyncio.sleep", pause)
    assert desk.run("get", KEY, "Signed", "--watch", "-o", "json") == 1
    shown = capsys.readouterr()
    lines = [json.loads(line)["conditions"] for line in shown.out.splitlines()]
    assert [each["engaged"] for (each,) in lines] == [False, True, False]
    assert "there is no PackageRevision default/edge.web.v1" in shown.err
