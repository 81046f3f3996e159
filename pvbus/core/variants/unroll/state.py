"""The state of one set that the unroll controller keeps between passes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.records import ChildRow, SetResult, WatchRequest
from pvbus.core.variants.template import CompiledSet
from pvbus.core.variants.unroll.children import Children
from pvbus.core.variants.unroll.contexts import Context, Contexts
from pvbus.core.variants.unroll.facts import SetFacts
from pvbus.core.variants.unroll.opinion import Pending
from pvbus.core.variants.unroll.removal import Removal
from pvbus.core.variants.unroll.signedplans import PlanStanding


class DirtyDownstreams:
    """Downstreams to settle, each once: first those that no target wants, because the guard must see
    removals before additions. The rest of one pass keeps its order for the next."""

    def __init__(self) -> None:
        self._waiting: set[Downstream] = set()
        self._last_first: list[Downstream] | None = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, downstreams: Iterable[Downstream]) -> None:
        for downstream in downstreams:
            self._waiting.add(downstream)
            self._last_first = None

    def take(self, contexts: Contexts) -> Iterator[Downstream]:
        """Remove and yield them by target index and object: names must not depend on the order of arrival."""

        def rank(downstream: Downstream) -> tuple[int, str, str, str]:
            wanting = contexts.by_downstream.get(downstream)
            number, position = min(wanting) if wanting else (-1, "")
            return number, position, downstream.repo, downstream.package

        if self._last_first is None:
            self._last_first = sorted(self._waiting, key=rank, reverse=True)
        while self._last_first:
            downstream = self._last_first.pop()
            self._waiting.discard(downstream)
            yield downstream


class Building(NamedTuple):
    """Contexts that are being evaluated over several passes.

    inputs_digest: one digest of their inputs
    rest: the contexts that are still to be evaluated
    """

    inputs_digest: str
    contexts: Contexts
    rest: Iterator[Context]


class Compiling(NamedTuple):
    """Expressions of a spec that are being compiled over several passes. rest: the costs of the next ones."""

    spec_digest: str
    rest: Iterator[int]


class RefusedRows(NamedTuple):
    """Rows of a child that the bus refused: the digest of its target row, its target and object, and why."""

    digest: str
    target: int
    okey: str
    reason: str
    message: str


class Consultation(NamedTuple):
    """The question for a second opinion on one generation of a set."""

    uid: str
    generation: int
    pending: Pending


class SetState:
    """The state of one set in this worker.

    facts: the facts of `obj`, None until a pass needs them
    unreadable: why the spec of `obj` cannot be read, "" if it can
    is_current: whether the contexts match the current set, upstream and kinds
    objects: okey of a changed target object -> position of a selector -> whether it entered or left it
    repositories: names of the changed Repositories
    backlog: whether the downstreams of a new generation are still being settled
    deferred: new downstreams that wait because the removals of the same change are held
    undecided: downstreams that no known target wants, while some target fails
    paused: whether the set is on hold
    plan: whether it needs a signed plan, as the last evaluation found it
    asked: key of a check request on the bus -> its nonce; None until they are looked up
    waiting: what removals wait for, in words
    refused: name of a child -> the rows of it that the bus refused
    consultation: the last question for a second opinion
    """

    def __init__(self, skey: str) -> None:
        self.skey = skey
        self.obj: PackageVariantSet | None = None
        self.facts: SetFacts | None = None
        self.unreadable = ""
        self.children = Children(skey)
        self.contexts: Contexts | None = None
        self.inputs_digest = ""
        self.is_current = False
        self.building: Building | None = None
        self.compiling: Compiling | None = None
        self.compiled: CompiledSet | None = None
        self.compiled_for = ""
        self.touched = DirtyDownstreams()
        self.objects: dict[str, dict[int, bool]] = {}
        self.repositories: dict[str, None] = {}
        self.seen: set[str] = set()
        self.rollup: SetResult | None = None
        self.reported_at = float("-inf")
        self.requested: Mapping[str, WatchRequest] = {}
        self.passed = False
        self.removal = Removal(self.children)
        self.backlog = False
        self.deferred: set[Downstream] = set()
        self.undecided: set[Downstream] = set()
        self.paused = False
        self.plan = PlanStanding()
        self.asked: dict[str, str] | None = None
        self.waiting = ""
        self.refused: dict[str, RefusedRows] = {}
        self.consultation: Consultation | None = None

    def take_set(self, obj: PackageVariantSet | None, unreadable: str = "") -> None:
        """Store a new version of the set, None if it is deleted. unreadable: see `decode_set`."""
        self.obj, self.facts, self.is_current, self.unreadable = obj, None, False, unreadable

    @property
    def has_removals(self) -> bool:
        """Whether a removal is in progress or recent; if not, nothing is to be held, checked or ordered."""
        children, removal, rollup = self.children, self.removal, self.rollup
        return bool(
            children.leaving
            or children.returned
            or removal.check is not None
            or removal.cleared
            or self.asked != {}
            or self.waiting
            or (rollup is not None and rollup.hold is not None)
        )

    @property
    def is_evaluated(self) -> bool:
        """Whether no target needs an evaluation, as far as is known before the inputs are looked at."""
        contexts = self.contexts
        is_due = self.objects or self.repositories or contexts is None or contexts.changed
        return self.is_current and not is_due

    def forget_inputs(self) -> None:
        """Make the next pass evaluate every target."""
        self.inputs_digest, self.is_current = "", False

    def unless_refused(self, name: str, puts: tuple[Put, ...]) -> tuple[Put, ...]:
        """Return the rows of a child, or none if the bus refused the same rows before."""
        refused = self.refused.get(name)
        if refused is None:
            return puts
        if any(isinstance(put.row, ChildRow) and put.row.digest == refused.digest for put in puts):
            return ()
        del self.refused[name]
        return puts
