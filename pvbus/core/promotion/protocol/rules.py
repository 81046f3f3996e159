"""Compiles the spec of a RolloutPolicy to the rules that a rollout follows."""

from collections.abc import Iterator
from typing import NamedTuple

from pvbus.core.api.rollouts import Check, RolloutPolicySpec, Train, Wave
from pvbus.core.cel import CelEvalError
from pvbus.core.cel.conversions import to_duration
from pvbus.core.cel.values import NANOS
from pvbus.core.kernel.rolloutrows import Commands
from pvbus.core.promotion.protocol.evidence import is_weak, wants_evidence
from pvbus.core.promotion.protocol.windows import Calendar, Window, compiled

SETTLE = "30s"
QUERY_WINDOW = "5m"
PARTIAL_TIMEOUT = "1h"
ALL_PERCENT = 100
LOOK_SECONDS_MAX = 60.0
"""Watched time between two steps at most. Longer, and a jump of the clock ends a hold time; shorter, and
services step for nothing while they hold."""
CHECK_SECONDS = 30.0
"""Watched time between two looks at the checks of a wave: a few Prometheus scrapes."""


EVIDENCE_SECONDS = 1_800.0
"""How long anything but a person and release is waited for where the policy does not say. Shorter, and a
controller that restarts stops rollouts; longer, and a night passes before somebody learns of it."""
RESTORE_SECONDS = 1_800.0
"""How long a rollback waits for one target, as one that a person holds: then it is stranded, and named."""


