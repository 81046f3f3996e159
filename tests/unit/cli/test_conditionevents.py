"""`pvbus conditions`: what is so now, in order, and nothing else."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.cli.conditionevents import asks_for_attention, newer_than
from pvbus.cli.main import run
from pvbus.core.api.variants import Condition
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import KEPT_FOR
from pvbus.core.kernel.records import CONDITIONS, LATEST, OBJECTS, SETS, VARIANTS, ObjectRow
from tests.e2e.cli.command import running
from tests.tools.bustables import Row, write_tables
from tests.tools.fleetrows import fleet


def event(
    status: str, *, id_: str = "1", kind: str = "PackageVariant", name: str = "web", **more: Any
) -> Any:
    fields = {"type": "Ready", "reason": "R", "last_transition_time": "2026-02-03T04:00:00Z"}
    condition = Condition(status=status, **{**fields, **more.pop("condition", {})})
    more = {"time": "2026-02-03T05:00:00.000Z", "namespace": "default", **more}
    return ConditionEvent(kind=kind, name=name, uid="u", condition=condition, id=id_, **more)


def latest(event: ConditionEvent | None, key: str = "PackageVariant|default/web|Ready") -> Row:
    return LATEST, key, event


def stored(name: str, *conditions: Any) -> bytes:
    obj = {"metadata": {"name": name, "namespace": "default", "generation": 1}}
    return msgspec.json.encode({**obj, "status": {"conditions": conditions}})


def shown(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(e["name"], e["condition"]["type"], e["condition"]["status"]) for e in events]


@pytest.mark.parametrize("uncompacted", [False, True], ids=["SQLite", "as on Kafka"])
def test_only_what_is_so_now_is_shown(
    uncompacted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No superseded record, and no object that is gone: whether the log was compacted does not matter."""
    gone = "PackageVariant|default/gone|Ready"
    rows = [
        latest(event("True", name="gone"), gone),
        latest(event("True", id_="1")),
        latest(event("False", id_="2")),
        latest(None, gone),
    ]
    write_tables(tmp_path / "bus.db", rows, uncompacted=uncompacted)
    assert run(["conditions", "--data", str(tmp_path), "-o", "json"]) == 0
    assert shown(capsys) == [("web", "Ready", "False")]


def test_events_of_an_object_come_in_the_order_of_their_own_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in that of their names, and the time is the event's, not that of the last transition."""
    key = "PackageVariant|default/web"
    late = event("True", condition={"type": "ConfigInjected"}, time="2026-02-03T06:00:00.500Z")
    write_tables(tmp_path / "bus.db", [latest(late, f"{key}|ConfigInjected"), latest(event("True"))])
    assert run(["conditions", "default/web", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["2026-02-03T05:00:00.000Z", "2026-02-03T06:00:00.500Z"]
    assert [line.split()[2] for line in lines[1:]] == ["Ready", "ConfigInjected"]


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["web"], ["PackageVariant", "PackageVariantSet"]),
        (["pvs/web"], ["PackageVariantSet"]),
        (["pv", "web", "-n", "default"], ["PackageVariant"]),
        (["-n", "default"], ["PackageVariant", "PackageVariantSet"]),
    ],
)
def test_a_kind_and_a_namespace_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], kinds: list[str]
) -> None:
    names = [("PackageVariant", "default"), ("PackageVariantSet", "default"), ("PackageVariant", "other")]
    rows = [
        latest(event("True", kind=kind, namespace=namespace), f"{kind}|{namespace}/web|Ready")
        for kind, namespace in names
    ]
    write_tables(tmp_path / "bus.db", rows)
    assert run(["conditions", *words, "--data", str(tmp_path), "-o", "json"]) == 0
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == kinds


