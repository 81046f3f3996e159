"""The interface between decisions and I/O: the effects a controller may request, and its outcome.

A reconciliation is a generator: it yields effects one at a time, is sent each one's result, and
returns an `Outcome`. It never awaits, so the same decisions run in the services, in `pvbus plan`
and in simulations. The error of a failed effect is thrown into the generator as one of
`pvbus.core.errors`; the shell handles uncaught ones by class: TransientError backs off, ConflictError
waits for the echo, PermanentError is logged and retried after a minute.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from pvbus.core.errors import PermanentError


class KindRef(NamedTuple):
    """A kind at a version; "" is the preferred one."""

    group: str
    kind: str
    version: str = ""


class Get(NamedTuple):
    """Read live. Result: the object, or None. as_user: in whose name, "" for our own."""

    kind: KindRef
    namespace: str
    name: str
    as_user: str = ""


class List(NamedTuple):
    """List live and consistently. Result: list of objects."""

    kind: KindRef
    namespace: str
    label_selector: str = ""
    field_selector: str = ""


class Create(NamedTuple):
    """POST. Result: the object as stored.

    is_dry_run: whether the API server only checks the object and stores nothing
    as_user: the user in whose name it is created, "" for pvbus itself
    """

    kind: KindRef
    object: dict[str, Any]
    is_dry_run: bool = False
    as_user: str = ""


class Update(NamedTuple):
    """PUT; the object's resourceVersion is the precondition. Result: the object as stored.

    is_dry_run, as_user: see `Create`.
    """

    kind: KindRef
    object: dict[str, Any]
    subresource: str = ""
    is_dry_run: bool = False
    as_user: str = ""


class Patch(NamedTuple):
    """JSON merge patch; uid and resourceVersion in it are preconditions. Result: the object."""

    kind: KindRef
    namespace: str
    name: str
    patch: dict[str, Any]
    subresource: str = ""


class Delete(NamedTuple):
    """DELETE. Result: False if there was nothing to delete. not_after: wall clock, seconds since the epoch;
    after that time the shell does not send it, and fails with a ConflictError."""

    kind: KindRef
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    not_after: float = float("inf")
    as_user: str = ""


class Discover(NamedTuple):
    """Ask whether a kind is namespaced. Result: a bool, None if it is not served."""

    kind: KindRef


class CatchUp(NamedTuple):
    """Read the end offsets of these topics now, and wait until all records before them are applied.

    Result: None. The tables have changed meanwhile: evaluate again.
    """

    topics: tuple[str, ...]


class Query(NamedTuple):
    """Evaluate a PromQL expression at steps from start to end. Result: a `Range`.

    start, end: seconds since 1970. Fails with a PermanentError if no Prometheus is set or it refuses the
    expression, and with a TransientError if it does not answer.
    """

    expression: str
    start: float
    end: float
    step_seconds: float


class Sample(NamedTuple):
    """A value of a series.

    time: the time of the sample, in seconds since 1970
    value: the value, which may be infinite or NaN
    """

    time: float
    value: float


class Range(NamedTuple):
    """The result of a `Query`.

    series: the samples of each series, by time
    skew_seconds: how far the clock of Prometheus is ahead of ours
    warnings: what Prometheus says of its own result, which may be incomplete then
    """

    series: tuple[tuple[Sample, ...], ...]
    skew_seconds: float = 0.0
    warnings: tuple[str, ...] = ()


class Observe(NamedTuple):
    """Ask a source what it has now. Result: an `Observation`.

    Fails with a PermanentError if the source refuses or does not exist, and with a TransientError if it does
    not answer.

    source: an image repository (`registry.example.org/team/package`), or `git+<url>//<folder>`
    tags: the tags whose digests are wanted
    secrets: keys `<namespace>/<name>` of pull secrets, to be tried in order
    """

    source: str
    tags: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


class Observation(NamedTuple):
    """The result of an `Observe`.

    tags: all tags of the source
    digests: wanted tag that is there -> its digest
    """

    tags: tuple[str, ...]
    digests: Mapping[str, str]


class Pull(NamedTuple):
    """Read the content of a package by its digest. Result: a `Content`.

    source, secrets: see `Observe`. Fails with a PermanentError if what is there has another digest or cannot
    be used; the reason is a word, the message says why.
    """

    source: str
    digest: str
    secrets: tuple[str, ...] = ()


class Content(NamedTuple):
    """The files of a package: path -> bytes. A path has no `..` and no leading slash."""

    digest: str
    files: Mapping[str, bytes]


class Certificate(NamedTuple):
    """A certificate with its private key, both in PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Certificate(***)"  # an effect may come into a log


