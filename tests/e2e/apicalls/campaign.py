"""Sends the same random calls to two servers, and reports where their answers differ."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from docs.apidifferences import KNOWN, Known
from tests.e2e.apicalls.calls import Answer, Call, Server
from tests.e2e.apicalls.generator import calls_of
from tests.e2e.apicalls.normal import differences, normal
from tests.e2e.apicalls.objects import KINDS

ROUND_CALLS = 120
SHOWN_MAX = 12
STALE_TRIES_MAX, STALE_SECONDS = 5, 0.05
"""A list from a resourceVersion on may be of any later moment: kube-apiserver's cache follows its writes."""


class Difference(NamedTuple):
    """Two answers to a call that are not alike. lines: the paths with both values, the real one first."""

    call: Call
    real: Answer
    ours: Answer
    lines: tuple[str, ...]

    def shown(self) -> str:
        lines = [self.call.shown(), f"  code: {self.real.code} / {self.ours.code}"]
        return "\n".join([*lines, *(f"  {line}" for line in self.lines[:SHOWN_MAX])])


class Outcome(NamedTuple):
    """What a campaign found. known: how often each listed difference appeared."""

    calls: int
    known: Counter[str]
    unexplained: tuple["Failure", ...]


class Failure(NamedTuple):
    """A difference that is not listed, and the shortest calls that show it."""

    seed: str
    difference: Difference
    calls: tuple[Call, ...]

    def shown(self) -> str:
        calls = "\n".join(f"  {call.shown()}" for call in self.calls)
        return f"round {self.seed}:\n{self.difference.shown()}\nafter\n{calls}"


class Campaign:
    """Two servers, which have the same definitions."""

    def __init__(self, real: Server, ours: Server) -> None:
        self._real = real
        self._ours = ours
        self._spaces = 0
        self.known: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def play(self, calls: Sequence[Call]) -> Iterator[Difference]:
        """Send calls in a namespace of their own; yield each difference, the last ones of the final state."""
        self._spaces += 1
        name = f"calls-{self._spaces}"
        for server in (self._real, self._ours):
            server.forget(name)
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            server.send(Call("POST", "/api/v1/namespaces", (), space))
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
            server.send(Call("POST", "/api/v1/namespaces/{ns}/configmaps", (), owner))
        for call in (*calls, *_final()):
            if (found := self._difference(call)) is not None:
                yield found

    def _difference(self, call: Call) -> Difference | None:
        for _ in range(STALE_TRIES_MAX):
            real, ours = self._real.send(call), self._ours.send(call)
            one, other = normal(self._real, real), normal(self._ours, ours)
            lines = differences(one.body, other.body)
            if not lines or call.method != "GET" or "resourceVersion" not in dict(call.query) or call.until:
                break
            time.sleep(STALE_SECONDS)
        if one.code == other.code and not lines:
            return None
        return Difference(call, one, other, tuple(lines))

    def round(self, seed: str, count: int = ROUND_CALLS) -> Failure | None:
        """Play the calls of a seed up to the first difference that is not listed, and shorten them."""
        calls = calls_of(seed, count)
        found = self._first(calls, count_known=True)
        if found is None:
            return None
        at, difference = found
        shortest = self._shortened(list(calls[: at + 1]), difference)
        return Failure(seed, difference, tuple(shortest))

    def _first(self, calls: Sequence[Call], *, count_known: bool = False) -> tuple[int, Difference] | None:
        """Return the first difference that is not listed, and the position of its call."""
        order = {id(call): at for at, call in enumerate(calls)}
        if count_known:
            self.sent.update(call.method for call in calls)
        for difference in self.play(calls):
            known = explained(difference)
            if not known:
                return order.get(id(difference.call), len(calls)), difference
            if count_known:
                self.known.update(each.name for each in known)
            if any(each.ends_round for each in known):
                return None
        return None

    def _shortened(self, calls: list[Call], wanted: Difference) -> list[Call]:
        """Drop calls while the difference stays, large parts first."""
        size = max(1, len(calls) // 2)
        while True:
            at = 0
            while at < len(calls) - 1:
                fewer = calls[:at] + calls[at + size :]
                found = self._first(fewer) if fewer else None
                if found is not None and _is_alike(found[1], wanted):
                    calls = fewer
                else:
                    at += size
            if size == 1:
                return calls
            size = max(1, size // 2)


def _is_alike(one: Difference, other: Difference) -> bool:
    same_call = one.call.method == other.call.method and one.call.media == other.call.media
    return same_call and one.real.code == other.real.code and one.ours.code == other.ours.code


def explained(difference: Difference) -> tuple[Known, ...]:
    """Return the entries of the table that explain a difference, () if part of it is not explained."""
    found: dict[str, Known] = {}
    for line in difference.lines:
        known = next((each for each in KNOWN if each.explains(difference, line)), None)
        if known is None:
            return ()
        found[known.name] = known
    return tuple(found.values())


def _final() -> list[Call]:
    """Return the calls that read the state at the end of a round."""
    roots = [kind.root for kind in KINDS if kind.namespaced]
    names = [f"{kind.root}/{name}" for kind in KINDS if not kind.namespaced for name in kind.names()]
    return [Call("GET", path) for path in (*roots, *names)]


def run(
    campaign: Campaign, seed: int, calls: int, report: Callable[[str], Any], failures_max: int = 1
) -> Outcome:
    """Play rounds until enough calls are sent."""
    failures: list[Failure] = []
    number = 0
    while campaign.sent.total() < calls and len(failures) < failures_max:
        number += 1
        failure = campaign.round(f"{seed}/{number}")
        if failure is not None:
            failures.append(failure)
            report(failure.shown())
    return Outcome(campaign.sent.total(), campaign.known, tuple(failures))
