"""The situations in which a rehearsal is compared with reality, by name."""

from functools import partial
from typing import Any

from pvbus.core.kernel.keys import AUTO_LIFECYCLE, HOLD
from pvbus.ports.cluster import Object
from tests.simulation.cluster import POLICY, QUARANTINE, REVISION, SET, VARIANT
from tests.simulation.rehearsing import HEALTHY, Situation, Stage, target_of

ALL = range(4)
ONE_BY_ONE = {"maxInFlight": 1}
HOLD_WAVE = {"count": 1, "hold": "2m"}
LONG = {"waves": [{"count": 1, "hold": "5m"}, {"percent": 100}]}
ASKED = {"name": "dashboards", "person": {"question": "Do they look well?"}}


def hold(site: int, stage: Stage, case: str) -> None:
    stage.annotate(VARIANT, target_of(case, site), **{HOLD: "true"})


def withdraw(site: int, stage: Stage, case: str) -> None:
    name = f"r1.{target_of(case, site)}.v2"
    revision = stage.find(REVISION, name)
    assert revision is not None
    stage.put(REVISION, name, spec={**revision["spec"], "lifecycle": "Draft"})


def gate(site: int, stage: Stage, case: str) -> None:
    stage.revise(case, site, 2, readinessGates=[{"conditionType": "Tested"}])


def run_already(site: int, stage: Stage, case: str) -> None:
    stage.revise(case, site, 2, "Published")


def lose(site: int, stage: Stage, case: str) -> None:
    """Delete a variant with its revisions."""
    name = target_of(case, site)
    for obj in stage.objects(REVISION):
        if obj["spec"]["packageName"] == name:
            stage.cluster.remove(REVISION, "default", obj["metadata"]["name"])
    stage.cluster.remove(VARIANT, "default", name)


def join(site: int, stage: Stage, case: str) -> None:
    stage.join(case, site, has_former=False)


def order(command: str, value: str, stage: Stage, case: str) -> None:
    stage.order(case, command, value)


def say(command: str, value: str) -> Any:
    return partial(order, command, value)


def quarantine(stage: Stage, case: str) -> None:
    spec = {"sets": [case], "upstreams": [{"revision": f"up/{case}@v2"}], "reason": "Test", "message": "bad"}
    stage.put(QUARANTINE, f"{case}-by-hand", spec=spec)


def quarantine_together(stage: Stage, case: str) -> None:
    """Quarantine the next upstream revisions of a train's members as one combination."""
    upstreams = [f"up/{name}@v3" for name in stage.situations[case].sets(case)]
    spec = {"combinations": [{"upstreams": upstreams}], "reason": "Test", "message": "bad"}
    stage.put(QUARANTINE, f"{case}-by-hand", spec=spec)


def release_quarantines(stage: Stage, case: str) -> None:
    end = {"reason": "it was not the revision", "by": "ann", "at": "2027-03-28T00:00:00Z"}
    for obj in stage.objects(QUARANTINE):
        if obj["spec"].get("policy") == case:
            stage.put(QUARANTINE, obj["metadata"]["name"], spec={**obj["spec"], "released": end})


def rival(stage: Stage, case: str) -> None:
    """Let a policy of higher rank take the targets of one stage."""
    selector = {"matchLabels": {"case": case, "stage": "production"}}
    spec = {
        "revisions": {"selector": selector},
        "approval": "Manual",
        "priority": 9,
        "waves": [{"percent": 100}],
    }
    stage.put(POLICY, f"{case}-rival", spec=spec)


def next_revision(stage: Stage, case: str) -> list[Object]:
    """Return the sets as a file has them that follow the next upstream revision."""
    sets = [stage.find(SET, name) for name in stage.situations[case].sets(case)]
    return [
        {**found, "spec": {**found["spec"], "upstream": {**found["spec"]["upstream"], "revision": 3}}}
        for found in sets
        if found is not None
    ]


def move(stage: Stage, case: str) -> None:
    stage.move(case, 3)


def opt_in(stage: Stage, case: str) -> None:
    for site in range(stage.situations[case].sites):
        stage.annotate(VARIANT, target_of(case, site), **{AUTO_LIFECYCLE: "true"})


def fresh(spec: Any = None, *script: Any, **more: Any) -> Situation:
    """Return a situation before the first attempt, with what happens at its start."""
    return Situation(spec or {}, script=[(0.0, act) for act in script], waits=True, **more)


