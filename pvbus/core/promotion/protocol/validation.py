"""Validation of a RolloutPolicy's spec: everything that a schema cannot state, with all problems at once."""

import math
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from pvbus.core.api.names import invalid_value, key_error
from pvbus.core.api.rollouts import (
    BINDINGS,
    CONDITION_BINDINGS,
    TRAIN_MODES,
    WHEN_MEMBER_IS_ABSENT,
    Check,
    DenyWindow,
    EvidenceObject,
    EvidenceQuery,
    ObjectCheck,
    QueryCheck,
    RevisionsSelector,
    RolloutPolicySpec,
    TargetEvidence,
    TimeWindow,
    Train,
    Wave,
)
from pvbus.core.api.selectors import selector_problems
from pvbus.core.cel import CelCompileError, compile_expression
from pvbus.core.promotion.protocol.evidence import OBJECT_VARIABLES, TARGET_VARIABLES
from pvbus.core.promotion.protocol.rules import ALL_PERCENT, rules_of, seconds_of
from pvbus.core.promotion.protocol.windows import DAYS_AHEAD, Calendar, window_problems

T = TypeVar("T")
_UPSTREAM = re.compile(r"[^/@\s]+/[^@\s]+@[^@\s]+")


def validate_policy(spec: RolloutPolicySpec) -> list[str]:
    """Return all problems, each with its field path."""
    return list(_problems(spec))


def _problems(spec: RolloutPolicySpec) -> Iterator[str]:
    yield from _selection(spec.revisions)
    if spec.revisions.selector is not None:
        yield from selector_problems(spec.revisions.selector, "spec.revisions.selector")
    for field, text in (("spec.delay", spec.delay), ("spec.settle", spec.settle)):
        yield from _refused(field, seconds_of, text)
    yield from _repetitions(spec.canaries, "spec.canaries")
    for i, order in enumerate(spec.order):
        if why := key_error(order.label):
            yield f"spec.order[{i}].label: {invalid_value(order.label, why)}"
        yield from _repetitions(order.values, f"spec.order[{i}].values")
    yield from _sizes(spec.waves)
    for i, wave in enumerate(spec.waves):
        yield from _wave(wave, f"spec.waves[{i}]")
    yield from _repetitions(spec.conditions, "spec.conditions")
    yield from _evidence(spec.evidence, "spec.evidence")
    yield from _windows(spec.windows, "spec.windows")
    yield from _windows(spec.deny_windows, "spec.denyWindows")
    if spec.train is not None:
        yield from _train(spec.train, spec.revisions)


def _selection(wanted: RevisionsSelector) -> Iterator[str]:
    """An empty selection is no fleet by mistake: what selects everything says so."""
    selector = wanted.selector
    has_labels = selector is not None and (selector.match_labels or selector.match_expressions)
    is_given = bool(wanted.set or wanted.repositories or has_labels)
    if wanted.all and is_given:
        yield "spec.revisions.all is given together with `set`, `selector` or `repositories`: leave it out"
    if not wanted.all and not is_given:
        yield (
            "spec.revisions must specify `set`, `selector` (with labels) or `repositories`; for every "
            "revision of the namespace write `revisions: {all: true}`"
        )


def _train(train: Train, wanted: RevisionsSelector) -> Iterator[str]:
    """A mode or a combination that is not understood is refused: the members would go one by one."""
    field = "spec.train"
    sets = [member.set for member in train.members]
    if train.mode not in TRAIN_MODES:
        yield f"{field}.mode must be one of {', '.join(TRAIN_MODES)}"
    if train.mode == "Together" and train.label:
        yield (
            f"{field}.label is given with the mode Together, whose members have one repository on each "
            "site: leave it out, or take InOrder"
        )
    if len(sets) < 2:
        yield f"{field}.members must list two sets or more: a train of {len(sets)} is no train"
    yield from _repetitions(sets, f"{field}.members, sets")
    for i, member in enumerate(train.members):
        if not member.set:
            yield f"{field}.members[{i}].set cannot be empty"
        elif wanted.set and member.set != wanted.set:
            yield (
                f"{field}.members[{i}].set {member.set} is not selected: spec.revisions.set selects "
                f"{wanted.set} alone; give `selector`, `repositories` or `all` instead"
            )
        if member.upstream and not _UPSTREAM.fullmatch(member.upstream):
            yield f"{field}.members[{i}].upstream must be REPOSITORY/PACKAGE@REVISION"
    given = [bool(member.upstream) for member in train.members]
    if any(given) and not all(given):
        yield f"{field}.members: give upstream for all of them or for none: a combination has all revisions"
    if any(given) and train.annotation:
        yield f"{field}.annotation is given together with the upstream of members: give one of them"
    for name, why in (
        ("label", train.label and key_error(train.label)),
        ("annotation", train.annotation and key_error(train.annotation)),
    ):
        if why:
            yield f"{field}.{name}: {why}"
    if train.when_member_is_absent not in ("", *WHEN_MEMBER_IS_ABSENT):
        yield f"{field}.whenMemberIsAbsent must be one of {', '.join(WHEN_MEMBER_IS_ABSENT)}"
    refusals = list(_refused(f"{field}.partialTimeout", seconds_of, train.partial_timeout))
    yield from refusals
    if train.partial_timeout and not refusals and not seconds_of(train.partial_timeout):
        yield f"{field}.partialTimeout must be longer than 0: members are approved one after the other"


