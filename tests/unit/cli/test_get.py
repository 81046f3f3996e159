"""`pvbus get` on a bus in a file: what it prints, its pages, and a watch that goes on where one ended."""

import json
import threading
from pathlib import Path
from typing import Any

import click.testing
import pytest
import yaml

from pvbus.cli.get import get
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.records import LATEST, OBJECTS, ObjectRow
from tests.tools.bustables import Row, write_tables
from tests.tools.fleetrows import (
    VARIANT,
    child,
    conflict,
    event,
    fleet,
    in_conflict,
    lifecycle,
    ready,
    variant,
)

COUNT = 60


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("get") / "bus.db"
    conflicts = [conflict("spec.replicas", 2, 3)]
    write_tables(path, [*fleet(COUNT), *in_conflict("default/web-edge-asia-asia-00002", conflicts)])
    return f"sqlite:{path}"


def run(bus: str, *arguments: str) -> Any:
    """Return the result of a command that succeeds."""
    result = click.testing.CliRunner().invoke(get, [*arguments, "--bus", bus], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def document(bus: str, *arguments: str) -> Any:
    return json.loads(run(bus, *arguments, "-o", "json").stdout)


def test_outputs(bus: str) -> None:
    """Text is a table, wide has the labels, name is for other commands, JSON and YAML say the same."""
    asked = ("variants", "--state", "stalled", "-l", "region=europe")
    text = run(bus, *asked).stdout.splitlines()
    assert text[0].split() == ["NAME", "STATE", "REASON", "LIFECYCLE"]
    assert text[1].split() == ["web-edge-europe-europe-00003", "stalled", "NoMatch", "Draft"]
    assert "region=europe" in run(bus, *asked, "-o", "wide").stdout
    assert run(bus, *asked, "-o", "name").stdout.split()[0].startswith("packagevariant/default/web-")
    custom = run(bus, *asked, "-o", "custom-columns=WHO:.name,WHERE:.labels.region").stdout.splitlines()
    assert custom[1].split() == ["web-edge-europe-europe-00003", "europe"]
    answer = document(bus, *asked)
    assert [item["state"] for item in answer["items"]] == ["stalled"] * len(answer["items"])
    assert yaml.safe_load(run(bus, *asked, "-o", "yaml").stdout) == answer


def test_pages(bus: str) -> None:
    """The token is said with the command that uses it; all pages have each variant once."""
    names, token = [], ""
    while True:
        more = ("--continue", token) if token else ()
        page = document(bus, "variants", "--limit", "25", "--sort-by", "state", *more)
        names += [item["name"] for item in page["items"]]
        if not (token := page["continue"]):
            break
    assert len(names) == len(set(names)) == COUNT
    assert "35 more: the same command with --continue " in run(bus, "variants", "--limit", "25").stderr


def test_counts(bus: str) -> None:
    """Counts by a label and a field, of all targets; as JSON with their sum."""
    lines = run(bus, "targets", "--count-by", "region,state").stdout.splitlines()
    assert lines[0].split() == ["REGION", "STATE", "COUNT"]
    assert sum(int(line.split()[-1]) for line in lines[1:]) == COUNT
    assert document(bus, "targets", "--count-by", "state")["total"] == COUNT


def test_conflicts_removals_and_nothing(bus: str) -> None:
    """The other kinds, and a namespace that has none: that is no error, and says where else to look."""
    assert "spec.replicas" in run(bus, "conflicts").stdout
    assert {item["removal"] for item in document(bus, "removals", "-A")["items"]} == {"held", "waiting"}
    nothing = run(bus, "conflicts", "-n", "other")
    assert (nothing.stdout, nothing.stderr.strip()) == (
        "",
        "no conflicts in namespace other; -A looks in all",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("variants", "--state", "reddy"), 'no state "reddy"'),
        (("variants", "-l", "a in"), "-l a in: unable to parse"),
        (("variants", "-n", "a", "-A"), "contradict"),
        (("variants", "--resume", "x"), "add --watch"),
        (("variants", "--watch", "--resume", "x"), "resumes nothing"),
        (("variants", "--continue", "x"), "continues no list"),
        (("variants", "-o", "xml"), "there are text, wide"),
        (("variants", "-o", "custom-columns=NAME"), "is no HEAD:.FIELD"),
        (("variants", "--count-by", "state", "-o", "name"), "counts once"),
        (("variants", "--sort-by", "labels"), "no single value"),
    ],
)
def test_bad_usage(bus: str, arguments: tuple[str, ...], words: str) -> None:
    """Each is refused with what is wrong."""
    result = click.testing.CliRunner().invoke(get, [*arguments, "--bus", bus])
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


