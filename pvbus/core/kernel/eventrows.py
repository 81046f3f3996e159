"""The public event of a changed condition, and its parts. Other programs read it, so it only grows."""

from pvbus.core.api.rollouts import TargetCounts
from pvbus.core.api.variants import Condition
from pvbus.core.kernel.codec import Row


class EventTask(Row, frozen=True, kw_only=True):
    """The question to a person behind a condition of a PackageRevision.

    question: empty for a condition without one. owner: the name of who should answer. ticket: a number
    or
    an address. due: RFC 3339 with a zone, or a date, whose end in UTC is meant. state: `open`; `proposed`:
    open, and the revision must become a draft again first; `answered`; `lapsed`: published without an answer.
    blocks: the readiness gates that are not met without it: its own, and those that come after it.
    answeredBy, answeredAt: the recorded user of the answer, and the time.
    """

    question: str = ""
    owner: str = ""
    ticket: str = ""
    due: str = ""
    state: str = ""
    blocks: tuple[str, ...] = ()
    answered_by: str = ""
    answered_at: str = ""


class EventRollout(Row, frozen=True, kw_only=True):
    """How far a rollout was when a condition of its RolloutPolicy changed.

    phase, attempt, wave: of its status; the wave from 1. waves: how many the policy has. targets: the numbers
    of the targets of the attempt: all, those that wait, are in flight, proven, failing, rolled back, and that
    left.
    """

    phase: str = ""
    attempt: int = 0
    wave: int = 0
    waves: int = 0
    targets: TargetCounts | None = None


class EventCause(Row, frozen=True, kw_only=True):
    """What an event was derived from, to follow it back to the change that led to it.

    generation, resource_version: of the event's object as it was observed; the version is opaque, and in the
    API server's audit log. upstream: name of the PackageRevision that a variant follows. commit: of a
    PackageRevision in git, whose message and author say what was done and by whom. hold: id of the hold of a
    set's removals. set: of a PackageVariant that is gone, the name of the PackageVariantSet that made it.
    """

    generation: int = 0
    resource_version: str = ""
    upstream: str = ""
    commit: str = ""
    hold: str = ""
    set: str = ""


class ConditionEvent(Row, frozen=True, kw_only=True):
    """The data of a public event: one condition of one object changed.

    Sent as CloudEvents 1.0 over Kafka, binary mode (attributes are `ce_` headers). id: the event's
    `ce_id`, made from the change and its time. previous: the status before, "" for a new condition.
    time: of the event, in UTC with milliseconds; it rises with every event of a condition. variant: the
    PackageVariant that owns a PackageRevision. The lifecycle of such a revision is its condition
    `Published`, with the lifecycle as the reason. last: whether the object no longer has the condition.
    cause: what the event was derived from; if the object is gone, at most the set of a PackageVariant. The
    message of its last events says why it went. task: the question behind the condition, if it asks a person
    and neither it nor its revision goes away. rollout: of a RolloutPolicy, how far it is.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    condition: Condition
    previous: str = ""
    id: str = ""
    time: str = ""
    variant: str = ""
    last: bool = False
    cause: EventCause = EventCause()
    task: EventTask = EventTask()
    rollout: EventRollout = EventRollout()
