"""`pvbus explain`: a reason for everything that is not ready, with the object that it is about."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.cli.explain import _renders
from pvbus.cli.explain_text import STATE_WORDS, repository_lines, variant_lines
from pvbus.cli.main import run
from pvbus.core.api.variants import Condition, Downstream
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import rows_of
from pvbus.core.kernel.promotionrows import (
    CandidateRow,
    Carried,
    EvidenceSource,
    PromotionRow,
    ReleaseRow,
    Verdict,
)
from pvbus.core.kernel.records import (
    CANDIDATES,
    CONDITIONS,
    LATEST,
    META,
    OBJECTS,
    PROMOTIONS,
    RELEASES,
    RESULTS,
    ROLLOUTS,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    ChildResult,
    ChildRow,
    Dispute,
    Hold,
    MetaRow,
    ResultRow,
    SetResult,
    TargetRow,
)
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from tests.simulation.parts import REPOSITORY, REVISION, SITE, obj, site, site_set, upstream
from tests.tools.bustables import Row, write_tables
from tests.tools.fleetrows import event, task

Captured = pytest.CaptureFixture[str]


def child(name: str, state: Any = "present", **fields: Any) -> Row:
    downstream = Downstream(repo="edge", package=name)
    fields = {"digest": "d", "okey": f"example.org/Site|default|{name}", **fields}
    return (
        UNROLL,
        f"default/alpha|{name}",
        ChildRow(set_uid="u", state=state, downstream=downstream, **fields),
    )


def result(name: str, **fields: Any) -> Row:
    fields = {"evaluated": "d", "applied": "d", **fields}
    return SETRESULTS, f"default/alpha|{name}", ChildResult(set_uid="u", **fields)


def rollup(**fields: Any) -> Row:
    return SETRESULTS, "default/alpha", SetResult(uid="u", generation=1, **fields)


def ready(name: str, status: str, reason: str, message: str) -> Row:
    condition = Condition(type="Ready", status=status, reason=reason, message=message)
    event = ConditionEvent(
        kind="PackageVariant", namespace="default", name=name, uid="v", condition=condition, id=name
    )
    return LATEST, f"PackageVariant|default/{name}|Ready", event


def seen(kind: Kind, thing: Any) -> list[Row]:
    return [(row.topic, row.key, row.value) for row in rows_of(kind, thing, (OBJECTS,))]


def explained(folder: Path, capsys: Captured, rows: list[Row], *arguments: str) -> tuple[Any, str]:
    """Return the document, and the text."""
    write_tables(folder / "bus.db", rows)
    call = ["explain", *arguments, "--data", str(folder)]
    with pytest.raises(SystemExit) as end:
        run([*call, "-o", "json"])
    assert end.value.code == 0
    document = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        run(call)
    return document, capsys.readouterr().out


def test_every_variant_that_is_not_ready_has_a_reason_and_equal_ones_are_one(
    tmp_path: Path, capsys: Captured
) -> None:
    """An error of render, what is not applied, what inject reports, and what nobody has reported."""
    rows = [rollup()]
    for n in range(5):
        rows += [child(f"lost-{n}"), result(f"lost-{n}")]
        rows += [ready(f"lost-{n}", "False", "Error", "no Repository named edge in namespace default")]
    rows += [
        child("bad"),
        result("bad", applied="", reason="UnexpectedError", error="template.x: no such key"),
    ]
    rows += [child("slow"), result("slow", applied="older"), child("new")]
    rows += [child("silent"), result("silent")]
    rows += [child("good"), result("good", ready=True), child("gone", "gone")]
    document, text = explained(tmp_path, capsys, rows, "--set", "default/alpha")
    found = {(group["reason"], group["count"]): group["variants"] for group in document["notReady"]}
    assert found == {
        ("Error", 5): [f"lost-{n}" for n in range(5)],
        ("NotApplied", 2): ["new", "slow"],
        ("NotReported", 1): ["silent"],
        ("UnexpectedError", 1): ["bad"],
    }
    lines = [line.strip() for line in text.splitlines()]
    first = lines.index("not ready: 5 variants: Error: no Repository named edge in namespace default")
    assert lines[first + 1] == "lost-0, lost-1, lost-2 and 2 more"
    bad = lines.index("not ready: 1 variant: UnexpectedError: template.x: no such key")
    assert lines[bad + 1] == "bad (for Site default/bad)"


def test_all_targets_whose_expression_fails_are_named(tmp_path: Path, capsys: Captured) -> None:
    """They have no variant, so that they are nowhere on the bus but in the set's sum."""
    template = {"downstream": {"repo": "r1", "packageExpr": "target.labels['zone']"}}
    thing = site_set(template=template)
    rows: list[Row] = [
        (META, "installation", MetaRow(partitions=12, incarnation="i")),
        (SETS, "default/alpha", msgspec.json.encode(thing)),
        rollup(reason="UnexpectedError", message="template.downstream.packageExpr: no such key: zone"),
        *seen(REVISION, upstream()),
        *seen(REPOSITORY, obj(REPOSITORY, "r1", spec={})),
        *seen(SITE, site("right", env="prod", zone="z1")),
        *seen(SITE, site("other", env="test")),
    ]
    for name in ("a", "b", "c", "d"):
        rows += seen(SITE, site(name, env="prod"))
    document, text = explained(tmp_path, capsys, rows, "--set", "default/alpha")
    (group,) = document["failingTargets"]
    assert group["targets"] == [f"Site default/{name}" for name in ("a", "b", "c", "d")]
    assert group["message"].startswith("template.downstream.packageExpr: ")
    assert "failing: 4 targets: UnexpectedError: template.downstream.packageExpr" in text
    assert "Site default/a, Site default/b, Site default/c, Site default/d" in text