def test_labels_choose_among_the_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for `pvbus get`; what none has is an error, and no fleet without problems."""
    write_tables(tmp_path / "bus.db", fleet(12))
    at = ["--data", str(tmp_path)]
    assert run(["conditions", "-l", "region=asia", *at, "-o", "json"]) == 0
    names = [name for name, _, _ in shown(capsys)]
    assert names
    assert all("-asia-" in name for name in names)
    assert run(["conditions", "-l", "region=asia", "--not-ready", *at]) == 0
    assert "-europe-" not in capsys.readouterr().out
    assert run(["conditions", "-l", "region=aisa", "--not-ready", *at]) == 2
    assert "-l region=aisa: no variant has these labels" in capsys.readouterr().err
    assert run(["conditions", "-l", "region=asia", "-w", *at]) == 2
    assert "pvbus get variants -l region=asia --watch" in capsys.readouterr().err
    assert run(["conditions", "-n", "default", "-A", *at]) == 2
    assert "contradict" in capsys.readouterr().err


def test_yaml_is_a_document_for_each_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(
        tmp_path / "bus.db",
        [latest(event("True")), latest(event("True", name="b"), "PackageVariant|default/b|Ready")],
    )
    assert run(["conditions", "-A", "--data", str(tmp_path), "-o", "yaml"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["name"] for each in documents] == ["b", "web"]


def test_an_unknown_object_is_an_error_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path / "bus.db", [latest(event("True")), (SETS, "default/new", stored("new"))])
    at = ["--data", str(tmp_path)]
    assert run(["conditions", "default/wbe", *at]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("default/wbe: there is no PackageVariantSet, PackageVariant, ")
    assert run(["conditions", "default/new", *at]) == 0
    assert "PackageVariantSet default/new: no condition has been published yet" in capsys.readouterr().err
    assert run(["conditions", "/web", *at]) == 2
    assert '"/web" names no object' in capsys.readouterr().err


def test_not_ready_names_everything_that_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A set whose variants fail, one that nobody has looked at yet, and one whose Ready is of an older spec;
    what is ready is not there."""
    ready = {"type": "Ready", "status": "True", "reason": "R", "observedGeneration": 1}
    rows: list[Row] = [
        (VARIANTS, "default/web", stored("web", ready)),
        latest(event("True")),
        (SETS, "default/failing", stored("failing", {**ready, "status": "False"})),
        latest(
            event("False", kind="PackageVariantSet", name="failing", condition={"message": "ready 0"}),
            "PackageVariantSet|default/failing|Ready",
        ),
        (SETS, "default/new", stored("new")),
        (SETS, "default/changed", stored("changed", {**ready, "observedGeneration": 0})),
    ]
    write_tables(tmp_path / "bus.db", rows)
    assert run(["conditions", "--not-ready", "--data", str(tmp_path), "-o", "json"]) == 0
    assert sorted(shown(capsys)) == [
        ("changed", "Ready", "Unknown"),
        ("failing", "Ready", "False"),
        ("new", "Ready", "Unknown"),
    ]
    assert run(["conditions", "--not-ready", "default/web", "--data", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "default/web is ready\n")


def change(minutes_ago: float, status: str, **more: Any) -> Row:
    """A change on the topic that keeps all of them."""
    time = (datetime.now(UTC) - timedelta(minutes=minutes_ago)).isoformat(timespec="milliseconds")
    changed = event(status, time=time.replace("+00:00", "Z"), **more)
    return CONDITIONS, f"{changed.kind}|{changed.namespace}/{changed.name}", changed


@pytest.mark.parametrize(
    ("words", "statuses"),
    [
        (["--since", "10m"], ["False", "True"]),
        (["--since", "2h"], ["Unknown", "False", "True"]),
        (["--since", "2026-01-01T00:00:00Z"], ["Unknown", "False", "True"]),
        (["--since", "10m", "--not-ready"], ["False"]),
        (["--since", "10m", "web"], ["False"]),
        (["--since", "all"], ["True"]),
        ([], ["True"]),
    ],
)
def test_changes_are_shown_since_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], statuses: list[str]
) -> None:
    """In the order of their times over all partitions; `all` is the present state, as without the option."""
    rows = [change(60, "Unknown"), change(2, "True", name="api"), change(5, "False"), latest(event("True"))]
    write_tables(tmp_path / "bus.db", rows)
    assert run(["conditions", *words, "--data", str(tmp_path), "-o", "json"]) == 0
    assert [status for _, _, status in shown(capsys)] == statuses


