"""Turns notices into writes of Kubernetes Events, few enough for any API server.

A notice that repeats another one counts in the Event of that one. Three limits hold, the first two as in
Kubernetes' own controllers: of what is remembered, of the Events of one object, and of all Events. The last
one leaves a part to warnings: when a fleet is made, its thousands of good news do not hide a failure.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import Create, KindRef, Notice, Patch

EVENT = KindRef("events.k8s.io", "Event", "v1")
ACTION = "Reconcile"
WITHOUT_NAMESPACE = "default"
"""Where the Events of objects without a namespace are, as of Kubernetes' own controllers."""

OBJECTS_MAX = 4096
"""Objects, and notices, that are remembered, as client-go does. What is forgotten begins a new Event."""

OBJECT_BURST, OBJECT_SECONDS = 25, 300.0
"""An object may have so many Events at once, and then one in so many seconds: client-go's limits."""

TOTAL_BURST, TOTAL_PER_SECOND = 200, 5.0
"""Of all objects of a process. So an API server that keeps Events for an hour has at most 18,200 of one, of
about 1 kB: with more, etcd would feel it; with fewer, a rollout to 100 variants would leave some out."""

WARNINGS_RESERVE = 100
"""So many of the total burst are for warnings alone."""

REPEAT_SECONDS = 1800.0
"""A notice repeats one that is not older. Longer than an hour, and its Event would be gone."""

NAME_CHARACTERS_MAX = 230
"""Of the object's name in that of its Event; Kubernetes allows 253 for both, and the id has 17 more."""


class Bucket:
    """Tokens that come back with time."""

    __slots__ = ("_at", "_burst", "_per_second", "_tokens")

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._tokens = float(burst)
        self._at = float("-inf")

    def take(self, now: float, *, reserve: int = 0) -> bool:
        """Take a token; return False if no more than the reserve is there."""
        gained = max(now - self._at, 0.0) * self._per_second if self._at > float("-inf") else 0.0
        self._tokens = min(self._tokens + gained, float(self._burst))
        self._at = now
        if self._tokens < 1 + reserve:
            return False
        self._tokens -= 1
        return True


class _Written(NamedTuple):
    """An Event that was written. times: how often it was written before."""

    name: str
    times: int
    at: float


class Recorder:
    """The Events of one worker process. It has no clock: `now` is monotonic, in seconds."""

    def __init__(self, instance: str) -> None:
        """instance: name of the process, at most 128 characters."""
        self._instance = instance
        self._objects: OrderedDict[str, Bucket] = OrderedDict()
        self._written: OrderedDict[tuple[str, str, str], _Written] = OrderedDict()
        self._total = Bucket(TOTAL_BURST, TOTAL_PER_SECOND)

    def admit(self, notice: Notice, now: float) -> Create | Patch | None:
        """Return the write of a notice; None if a limit is reached."""
        key = (notice.uid, notice.reason, notice.note)
        earlier = self._written.get(key)
        repeated = earlier if earlier is not None and now - earlier.at <= REPEAT_SECONDS else None
        if repeated is not None:
            repeated = _Written(repeated.name, repeated.times + 1, now)
            _remember(self._written, key, repeated)
        bucket = self._objects.get(notice.uid) or Bucket(OBJECT_BURST, 1 / OBJECT_SECONDS)
        _remember(self._objects, notice.uid, bucket)
        reserve = 0 if notice.is_warning else WARNINGS_RESERVE
        if not bucket.take(now) or not self._total.take(now, reserve=reserve):
            return None
        if repeated is not None:
            series = {"count": repeated.times, "lastObservedTime": _micro(notice.time)}
            return Patch(EVENT, notice.namespace or WITHOUT_NAMESPACE, repeated.name, {"series": series})
        return self.create(notice, now)

    def create(self, notice: Notice, now: float) -> Create:
        """Return the write of a new Event; also where the one that is repeated is gone."""
        name = f"{notice.name[:NAME_CHARACTERS_MAX].rstrip('.-')}.{notice.id[:16]}"
        _remember(self._written, (notice.uid, notice.reason, notice.note), _Written(name, 1, now))
        return Create(EVENT, self._body(notice, name))

    def _body(self, notice: Notice, name: str) -> dict[str, Any]:
        kind = notice.kind
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": notice.namespace or WITHOUT_NAMESPACE},
            "eventTime": _micro(notice.time),
            "reportingController": notice.reporter,
            "reportingInstance": self._instance,
            "action": ACTION,
            "type": "Warning" if notice.is_warning else "Normal",
            "reason": notice.reason[:128],
            "note": notice.note,
            "regarding": {
                "apiVersion": f"{kind.group}/{kind.version}",
                "kind": kind.kind,
                **({"namespace": notice.namespace} if notice.namespace else {}),
                "name": notice.name,
                "uid": notice.uid,
            },
        }


def _remember(table: "OrderedDict[Any, Any]", key: Any, value: Any) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > OBJECTS_MAX:
        table.popitem(last=False)


def _micro(time: str) -> str:
    """Return a time of an event with microseconds, as Kubernetes wants it."""
    return f"{time.removesuffix('Z')}000Z"
