"""RolloutPolicies: what is wrong with one, how large its waves are, and when its time windows are open."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pvbus.core.api.rollouts import DenyWindow, RolloutPolicySpec, TimeWindow
from pvbus.core.promotion.protocol.rules import Rules, WaveRules, rules_of, seconds_of, wave_numbers
from pvbus.core.promotion.protocol.validation import canary_warnings, validate_policy
from pvbus.core.promotion.protocol.windows import Calendar, compiled

LAST = {"percent": 100}
OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "expression": "object.data.ok == 'yes'"}


def spec_of(**fields: Any) -> RolloutPolicySpec:
    return msgspec.convert({"revisions": {"all": True}, **fields}, RolloutPolicySpec)


def checked(**check: Any) -> dict[str, Any]:
    return {"waves": [{**LAST, "checks": [{"name": "c", **check}]}]}


A, B = {"set": "a"}, {"set": "b"}


def train(**fields: Any) -> dict[str, Any]:
    return {"train": {"mode": "InOrder", "members": [A, B], **fields}}


WRONG: list[tuple[dict[str, Any], str]] = [
    (train(members=[]), "spec.train.members must list two sets or more: a train of 0 is no train"),
    (train(members=[A]), "spec.train.members must list two sets or more: a train of 1 is no train"),
    (train(members=[A, B, A]), 'spec.train.members, sets: "a" is given more than once'),
    (train(members=[A, {}]), "spec.train.members[1].set cannot be empty"),
    (train() | {"revisions": {"set": "a"}}, "spec.train.members[1].set b is not selected"),
    (train(mode="AtWill"), "spec.train.mode must be one of Together, InOrder"),
    (train(mode=""), "spec.train.mode must be one of Together, InOrder"),
    (train(mode="Together", label="site"), "spec.train.label is given with the mode Together"),
    (train(label="a b"), "spec.train.label: name part must"),
    (train(annotation="a b"), "spec.train.annotation: name part must"),
    (train(members=[A | {"upstream": "r/a@v1"}, B]), "spec.train.members: give upstream for all of them"),
    (train(members=[A | {"upstream": "a"}, B]), "spec.train.members[0].upstream must be REPOSITORY/PACKAGE"),
    (
        train(annotation="x", members=[A | {"upstream": "r/a@v1"}, B | {"upstream": "r/b@v1"}]),
        "spec.train.annotation is given together with the upstream of members",
    ),
    (train(whenMemberIsAbsent="Go"), "spec.train.whenMemberIsAbsent must be one of Wait, Skip"),
    (train(partialTimeout="soon"), 'spec.train.partialTimeout: "soon" is no duration'),
    (train(partialTimeout="0s"), "spec.train.partialTimeout must be longer than 0"),
    ({"waves": [{"percent": 50}]}, "spec.waves[0].percent must be 100 in the last wave"),
    ({"waves": [{"percent": 60}, {"percent": 40}, LAST]}, "spec.waves[1].percent 40 does not exceed the 60"),
    ({"waves": [{"percent": 10}, {"percent": 10}, LAST]}, "spec.waves[1].percent 10 does not exceed the 10"),
    ({"waves": [{"count": 5}, {"count": 5}, LAST]}, "spec.waves[1].count 5 does not exceed the 5"),
    ({"waves": [{"percent": 5}, {"count": 5}, LAST]}, "spec.waves[1].count comes after a wave with percent"),
    (
        {"waves": [{"percent": 5, "count": 5}, LAST]},
        "spec.waves[0] must specify one of `percent` and `count`",
    ),
    ({"waves": [{}, LAST]}, "spec.waves[0] must specify one of `percent` and `count`"),
    ({"waves": [{"count": 3}]}, "spec.waves[0].percent must be 100 in the last wave"),
    ({"waves": [{**LAST, "hold": "soon"}]}, 'spec.waves[0].hold: "soon" is no duration'),
    ({"waves": [{**LAST, "hold": "-5s"}]}, 'spec.waves[0].hold: "-5s" is negative'),
    (
        {"waves": [{**LAST, "hold": "1h", "timeout": "30m"}]},
        "spec.waves[0].timeout 30m is not longer than its hold",
    ),
    (
        {"revisions": {}},
        "spec.revisions must specify `set`, `selector` (with labels) or `repositories`",
    ),
    ({"revisions": {"selector": {}}}, "revision of the namespace write `revisions: {all: true}`"),
    ({"revisions": {"all": True, "set": "web"}}, "spec.revisions.all is given together with"),
    ({"delay": "5 minutes"}, 'spec.delay: "5 minutes" is no duration'),
    ({"canaries": ["a", "b", "a"]}, 'spec.canaries: "a" is given more than once'),
    ({"order": [{"label": "a b"}]}, 'spec.order[0].label: Invalid value: "a b": name part must'),
    (
        {"order": [{"label": "tier", "values": ["x", "x"]}]},
        'spec.order[0].values: "x" is given more than once',
    ),
    (
        {"revisions": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}},
        'spec.revisions.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid',
    ),
    (checked(), "spec.waves[0].checks[0] must specify one of `object`, `query` and `person`"),
    (checked(object=OBJECT, person={"question": "ok?"}), "spec.waves[0].checks[0] must specify one of"),
    (checked(object={**OBJECT, "expression": "object."}), "spec.waves[0].checks[0].object.expression: ERROR"),
    (checked(object={**OBJECT, "expression": "target.name"}), "undeclared reference to 'target'"),
    (checked(object={**OBJECT, "expression": "'yes'"}), "expression gives a string"),
    (checked(object={**OBJECT, "kind": ""}), "spec.waves[0].checks[0].object.kind cannot be empty"),
    (checked(query={"expression": "up"}), "spec.waves[0].checks[0].query must specify `min`, `max` or both"),
    (checked(query={"expression": "up", "min": 2, "max": 1}), "query.min 2 is above max 1"),
    (checked(query={"expression": " ", "min": 2}), "query.expression cannot be empty"),
    (checked(query={"expression": "up", "min": float("nan")}), "query.min is no finite number"),
    (checked(query={"expression": "up", "min": 1, "window": "x"}), 'query.window: "x" is no duration'),
    ({"windows": [{"start": "09:00", "end": "17:00", "timeZone": "Europe/Berlim"}]}, "unknown time zone"),
    ({"windows": [{"start": "09:00", "end": "17:00", "days": ["Monday"]}]}, 'day "Monday" is none of Mon'),
    ({"windows": [{"start": "09:00", "end": "09:00"}]}, "start and end are both 09:00"),
    ({"windows": [{"start": "9", "end": "17:00"}]}, '"9" is no time of day'),
    ({"windows": [{"start": "09:00", "end": "24:01"}]}, '"24:01" is no time of day'),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_what_is_wrong_with_a_policy_is_named_with_its_field(fields: dict[str, Any], message: str) -> None:
    problems = validate_policy(spec_of(**fields))
    assert any(message in problem for problem in problems), problems


def test_all_problems_are_reported_at_once() -> None:
    spec = spec_of(delay="x", settle="y", waves=[{"percent": 50, "hold": "z"}])
    assert len(validate_policy(spec)) == 4


def test_a_policy_with_everything_is_accepted() -> None:
    person = {"name": "person", "person": {"question": "Does it look well?"}}
    errors = {"name": "errors", "query": {"expression": "errors", "max": 0.01, "window": "10m"}}
    ready = {"name": "ready", "object": OBJECT}
    spec = spec_of(
        revisions={"set": "web", "selector": {"matchLabels": {"a": "b"}}, "repositories": ["edge"]},
        approval="Always",
        delay="1h30m",
        canaries=["site-1"],
        order=[{"label": "example.com/tier", "values": ["test", "prod"]}],
        waves=[
            {"count": 2, "hold": "10m", "timeout": "1h", "checks": [person, errors, ready]},
            {"percent": 30},
            LAST,
        ],
        windows=[{"days": ["Mon"], "start": "22:00", "end": "06:00", "timeZone": "Europe/Berlin"}],
        budgets={"maxInFlight": 10, "maxFailing": 1, "onFailure": "RollBack"},
    )
    assert validate_policy(spec) == []
    assert validate_policy(spec_of()) == []


ODD: list[tuple[dict[str, Any], str]] = [
    (
        {"whenCanaryIsAbsent": "Skip", "canaries": ["a"], "waves": [{"count": 1}, LAST]},
        "does nothing with one canary",
    ),
    ({"whenCanaryIsAbsent": "Skip"}, "does nothing with no canaries"),
    ({"canaries": ["a"]}, "with one wave nobody waits for them"),
    (
        {"canaries": ["wbe-edge-a"], "revisions": {"set": "web"}, "waves": [{"count": 1}, LAST]},
        'spec.canaries[0] "wbe-edge-a" is not named as variants of the set are (web-REPOSITORY-PACKAGE)',
    ),
]


@pytest.mark.parametrize(("fields", "message"), ODD, ids=[message[:40] for _, message in ODD])
def test_canaries_that_do_not_what_they_seem_to_are_warned_of(fields: dict[str, Any], message: str) -> None:
    (warning,) = canary_warnings(spec_of(**fields))
    assert message in warning


SIZES: list[tuple[list[WaveRules], int, int, list[int]]] = [
    ([WaveRules(1), WaveRules(5), WaveRules(100)], 0, 1000, [10, 40, 950]),
    ([WaveRules(1), WaveRules(5), WaveRules(100)], 0, 1, [1, 0, 0]),
    ([WaveRules(1), WaveRules(5), WaveRules(100)], 0, 30, [1, 1, 28]),
    ([WaveRules(1), WaveRules(50), WaveRules(100)], 3, 10, [3, 2, 5]),
    ([WaveRules(1), WaveRules(50), WaveRules(100)], 8, 10, [8, 0, 2]),
    ([WaveRules(0, 2), WaveRules(100)], 0, 5, [2, 3]),
    ([WaveRules(0, 9), WaveRules(100)], 0, 5, [5, 0]),
    ([WaveRules(0, 9), WaveRules(10), WaveRules(100)], 0, 20, [9, 0, 11]),
    ([WaveRules(100)], 0, 0, [0]),
]


@pytest.mark.parametrize(("waves", "canaries", "targets", "sizes"), SIZES)
def test_every_target_is_in_one_wave_of_the_given_size(
    waves: list[WaveRules], canaries: int, targets: int, sizes: list[int]
) -> None:
    numbers = list(wave_numbers(Rules(tuple(waves)), targets, canaries))
    assert len(numbers) == targets
    assert numbers == sorted(numbers)
    assert [numbers.count(number) for number in range(1, len(waves) + 1)] == sizes


def test_a_policy_without_waves_has_one() -> None:
    rules = rules_of(spec_of(approval="Always"))
    assert list(wave_numbers(rules, 3)) == [1, 1, 1]


def test_a_manual_policy_wants_a_person_before_each_wave_and_none_after_the_last() -> None:
    waves = [{"percent": 10}, LAST]
    rules = rules_of(spec_of(waves=waves))
    assert (rules.needs_start, [wave.needs_person for wave in rules.waves]) == (True, [True, False])
    rules = rules_of(spec_of(waves=waves, approval="Always"))
    assert (rules.needs_start, [wave.needs_person for wave in rules.waves]) == (False, [False, False])


def test_a_wave_s_windows_replace_those_of_the_policy() -> None:
    window = {"start": "09:00", "end": "10:00"}
    waves = [{"percent": 10, "windows": [{"start": "01:00", "end": "02:00"}]}, LAST]
    rules = rules_of(spec_of(windows=[window], waves=waves))
    assert [wave.windows[0].start for wave in rules.waves] == [60, 540]


@pytest.mark.parametrize(("text", "seconds"), [("", 0), ("90s", 90), ("1h30m", 5400), ("0", 0), ("1.5m", 90)])
def test_durations_are_gos(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


OFFICE = {"days": ["Mon", "Fri"], "start": "09:00", "end": "17:00", "timeZone": "Europe/Berlin"}
NIGHT = {"days": ["Fri"], "start": "22:00", "end": "02:00"}
TIMES = [  # 2026-03-02 is a Monday; Berlin is an hour ahead of UTC, and two from March 29
    (OFFICE, "2026-03-02T07:59", False),
    (OFFICE, "2026-03-02T08:00", True),
    (OFFICE, "2026-03-02T15:59", True),
    (OFFICE, "2026-03-02T16:00", False),
    (OFFICE, "2026-03-03T10:00", False),
    (OFFICE, "2026-03-30T07:00", True),
    (NIGHT, "2026-03-06T21:59", False),
    (NIGHT, "2026-03-06T22:00", True),
    (NIGHT, "2026-03-07T01:59", True),
    (NIGHT, "2026-03-07T02:00", False),
    (NIGHT, "2026-03-07T22:30", False),
    ({"start": "00:00", "end": "24:00"}, "2026-03-04T23:59", True),
    (
        {"days": ["Sun"], "start": "00:00", "end": "24:00", "timeZone": "Europe/Berlin"},
        "2026-03-29T21:30",
        True,
    ),
]


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("window", "when", "expected"), TIMES)
def test_a_window_is_open_in_its_own_time_zone(window: dict[str, Any], when: str, expected: bool) -> None:
    found = compiled(msgspec.convert(window, TimeWindow))
    assert Calendar((found,)).is_open(at(when)) is expected
    assert (Calendar((found,)).opens_at(at(when)) == at(when)) is expected


def test_the_next_opening_may_be_days_ahead_and_without_windows_is_now() -> None:
    found = compiled(msgspec.convert(OFFICE, TimeWindow))
    assert Calendar((found,)).opens_at(at("2026-03-02T16:00")) == at("2026-03-06T08:00")
    assert Calendar().opens_at(5.0) == 5.0
    assert Calendar().is_open(5.0)


BERLIN: dict[str, Any] = {"timeZone": "Europe/Berlin"}
NIGHT = BERLIN | {"start": "02:15", "end": "02:45"}
LONG = BERLIN | {"start": "01:00", "end": "04:00"}
CLOCK_CHANGES: list[tuple[dict[str, Any], str, str]] = [
    # In spring 02:00 is 03:00: what is left out is in no window.
    (NIGHT, "2026-03-29T00:59", "2026-03-30T00:15"),
    (LONG, "2026-03-28T23:59", "2026-03-29T00:00"),
    (BERLIN | {"start": "02:30", "end": "03:30"}, "2026-03-29T00:45", "2026-03-29T01:00"),
    (BERLIN | {"start": "02:30", "end": "03:30"}, "2026-03-29T01:30", "2026-03-30T00:30"),
    # In autumn 03:00 is 02:00: what comes twice is in its window twice.
    (NIGHT, "2026-10-25T00:00", "2026-10-25T00:15"),
    (NIGHT, "2026-10-25T00:45", "2026-10-25T01:15"),
    (NIGHT, "2026-10-25T01:45", "2026-10-26T01:15"),
    (
        {"timeZone": "Australia/Lord_Howe", "start": "01:45", "end": "02:00"},
        "2026-04-04T15:05",
        "2026-04-04T15:15",
    ),
]
"""Window, a time at which it is closed, and when it opens next; in UTC."""


@pytest.mark.parametrize(("window", "closed", "opens"), CLOCK_CHANGES)
def test_a_window_goes_by_the_wall_clock_when_the_clock_is_changed(
    window: dict[str, Any], closed: str, opens: str
) -> None:
    calendar = Calendar((compiled(msgspec.convert(window, TimeWindow)),))
    assert not calendar.is_open(at(closed))
    assert calendar.opens_at(at(closed)) == at(opens)
    assert calendar.is_open(at(opens))


def test_a_window_that_spans_the_lost_hour_is_an_hour_shorter_and_the_double_hour_longer() -> None:
    calendar = Calendar((compiled(msgspec.convert(LONG, TimeWindow)),))
    for day, hours in (("2026-03-29", 2), ("2026-03-30", 3), ("2026-10-25", 4)):
        begin = at(f"{day}T00:00") - 6 * 3600
        assert sum(calendar.is_open(begin + 60 * minute) for minute in range(18 * 60)) == hours * 60


FREEZE = {"firstDate": "2026-12-24", "lastDate": "2027-01-02"}
DENIED = [
    (FREEZE, "2026-12-23T23:59", True),
    (FREEZE, "2026-12-24T00:00", False),
    (FREEZE, "2027-01-02T23:59", False),
    (FREEZE, "2027-01-03T00:00", True),
    ({"firstDate": "2026-12-24"}, "2026-12-25T00:00", True),
    ({"days": ["Fri"], "start": "15:00"}, "2026-03-06T14:59", True),
    ({"days": ["Fri"], "start": "15:00"}, "2026-03-06T15:00", False),
    ({"days": ["Fri"], "start": "15:00"}, "2026-03-05T15:00", True),
    ({"start": "22:00", "end": "06:00"}, "2026-03-06T05:59", False),
    ({"days": ["Fri"], "start": "22:00", "end": "06:00"}, "2026-03-07T05:59", False),
    ({"days": ["Fri"], "start": "22:00", "end": "06:00"}, "2026-03-06T05:59", True),
    (FREEZE | {"days": ["Thu"], "start": "10:00", "end": "11:00"}, "2026-12-31T10:30", False),
    (FREEZE | {"days": ["Thu"], "start": "10:00", "end": "11:00"}, "2026-12-30T10:30", True),
]


@pytest.mark.parametrize(("window", "when", "expected"), DENIED)
def test_a_denied_span_wins_over_every_window(window: dict[str, Any], when: str, expected: bool) -> None:
    denied = (compiled(msgspec.convert(window, DenyWindow)),)
    always = compiled(TimeWindow(start="00:00", end="24:00"))
    assert Calendar(denied=denied).is_open(at(when)) is expected
    assert Calendar((always,), denied).is_open(at(when)) is expected


def test_a_calendar_opens_when_the_denied_span_ends_or_never_in_90_days() -> None:
    freeze = compiled(msgspec.convert(FREEZE, DenyWindow))
    office = compiled(TimeWindow(days=("Mon",), start="09:00", end="17:00"))
    assert Calendar(denied=(freeze,)).opens_at(at("2026-12-24T12:00")) == at("2027-01-03T00:00")
    assert Calendar((office,), (freeze,)).opens_at(at("2026-12-24T12:00")) == at("2027-01-04T09:00")
    ever = compiled(DenyWindow(first_date="2026-01-01", last_date="2030-01-01"))
    assert Calendar((office,), (ever,)).opens_at(at("2026-12-24T12:00")) == float("inf")
    mondays = compiled(DenyWindow(days=("Mon",)))
    assert Calendar((office,), (mondays,)).opens_at(at("2026-12-24T12:00")) == float("inf")


@pytest.mark.parametrize(
    ("window", "problems"),
    [
        ({}, ["it denies all times"]),
        (
            {"start": "25:00", "end": "x", "days": ["Friday"]},
            ['"25:00" is no time', '"x" is no time', '"Friday"'],
        ),
        ({"start": "10:00", "end": "10:00", "timeZone": "Mars/Base"}, ["are both 10:00", "Mars/Base"]),
        (
            {"firstDate": "2026-02-30", "lastDate": "26-1-1"},
            ['"2026-02-30" is no date', '"26-1-1" is no date'],
        ),
        ({"lastDate": "2026-01-01"}, ["lastDate is given without firstDate"]),
        ({"firstDate": "2026-01-02", "lastDate": "2026-01-01"}, ["is before firstDate"]),
    ],
)
def test_all_problems_of_a_denied_window_are_told_at_once(
    window: dict[str, Any], problems: list[str]
) -> None:
    spec = msgspec.convert({"revisions": {"all": True}, "denyWindows": [window]}, RolloutPolicySpec)
    found = [problem for problem in validate_policy(spec) if problem.startswith("spec.denyWindows[0]: ")]
    assert len(found) == len(problems)
    for text, problem in zip(problems, found, strict=True):
        assert text in problem
