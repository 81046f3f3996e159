"""`pvbus rollout status`, `history` and the orders: what they say, what they write, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli import rolloutorders
from pvbus.cli.main import run
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.records import CANDIDATES, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.rollout.waiting import canary_advice
from pvbus.ports.cluster import Resource
from tests.tools.bustables import Row, write_tables

Captured = pytest.CaptureFixture[str]
POLICIES = Resource("promotion.pvbus.dev", "v1alpha1", "RolloutPolicy", "rolloutpolicies", namespaced=True)
P = "promotion.pvbus.dev/"
PERSON = {"name": "boss", "person": {"question": "Do the dashboards look well?"}}
WAVES = [{"count": 1, "hold": "10m", "checks": [PERSON]}, {"percent": 100}]
COUNTS = {"total": 200, "waiting": 150, "inFlight": 2, "proven": 45, "failing": 3}


def cluster_of(policy: dict[str, Any]) -> MemoryCluster:
    cluster = MemoryCluster([policy], now=lambda: "2026-01-01T00:00:00Z")
    cluster.serve(POLICIES)
    return cluster


class Terminal:
    """A data folder, a policy on its API server, and a terminal with somebody at it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "kubeconfig").write_text("")
        self.asked: list[str] = []
        self.answer = self.is_terminal = True
        self.set()
        monkeypatch.setattr(HttpCluster, "connect", self._connect)
        monkeypatch.setattr(rolloutorders, "is_terminal", lambda: self.is_terminal)
        monkeypatch.setattr(click, "confirm", self._confirm)

    def set(
        self, phase: str = "", wave: int = 1, *, annotations: dict[str, str] | None = None, **spec: Any
    ) -> None:
        status: dict[str, Any] = {}
        if phase:
            status = {"phase": phase, "attempt": 3, "wave": wave, "stops": 1, "targets": COUNTS}
        policy = {
            "apiVersion": "promotion.pvbus.dev/v1alpha1",
            "kind": "RolloutPolicy",
            "metadata": {"name": "web", "namespace": "default", "uid": "p", "annotations": annotations or {}},
            "spec": {"revisions": {"all": True}, "approval": "Always", "waves": WAVES, **spec},
            "status": status,
        }
        self.cluster = cluster_of(policy)

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def _confirm(self, question: str) -> bool:
        self.asked.append(question)
        return self.answer

    def run(self, *arguments: str) -> int:
        return run(["rollout", *arguments, "--data", str(self.folder)])

    def write(self, *rows: Row) -> None:
        write_tables(self.folder / "bus.db", rows)

    @property
    def annotations(self) -> dict[str, str]:
        (obj,) = self.cluster.objects()
        found: dict[str, str] = obj["metadata"].get("annotations") or {}
        return found


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(tmp_path, monkeypatch)


ORDERS = [
    ("pause", "Rolling", {P + "pause": "true"}),
    ("resume", "Stopped", {P + "resume": "3.1"}),
    ("approve", "Holding", {P + "approve": "3.1"}),
    ("promote", "Rolling", {P + "promote": "3"}),
    ("promote", "Holding", {P + "promote": "3"}),
    ("abort", "Stopped", {P + "abort": "3"}),
    ("roll-back", "Completed", {P + "roll-back": "3"}),
    ("restart", "RolledBack", {P + "restart": "3"}),
]


@pytest.mark.parametrize(("order", "phase", "annotations"), ORDERS)
def test_an_order_is_written_once(
    terminal: Terminal, capsys: Captured, order: str, phase: str, annotations: dict[str, str]
) -> None:
    """It is for this attempt; a second time it writes nothing and says so."""
    terminal.set(phase, annotations={"mine": "stays"})
    assert terminal.run(order, "default/web") == 0
    assert terminal.annotations == {"mine": "stays", **annotations}
    assert terminal.run(order, "web", "-n", "default", *(["--yes"] if terminal.asked else [])) == 0
    assert len(terminal.cluster.writes) == 1, capsys.readouterr().out