class Watched:
    """The lines that a watch prints, until it is ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bus: str, *arguments: str) -> None:
        self.lines: list[Any] = []
        self._heard = threading.Event()
        self._wanted = 0
        self._bus, self._arguments = bus, arguments
        monkeypatch.setattr("pvbus.cli.get.click.echo", self._echo)

    def _echo(self, text: str, err: bool = False) -> None:
        if err or not text.startswith('{"type'):
            return
        self.lines.append(json.loads(text))
        if len(self.lines) >= self._wanted:
            raise KeyboardInterrupt

    def run(self, wanted: int) -> list[Any]:
        """Run until so many changes are printed."""
        self._wanted = wanted
        arguments = [*self._arguments, "--watch", "-o", "json", "--bus", self._bus]
        result = click.testing.CliRunner().invoke(get, arguments)
        assert result.exit_code == 0, result.exception
        return self.lines


def test_a_watch_goes_on_where_a_list_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed since a list's token is printed, once, also what went and what is new."""
    path = tmp_path / "bus.db"
    bus = f"sqlite:{path}"
    rows: list[Row] = [row for n in range(5) for row in (variant(f"default/v-{n}"), ready(f"default/v-{n}"))]
    write_tables(path, rows)
    token = document(bus, "variants")["resume"]
    write_tables(
        path, [("pvbus.variants", "default/v-1", None), child("default/web", "v-2"), variant("default/x")]
    )
    changes = Watched(monkeypatch, bus, "variants", "--resume", token).run(3)
    assert {(each["type"], each["object"]["name"]) for each in changes} == {
        ("DELETED", "v-1"),
        ("MODIFIED", "v-2"),
        ("ADDED", "x"),
    }
    assert {each["resume"] for each in changes} != {token}


def test_a_watch_that_goes_on_reports_what_is_as_the_bus_had_it_before_all_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus has the last row of a key only: a condition, a label or a lifecycle that is back is news."""
    path = tmp_path / "bus.db"
    bus = f"sqlite:{path}"
    names = [f"default/v-{n}" for n in range(5)]
    rows: list[Row] = [row for name in names for row in (variant(name), ready(name))]
    rows += [child("default/web", f"v-{n}") for n in range(5)]
    before = [
        event(VARIANT, names[0], "Stalled", "True", "NoMatch"),
        (OBJECTS, "example.org/Site|default|v-1", ObjectRow(uid="u", labels={"region": "asia"})),
        lifecycle(names[2], "edge.v-2.packagevariant-1", "Draft"),
        event(VARIANT, names[3], "Ready", "False", "Reconciling"),
    ]
    write_tables(path, [*rows, *before])
    token = document(bus, "variants")["resume"]
    after: list[Row] = [
        event(VARIANT, names[0], "Stalled", "False", "Valid"),
        (OBJECTS, "example.org/Site|default|v-1", ObjectRow(uid="u")),
        (LATEST, "PackageRevision|default/edge.v-2.packagevariant-1|Published", None),
        ready(names[3]),
    ]
    write_tables(path, after)
    changes = Watched(monkeypatch, bus, "variants", "--resume", token).run(4)
    assert {(each["object"]["name"], each["object"]["state"]) for each in changes} == {
        *((f"v-{n}", "ready") for n in range(4)),
    }


def test_a_token_of_another_bus_is_refused(bus: str, tmp_path: Path) -> None:
    """A watch never goes on silently on a bus that is shorter than the token's."""
    token = document(bus, "variants")["resume"]
    write_tables(tmp_path / "bus.db", [variant("default/x")])
    arguments = ["variants", "--watch", "--resume", token, "--bus", f"sqlite:{tmp_path / 'bus.db'}"]
    result = click.testing.CliRunner().invoke(get, arguments)
    assert isinstance(result.exception, PermanentError)
    assert "another bus" in str(result.exception)
