"""The state of one variant key, of one reconciliation of it, and of its last attempt."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.records import ApprovalRow, DesiredRow, ResultRow
from pvbus.core.variants.inject.ensure import ContentName


class Inputs(NamedTuple):
    """The inputs of an outcome at one moment. revisions: (name, digest); others: digest of the rest."""

    revisions: tuple[tuple[str, str], ...]
    others: str

    def digest(self, without: Iterable[str] = ()) -> str:
        """Return one digest of all inputs. without: names of revisions to leave out."""
        return digest([[r for r in self.revisions if r[0] not in without], self.others])


class Written(NamedTuple):
    """Revisions we wrote, whose watch echo is awaited.

    others: digest of all other inputs. versions: the resourceVersions of each revision, in order.
    until: end of the wait, in elapsed seconds.
    """

    others: str
    versions: dict[str, tuple[str, ...]]
    until: float


class RefusedAttempt(NamedTuple):
    """An attempt that failed permanently; it is not repeated on the same inputs before `until`."""

    inputs: str
    error: str
    until: float
    reason: str = ""


class InjectState:
    """One variant key: the object, its set's decision, and the last attempt.

    waiting_since: start of the wait. trouble: (start, attempts) of transient errors. content: objects
    that only the injection points of our revisions name. stranded: what rollbacks left published, by policy.
    Times are elapsed seconds.
    """

    __slots__ = (
        "content",
        "desired",
        "names",
        "raw",
        "refused",
        "result",
        "stranded",
        "trouble",
        "waiting_since",
        "written",
    )

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.result: ResultRow | None = None
        self.stranded: dict[str, ApprovalRow] = {}
        self.names: tuple[ContentName, ...] = ()
        self.content: tuple[ContentName, ...] = ()
        self.written: Written | None = None
        self.refused: RefusedAttempt | None = None
        self.waiting_since: float | None = None
        self.trouble: tuple[float, int] | None = None

    def strand(self, policy: str, row: ApprovalRow | None) -> None:
        """Apply a row of a rollout's order; only the notes of stranded revisions are of interest."""
        self.stranded.pop(policy, None)
        if row is not None and row.order == "stranded":
            self.stranded[policy] = row


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
    def dropped(self) -> tuple[str, ...]:
        """The fields that the set wants in this very object, and the API server does not store."""
        row = self.seen.desired
        return row.dropped if row is not None and row.uid == self.uid else ()

    @property
    def result(self) -> ResultRow | None:
        """The last result of this very object; a row of another uid is ignored."""
        row = self.seen.result
        return row if row is not None and row.uid == self.uid else None
