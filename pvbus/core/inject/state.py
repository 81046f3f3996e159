"""The state of one variant key, and of one reconciliation of it."""

from typing import NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.inject.attempts import RefusedAttempt, Written
from pvbus.core.inject.ensure import ContentName
from pvbus.core.records import DesiredRow, ResultRow


class InjectState:
    """One variant key: the object, its set's decision, and the last attempt.

    waiting_since: start of the wait. trouble: (start, attempts) of transient errors. content: objects
    that only the injection points of our revisions name. Times are elapsed seconds.
    """

    __slots__ = (
        "content",
        "desired",
        "names",
        "raw",
        "refused",
        "result",
        "trouble",
        "waiting_since",
        "written",
    )

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.result: ResultRow | None = None
        self.names: tuple[ContentName, ...] = ()
        self.content: tuple[ContentName, ...] = ()
        self.written: Written | None = None
        self.refused: RefusedAttempt | None = None
        self.waiting_since: float | None = None
        self.trouble: tuple[float, int] | None = None


class Pass(NamedTuple):
    """One reconciliation of a key. now: wall clock; elapsed: monotonic clock; both in seconds."""

    partition: int
    key: str
    seen: InjectState
    variant: PackageVariant
    now: float
    elapsed: float

    @property
    def namespace(self) -> str:
        return self.variant.metadata.namespace

    @property
    def uid(self) -> str:
        return self.variant.metadata.uid

    @property
    def result(self) -> ResultRow | None:
        """The last result of this very object; a row of another uid is ignored."""
        row = self.seen.result
        return row if row is not None and row.uid == self.uid else None
