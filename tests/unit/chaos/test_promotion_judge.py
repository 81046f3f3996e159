"""Each law that the judge of a promotion has, once kept and once broken."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.kafka.promotionjudge import (
    DRAFTS,
    NOTHING,
    PROPOSALS,
    TAGS,
    Leave,
    Plan,
    RefUpdate,
    parse,
    problems_of_git,
    problems_of_log,
    problems_of_orders,
    problems_of_rows,
    problems_of_watch,
)
from tests.tools.busfile import Row

PLAN = Plan([["a", "b"], ["c", "d", "e"]], in_flight=2, failing=1)
COMMIT = "1" * 40
FIRST = "packagevariant-1"


def made(ref: str, push: str = "1") -> RefUpdate:
    return RefUpdate(push, NOTHING, COMMIT, ref)


def gone(ref: str, push: str = "1") -> RefUpdate:
    return RefUpdate(push, COMMIT, NOTHING, ref)


def proposed(package: str, workspace: str = FIRST) -> list[RefUpdate]:
    return [gone(f"{DRAFTS}{package}/{workspace}", "p"), made(f"{PROPOSALS}{package}/{workspace}", "p")]


def approved(package: str, number: int = 1, workspace: str = FIRST) -> list[RefUpdate]:
    push = f"{package}{number}"
    return [
        RefUpdate(push, COMMIT, COMMIT, "refs/heads/main"),
        made(f"{TAGS}{package}/v{number}", push),
        gone(f"{PROPOSALS}{package}/{workspace}", push),
    ]


def restored(package: str) -> list[RefUpdate]:
    workspace = f"rollback-2-{package}"
    return [*proposed(package, workspace), *approved(package, 3, workspace)]


def begun(package: str) -> list[RefUpdate]:
    return [made(f"{DRAFTS}{package}/rollback-2-{package}", f"d{package}")]


ALL = [line for package in "abcde" for line in (*proposed(package), *approved(package))]


def history(*parts: Sequence[RefUpdate]) -> list[RefUpdate]:
    return [line for part in parts for line in part]


@pytest.mark.parametrize(
    ("updates", "leaves", "words"),
    [
        (ALL, [Leave(10, FIRST, 1)], ""),
        (history(ALL, proposed("a")), [], "a/packagevariant-1 was proposed 2 times"),
        (history(ALL, proposed("a"), approved("a", 2)), [], "a/packagevariant-1 was approved 2 times"),
        (history(ALL, [made(f"{TAGS}a/v1", "x")]), [], "refs/tags/a/v1 was written 2 times"),
        ([made(f"{TAGS}a/v1")], [], "a revision of a was published without a proposal"),
        (
            history(approved("a"), approved("c"), approved("b")),
            [],
            "c/packagevariant-1 of wave 2 was publish",
        ),
        (ALL, [Leave(len(ALL), FIRST, 1)], "c/packagevariant-1 was published before wave 1 might pass"),
        (history(begun("a"), begun("b"), restored("a"), restored("b"), begun("c")), [], ""),
        (history(begun("a"), begun("b"), begun("c")), [], "3 rollbacks are on their way"),
        (history(begun("a"), begun("c"), restored("c")), [], "c/rollback-2-c of wave 2 was published before"),
    ],
)
def test_git(updates: Sequence[RefUpdate], leaves: Sequence[Leave], words: str) -> None:
    found = list(problems_of_git(updates, PLAN, leaves))
    assert any(words in each for each in found) if words else found == []


def test_an_incomplete_line_of_the_record_waits() -> None:
    text = "\n".join(" ".join(each) for each in approved("a"))
    assert parse(text) == approved("a")[:-1]
    assert parse(f"{text}\n") == approved("a")


def line(name: str, lifecycle: str, event: str = "package written") -> Mapping[str, Any]:
    return {"event": event, "name": name, "lifecycle": lifecycle}


NAME = f"edge.a.{FIRST}"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [line(NAME, "Proposed"), line(NAME, "Published"), line(NAME, "Published", "package not written")],
            "",
        ),
        ([], "the log has no change of a lifecycle"),
        ([line(NAME, "Proposed")] * 2, f"{NAME} became Proposed 2 times"),
        ([line(NAME, "Published")] * 2, f"{NAME} became Published 2 times"),
        ([line("edge.x.w", "Published")], "edge.x.w became Published, and git has no tag of it"),
    ],
)
def test_log(lines: Sequence[Mapping[str, Any]], words: str) -> None:
    assert [*problems_of_log(lines, "edge", ALL), ""][0] == words


class Lane:
    """The records of one partition of the rollout's topic."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._offset = 0

    def step(self, *states: tuple[str, str], attempt: int = 1) -> "Lane":
        """Write rows in one transaction, which takes one more offset than it has rows."""
        self._put("default/p", {"attempt": attempt})
        for target, state in states:
            value = {"target": target, "attempt": attempt, **({"state": state} if state else {})}
            self._put(f"default/p|{target}", value)
        self._offset += 1
        return self

    def _put(self, key: str, value: dict[str, Any]) -> None:
        self.rows.append(Row("pvbus.rollouts", 3, self._offset, key, value))
        self._offset += 1