class Certify(NamedTuple):
    """Make a key and its certificate. Result: a `Certificate`.

    names: the DNS names that it is for; the first one is its subject
    authority: whose certificate signs it; None for an authority
    is_client: whether it is shown by a client, not by a server
    """

    names: tuple[str, ...]
    authority: Certificate | None = None
    is_client: bool = False


class Execute(NamedTuple):
    """Run a program of this machine on files, in an empty folder that goes afterwards. Result: an `Executed`.

    It has limits of time and memory and, where the system can do that, no network. Fails with a
    PermanentError: PROGRAM_MISSING if PATH has no such program, else if it was killed or cannot be started.

    program: its name on PATH
    arguments: paths in them are relative to the folder
    files: path -> content, put into the folder before
    given: its standard input
    """

    program: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    given: bytes = b""

    def __repr__(self) -> str:
        return f"Execute({self.program})"  # an effect may come into a log, and files may have passwords


class Executed(NamedTuple):
    """The end of a program: its exit code and its two outputs."""

    code: int
    out: bytes
    err: bytes


Effect = (
    Get | List | Discover | Create | Update | Patch | Delete | CatchUp
    | Query | Observe | Pull | Certify | Execute
)  # fmt: skip
WRITES = (Create, Update, Patch, Delete)


class Notice(NamedTuple):
    """A Kubernetes Event of an object, which `kubectl describe` shows to people.

    id: unique for each change
    reason: one CamelCase word
    note: a sentence
    namespace: of the object, "" for one without; its Event is in `default` then
    time: RFC 3339 in UTC, with milliseconds
    reporter: the controller that reports it
    """

    id: str
    kind: KindRef
    namespace: str
    name: str
    uid: str
    reason: str
    note: str
    is_warning: bool
    time: str
    reporter: str = "pvbus.dev/conditions"


class Put(NamedTuple):
    """A row to write.

    row: the row, None for a tombstone
    headers: the attributes of a public event
    notice: what people are told once the row is written, if there is room for it
    """

    topic: str
    key: str
    row: msgspec.Struct | None
    headers: tuple[tuple[str, bytes], ...] = ()
    notice: Notice | None = None


class Outcome(NamedTuple):
    """The end of one reconciliation.

    puts: the rows to write; they become visible together with the consumed offset
    result: a word of a closed set, for logs and metrics
    again_after: seconds until the next reconciliation at the latest, None if none is due
    waiting: the events that it waits for, in words
    cause: when the work began that this outcome completes, in seconds since the epoch; 0 if it completes none
    """

    puts: tuple[Put, ...] = ()
    result: str = "unchanged"
    again_after: float | None = None
    waiting: tuple[str, ...] = ()
    cause: float = 0.0


Reconciliation = Generator[Effect, Any, Outcome]


INTERNAL_ERROR = "InternalError"
"""The reason of a condition that reports a bug of ours."""
DEFECT = "the decision fails, which is a bug in pvbus"


class Controller(Protocol):
    """One service's tables, index and decisions; the shell in `pvbus.runtime` moves the data.

    Lease i holds partition i of `inputs` (consumed) and of `memory` (written only by this
    controller: restored, then kept by `store`). `broadcast` topics are read in full. `pausable` are the
    inputs that may stay unread for a while.
    """

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def pausable(self) -> tuple[str, ...]: ...

    @property
    def memory(self) -> tuple[str, ...]: ...

    @property
    def broadcast(self) -> tuple[str, ...]: ...

    @property
    def evaluations(self) -> int:
        """Number of targets or templates evaluated so far, for metrics."""
        ...

    def open(self, partition: int) -> None:
        """Begin with empty tables for a lease."""
        ...

    def close(self, partition: int) -> None:
        """Drop a lease's tables."""
        ...

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        """Apply one record and return the keys it dirties: those of its old and its new value, and
        those that looked it up without success. Raises msgspec.DecodeError on bad bytes."""
        ...

    def keys(self, partition: int) -> Iterable[str]:
        """Return every key of the owned tables: all are dirty once after a lease."""
        ...

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        """Decide for one key of a lease that is held. now: wall clock in seconds."""
        ...

    def store(self, partition: int, put: Put) -> Iterable[str]:
        """Apply a row after its step was committed; return the keys it dirties."""
        ...

    def note_refusal(self, partition: int, puts: tuple[Put, ...], error: PermanentError) -> Iterable[str]:
        """Note that the bus refused these rows, as one is too large, for example. Return the keys that must
        report it; rows without such keys are offered again, unless they are too large."""
        ...

    def failure_rows(self, partition: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        """Return the rows that report a failed decision, a bug of ours, as a condition of the key's object;
        () if it is reported already, or cannot be. The shell retries the decision later."""
        ...