def never_opens(spec: RolloutPolicySpec, now: float) -> str:
    """Name a wave of a valid spec that may not be approved in the next time, "" if there is none.

    Waves with the same times are looked at once: to find that one never opens costs up to 0.4 s.
    """
    calendars = [Calendar(wave.windows, wave.denied) for wave in rules_of(spec).waves]
    distinct = dict.fromkeys(calendars)
    closed = next((calendar for calendar in distinct if calendar.opens_at(now) == float("inf")), None)
    if closed is None:
        return ""
    where = "spec.windows" if len(distinct) == 1 else f"spec.waves[{calendars.index(closed)}]"
    return f"{where}: no time window opens in the next {DAYS_AHEAD} days; see spec.denyWindows, too"


def canary_warnings(spec: RolloutPolicySpec) -> Iterator[str]:
    """Yield what is no mistake, but does not do what its author may expect."""
    canaries, wanted = spec.canaries, spec.revisions
    if spec.when_canary_is_absent == "Skip" and len(canaries) < 2:
        count = "one canary" if canaries else "no canaries"
        yield f"spec.whenCanaryIsAbsent Skip does nothing with {count}: the last canary is never skipped"
    if canaries and len(spec.waves) < 2:
        yield "spec.canaries come first, but with one wave nobody waits for them: give spec.waves two or more"
    for i, canary in enumerate(canaries):
        if wanted.set and not canary.startswith(f"{wanted.set}-"):
            yield (
                f'spec.canaries[{i}] "{canary}" is not named as variants of the set are '
                f"({wanted.set}-REPOSITORY-PACKAGE), so nothing would be approved"
            )


def _sizes(waves: tuple[Wave, ...]) -> Iterator[str]:
    """Shares count the targets of earlier waves, so they rise and end with all."""
    count = percent = 0
    for i, wave in enumerate(waves):
        field = f"spec.waves[{i}]"
        if (wave.percent is None) == (wave.count is None):
            yield f"{field} must specify one of `percent` and `count`"
        elif wave.count is not None:
            if percent:
                yield f"{field}.count comes after a wave with percent: give counts first, or percent only"
            elif wave.count <= count:
                yield (
                    f"{field}.count {wave.count} does not exceed the {count} of the wave before it: each "
                    "count includes the waves before it"
                )
            count = wave.count
        elif wave.percent is not None:
            if wave.percent <= percent:
                yield (
                    f"{field}.percent {wave.percent} does not exceed the {percent} of the wave before it: "
                    "each percent includes the waves before it"
                )
            percent = wave.percent
    if waves and waves[-1].percent != ALL_PERCENT:
        yield (
            f"spec.waves[{len(waves) - 1}].percent must be 100 in the last wave: otherwise some targets are "
            "never approved"
        )


def _wave(wave: Wave, field: str) -> Iterator[str]:
    for name, text in (("hold", wave.hold), ("timeout", wave.timeout)):
        yield from _refused(f"{field}.{name}", seconds_of, text)
    if not any((*_refused("", seconds_of, wave.hold), *_refused("", seconds_of, wave.timeout))):
        hold, timeout = seconds_of(wave.hold), seconds_of(wave.timeout)
        if timeout and timeout <= hold:
            yield (
                f"{field}.timeout {wave.timeout} is not longer than its hold {wave.hold}: "
                "the wave always fails"
            )
    yield from _repetitions([check.name for check in wave.checks], f"{field}.checks, names")
    for j, check in enumerate(wave.checks):
        yield from _check(check, f"{field}.checks[{j}]")
    yield from _windows(wave.windows, f"{field}.windows")