def test_what_is_held_comes_with_the_commands(tmp_path: Path, capsys: Captured) -> None:
    """Of the set and of one of its variants: one token, however many rows."""
    target = TargetRow(state="present", set_name="alpha", set_uid="u", downstream=Downstream(repo="edge"))
    rows: list[Row] = [
        rollup(hold=Hold(id="h", token="c0ffee12", count=4)),
        *(child(f"held-{n}", "held", since=1_770_000_000.0) for n in range(4)),
        (TARGETS, "default/held-1|alpha", target),
    ]
    document, text = explained(tmp_path, capsys, rows, "--set", "default/alpha")
    command = (
        "kubectl annotate packagevariantset -n default alpha pvbus.dev/confirm-deletion=c0ffee12 --overwrite"
    )
    assert document["held"] == {
        "variants": ["held-0", "held-1", "held-2", "held-3"],
        "token": "c0ffee12",
        "show": "pvbus confirm default/alpha --show",
        "confirm": command,
    }
    assert "4 removals are held, because they are too many at once: held-0, held-1, held-2 and 1 more" in text
    assert command in text
    document, text = explained(tmp_path, capsys, [], "default/held-1")
    assert document["madeBy"][0]["removal"]["state"] == "held"
    assert "removal: its removal is held, because too many would go at once (held, since 2026-02-02T" in text
    assert command in text
    assert "pvbus confirm default/alpha --show" in text


@pytest.mark.parametrize("state", ["waiting", "held", "confirmed", "ordered", "gone"])
def test_each_state_of_a_removal_has_words_and_what_it_waits_for(state: str) -> None:
    maker: dict[str, Any] = {
        "set": "default/alpha",
        "target": "spec.targets[0]",
        "object": "",
        "state": state,
        "upstream": {},
        "downstream": {},
        "expressions": [],
        "removal": {"state": state, "since": "", "waitsFor": "an answer to the check of Sites"},
        "held": None,
    }
    document = {
        "variant": "default/v",
        "known": True,
        "madeBy": [maker],
        "decided": None,
        "revisions": [],
        "injected": [],
        "conditions": [],
        "waitsFor": [],
        "liveNote": "",
    }
    lines = list(variant_lines(document))
    assert f"  removal: {STATE_WORDS[state]} ({state})" in lines
    waits = "  removal waits for: an answer to the check of Sites" in lines
    assert waits is (state in ("waiting", "confirmed", "ordered"))