def train(rules: Any = None, *script: Any, spec: Any = None, sites: int = 6, **more: Any) -> Situation:
    """Return a train before its first attempt."""
    return fresh({**(spec or {}), "train": rules or {}}, *script, sites=sites, members=2, **more)


def canaries(*sites: int, case: str, **more: Any) -> dict[str, Any]:
    return {"canaries": [target_of(case, site) for site in sites], **more}


def excuse(case: str, site: int) -> Any:
    value = f'[{{"attempt": 1, "canary": "{target_of(case, site)}", "reason": "its site is closed"}}]'
    return say("excuse", value)


def berlin(start: str, end: str) -> list[dict[str, Any]]:
    return [{"start": start, "end": end, "timeZone": "Europe/Berlin"}]


BAD_BACK = {"budgets": {"onFailure": "RollBack"}}
WHOLE = {"settle": "2s"}
"""The first attempt has all targets: without a time to settle it may begin before the last one is seen."""

STOPPED: dict[str, Situation] = {
    "fresh": fresh(),
    "mid": Situation(late={0}),
    "holding": Situation(LONG),
    "asks": Situation({"approval": "Manual"}),
    "joiner": Situation(without={4}, sites=5, script=[(35.0, partial(join, 4))]),
    "news": Situation(late={0}, script=[(35.0, move)]),
    "ordered": Situation(without=ALL, script=[(29.9, partial(join, site)) for site in ALL]),
    "stopped": Situation(failing={1}),
    "undoing": Situation(WHOLE, script=[(29.8, say("roll-back", "1"))]),
    "back": Situation(WHOLE, script=[(52.0, say("roll-back", "1"))]),
    "train": Situation(late={0}, sites=6, members=2),
}
"""In a world in which all rollouts are stopped."""