def test_since_says_what_it_shows_and_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path / "bus.db", [change(60, "Unknown", name="gone")])
    at = ["conditions", "--data", str(tmp_path)]
    assert run([*at, "--since", "2020-01-01T00:00:00Z"]) == 0
    note = "changes since 2020-01-01T00:00:00Z; the bus keeps changes for 7 days, earlier ones may be gone"
    assert note in capsys.readouterr().err
    assert run([*at, "gone", "--since", "2h"]) == 0
    assert run([*at, "gone", "--since", "2m"]) == 1, "no event, and no such object"
    capsys.readouterr()
    for since, words in (
        ("now", "nothing has changed since now: add --follow"),
        ("yesterday", "give all, now, a duration such as 10m"),
        ("", "give all, now, a duration such as 10m"),
        ("-5m", "give all, now"),
        ("2026-01-01T00:00:00", "has no time zone"),
        ("9999-01-01", "has no time zone"),
        ("9999-01-01T00:00:00Z", "is in the future"),
    ):
        assert run([*at, "--since", since]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "begins", "table"),
    [
        ([], "changes from now on, 2", False),
        (["-o", "json"], '"name":"web"', True),
    ],
)
def test_follow_begins_with_now_in_text_and_with_the_state_in_json(
    tmp_path: Path, options: list[str], begins: str, table: bool
) -> None:
    """It says so in a line on standard error, and changes come as they are written."""
    bus = tmp_path / ".pvbus" / "bus.db"
    bus.parent.mkdir()
    write_tables(bus, [change(60, "True"), latest(event("True"))])
    with running("conditions", "--follow", *options, cwd=tmp_path) as follow:
        follow.wait_for(begins)
        write_tables(bus, [change(0, "False", id_="2", name="late")])
        follow.wait_for("late")
        assert ("default/web" in follow.output or '"name":"web"' in follow.output) is table


def test_what_the_table_shows_is_not_followed_by_what_came_before_it() -> None:
    """Changes that happen while the table is read come after it, without those that it has overtaken."""
    table = {"PackageVariant|default/web|Ready": event("True", id_="2")}
    early = [event("False", id_="1"), event("False", id_="8", name="api"), event("True", id_="2")]
    late = [event("False", id_="3")]
    assert [e.id for e in newer_than(table, [*early, *late])] == ["8", "3"]
    assert [e.id for e in newer_than(table, late)] == ["3"]


@pytest.mark.parametrize(("name", "is_shown"), [("web-1", True), ("web", True), ("other", False)])
def test_of_what_is_gone_the_drafts_that_stayed_are_shown(
    name: str, is_shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of the variant, and by that of its set."""
    draft = "edge.app.packagevariant-1"
    row = ObjectRow(uid="r", annotations={KEPT_FOR: "web/web-1@"})
    said = event("True", kind="PackageRevision", name=draft, condition={"type": "Kept"})
    table = [
        (OBJECTS, f"porch.kpt.dev/PackageRevision|default|{draft}", row),
        latest(said, f"PackageRevision|default/{draft}|Kept"),
    ]
    write_tables(tmp_path / "bus.db", table)
    code = run(["conditions", f"default/{name}", "--data", str(tmp_path), "-o", "json"])
    assert (code, shown(capsys)) == ((0, [(draft, "Kept", "True")]) if is_shown else (1, []))


@pytest.mark.parametrize(
    ("kind", "type_", "status", "asks"),
    [
        ("Provider", "Healthy", "True", False),
        ("Provider", "Healthy", "False", True),
        ("Function", "Installed", "Unknown", True),
        ("Provider", "Verified", "False", False),
        ("ProviderRevision", "RevisionHealthy", "False", False),
        ("PackageInstall", "ReconcileSucceeded", "True", False),
        ("PackageInstall", "Reconciling", "True", True),
        ("PackageInstall", "ReconcileFailed", "True", True),
        ("PackageInstall", "ReconcileFailed", "Unknown", False),
    ],
)
def test_installs_that_are_not_ready_ask_for_attention(
    kind: str, type_: str, status: str, asks: bool
) -> None:
    """By the conditions of each family. Revisions do not: their install says the same."""
    assert asks_for_attention(event(status, kind=kind, condition={"type": type_})) is asks