def test_conflicts_of_an_upgrade_are_said_with_file_field_and_values() -> None:
    """Both kinds: upstream's value was taken, or the local object stays; the list is bounded."""
    field = {"revision": "edge.web.v2", "file": "a.yaml", "object": "ConfigMap a", "field": "data.x"}
    document = {
        "variant": "default/v",
        "known": True,
        "madeBy": [],
        "decided": None,
        "revisions": [],
        "injected": [],
        "conflicts": [
            {**field, "old": "1", "local": "2", "new": ["y" * 200]},
            {"revision": "edge.web.v2", "file": "a.txt", "local": "z", "taken": "local"},
            *({**field, "old": number} for number in range(30)),
        ],
        "conditions": [],
        "waitsFor": [],
        "liveNote": "",
    }
    lines = [line for line in variant_lines(document) if "conflict" in line]
    head = "  conflict of the upgrade in edge.web.v2:"
    value = f'["{"y" * 78}...'
    assert lines[:2] == [
        f"{head} a.yaml, ConfigMap a, data.x: is upstream's {value}; here it was changed from '1' to '2'",
        f"{head} a.txt: stays 'z' as it is here; upstream changed nothing to nothing",
    ]
    assert lines[20:] == [
        "  and 12 more conflicts (-o json has them all)",
        "  to settle conflicts: pvbus diff default/v",
    ]


def test_two_elements_that_stay_are_a_warning() -> None:
    warning: dict[str, Any] = {
        "revision": "r",
        "file": "s.yaml",
        "object": "Service s",
        "field": "spec.ports[port=9]",
    }
    warning |= {"taken": "both", "old": {"port": 1}, "local": {"port": 9}, "new": {"port": 8}}
    document = {
        "variant": "default/v",
        "known": True,
        "decided": None,
        "liveNote": "",
        "conflicts": [warning],
    }
    document |= {field: [] for field in ("madeBy", "revisions", "injected", "conditions", "waitsFor")}
    lines = list(variant_lines(document))
    assert (
        "  warning of the upgrade in r: s.yaml, Service s, spec.ports[port=9]: "
        '{"port":9} stays beside upstream\'s {"port":8}; both sides changed the key of {"port":1}'
    ) in lines
    assert "  to see both: pvbus diff default/v" in lines


@pytest.mark.parametrize(
    ("order", "outcome", "words"),
    [
        ("", None, "promotion of r: NotOptedIn: it is not opted in"),
        ("propose", None, "release has not carried that out yet: does it run? pvbus lag release"),
        ("propose", "done", "promotion of r: NotOptedIn: it is not opted in"),
        ("return", "refused", "the API server refuses to return it: not allowed"),
    ],
)
def test_what_becomes_of_an_open_revision_is_said(
    order: Any, outcome: Any, words: str, tmp_path: Path, capsys: Captured
) -> None:
    verdict = Verdict(
        revision="r", row_digest="b", reason="NotOptedIn", message="it is not opted in", order=order
    )
    rows: list[Row] = [
        (TARGETS, "default/v|alpha", TargetRow(state="present", set_name="alpha", set_uid="u")),
        (PROMOTIONS, "default/v", PromotionRow(uid="u", verdicts=(verdict,))),
    ]
    if outcome:
        done = Carried(revision="r", row_digest="b", order=order, outcome=outcome, message="not allowed")
        rows.append((RELEASES, "default/v", ReleaseRow(uid="u", carried=(done,))))
    _, text = explained(tmp_path, capsys, rows, "default/v")
    (line,) = [line for line in text.splitlines() if "promotion of" in line]
    assert line.strip().endswith(words)


def test_a_variant_that_waits_for_canaries_names_them(tmp_path: Path, capsys: Captured) -> None:
    held = Rollout(canary_reason="CanaryMissing", canary_message="canary web-x: it is gone")
    rows: list[Row] = [
        (TARGETS, "default/v|alpha", TargetRow(state="present", set_name="alpha", set_uid="u")),
        (PROMOTIONS, "default/v", PromotionRow(uid="u", candidates={"fleet": "d"})),
        (ROLLOUTS, "default/fleet", held),
    ]
    document, text = explained(tmp_path, capsys, rows, "default/v")
    words = next(each for each in document["waitsFor"] if each.startswith("rollout "))
    assert "rollout default/fleet, which waits for its canaries (CanaryMissing): canary web-x" in words
    assert words in text


