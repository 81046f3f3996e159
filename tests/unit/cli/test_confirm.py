"""`pvbus confirm`: it confirms exactly what it showed, and never more, or nothing."""

from pathlib import Path
from typing import Any

import click
import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli import confirm
from pvbus.cli.main import run
from pvbus.core.api.variants import Downstream
from pvbus.core.kernel.records import SETRESULTS, SETS, UNROLL, ChildRow, Hold, SetResult
from tests.tools.bustables import Row, write_tables

ANNOTATION = "pvbus.dev/confirm-deletion"
Captured = pytest.CaptureFixture[str]


def child(state: Any, number: int) -> Row:
    downstream = Downstream(repo="edge", package=f"web-{number:02}")
    okey = f"example.org/Cluster|default|c{number:02}"
    row = ChildRow(set_uid="u", state=state, downstream=downstream, okey=okey)
    return UNROLL, f"default/web|web-edge-{number:02}", row


def rollup(hold: Hold | None, name: str = "web") -> Row:
    return SETRESULTS, f"default/{name}", SetResult(uid="u", generation=1, hold=hold)


HOLD = Hold(id="h", token="c0ffee12", count=30)
HELD = [rollup(HOLD), *(child("held", n) for n in range(30)), child("present", 30)]


class Location:
    """A data folder, the set on its API server, and a terminal with somebody at it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "kubeconfig").write_text("")
        self.answer = True
        self.asked: list[str] = []
        self.meanwhile: list[Row] = []
        self.cluster = self.serving("u")
        monkeypatch.setattr(HttpCluster, "connect", self._connect)
        monkeypatch.setattr(confirm, "_is_terminal", lambda: True)
        monkeypatch.setattr(click, "confirm", self._confirm)

    def serving(self, uid: str) -> MemoryCluster:
        obj = {
            "apiVersion": "config.porch.kpt.dev/v1alpha2",
            "kind": "PackageVariantSet",
            "metadata": {"name": "web", "namespace": "default", "uid": uid, "annotations": {"mine": "stays"}},
        }
        self.cluster = MemoryCluster([obj], now=lambda: "2026-01-01T00:00:00Z")
        return self.cluster

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def _confirm(self, question: str) -> bool:
        self.asked.append(question)
        if self.meanwhile:
            self.write(self.meanwhile)
        return self.answer

    def write(self, rows: list[Row]) -> None:
        write_tables(self.folder / "bus.db", rows)

    def run(self, *arguments: str) -> int:
        return run(["confirm", *arguments, "--data", str(self.folder)])

    @property
    def annotations(self) -> dict[str, str]:
        (obj,) = self.cluster.objects()
        found: dict[str, str] = obj["metadata"]["annotations"]
        return found


@pytest.fixture
def downstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    return Location(tmp_path, monkeypatch)


def test_show_lists_all_and_changes_nothing(downstream: Location, capsys: Captured) -> None:
    downstream.write(HELD)
    assert downstream.run("default/web", "--show") == 0
    out = capsys.readouterr().out
    assert all(f"default/web-edge-{n:02} " in out for n in range(30))
    assert "default/web-edge-30" not in out
    assert "edge/web-07   Cluster c07" in out
    assert "30 deletions of default/web are held" in out
    assert downstream.annotations == {"mine": "stays"}


def test_what_was_shown_is_confirmed_after_asking(downstream: Location, capsys: Captured) -> None:
    """The list is shortened, the number is that of all; a second time it says that it is confirmed."""
    downstream.write(HELD)
    assert downstream.run("web", "-n", "default") == 0
    out = capsys.readouterr().out
    assert "web-edge-19" in out
    assert "web-edge-20" not in out
    assert "and 10 more (--show lists all)" in out
    assert out.endswith("default/web: 30 deletions confirmed\n")
    assert downstream.asked == ["Delete these 30 variants?"]
    assert downstream.annotations == {"mine": "stays", ANNOTATION: "c0ffee12"}
    assert downstream.run("default/web", "--yes") == 0
    assert capsys.readouterr().out.endswith("these 30 deletions are confirmed already\n")
    assert len(downstream.cluster.writes) == 1


def test_who_says_no_confirms_nothing(downstream: Location, capsys: Captured) -> None:
    downstream.write(HELD)
    downstream.answer = False
    assert downstream.run("default/web") == 1
    assert "nothing was confirmed" in capsys.readouterr().err
    assert downstream.annotations == {"mine": "stays"}


def test_what_changed_while_somebody_read_it_is_not_confirmed(downstream: Location, capsys: Captured) -> None:
    """The new token would delete what nobody has seen."""
    downstream.write(HELD)
    downstream.meanwhile = [rollup(Hold(id="h", token="0ddba11", count=31)), child("held", 31)]
    assert downstream.run("default/web") == 1
    assert "what is held has changed meanwhile, and nothing was confirmed" in capsys.readouterr().err
    assert downstream.annotations == {"mine": "stays"}


def test_a_set_of_the_same_name_is_another_set(downstream: Location, capsys: Captured) -> None:
    downstream.write(HELD)
    downstream.serving("u2")
    assert downstream.run("default/web", "--yes") == 1
    assert "the set was deleted and created again" in capsys.readouterr().err
    assert downstream.annotations == {"mine": "stays"}


@pytest.mark.parametrize(
    ("rows", "arguments", "said"),
    [
        ([rollup(None)], ["--show"], "default/web: nothing is held\n"),
        ([rollup(None)], ["--yes"], "default/web: nothing is held\n"),
        ([rollup(HOLD, "other")], ["--yes"], "default/web: there is no PackageVariantSet of this name"),
        (
            [(SETS, "default/web", b"{}")],
            ["--yes"],
            "default/web: nothing is held: the set was not evaluated",
        ),
        (
            [rollup(Hold(id="h", count=9))],
            ["--yes"],
            "default/web: the list is still being written: try again",
        ),
    ],
)
def test_without_anything_to_confirm_it_says_so(
    rows: list[Row], arguments: list[str], said: str, downstream: Location, capsys: Captured
) -> None:
    downstream.write(rows)
    assert downstream.run("default/web", *arguments) == 1
    assert capsys.readouterr().err.startswith(said)
    assert downstream.annotations == {"mine": "stays"}


def test_a_list_that_is_being_written_is_shown_as_far_as_it_is(
    downstream: Location, capsys: Captured
) -> None:
    downstream.write([rollup(Hold(id="h", count=9)), child("held", 1)])
    assert downstream.run("default/web", "--show") == 0
    out = capsys.readouterr().out
    assert "web-edge-01" in out
    assert "1 of them are listed; the list is still being written" in out


def test_without_a_terminal_nothing_is_confirmed_unasked(
    downstream: Location, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    downstream.write(HELD)
    monkeypatch.setattr(confirm, "_is_terminal", lambda: False)
    assert downstream.run("default/web") == 2
    assert "add --yes to confirm, or --show" in capsys.readouterr().err
    for wrong in (["pv", "web"], ["default/web", "-n", "other"], ["a/b/c"]):
        assert downstream.run(*wrong, "--yes") == 2
    assert downstream.annotations == {"mine": "stays"}
