"""RolloutPolicy of the group `promotion.pvbus.dev`: how proposed package revisions become published ones.

Same rules as `pvbus.core.api.variants`: frozen Structs, unknown fields ignored. Durations are texts in Go's
form, such as `90s` or `1h30m`. The rules that a schema cannot state are in
`pvbus.core.promotion.protocol.validation`.
"""

from pvbus.core.api.promotion import PROMOTION_API
from pvbus.core.api.variants import ApiStruct, Condition, LabelSelector, ObjectMeta

APPROVALS = ("Manual", "Initial", "Always")
ON_FAILURE = ("Stop", "RollBack")
ON_NEW_REVISION = ("Finish", "Supersede")
WHEN_CANARY_IS_ABSENT = ("Wait", "Skip")
BINDINGS = ("Commit", "Generation", "Weak")
CONDITION_BINDINGS = ("Revision", "Weak")
TRAIN_MODES = ("Together", "InOrder")
WHEN_MEMBER_IS_ABSENT = ("Wait", "Skip")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class RevisionsSelector(ApiStruct, frozen=True, kw_only=True):
    """What is given must hold all together. all: every revision of the namespace, given alone."""

    all: bool = False
    set: str = ""
    selector: LabelSelector | None = None
    repositories: tuple[str, ...] = ()


class LabelOrder(ApiStruct, frozen=True, kw_only=True):
    label: str = ""
    values: tuple[str, ...] = ()


class ObjectCheck(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    expression: str = ""


class QueryCheck(ApiStruct, frozen=True, kw_only=True):
    """`min` and `max` are inclusive; at least one of them is given."""

    expression: str = ""
    window: str = ""
    min: float | None = None
    max: float | None = None


class PersonCheck(ApiStruct, frozen=True, kw_only=True):
    question: str = ""


class Check(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of `object`, `query` and `person` is given."""

    name: str = ""
    object: ObjectCheck | None = None
    query: QueryCheck | None = None
    person: PersonCheck | None = None


class TimeWindow(ApiStruct, frozen=True, kw_only=True):
    days: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    time_zone: str = ""


class DenyWindow(ApiStruct, frozen=True, kw_only=True):
    """At least one of days, times and dates is given."""

    days: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    first_date: str = ""
    last_date: str = ""
    time_zone: str = ""


class Wave(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of `percent` and `count` is given; both count the targets of earlier waves, too."""

    percent: int | None = None
    count: int | None = None
    hold: str = ""
    timeout: str = ""
    checks: tuple[Check, ...] = ()
    windows: tuple[TimeWindow, ...] = ()


class Budgets(ApiStruct, frozen=True, kw_only=True):
    max_in_flight: int = 0
    max_failing: int = 0
    on_failure: str = ""


class EvidenceObject(ApiStruct, frozen=True, kw_only=True):
    """An object that speaks of one target. namespace, name: CEL over the variable `target`; the others over
    the variable `object`. An empty namespace stands for any."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    binding: str = ""
    revision: str = ""
    current: str = ""
    good: str = ""
    bad: str = ""


class EvidenceQuery(ApiStruct, frozen=True, kw_only=True):
    """expression: CEL over the variable `target` that gives PromQL. The limits are as in `QueryCheck`."""

    expression: str = ""
    window: str = ""
    min: float | None = None
    max: float | None = None


class TargetEvidence(ApiStruct, frozen=True, kw_only=True):
    """What proves a target beside the conditions that the spec names."""

    deadline: str = ""
    condition_binding: str = ""
    object: EvidenceObject | None = None
    query: EvidenceQuery | None = None


class TrainMember(ApiStruct, frozen=True, kw_only=True):
    """upstream: `REPOSITORY/PACKAGE@REVISION`, "" if the policy does not say."""

    set: str = ""
    upstream: str = ""


class Train(ApiStruct, frozen=True, kw_only=True):
    """Packages that go as one. label: what names the site of a variant, "" for its downstream repository."""

    mode: str = ""
    members: tuple[TrainMember, ...] = ()
    label: str = ""
    annotation: str = ""
    when_member_is_absent: str = ""
    partial_timeout: str = ""


class RolloutPolicySpec(ApiStruct, frozen=True, kw_only=True):
    revisions: RevisionsSelector = RevisionsSelector()
    approval: str = ""
    priority: int = 0
    delay: str = ""
    settle: str = ""
    canaries: tuple[str, ...] = ()
    when_canary_is_absent: str = ""
    order: tuple[LabelOrder, ...] = ()
    conditions: tuple[str, ...] = ()
    evidence: TargetEvidence = TargetEvidence()
    waves: tuple[Wave, ...] = ()
    windows: tuple[TimeWindow, ...] = ()
    deny_windows: tuple[DenyWindow, ...] = ()
    budgets: Budgets = Budgets()
    train: Train | None = None
    on_new_revision: str = ""


PROGRESSING = "Progressing"
"""The condition type that says whether a rollout goes on, and what it waits for."""


class TargetCounts(ApiStruct, frozen=True, kw_only=True):
    total: int = 0
    waiting: int = 0
    in_flight: int = 0
    proven: int = 0
    failing: int = 0
    rolled_back: int = 0
    left: int = 0
    unproven: int = 0


class CanaryExcuse(ApiStruct, frozen=True, kw_only=True):
    """A canary that one attempt goes without. at: RFC 3339 in UTC, "" if that is not known, as with by."""

    attempt: int = 0
    canary: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""


class PastAttempt(ApiStruct, frozen=True, kw_only=True):
    """Times are RFC 3339 in UTC; ended_at is None while the attempt goes on."""

    attempt: int = 0
    phase: str = ""
    wave: int = 0
    reason: str = ""
    message: str = ""
    started_at: str = ""
    ended_at: str | None = None
    targets: TargetCounts | None = None
    excused: tuple[CanaryExcuse, ...] = ()
    quarantines: tuple[str, ...] = ()
    combinations: tuple[str, ...] = ()
    not_quarantined: str = ""
    skipped: tuple[str, ...] = ()


class RolloutPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Of one size for any number of targets: `history` is bounded."""

    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    phase: str = ""
    attempt: int = 0
    wave: int = 0
    stops: int = 0
    targets: TargetCounts | None = None
    runs_quarantined: int = 0
    superseded: int = 0
    newer: tuple[str, ...] = ()
    history: tuple[PastAttempt, ...] = ()


class RolloutPolicy(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PROMOTION_API
    kind: str = "RolloutPolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: RolloutPolicySpec = RolloutPolicySpec()
    status: RolloutPolicyStatus = RolloutPolicyStatus()
