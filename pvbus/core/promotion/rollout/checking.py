"""Looks at the checks of a wave: a verdict for each, with the reason in words where it does not pass.

An object check passes or waits; a query check passes, waits, or fails the wave. Whatever cannot be known
waits: a missing object, an expression that fails, no samples, a server that is away or cannot be believed.
"""

import math
from collections.abc import Generator
from itertools import pairwise
from typing import Any, NamedTuple

from pvbus.core.api.rollouts import Check, ObjectCheck, QueryCheck
from pvbus.core.cel import CelError, compile_expression
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import Effect, Get, KindRef, Query, Range, Sample
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.rolloutrows import Answers, Ask
from pvbus.core.promotion.protocol.evidence import OBJECT_VARIABLES
from pvbus.core.promotion.protocol.rules import CHECK_SECONDS, QUERY_WINDOW, seconds_of

STEPS_MAX = 240
"""Evaluations of a query over its window. With more, Prometheus works longer; with fewer, short excesses are
missed: of the default window one evaluation is each 1.25 s."""
STEP_MILLIS_MIN = 1_000  # no Prometheus scrapes more often
RECENT_SECONDS = 2 * CHECK_SECONDS
"""A value outside of the limits fails the wave while it is as young as this: no excess between two looks is
missed, and one from before the wave fails nothing."""
SKEW_SECONDS_MAX = 60.0
"""Beyond, the clock of Prometheus is wrong, or ours: what it calls now is another time."""
UNANSWERED_MAX = 3
"""After as many checks without an answer the look ends: each may take the whole timeout of its server, and
meanwhile the rollout does nothing else."""

Looking = Generator[Effect, Any, "Finding"]


class Finding(NamedTuple):
    """What came of one check. words: why it does not pass."""

    verdict: bool | None
    words: str = ""


def ask_checks(ask: Ask, now: float, *, namespace: str) -> Generator[Effect, Any, Answers]:
    """Look at each check of an `Ask`.

    now: the time, in seconds since 1970
    namespace: the namespace of the policy
    """
    found: list[Finding] = []
    unanswered = 0
    for check in ask.checks:
        if unanswered >= UNANSWERED_MAX:
            found.append(Finding(None, f"not looked at, as {unanswered} checks before it got no answer"))
            continue
        try:
            found.append((yield from _finding(check, now, namespace)))
        except TransientError as exc:
            unanswered += 1
            found.append(Finding(None, str(exc)))
        except PermanentError as exc:
            found.append(Finding(None, str(exc)))
    words = tuple(part(each.words) for each in found)
    return Answers(ask.attempt, ask.wave, ask.number, tuple(each.verdict for each in found), words)


def _finding(check: Check, now: float, namespace: str) -> Looking:
    if check.object is not None:
        return (yield from _object(check.object, namespace))
    if check.query is not None:
        return (yield from look_at_query(check.query, now))
    return Finding(None, "a person answers it")


def _object(check: ObjectCheck, namespace: str) -> Looking:
    group, _, version = check.api_version.rpartition("/")
    where = check.namespace or namespace
    try:
        found = yield Get(KindRef(group, check.kind, version), where, check.name)
    except PermanentError as exc:
        if exc.reason != FORBIDDEN:
            raise
        return Finding(None, f"grant the account of the service rollout `get` on it: {exc}")
    if found is None:
        return Finding(None, f"{check.kind} {check.name} does not exist (namespace: {where})")
    try:
        program = compile_expression(check.expression, variables=OBJECT_VARIABLES)
        if program.test({"object": found}):
            return Finding(True)
    except CelError as exc:
        return Finding(None, f"the expression cannot be evaluated for {check.kind} {check.name}: {exc}")
    return Finding(None, f"the expression is not true for {check.kind} {check.name}")


def look_at_query(check: QueryCheck, now: float) -> Looking:
    """Evaluate a query over its window, and judge it. now: in seconds since 1970."""
    window = seconds_of(check.window or QUERY_WINDOW)
    end, millis = int(now * 1000), int(window * 1000)
    step = max(STEP_MILLIS_MIN, math.ceil(millis / STEPS_MAX))
    steps = math.ceil(millis / step)
    query = Query(check.expression, (end - steps * step) / 1000, end / 1000, step / 1000)
    result = yield query
    return judged(check, query, result)


def judged(check: QueryCheck, query: Query, result: Range) -> Finding:
    """Judge the samples of a check's window."""
    if problem := _problem(query, result):
        return Finding(None, problem)
    samples = sorted(sample for series in result.series for sample in series)
    wrong = [sample for sample in samples if _excess(check, sample.value)]
    if wrong and wrong[-1].time > query.end - RECENT_SECONDS:
        return Finding(False, _excess(check, wrong[-1].value))
    if wrong:
        return Finding(
            None,
            f"{_excess(check, wrong[-1].value)} within the last {check.window or QUERY_WINDOW}: it must have "
            "been within the limits for all of that time",
        )
    if any(math.isnan(sample.value) for sample in samples):
        return Finding(None, "the value is not a number (NaN), as after a division by zero")
    if _has_gap(query, samples):
        return Finding(
            None,
            f"there is no value for a part of the last {check.window or QUERY_WINDOW}: it must have been "
            "within the limits for all of that time",
        )
    return Finding(True)


def _problem(query: Query, result: Range) -> str:
    """Return why a result says nothing, "" if it does."""
    if abs(result.skew_seconds) > SKEW_SECONDS_MAX:
        how = "ahead of" if result.skew_seconds > 0 else "behind"
        return f"the clock of Prometheus is {abs(result.skew_seconds):.0f} s {how} ours: set both right"
    if result.warnings:
        return f"Prometheus warns of its answer: {result.warnings[0]}"
    times = [sample.time for series in result.series for sample in series]
    if not times:
        return "the query gives no value"
    if not all(query.start - query.step_seconds <= t <= query.end + query.step_seconds for t in times):
        return "Prometheus answers with samples of another time than was asked for"
    if len(set(times)) < len(times):
        count = len(result.series)
        return f"the query gives several values at one time ({count} series): make it one, as with sum()"
    return ""


def _excess(check: QueryCheck, value: float) -> str:
    """Return how a value is outside of the limits, "" if it is not."""
    if check.max is not None and value > check.max:
        return f"{value:g} is above max {check.max:g}"
    if check.min is not None and value < check.min:
        return f"{value:g} is below min {check.min:g}"
    return ""


def _has_gap(query: Query, samples: list[Sample]) -> bool:
    """Tell whether a step is missing. Some servers move all steps by up to one, for their caches."""
    half = query.step_seconds / 2
    times = [query.start - half, *(sample.time for sample in samples), query.end + half]
    return any(later - time > 3.01 * half for time, later in pairwise(times))
