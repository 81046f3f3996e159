"""The state of one variant key, of one reconciliation of it, and of its last attempt."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import DesiredRow, ResultRow
from pvbus.core.variants.inject.ensure import ContentName


class Inputs(NamedTuple):
    """The inputs of an outcome at one moment.

    revisions: name and digest of each revision
    others: one digest of all other inputs
    """

    revisions: tuple[tuple[str, str], ...]
    others: str

    def digest(self, without: Iterable[str] = ()) -> str:
        """Return one digest of all inputs. without: names of revisions to leave out."""
        return digest([[r for r in self.revisions if r[0] not in without], self.others])


class Written(NamedTuple):
    """Revisions that pvbus wrote and whose echo the watch has not delivered yet.

    others: one digest of all other inputs
    versions: revision name -> its resourceVersions, in order
    until: when the wait for the echo ends, in elapsed seconds
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
    """The state of one variant: the object, its set's decision, and the last attempt.

    waiting_since: when the wait began, in elapsed seconds, None without a wait
    trouble: when transient errors began, in elapsed seconds, and how many attempts failed; None if none did
    released: the row of the variant whose revisions and finalizer were removed
    content: names of the objects that only the injection points of our revisions name
    stranded: policy -> the note of what its rollback left published
    """

    __slots__ = (
        "content",
        "desired",
        "names",
        "raw",
        "refused",
        "released",
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
        self.released: bytes | None = None
        self.waiting_since: float | None = None
        self.trouble: tuple[float, int] | None = None

    def strand(self, policy: str, row: ApprovalRow | None) -> None:
        """Apply a row of a rollout's order; only the notes of stranded revisions are of interest."""
        self.stranded.pop(policy, None)
        if row is not None and row.order == "stranded":
            self.stranded[policy] = row


class Pass(NamedTuple):
    """One reconciliation of a key.

    now: the wall clock, in seconds since the epoch
    elapsed: a clock that cannot go back, in seconds
    """

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