def _check(check: Check, field: str) -> Iterator[str]:
    if sum(way is not None for way in (check.object, check.query, check.person)) != 1:
        yield f"{field} must specify one of `object`, `query` and `person`"
    if check.object is not None:
        yield from _object(check.object, f"{field}.object")
    if check.query is not None:
        yield from _query(check.query, f"{field}.query")


def _object(check: ObjectCheck, field: str) -> Iterator[str]:
    for name, text in (("apiVersion", check.api_version), ("kind", check.kind), ("name", check.name)):
        if not text:
            yield f"{field}.{name} cannot be empty"
    yield from _expression(check.expression, f"{field}.expression", OBJECT_VARIABLES, "bool")


def _expression(text: str, field: str, variables: tuple[str, ...], wanted: str) -> Iterator[str]:
    try:
        kind = compile_expression(text, variables=variables).kind
    except CelCompileError as exc:
        yield f"{field}: {exc}"
        return
    if kind not in (wanted, "dyn"):
        does = (
            "compare it with something, so that it gives true or false" if wanted == "bool" else "give a text"
        )
        yield f"{field} gives a {kind}: {does}"


def _evidence(evidence: TargetEvidence, field: str) -> Iterator[str]:
    yield from _refused(f"{field}.deadline", seconds_of, evidence.deadline)
    if evidence.condition_binding not in ("", *CONDITION_BINDINGS):
        yield f"{field}.conditionBinding must be one of {', '.join(CONDITION_BINDINGS)}"
    if evidence.object is not None:
        yield from _evidence_object(evidence.object, f"{field}.object")
    if evidence.query is not None:
        yield from _query(evidence.query, f"{field}.query")
        yield from _expression(
            evidence.query.expression, f"{field}.query.expression", TARGET_VARIABLES, "string"
        )


def _evidence_object(wanted: EvidenceObject, field: str) -> Iterator[str]:
    for name, text in (("apiVersion", wanted.api_version), ("kind", wanted.kind)):
        if not text:
            yield f"{field}.{name} cannot be empty"
    if wanted.binding not in BINDINGS:
        yield f"{field}.binding must be one of {', '.join(BINDINGS)}"
    elif (wanted.binding == "Weak") == bool(wanted.revision):
        is_weak = wanted.binding == "Weak"
        yield f"{field}.revision must {'not ' if is_weak else ''}be given with the binding {wanted.binding}"
    texts = {"name": wanted.name, "namespace": wanted.namespace}
    for name, text in texts.items():
        if text or name == "name":
            yield from _expression(text, f"{field}.{name}", TARGET_VARIABLES, "string")
    if wanted.revision:
        yield from _expression(wanted.revision, f"{field}.revision", OBJECT_VARIABLES, "string")
    for name, text in (("current", wanted.current), ("good", wanted.good), ("bad", wanted.bad)):
        if text or name == "good":
            yield from _expression(text, f"{field}.{name}", OBJECT_VARIABLES, "bool")


def _query(check: QueryCheck | EvidenceQuery, field: str) -> Iterator[str]:
    yield from _refused(f"{field}.window", seconds_of, check.window)
    if not check.expression.strip():
        yield f"{field}.expression cannot be empty"
    if check.min is None and check.max is None:
        yield f"{field} must specify `min`, `max` or both: otherwise every value passes"
    for name, value in (("min", check.min), ("max", check.max)):
        if value is not None and not math.isfinite(value):
            yield f"{field}.{name} is no finite number"
    if check.min is not None and check.max is not None and check.min > check.max:
        yield f"{field}.min {check.min:g} is above max {check.max:g}: no value passes"


def _windows(windows: tuple[TimeWindow | DenyWindow, ...], field: str) -> Iterator[str]:
    for i, window in enumerate(windows):
        yield from (f"{field}[{i}]: {problem}" for problem in window_problems(window))


def _refused(field: str, read: Callable[[T], object], value: T) -> Iterator[str]:
    try:
        read(value)
    except ValueError as exc:
        yield f"{field}: {exc}"


def _repetitions(values: tuple[str, ...] | list[str], field: str) -> Iterator[str]:
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        yield f'{field}: "{value}" is given more than once'