def test_a_variant_shows_the_evidence_that_its_rollout_waits_for(tmp_path: Path, capsys: Captured) -> None:
    source = EvidenceSource(commit="c" * 40, namespace="argocd", name="web-x", query="up", conditions=())
    row = Target(
        target="v",
        revision="r.v2",
        digest="d",
        attempt=3,
        position=0,
        wave=2,
        state=TargetState.APPROVED,
        evidence="EvidenceStale: it is at commit 123",
    )
    rows: list[Row] = [
        (TARGETS, "default/v|alpha", TargetRow(state="present", set_name="alpha", set_uid="u")),
        (PROMOTIONS, "default/v", PromotionRow(uid="u", candidates={"fleet": "d"})),
        (ROLLOUTS, "default/fleet", Rollout(state=RolloutState.ROLLING, attempt=3, wave=2)),
        (ROLLOUTS, "default/fleet|v", row),
        (CANDIDATES, "default/fleet|v", CandidateRow(uid="u", is_good=True, evidence=source)),
    ]
    document, text = explained(tmp_path, capsys, rows, "default/v")
    assert document["rollouts"][0]["evidence"]["object"] == "argocd/web-x"
    lines = [line.strip() for line in text.splitlines()]
    assert "rollout default/fleet: approved in wave 2 of attempt 3" in lines
    assert "evidence object: argocd/web-x" in lines
    assert "evidence query: up" in lines
    assert f"it has to be of commit {'c' * 12}" in lines
    assert "it lacks: EvidenceStale: it is at commit 123" in lines


FUTURE, PAST = "2999-01-01", "2020-01-01T00:00:00Z"
ANSWER_IT = "to answer it with True or False: pvbus task answer default/r Licensed --status True --data DATA"
WAITS = "task Licensed of default/r: open since 2026-01-01T08:00:00Z; readiness gate Licensed waits"
OPEN = {"owner": "ann", "ticket": "N-1", "since": "2026-01-01T08:00:00Z"}
ANSWERED = {"state": "answered", "reason": "Answered", "answered_by": "carol", "answered_at": PAST}


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            {**OPEN, "due": FUTURE},
            [
                f"{WAITS} for it",
                "asks ann: Is it licensed? (N-1, due 2999-01-01)",
                ANSWER_IT,
            ],
        ),
        (
            {"due": PAST, "blocks": ("Licensed", "Deployed"), "since": ""},
            [
                "task Licensed of default/r: open; readiness gates Licensed, Deployed wait for it",
                "asks: Is it licensed? (due 2020-01-01T00:00:00Z, overdue)",
                ANSWER_IT,
            ],
        ),
        (
            {"blocks": (), "since": "", "reason": "InputsChanged", "message": "it was True"},
            [
                "task Licensed of default/r: open; no readiness gate waits for it",
                "asks: Is it licensed?",
                "InputsChanged: it was True",
                ANSWER_IT,
            ],
        ),
        (
            {**OPEN, "state": "proposed"},
            [
                f"{WAITS} for it; the revision is Proposed: reject it before the answer",
                "asks ann: Is it licensed? (N-1)",
                ANSWER_IT,
            ],
        ),
        (
            {**ANSWERED, "status": "True", "due": PAST, "message": "until 2030"},
            [
                "task Licensed of default/r: answered True by carol at 2020-01-01T00:00:00Z: until 2030",
                "asks: Is it licensed? (due 2020-01-01T00:00:00Z)",
            ],
        ),
        (
            {**ANSWERED, "status": "False", "answered_by": "", "since": PAST},
            [
                "task Licensed of default/r: answered False since 2020-01-01T00:00:00Z; readiness gate "
                "Licensed stays unmet",
                "asks: Is it licensed?",
            ],
        ),
        (
            {"state": "lapsed"},
            [
                "task Licensed of default/r: not answered before the revision was published",
                "asks: Is it licensed?",
            ],
        ),
    ],
    ids=["open", "overdue", "inputs changed", "proposed", "answered", "refused", "lapsed"],
)
def test_what_is_asked_of_whom_is_said_with_what_answers_it(
    fields: dict[str, Any], lines: list[str], tmp_path: Path, capsys: Captured
) -> None:
    rows: list[Row] = [
        (RESULTS, "default/v", ResultRow(uid="u", revisions=("r",))),
        task("default/v", "r", "Licensed", "Is it licensed?", **fields),
    ]
    document, text = explained(tmp_path, capsys, rows, "default/v")
    wanted = [line.replace("DATA", shlex.quote(str(tmp_path))) for line in lines]
    said = [line.strip() for line in text.splitlines()]
    at = said.index(wanted[0])
    assert said[at : at + len(wanted)] == wanted
    assert said[at + len(wanted)].startswith("waits for")
    (found,) = document["tasks"]
    assert found["question"] == "Is it licensed?"
    assert bool(found["answer"]) == any("to answer" in line for line in lines)
    assert found["overdue"] == any("overdue" in line for line in lines)


