"""What the unroll controller keeps of one set between passes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.effects import Put
from pvbus.core.records import ChildRow, SetResult, WatchRequest
from pvbus.core.render.template import CompiledSet
from pvbus.core.unroll.children import Children
from pvbus.core.unroll.contexts import Context, Contexts
from pvbus.core.unroll.facts import SetFacts
from pvbus.core.unroll.removal import Removal


class DirtyDownstreams:
    """Downstreams to settle, each once: first those that no target wants, because the guard looks at
    removals before anything is added. What is left over from one pass keeps its order for the next."""

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
        """Take them out one by one, by target index and object: names do not depend on arrival."""

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
    """Contexts that are being evaluated, some at a time. basis: of what; rest: what is left to do."""

    inputs_digest: str
    contexts: Contexts
    rest: Iterator[Context]


class RefusedRows(NamedTuple):
    """Rows of a child that the bus refused: the digest of its target row, where it stands, and why."""

    digest: str
    target: int
    okey: str
    reason: str
    message: str


class SetState:
    """What this worker knows of one set.

    facts: what follows from `obj`, None until a pass needs it. is_current: the contexts are those of the
    set, the upstream and the kinds as they are now. objects: target objects that changed, by okey; each with
    the selectors that it entered (True) or left, by position. repositories: those that changed.
    backlog: the downstreams of a new generation are still being settled. deferred: new downstreams that
    wait because the change that adds them holds removals. undecided: downstreams
    that no target is known to want, while some target fails. paused: the set is on hold. asked: keys of its
    check requests on the bus with their nonces, None until that was looked up. waiting: what removals
    wait for, in words. refused: children whose rows the bus refused.
    """

    def __init__(self, skey: str) -> None:
        self.skey = skey
        self.obj: PackageVariantSet | None = None
        self.facts: SetFacts | None = None
        self.children = Children(skey)
        self.contexts: Contexts | None = None
        self.inputs_digest = ""
        self.is_current = False
        self.building: Building | None = None
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
        self.asked: dict[str, str] | None = None
        self.waiting = ""
        self.refused: dict[str, RefusedRows] = {}

    def take_set(self, obj: PackageVariantSet | None) -> None:
        """Take over the set as it is now."""
        self.obj, self.facts, self.is_current = obj, None, False

    @property
    def has_removals(self) -> bool:
        """Whether a removal is under way, or was not long ago: else nothing is held, checked or ordered."""
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

    def forget_inputs(self) -> None:
        """Let the next pass evaluate every target anew."""
        self.inputs_digest, self.is_current = "", False

    def unless_refused(self, name: str, puts: tuple[Put, ...]) -> tuple[Put, ...]:
        """Return the rows of a child, or none if the bus refused the very same ones."""
        refused = self.refused.get(name)
        if refused is None:
            return puts
        if any(isinstance(put.row, ChildRow) and put.row.digest == refused.digest for put in puts):
            return ()
        del self.refused[name]
        return puts