@pytest.mark.parametrize(
    ("order", "phase"),
    [("abort", "Stopped"), ("abort", "Isolating"), ("roll-back", "Isolating"), ("roll-back", "Completed")],
)
def test_an_order_that_quarantines_nothing_says_why(
    terminal: Terminal, capsys: Captured, order: str, phase: str
) -> None:
    """29: a person rolls back what is sound."""
    terminal.set(phase)
    given = [order, "default/web", "--yes"]
    for alone in (["--no-quarantine"], ["--reason", "it is sound"], ["--no-quarantine", "--reason", " "]):
        assert terminal.run(*given, *alone) == 2
    assert "--no-quarantine and --reason go together" in capsys.readouterr().err
    assert terminal.run(*given, "--no-quarantine", "--reason", " it is sound ") == 0
    assert terminal.annotations == {P + order: "3: it is sound"}
    assert "nothing of it is quarantined" in capsys.readouterr().out
    assert terminal.run(order, "default/web", "--yes") == (
        1 if (order, phase) == ("abort", "Isolating") else 0
    )
    assert len(terminal.cluster.writes) == 1, "the order stands with its reason"


def test_resume_names_the_quarantine_that_it_waits_for(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Stopped")
    (policy,) = terminal.cluster.objects()
    policy["status"]["history"] = [{"attempt": 3, "phase": "Stopped", "quarantines": ["web-3-1-uid"]}]
    terminal.cluster = cluster_of(policy)
    assert terminal.run("resume", "default/web") == 0
    assert "pvbus rollout release default/web-3-1-uid --reason TEXT" in capsys.readouterr().out
    assert terminal.run("status", "default/web") == 0
    shown = capsys.readouterr().out
    assert "quarantined what it brought: web-3-1-uid" in shown
    assert terminal.run("history", "default/web") == 0
    assert "quarantined: web-3-1-uid" in capsys.readouterr().out


def test_an_excuse_is_for_one_attempt_and_says_why_and_when(terminal: Terminal, capsys: Captured) -> None:
    given = ["excuse", "default/web", "web-a", "--reason", " its site is closed "]
    for phase, attempt in (("Rolling", 3), ("Stopped", 3), ("Completed", 4), ("RollingBack", 4)):
        terminal.set(phase, canaries=["web-a", "web-b"])
        assert terminal.run(*given) == 0
        (written,) = json.loads(terminal.annotations[P + "excuse"])
        assert (written["attempt"], written["canary"], written["reason"]) == (
            attempt,
            "web-a",
            given[-1].strip(),
        )
        assert written["at"].endswith("Z")
        assert terminal.run(*given) == 0
        assert "goes without canary web-a already" in capsys.readouterr().out
        assert terminal.run("excuse", "default/web", "web-b", "--reason", "x") == 0
        assert len(json.loads(terminal.annotations[P + "excuse"])) == 2


@pytest.mark.parametrize(
    ("canary", "reason", "code", "words"),
    [
        ("web-x", "why", 1, 'has no canary "web-x"; its canaries: web-a'),
        ("web-a", " ", 2, "--reason: say why"),
        ("web-a", "x" * 501, 2, "--reason: say why"),
    ],
)
def test_an_excuse_that_does_not_fit_is_refused(
    terminal: Terminal, capsys: Captured, canary: str, reason: str, code: int, words: str
) -> None:
    terminal.set("Rolling", canaries=["web-a"])
    assert terminal.run("excuse", "default/web", canary, "--reason", reason) == code
    assert words in capsys.readouterr().err
    assert terminal.annotations == {}


REFUSED = [
    ("resume", "Rolling", "neither paused nor stopped: attempt 3 is Rolling in wave 1"),
    ("approve", "Rolling", "a person is asked when all targets of the wave are proven"),
    ("approve", "Completed", "waits for no approval: attempt 3 is Completed"),
    ("promote", "Stopped", "nothing is being approved: attempt 3 is Stopped"),
    ("abort", "Completed", "there is nothing to abort: attempt 3 is Completed"),
    ("roll-back", "RollingBack", "there is nothing to roll back: attempt 3 is RollingBack"),
    ("roll-back", "", "the service rollout has not seen it: pvbus up --promote"),
    ("restart", "", "there was no attempt of default/web yet"),
]


@pytest.mark.parametrize(("order", "phase", "words"), REFUSED)
def test_an_order_that_does_not_fit_is_refused_with_how_it_stands(
    terminal: Terminal, capsys: Captured, order: str, phase: str, words: str
) -> None:
    terminal.set(phase)
    assert terminal.run(order, "default/web") == 1
    assert words in capsys.readouterr().err
    assert terminal.cluster.writes == []


def test_resume_ends_a_pause_and_a_stop(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Stopped", annotations={P + "pause": "true"})
    assert terminal.run("resume", "default/web") == 0
    assert terminal.annotations == {P + "resume": "3.1"}
    shown = capsys.readouterr().out
    assert "is no longer paused, and goes on with attempt 3: 3 targets may fail" in shown


def test_a_person_is_asked_the_question_of_the_wave(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Holding")
    terminal.answer = False
    assert terminal.run("approve", "default/web") == 1
    assert "nothing was ordered" in capsys.readouterr().err
    assert terminal.annotations == {}
    (question,) = terminal.asked
    assert question.startswith("Do the dashboards look well? Approve that wave 1 has proven good")


def test_the_first_wave_of_a_manual_policy_is_approved_by_its_own_number(terminal: Terminal) -> None:
    terminal.set("Rolling", approval="Manual")
    assert terminal.run("approve", "default/web", "--yes") == 0
    assert terminal.annotations == {P + "approve": "3.0"}


def test_a_wave_without_a_person_needs_no_approval(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Holding", wave=2)
    assert terminal.run("approve", "default/web", "--yes") == 1
    assert "this wave waits for no person: pvbus rollout promote" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_ordered(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Rolling")
    terminal.is_terminal = False
    assert terminal.run("roll-back", "default/web") == 2
    shown = capsys.readouterr().err
    assert "Publish the last good revision of up to 50 targets again? Add --yes" in shown
    assert terminal.annotations == {}


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [
        ({"phase": "Completed"}, "there is nothing to abort: attempt 3 is Completed"),
        ({"attempt": 4}, "has changed meanwhile, and nothing was ordered"),
    ],
)
def test_what_has_changed_while_a_person_thought_is_not_ordered(
    terminal: Terminal,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: dict[str, Any],
    words: str,
) -> None:
    terminal.set("Rolling")
    ask = terminal._confirm

    def slow(question: str) -> bool:
        (policy,) = terminal.cluster.objects()
        terminal.cluster.put({**policy, "status": {**policy["status"], **meanwhile}})
        return ask(question)

    monkeypatch.setattr(click, "confirm", slow)
    assert terminal.run("abort", "default/web") == 1
    assert words in capsys.readouterr().err
    assert terminal.annotations == {}


@pytest.mark.parametrize("words", ["web", "rollout/web", "rollout web", "rolloutpolicy/default/web"])
def test_a_policy_is_named_as_for_kubectl(terminal: Terminal, words: str) -> None:
    terminal.set("Rolling")
    assert terminal.run("pause", *words.split()) == 0
    assert terminal.annotations == {P + "pause": "true"}


def test_an_excuse_without_a_canary_is_bad_usage(terminal: Terminal, capsys: Captured) -> None:
    assert terminal.run("excuse", "default/web", "--reason", "closed") == 2
    assert "default/web: name the canary, too" in capsys.readouterr().err


def test_a_policy_that_does_not_exist_is_named(terminal: Terminal, capsys: Captured) -> None:
    assert terminal.run("status", "default/other") == 1
    assert "there is no RolloutPolicy default/other" in capsys.readouterr().err


# ------------------------------------------------------------ status


def target(name: str, position: int, state: TargetState, **fields: Any) -> Row:
    row = Target(
        target=name,
        revision=f"{name}.v2",
        digest="d",
        attempt=3,
        position=position,
        wave=1,
        state=state,
        **fields,
    )
    return ROLLOUTS, f"default/web|{name}", row


def test_status_shows_the_wave_its_targets_and_what_it_waits_for(
    terminal: Terminal, capsys: Captured
) -> None:
    terminal.set("Holding")
    terminal.write(
        (ROLLOUTS, "default/web", Rollout(state=RolloutState.HOLDING, attempt=3, wave=1, phase_seconds=61)),
        target("b", 1, TargetState.FAILED),
        target("a", 0, TargetState.APPROVED),
        target("c", 2, TargetState.PROVEN),
        (CANDIDATES, "default/web|b", CandidateRow(uid="b", verdict="Ready is False: no image")),
        (
            CANDIDATES,
            "default/web|d",
            CandidateRow(uid="d", revision="d.v2", reason="OnHold", message="held"),
        ),
        (
            ROLLOUTS,
            "default/other|x",
            Target(target="x", revision="", digest="", attempt=3, position=0, wave=1),
        ),
    )
    assert terminal.run("status", "default/web") == 0
    shown = capsys.readouterr().out
    assert "RolloutPolicy default/web: attempt 3 is Holding in wave 1 of 2" in shown
    assert "200 targets: 150 wait, 2 in flight, 45 proven, 3 failing" in shown
    assert "waits for the hold time of 600 s, 61 s of it have passed" in shown
    assert "a person (Do the dashboards look well?): pvbus rollout approve default/web" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert [line[:4] for line in lines if line[0] in "abcx"] == [
        ["a", "1", "approved", "a.v2"],
        ["b", "1", "failed", "b.v2"],
    ]
    assert "Ready is False: no image" in shown
    assert "left out: d (d.v2): OnHold: held" in shown


def test_status_says_a_thing_once(terminal: Terminal, capsys: Captured) -> None:
    """What a rollout waits for is in two conditions and on the bus; many targets may have one reason."""
    obstacle = "canary a: OnHold: it is on hold: pvbus unhold default/a"
    terminal.set("Completed")
    (policy,) = terminal.cluster.objects()
    words = f"before its canaries: {obstacle}; {canary_advice(Key('default', 'web'))}"
    policy["status"]["conditions"] = [
        {"type": kind, "status": status, "reason": "CanaryNotReady", "message": f"{said}{words}"}
        for kind, status, said in (("Progressing", "False", ""), ("Waiting", "True", "for 2 d: a person: "))
    ]
    terminal.cluster = cluster_of(policy)
    rollout = Rollout(
        state=RolloutState.COMPLETED, attempt=3, canary_reason="CanaryNotReady", canary_message=obstacle
    )
    reasons = dict.fromkeys("bcdef", ("Quarantined", "web-3-1 covers it")) | {"a": ("OnHold", "held")}
    left_out = {
        name: CandidateRow(uid=name, revision=f"{name}.v2", reason=reason, message=message)
        for name, (reason, message) in reasons.items()
    }
    terminal.write(
        (ROLLOUTS, "default/web", rollout),
        *((CANDIDATES, f"default/web|{name}", row) for name, row in left_out.items()),
    )
    assert terminal.run("status", "default/web") == 0
    shown = capsys.readouterr().out
    assert shown.count(obstacle) == 1
    assert "Waiting is True (CanaryNotReady): for 2 d: a person, as said above\n" in shown
    assert "left out: a (a.v2): OnHold: held\n" in shown
    assert "left out: b (b.v2), c (c.v2), d (d.v2) and 2 more: Quarantined: web-3-1 covers it\n" in shown


def test_status_says_why_a_rollback_left_a_target_as_it_is(terminal: Terminal, capsys: Captured) -> None:
    """Release has nothing to say of one that had no former revision: the rollout has."""
    terminal.set("RolledBack")
    why = "Stranded: there is no former revision to go back to"
    terminal.write(
        (ROLLOUTS, "default/web", Rollout(state=RolloutState.ROLLED_BACK, attempt=3, wave=1)),
        target("a", 0, TargetState.STRANDED, why=why),
        (CANDIDATES, "default/web|a", CandidateRow(uid="a")),
    )
    assert terminal.run("status", "default/web") == 0
    assert why in capsys.readouterr().out


def test_status_shows_a_unit_with_all_its_members_and_what_trains_lack(
    terminal: Terminal, capsys: Captured
) -> None:
    terminal.set("Rolling")
    terminal.write(
        (
            ROLLOUTS,
            "default/web",
            Rollout(state=RolloutState.ROLLING, attempt=3, wave=1, train_message="train s2/a+b waits"),
        ),
        target("a-1", 0, TargetState.PROVEN, unit="s1/a+b", part=1, rides=True),
        target("b-1", 1, TargetState.ORDERED, unit="s1/a+b", part=2),
        target("a-0", 2, TargetState.PROVEN, unit="s0/a+b", part=1),
    )
    assert terminal.run("status", "default/web") == 0
    shown = capsys.readouterr().out
    assert "waits for what these trains lack, before they are planned: train s2/a+b waits" in shown
    assert "a-1 (train s1/a+b, rides)" in shown
    assert "b-1 (train s1/a+b) " in shown
    assert "a-0" not in shown


def test_status_lists_other_states_and_says_how_many_more(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Holding")
    terminal.write(
        (ROLLOUTS, "default/web", Rollout(state=RolloutState.HOLDING, attempt=3, wave=1)),
        *(target(f"c{n:02}", n, TargetState.PROVEN) for n in range(30)),
    )
    assert terminal.run("status", "default/web", "--state", "proven", "--limit", "2", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["target"] for each in document["targets"]] == ["c00", "c01"]
    assert document["targetsMore"] == 28
    arguments = ("status", "default/web", "--state", "proven", "--limit", "28", "--continue")
    assert terminal.run(*arguments, document["continue"], "-o", "json") == 0
    following = json.loads(capsys.readouterr().out)
    assert [each["target"] for each in following["targets"]] == [f"c{n:02}" for n in range(2, 30)]
    assert following["continue"] == ""
    assert terminal.run(*arguments, "2.1") == 2
    assert "it is of no page of attempt 3: begin without it" in capsys.readouterr().err
    assert terminal.run("status", "default/web", "--state", "proven", "--limit", "0", "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["targets"]) == 30


def test_status_without_a_bus_shows_the_rest_and_says_so(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Stopped", annotations={P + "resume": "third"})
    assert terminal.run("status", "default/web", "--kubeconfig", str(terminal.folder / "kubeconfig")) == 0
    shown = capsys.readouterr().out
    assert "the targets are on the bus: name it with --bus" in shown
    assert "waits for a person, as it stopped: pvbus rollout resume, abort or roll-back" in shown
    assert f'wrong: {P}resume is "third": give ATTEMPT.STOP' in shown
    assert terminal.run("status", "default/web") == 0
    assert "the bus cannot be read" in capsys.readouterr().out


def test_status_of_a_paused_rollout_names_the_way_on(terminal: Terminal, capsys: Captured) -> None:
    terminal.set("Rolling", approval="Manual", annotations={P + "pause": "true"})
    assert terminal.run("status", "default/web") == 0
    shown = capsys.readouterr().out
    assert "attempt 3 is Rolling in wave 1 of 2, paused" in shown
    assert "waits for a person, as it is paused: pvbus rollout resume default/web" in shown
    assert "waits for a person, to begin: pvbus rollout approve default/web" in shown


@pytest.mark.parametrize(("phase", "is_shown"), [("Rolling", True), ("Stopped", True), ("Completed", False)])
def test_status_names_the_newer_revision_that_waits_and_what_lets_it_go(
    terminal: Terminal, capsys: Captured, phase: str, *, is_shown: bool
) -> None:
    terminal.set(phase)
    (policy,) = terminal.cluster.objects()
    policy["status"]["newer"] = ["blueprints/web@v7"]
    terminal.cluster = cluster_of(policy)
    assert terminal.run("status", "default/web") == 0
    words = "blueprints/web@v7 waits for the end of attempt 3: pvbus rollout abort default/web ends it now"
    assert (words in capsys.readouterr().out) is is_shown


def test_history_shows_the_attempts(terminal: Terminal, capsys: Captured) -> None:
    assert terminal.run("history", "default/web") == 0
    assert "there was no attempt of default/web yet" in capsys.readouterr().out
    (policy,) = terminal.cluster.objects()
    ended = {"attempt": 1, "phase": "RolledBack", "wave": 2, "startedAt": "t0", "endedAt": "t1"}
    ended |= {"reason": "TooManyFailing", "message": "1 target fails, 0 may"}
    ended |= {"targets": {"total": 9, "proven": 0, "rolledBack": 4}}
    policy["status"]["history"] = [ended, {"attempt": 2, "phase": "Rolling", "wave": 1, "startedAt": "t2"}]
    policy["status"]["history"][1]["excused"] = [{"canary": "a", "reason": "closed", "by": "ann", "at": "t3"}]
    terminal.cluster = cluster_of(policy)
    assert terminal.run("history", "default/web") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == (
        "1 RolledBack - t0 t1 0 of 9 proven, 4 rolled back TooManyFailing: 1 target fails, 0 may"
    )
    assert lines[2] == "2 Rolling 1 t2 - - without canary a (by ann at t3): closed"