@pytest.mark.parametrize(
    ("lane", "words"),
    [
        (Lane().step(("a", ""), ("b", "ordered"), ("c", "approved")), ""),
        (Lane().step(("a", "ordered"), ("b", "ordered"), ("c", "approved")), "3 targets are ordered or"),
        (Lane().step(("a", "ordered"), ("b", "approved")).step(("c", "ordered")), "3 targets are ordered"),
        (Lane().step(("a", "ordered"), ("b", "approved")).step(("b", "proven"), ("c", "ordered")), ""),
        (Lane().step(("c", "ordered"), ("a", "ordered"), ("b", "approved"), ("b", "proven")), ""),
        (Lane().step(("a", "failed"), ("b", "ordered")), ""),
        (Lane().step(("a", "failed"), ("c", "refused"), ("b", "ordered")), "['b'] were ordered while"),
        (Lane().step(("b", "ordered")).step(("a", "failed"), ("c", "failed")), ""),
        (Lane().step(("a", "undoing"), ("b", "undoing"), ("c", "undoing")), "3 targets are undoing"),
        (Lane().step(("a", "ordered"), ("b", "ordered")).step(("c", "ordered"), attempt=2), ""),
    ],
)
def test_rows(lane: Lane, words: str) -> None:
    others = [Row("pvbus.rollouts", 3, 100 + n, f"default/q|{n}", {"state": "ordered"}) for n in range(9)]
    found = list(problems_of_rows([*lane.rows, *others], "default/p", PLAN))
    assert any(words in each for each in found) if words else found == []


def test_orders() -> None:
    value = {"attempt": 1, "order": "approve"}
    rows = [Row("pvbus.approvals", 0, 0, "default/a|p", value), Row("pvbus.approvals", 0, 1, "k", None)]
    assert list(problems_of_orders(rows)) == []
    again = Row("pvbus.approvals", 0, 2, "default/a|p", {**value, "attempt": 2})
    assert list(problems_of_orders([*rows, again])) == []
    assert list(problems_of_orders([*rows, rows[0]])) == [
        "default/a|p: approve was ordered 2 times in attempt 1"
    ]


def seen(version: int, package: str, lifecycle: str, workspace: str = FIRST) -> dict[str, Any]:
    """Return a revision as a watch tells it."""
    return {
        "metadata": {"name": f"edge.{package}.{workspace}", "resourceVersion": str(version)},
        "spec": {
            "repository": "edge",
            "packageName": package,
            "workspaceName": workspace,
            "lifecycle": lifecycle,
        },
    }


def covers(version: int, name: str = "web-2-1-0c8199c6") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def lived(package: str, begin: int, workspace: str = FIRST) -> list[dict[str, Any]]:
    lifecycles = ("Draft", "Draft", "Proposed", "Published", "Published")
    return [seen(begin + number, package, each, workspace) for number, each in enumerate(lifecycles)]


GOOD = [*lived("a", 1), *lived("b", 11), *lived("a", 31, "rollback-2-1234")]


@pytest.mark.parametrize(
    ("revisions", "quarantines", "problem"),
    [
        (GOOD, [covers(30)], ""),
        ([*lived("a", 1), seen(9, "a", "Proposed")], [], "edge.a.packagevariant-1 was Draft, then Proposed"),
        ([*lived("b", 1), *lived("a", 11)], [], "b/packagevariant-1 was published before canary a"),
        (GOOD, [covers(36)], "edge.a.rollback-2-1234 was made before anything was quarantined"),
        (GOOD, [], "edge.a.rollback-2-1234 was made before anything was quarantined"),
        (GOOD, [covers(30), covers(40)], "quarantine web-2-1-0c8199c6 was written again"),
        (GOOD, [covers(30), covers(40, "web-2-2-0c8199c6")], "attempt 2 has 2 quarantines"),
    ],
)
def test_the_histories_that_a_watch_told_are_judged(
    revisions: Sequence[Mapping[str, Any]], quarantines: Sequence[Mapping[str, Any]], problem: str
) -> None:
    found = [*problems_of_watch(revisions, quarantines, repository="edge", canaries=["a"])]
    assert len(found) == bool(problem), found
    assert all(each.startswith(problem) for each in found)
