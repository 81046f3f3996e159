"""What the unroll controller keeps of one set between passes."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pvbus.core.model import Downstream, PackageVariantSet
from pvbus.core.records import SetResult, WatchRequest
from pvbus.core.render import CompiledSet
from pvbus.core.unroll.children import Children
from pvbus.core.unroll.contexts import Context, Contexts


class Touched:
    """Downstreams to settle, each once. What is left over from one pass keeps its order for the next."""

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

        def place(downstream: Downstream) -> tuple[int, str, str, str]:
            wanting = contexts.by_downstream.get(downstream)
            number, position = min(wanting) if wanting else (1 << 30, "")
            return number, position, downstream.repo, downstream.package

        if self._last_first is None:
            self._last_first = sorted(self._waiting, key=place, reverse=True)
        while self._last_first:
            downstream = self._last_first.pop()
            self._waiting.discard(downstream)
            yield downstream


class Building(NamedTuple):
    """Contexts that are being evaluated, some at a time. basis: of what; rest: what is left to do."""

    basis: str
    contexts: Contexts
    rest: Iterator[Context]


class SetState:
    """What this worker knows of one set."""

    def __init__(self, skey: str) -> None:
        self.skey = skey
        self.obj: PackageVariantSet | None = None
        self.children = Children(skey)
        self.contexts: Contexts | None = None
        self.basis = ""
        self.building: Building | None = None
        self.compiled: CompiledSet | None = None
        self.compiled_for = ""
        self.touched = Touched()
        self.objects: dict[str, None] = {}
        self.repositories: dict[str, None] = {}
        self.seen: set[str] = set()
        self.rollup: SetResult | None = None
        self.reported_at = 0.0
        self.requested: dict[str, WatchRequest] = {}
        self.passed = False