class WaveRules(NamedTuple):
    """The rules of one wave.

    percent, number: which targets are approved when the wave is over, as a share of all or as a number; the
        number counts unless it is 0
    timeout_seconds: how long the wave may take, 0 for no limit
    needs_person: whether a person approves it, because the policy is Manual or a check asks for a person
    """

    percent: int = ALL_PERCENT
    number: int = 0
    hold_seconds: float = 0
    timeout_seconds: float = 0
    checks: tuple[Check, ...] = ()
    windows: tuple[Window, ...] = ()
    denied: tuple[Window, ...] = ()
    needs_person: bool = False

    def size(self, targets: int) -> int:
        """Return how many of the targets are approved when this wave is over, with those of earlier waves."""
        if self.number:
            return min(self.number, targets)
        return -(-targets * self.percent // ALL_PERCENT)

    def calendar(self, commands: Commands, attempt: int) -> Calendar:
        """Return when its targets may be approved: promoted ones at once, in a denied time with a reason."""
        if commands.promote != attempt:
            return Calendar(self.windows, self.denied)
        return Calendar(denied=() if commands.promote_reason else self.denied)

    @property
    def asked(self) -> tuple[Check, ...]:
        """The checks that are looked up; a person's answer is not."""
        return tuple(check for check in self.checks if check.person is None)


class TrainRules(NamedTuple):
    """The packages that go as one on each site.

    sets: the sets of its members, in their order
    upstreams: the upstream revision of each that were verified together, () if the policy does not say
    annotation: of upstream revisions; those with one value were verified together, "" for none
    is_together: whether all members are ordered at once, and not one after the other on its evidence
    skips_absent: whether a site goes without a member that it does not have
    partial_seconds: how long a unit may be partial
    """

    sets: tuple[str, ...]
    upstreams: tuple[str, ...] = ()
    annotation: str = ""
    is_together: bool = False
    skips_absent: bool = False
    partial_seconds: float = 3_600.0


class Rules(NamedTuple):
    """A compiled policy.

    canaries: the named canaries, in their order
    skips_absent: whether an attempt goes without a canary that is no target, as long as another is left
    needs_start: whether a person approves the first wave, too
    in_flight_max: how many targets may be on their way at once, 0 for no limit
    look_seconds: watched time between two steps at most, in seconds
    check_seconds: watched time between two looks at the checks, in seconds
    evidence_seconds: how long a target may be without evidence, a check may not pass after the hold time, or
        a status may not be known before the order; 0 for no limit, as in a rehearsal
    is_evidenced: whether more than Ready is looked at
    is_weak: whether a status from before the approval must be known
    train: None if each target is a unit of its own
    finishes: whether an attempt goes on as planned when a newer upstream revision is there
    restore_seconds: how long a rollback waits for the former revision of a target
    """

    waves: tuple[WaveRules, ...] = (WaveRules(),)
    canaries: tuple[str, ...] = ()
    settle_seconds: float = 0
    needs_start: bool = False
    in_flight_max: int = 0
    failing_max: int = 0
    rolls_back: bool = False
    look_seconds: float = LOOK_SECONDS_MAX
    check_seconds: float = CHECK_SECONDS
    skips_absent: bool = False
    evidence_seconds: float = EVIDENCE_SECONDS
    is_evidenced: bool = False
    is_weak: bool = False
    train: TrainRules | None = None
    finishes: bool = False
    restore_seconds: float = RESTORE_SECONDS


def rules_of(spec: RolloutPolicySpec) -> Rules:
    """Compile a spec that `validation.validate_policy` found nothing wrong with."""
    is_manual = spec.approval in ("", "Manual")
    waves = spec.waves or (Wave(percent=ALL_PERCENT),)
    policy_windows = tuple(map(compiled, spec.windows))
    denied = tuple(map(compiled, spec.deny_windows))
    last = len(waves) - 1
    return Rules(
        waves=tuple(
            WaveRules(
                percent=wave.percent or 0,
                number=wave.count or 0,
                hold_seconds=seconds_of(wave.hold),
                timeout_seconds=seconds_of(wave.timeout),
                checks=wave.checks,
                windows=tuple(map(compiled, wave.windows)) or policy_windows,
                denied=denied,
                needs_person=(is_manual and index < last)
                or any(check.person is not None for check in wave.checks),
            )
            for index, wave in enumerate(waves)
        ),
        canaries=spec.canaries,
        skips_absent=spec.when_canary_is_absent == "Skip",
        settle_seconds=seconds_of(spec.settle or SETTLE),
        needs_start=is_manual,
        in_flight_max=spec.budgets.max_in_flight,
        failing_max=spec.budgets.max_failing,
        rolls_back=spec.budgets.on_failure == "RollBack",
        evidence_seconds=seconds_of(spec.evidence.deadline) or EVIDENCE_SECONDS,
        is_evidenced=wants_evidence(spec),
        is_weak=is_weak(spec),
        train=train_rules(spec.train) if spec.train is not None else None,
        finishes=spec.on_new_revision == "Finish",
    )


def train_rules(train: Train) -> TrainRules:
    """Compile the train of a policy."""
    upstreams = tuple(member.upstream for member in train.members)
    return TrainRules(
        sets=tuple(member.set for member in train.members),
        upstreams=upstreams if all(upstreams) else (),
        annotation=train.annotation,
        is_together=train.mode == "Together",
        skips_absent=train.when_member_is_absent == "Skip",
        partial_seconds=seconds_of(train.partial_timeout or PARTIAL_TIMEOUT),
    )


def wave_numbers(rules: Rules, units: int, canaries: int = 0) -> Iterator[int]:
    """Yield the wave of each unit, from 1, in the order of the rollout. canaries: how many of the first
    units are canaries."""
    placed = 0
    for number, wave in enumerate(rules.waves, 1):
        size = wave.size(units)
        if number == 1:
            size = max(size, canaries)
        for _ in range(size - placed):
            yield number
        placed = max(placed, size)


def seconds_of(text: str) -> float:
    """Return a duration in seconds; 0 for "". Raises: ValueError with the reason."""
    if not text:
        return 0.0
    try:
        nanos = to_duration(text).nanos
    except CelEvalError:
        raise ValueError(f'"{text}" is no duration such as 90s or 1h30m') from None
    if nanos < 0:
        raise ValueError(f'"{text}" is negative: a duration is 0 or more')
    return nanos / NANOS