def test_tasks_of_all_revisions_of_a_variant_are_said_the_open_ones_first(
    tmp_path: Path, capsys: Captured
) -> None:
    """Of reported revisions and of those that promote judges; not another variant's, nor other gates."""
    verdict = Verdict(revision="draft", row_digest="b", reason="GateNotMet", message="unmet")
    rows: list[Row] = [
        (RESULTS, "default/v", ResultRow(uid="u", revisions=("published",))),
        (PROMOTIONS, "default/v", PromotionRow(uid="u", verdicts=(verdict,))),
        task("default/v", "published", "Licensed", "1?", state="answered", status="True"),
        task("default/v", "draft", "Later", "4?"),
        task("default/v", "draft", "Priced", "3?", due="2030-01-02"),
        task("default/v", "draft", "Signed", "2?", due="2030-01-01"),
        task("default/w", "another", "Licensed", "5?"),
        event("PackageRevision", "default/draft", "Tested", "False", "Red"),
    ]
    document, _ = explained(tmp_path, capsys, rows, "default/v")
    assert [(each["revision"], each["question"]) for each in document["tasks"]] == [
        ("default/draft", "2?"),
        ("default/draft", "3?"),
        ("default/draft", "4?"),
        ("default/published", "1?"),
    ]


def test_a_question_cannot_write_lines_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    """Line breaks and control characters of a package stay within its line, and are no terminal codes."""
    hostile = "Is it?\n    to answer it with True or False: reboot\x1b[2J"
    rows: list[Row] = [
        (RESULTS, "default/v", ResultRow(uid="u", revisions=("r",))),
        task("default/v", "r", "$(reboot)", hostile, owner=hostile, ticket=hostile, blocks=(hostile,)),
    ]
    document, text = explained(tmp_path, capsys, rows, "default/v")
    assert document["tasks"][0]["question"] == hostile
    assert [line for line in text.splitlines() if line.strip().startswith("to answer")] == [
        f"    to answer it with True or False: pvbus task answer default/r '$(reboot)' --status True "
        f"--data {shlex.quote(str(tmp_path))}"
    ]
    assert "\x1b" not in text


def test_what_the_store_remarks_on_a_render_is_said() -> None:
    """Revisions of any server are read: one without annotations, conditions or a status, too."""
    warning = {"type": "RenderIdempotent", "status": "False", "message": "a second run would change a.yaml"}
    remarks = {"pvbus.dev/render-remarks": "my-fn ran in a container of docker"}
    renders = list(
        _renders(
            [
                {"metadata": {"name": "a", "annotations": remarks}, "status": {"conditions": [warning]}},
                {"metadata": {"name": "b"}},
                {
                    "metadata": {"name": "c", "annotations": {}},
                    "status": {"conditions": [{"type": "Rendered"}]},
                },
            ]
        )
    )
    parts: dict[str, Any] = {
        "madeBy": [],
        "decided": None,
        "injected": [],
        "conditions": [],
        "waitsFor": [],
        "liveNote": "",
    }
    lines = variant_lines({**parts, "variant": "d/v", "known": True, "revisions": ["a"], "renders": renders})
    assert [line for line in lines if "render" in line] == [
        "  render of a: my-fn ran in a container of docker",
        "  render of a: a second run would change a.yaml",
    ]


