"""The checks of a wave: what passes, what fails the wave, and what waits, with the words for it."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from pvbus.core.api.rollouts import Check, ObjectCheck, PersonCheck, QueryCheck
from pvbus.core.cel import compilations
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import Effect, Get, KindRef, Query, Range, Sample
from pvbus.core.kernel.rolloutrows import Answers, Ask
from pvbus.core.promotion.rollout.checking import RECENT_SECONDS, STEPS_MAX, ask_checks
from tests.kit.deciding import drive

NOW = 1_800_000_000.123
DEPLOYMENT = {"metadata": {"name": "web", "generation": 3}, "status": {"ready": 3, "text": "yes"}}
MAX = QueryCheck(expression="errors", max=0.1)


def look(
    *checks: ObjectCheck | QueryCheck | PersonCheck, gives: Iterable[Any]
) -> tuple[Answers, list[Effect]]:
    """Look at checks. gives: the result of each effect, or its error."""
    named = [
        Check(
            name=f"c{i}",
            object=check if isinstance(check, ObjectCheck) else None,
            query=check if isinstance(check, QueryCheck) else None,
            person=check if isinstance(check, PersonCheck) else None,
        )
        for i, check in enumerate(checks)
    ]
    steps, results = ask_checks(Ask(2, 1, 7, tuple(named)), NOW, namespace="fleet"), iter(gives)
    sent: list[Effect] = []

    def perform(effect: Effect) -> Any:
        sent.append(effect)
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    answers: Answers = drive(steps, perform)
    assert (answers.attempt, answers.wave, answers.number) == (2, 1, 7)
    assert len(answers.verdicts) == len(answers.words) == len(checks)
    assert all((verdict is True) == (not word) for verdict, word in zip(*answers[3:], strict=True))
    return answers, sent


def on_object(expression: str, namespace: str = "") -> ObjectCheck:
    return ObjectCheck(
        api_version="apps/v1", kind="Deployment", namespace=namespace, name="web", expression=expression
    )


def samples(*spans: tuple[float, float, float], step: float = 1.25) -> tuple[Sample, ...]:
    """Return a series. spans: a value, from and until how many seconds ago."""
    found = []
    for value, since, until in spans:
        count = round((since - until) / step)
        found += [Sample(int(NOW * 1000) / 1000 - since + i * step, value) for i in range(count + 1)]
    return tuple(found)


OBJECTS: list[tuple[str, Any, bool | None, str]] = [
    ("object.status.ready == 3", DEPLOYMENT, True, ""),
    ("object.status.ready == 4", DEPLOYMENT, None, "the expression is not true for Deployment web"),
    ("object.status.ready == 3", None, None, "Deployment web does not exist (namespace: fleet)"),
    ("object.status.missing == 3", DEPLOYMENT, None, "cannot be evaluated for Deployment web: no such key"),
    ("object.status.text", DEPLOYMENT, None, "the result is a string, not true or false"),
    ("object.status.ready.text", DEPLOYMENT, None, "cannot be evaluated"),
    ("object.status.ready ==", DEPLOYMENT, None, "Syntax error"),
    ("other.status.ready == 3", DEPLOYMENT, None, "undeclared reference to 'other'"),
    (
        "object.items.all(i, object.items.all(j, i + j >= 0))",
        {"items": [*range(200)]},
        None,
        "actual cost limit exceeded",
    ),
    ("true", PermanentError('no matches for kind "Deployment"', reason="NoMatch"), None, "no matches for"),
    ("true", PermanentError("403 Forbidden: no", reason=FORBIDDEN), None, "grant the account of the service"),
    ("true", TransientError("no connection to https://api"), None, "no connection to https://api"),
]


@pytest.mark.parametrize(("expression", "found", "verdict", "words"), OBJECTS)
def test_an_object_check_passes_or_waits(
    expression: str, found: Any, verdict: bool | None, words: str
) -> None:
    """It never fails a wave: what is not true yet may become so."""
    answers, sent = look(on_object(expression), gives=[found])
    assert sent == [Get(KindRef("apps", "Deployment", "v1"), "fleet", "web")]
    assert answers.verdicts == (verdict,)
    assert words in answers.words[0], answers.words


def test_an_object_is_read_where_the_check_says() -> None:
    core = ObjectCheck(api_version="v1", kind="ConfigMap", namespace="other", name="a", expression="true")
    _, sent = look(core, gives=[DEPLOYMENT])
    assert sent == [Get(KindRef("", "ConfigMap", "v1"), "other", "a")]


def test_an_expression_is_compiled_once() -> None:
    check = on_object("object.status.ready + 1 == 4")
    look(check, gives=[DEPLOYMENT])
    before = compilations()
    assert look(check, check, gives=[DEPLOYMENT] * 2)[0].verdicts == (True, True)
    assert compilations() == before


FULL = (0.05, 300.0, 0.0)
QUERIES: list[tuple[QueryCheck, tuple[tuple[Sample, ...], ...], bool | None, str]] = [
    (MAX, (samples(FULL),), True, ""),
    (MAX, (samples((0.1, 300, 0)),), True, ""),
    (QueryCheck(min=0.05, max=0.05), (samples(FULL),), True, ""),
    (QueryCheck(min=0.06), (samples(FULL),), False, "0.05 is below min 0.06"),
    (MAX, (samples((0.2, 300, 0)),), False, "0.2 is above max 0.1"),
    (MAX, (samples((0.05, 300, 1.25), (0.2, 0, 0)),), False, "0.2 is above max 0.1"),
    (
        MAX,
        (samples((0.05, 300, 51.25), (0.2, 50, 50), (0.05, 48.75, 0)),),
        False,
        "0.2 is above max 0.1",
    ),
    (
        MAX,
        (samples((0.2, 300, 62.5), (0.05, 61.25, 0)),),
        None,
        "0.2 is above max 0.1 within the last 5m: it must have been within the limits for all of that time",
    ),
    (MAX, (samples((math.inf, 300, 0)),), False, "inf is above max 0.1"),
    (QueryCheck(min=1), (samples((math.inf, 300, 0)),), True, ""),
    (MAX, (samples((math.nan, 300, 0)),), None, "the value is not a number (NaN)"),
    (MAX, (samples((0.05, 300, 1.25), (math.nan, 0, 0)),), None, "the value is not a number (NaN)"),
    (MAX, (samples((math.nan, 300, 1.25), (0.2, 0, 0)),), False, "0.2 is above max 0.1"),
    (MAX, (), None, "the query gives no value"),
    (MAX, ((),), None, "the query gives no value"),
    (MAX, (samples((0.05, 200, 0)),), None, "there is no value for a part of the last 5m"),
    (MAX, (samples((0.05, 300, 10)),), None, "there is no value for a part of the last 5m"),
    (MAX, (samples((0.05, 300, 100), (0.05, 90, 0)),), None, "there is no value for a part of the last 5m"),
    (MAX, (samples((0.2, 10, 0)),), False, "0.2 is above max 0.1"),
    (MAX, (samples((0.05, 300, 100)), samples((0.05, 98.75, 0))), True, ""),
    (MAX, (samples(FULL), samples(FULL)), None, "several values at one time (2 series)"),
    (MAX, (samples(FULL), samples((0.2, 0, 0))), None, "several values at one time (2 series)"),
    (MAX, (samples((0.05, 300, -60)),), None, "samples of another time than was asked for"),
    (MAX, (samples((0.2, 600, 300)),), None, "samples of another time than was asked for"),
    (MAX, (samples((0.05, 301, -0.25)),), True, ""),
]


@pytest.mark.parametrize(("check", "series", "verdict", "words"), QUERIES)
def test_a_query_check_passes_fails_or_waits(
    check: QueryCheck, series: tuple[tuple[Sample, ...], ...], verdict: bool | None, words: str
) -> None:
    answers, _ = look(check, gives=[Range(series)])
    assert answers.verdicts == (verdict,), answers.words
    assert answers.words[0].startswith(words) if verdict is False else words in answers.words[0]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Range((samples(FULL),), skew_seconds=61), "the clock of Prometheus is 61 s ahead of ours"),
        (Range((samples((0.2, 300, 0)),), skew_seconds=-7200), "Prometheus is 7200 s behind ours"),
        (
            Range((samples((0.2, 300, 0)),), warnings=("a store is away",)),
            "warns of its answer: a store is away",
        ),
        (TransientError("no answer from http://p within 10 s"), "no answer from http://p within 10 s"),
        (PermanentError("no Prometheus is set: set PVBUS_PROMETHEUS_URL"), "set PVBUS_PROMETHEUS_URL"),
    ],
)
def test_an_answer_that_cannot_be_believed_passes_and_fails_nothing(result: Any, words: str) -> None:
    answers, _ = look(MAX, gives=[result])
    assert answers.verdicts == (None,)
    assert words in answers.words[0]


@pytest.mark.parametrize(
    ("window", "seconds", "step"),
    [("", 300, 1.25), ("10s", 10, 1), ("24h", 86400, 360), ("1500ms", 2, 1), ("0s", 0, 1)],
)
def test_a_query_covers_its_window_up_to_now_in_few_steps(window: str, seconds: float, step: float) -> None:
    _, (sent,) = look(QueryCheck(expression="errors", window=window, max=1), gives=[Range(())])
    assert isinstance(sent, Query)
    assert (sent.expression, sent.end, sent.step_seconds) == ("errors", NOW, step)
    assert sent.end - sent.start == pytest.approx(seconds)
    assert seconds / step <= STEPS_MAX


def test_without_answers_a_look_ends_after_a_few_checks() -> None:
    """Each may take a whole timeout, and meanwhile nobody's abort would count."""
    away = TransientError("no answer from http://p within 10 s")
    bad = Range((samples((0.2, 300, 0)),))
    answers, sent = look(*[MAX] * 6, gives=[away, bad, away, away])
    assert len(sent) == 4
    assert answers.verdicts == (None, False, None, None, None, None)
    assert answers.words[5] == "not looked at, as 3 checks before it got no answer"


def test_a_persons_check_is_not_looked_up() -> None:
    answers, sent = look(PersonCheck(question="Well?"), MAX, gives=[Range((samples(FULL),))])
    assert answers.verdicts == (None, True)
    assert len(sent) == 1


def test_words_are_short() -> None:
    answers, _ = look(MAX, gives=[PermanentError("x" * 10_000)])
    assert len(answers.words[0]) <= 400


def test_limits_are_in_proportion() -> None:
    """A value is young for as long as two looks may be apart."""
    assert RECENT_SECONDS >= 60