SITUATIONS: dict[str, Situation] = {
    # before the first attempt
    "waves": fresh(),
    "percent": fresh({"waves": [{"percent": 25}, {"percent": 50}, {"percent": 100}]}, sites=5),
    "onewave": fresh({"waves": [{"percent": 100}]}),
    "manual": fresh({"approval": "Manual"}),
    "person": fresh(
        {
            "waves": [
                {"count": 1, "checks": [{"name": "p", "person": {"question": "Well?"}}]},
                {"percent": 100},
            ]
        }
    ),
    "soak": fresh({"waves": [HOLD_WAVE, {"percent": 100}]}),
    "order": fresh({"order": [{"label": "stage", "values": ["production", "test"]}], "budgets": ONE_BY_ONE}),
    "inflight": fresh({"budgets": {"maxInFlight": 2}}, sites=6),
    "initial": fresh({"approval": "Initial"}, partial(join, 3), without={3}),
    "canary": fresh(canaries(3, case="canary")),
    "canaries": fresh(canaries(2, 1, case="canaries")),
    "absent": fresh(canaries(9, 1, case="absent")),
    "skipped": fresh(canaries(9, 1, case="skipped", whenCanaryIsAbsent="Skip")),
    "lastskip": fresh(canaries(9, case="lastskip", whenCanaryIsAbsent="Skip")),
    "canaryheld": fresh(canaries(3, case="canaryheld"), partial(hold, 3)),
    "canarylate": fresh(canaries(3, case="canarylate"), partial(withdraw, 3)),
    "canaryruns": fresh(canaries(3, case="canaryruns"), partial(run_already, 3)),
    "excused": fresh(canaries(3, case="excused"), partial(hold, 3), excuse("excused", 3)),
    "canarybad": fresh(canaries(3, case="canarybad", budgets={"maxFailing": 3}), failing={3}),
    "stops": fresh(failing={1}),
    "budget": fresh({"budgets": {"maxFailing": 1}}, failing={1}),
    "rollsback": fresh(BAD_BACK, failing={1}),
    "stranded": fresh(BAD_BACK, partial(join, 1), without={1}, failing={1}),
    "heldout": fresh({}, partial(hold, 0)),
    "gated": fresh({}, partial(gate, 2)),
    "bad": fresh({}, quarantine),
    "overlap": fresh({}, rival),
    "opens": fresh({"windows": berlin("01:50", "01:59"), "waves": [{"percent": 100}]}),
    "denied": fresh({"denyWindows": berlin("00:00", "01:55")}),
    "never": fresh({"denyWindows": [{"start": "00:00", "end": "24:00"}]}),
    "clock": fresh({"windows": berlin("02:30", "03:15")}),
    "promoted": fresh({"waves": [HOLD_WAVE, {"percent": 100}]}, say("promote", "1")),
    # in the middle of an attempt
    "first": Situation(late={0}),
    "second": Situation(late={1}),
    "holding": Situation(LONG),
    "asks": Situation({"approval": "Manual"}, script=[(10.0, say("approve", "1.0"))]),
    "paused": Situation(late={0}, script=[(20.0, say("pause", "true"))]),
    "stopped": Situation(failing={1}),
    "resumed": Situation(
        failing={1}, sites=6, script=[(20.0, release_quarantines), (30.0, say("resume", "1.1"))]
    ),
    "blocked": Situation(failing={1}, script=[(30.0, say("resume", "1.1"))]),
    "joiner": Situation(without={4}, sites=5, late={0}, script=[(20.0, partial(join, 4))]),
    "joinedbad": Situation(without={4}, sites=5, failing={1}, script=[(20.0, partial(join, 4))]),
    "leaver": Situation(late={0}, script=[(20.0, partial(withdraw, 1))]),
    "deleted": Situation(late={0}, script=[(20.0, partial(lose, 1))]),
    "silent": Situation(
        {"conditions": ["Ready", HEALTHY], "evidence": {"deadline": "30s"}}, late={0}, script=[]
    ),
    "unproven": Situation({"conditions": ["Ready", HEALTHY]}, late={0}),
    "back": Situation(BAD_BACK, failing={1}),
    "restart": Situation(
        BAD_BACK, failing={1}, script=[(30.0, release_quarantines), (35.0, say("restart", "1"))]
    ),
    "again": Situation(
        script=[(30.0, lambda stage, case: stage.move(case, 3)), (30.0, say("pause", "true"))]
    ),
    "ordered": Situation(
        waits=False, without={0, 1, 2, 3}, script=[(52.0, partial(join, site)) for site in range(4)]
    ),
    "undoing": Situation(WHOLE, script=[(52.0, say("roll-back", "1"))]),
    "cancelling": Situation(
        WHOLE, without=ALL, script=[*((52.0, partial(join, site)) for site in ALL), (58.0, say("abort", "1"))]
    ),
    # a change by a file
    "file": fresh({}, opt_in, change=next_revision),
    "filemid": Situation(
        {**WHOLE, "waves": [{"count": 1, "hold": "5m"}, {"percent": 100}]},
        script=[(10.0, opt_in)],
        change=next_revision,
    ),
    "filefinish": Situation(
        {"onNewRevision": "Finish", "settle": "20s", "waves": [{"count": 1, "hold": "5m"}, {"percent": 100}]},
        script=[(10.0, opt_in)],
        change=next_revision,
    ),
    "filebad": Situation(failing={1}, script=[(30.0, opt_in)], change=next_revision),
    # the same without a file: the variants have moved on already
    "newsfinish": Situation(
        {"onNewRevision": "Finish", "settle": "20s", "waves": [{"count": 1, "hold": "5m"}, {"percent": 100}]},
        script=[(10.0, opt_in), (40.0, move)],
    ),
    # trains of two packages
    "train": train(),
    "trainasone": train({"mode": "Together"}, sites=2),
    "trainlacks": train({}, without={5}),
    "trainskips": train({"whenMemberIsAbsent": "Skip"}, without={5}),
    "trainheld": train({}, partial(hold, 3)),
    "trainrides": train({}, partial(run_already, 2)),
    "trainbad": train(failing={1}),
    "trainback": train(failing={1}, spec=BAD_BACK),
    "trainmid": Situation(late={0}, sites=6, members=2),
    "trainnext": Situation(late={1}, sites=6, members=2),
    "trainstopped": Situation(failing={3}, sites=6, members=2),
    "trainundone": Situation(BAD_BACK, failing={3}, sites=6, members=2),
    "trainpartial": Situation(
        {"train": {"partialTimeout": "2m"}}, late={0}, sites=4, members=2, script=[(20.0, partial(hold, 1))]
    ),
    "trainfile": train({}, opt_in, change=next_revision),
    "trainbanned": train({}, opt_in, quarantine_together, change=next_revision),
    "trainleaves": Situation(late={0}, sites=6, members=2, script=[(20.0, partial(withdraw, 3))]),
}