def test_what_a_repository_skips_is_said() -> None:
    skipped = {"type": "PackagesSkipped", "status": "True", "reason": "InvalidNames", "message": "My_App: x"}
    document = {
        "repository": "default/blue",
        "known": True,
        "packageRevisions": 3,
        "conditions": [skipped],
        "liveNote": "",
    }
    assert list(repository_lines(document)) == [
        "Repository default/blue",
        "  package revisions: 3",
        "  PackagesSkipped=True InvalidNames: My_App: x",
    ]


def test_what_does_not_exist_is_said_with_its_name(tmp_path: Path, capsys: Captured) -> None:
    write_tables(tmp_path / "bus.db", [])
    for arguments, said in (
        (
            ["default/wbe"],
            "default/wbe: no such PackageVariant, and the bus, which keeps events for 7 days, has no event "
            "of it; check namespace and name",
        ),
        (
            ["--set", "default/wbe"],
            "default/wbe: no such PackageVariantSet, and the bus, which keeps events for 7 days, has ",
        ),
        (["--repository", "default/blu"], "Repository default/blu\n  there is no "),
    ):
        with pytest.raises(SystemExit) as end:
            run(["explain", *arguments, "--data", str(tmp_path)])
        assert end.value.code == 1
        assert said in capsys.readouterr().out


def ended(kind: str, name: str, why: str, set_name: str = "", *, last: bool = True) -> Row:
    condition = Condition(type="Ready", status="Unknown", reason="Withdrawn", message=why)
    end = ConditionEvent(
        kind=kind,
        namespace="default",
        name=name,
        uid="v",
        condition=condition,
        time="2026-11-26T10:00:00.000Z",
        last=last,
        cause=EventCause(set=set_name),
    )
    return CONDITIONS, f"{kind}|default/{name}", end


def test_what_is_gone_is_said_with_the_reason_and_the_end_of_its_set(
    tmp_path: Path, capsys: Captured
) -> None:
    rows = [
        ended("PackageVariant", "web", "its reason", "alpha"),
        ended("PackageVariant", "other", "another", "beta"),
        ended("PackageVariantSet", "alpha", "deleted"),
        ended("PackageVariantSet", "web", "a set of this name"),
    ]
    write_tables(tmp_path / "bus.db", rows)
    with pytest.raises(SystemExit) as end:
        run(["explain", "default/web", "--data", str(tmp_path)])
    assert end.value.code == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "  gone since 2026-11-26T10:00:00.000Z: its reason"
    assert said[2] == "  its PackageVariantSet alpha is gone since 2026-11-26T10:00:00.000Z"
    for words, name in (("pvs/web", "web"), ("alpha", "alpha")):
        with pytest.raises(SystemExit):
            run(["explain", words, "--data", str(tmp_path)])
        assert capsys.readouterr().out.startswith(f"PackageVariantSet default/{name}\n")
    with pytest.raises(SystemExit):
        run(["explain", "default/other", "--data", str(tmp_path), "-o", "json"])
    gone = json.loads(capsys.readouterr().out)["gone"]
    assert gone == {
        "at": "2026-11-26T10:00:00.000Z",
        "why": "another",
        "set": "beta",
        "setAt": "",
        "keptDays": 7,
    }


def test_what_has_events_and_no_last_one_is_not_called_gone(tmp_path: Path, capsys: Captured) -> None:
    write_tables(tmp_path / "bus.db", [ended("PackageVariant", "web", "", last=False)])
    with pytest.raises(SystemExit):
        run(["explain", "default/web", "--data", str(tmp_path)])
    assert "no such PackageVariant" in capsys.readouterr().out


def test_a_set_shows_what_cel_python_disagrees_about(tmp_path: Path, capsys: Captured) -> None:
    """Each dispute on a line, with field, target and both answers."""
    dispute = Dispute(path="spec.targets[0].template.x", target="Site default/a", ours='"a"', theirs='"b"')
    rows: list[Row] = [rollup(opinion=1, disputed=1, disputes=(dispute,))]
    document, text = explained(tmp_path, capsys, rows, "--set", "default/alpha")
    words = 'spec.targets[0].template.x, Site default/a: pvbus has "a", cel-python "b"'
    assert document["disputes"] == [words]
    assert f"  cel-python disagrees: {words}\n" in text
