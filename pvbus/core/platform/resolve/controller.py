"""Resolve: keeps the lock of packages that depend on each other.

The key of a scope decides on all of its installs. There is one such key per scope, and a decision is made
only when the rows of the last one are written, so decisions are in one order, and each sees all before it.
The keys `<scope>|<source>` observe one source each, beside each other. Nothing is written to the cluster.
"""

from collections.abc import Iterable

import msgspec

from pvbus.core.kernel.controller import ServiceController
from pvbus.core.kernel.effects import Get, KindRef, Outcome, Put, Reconciliation
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.packagekinds import DEPLOYMENT, MIRRORED
from pvbus.core.kernel.packagerows import SCOPE, ContentRow, EstablishedRow, LockRow, ScopedKey, SourceRow
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK, SOURCES, WATCHES
from pvbus.core.kernel.requests import KindRequests
from pvbus.core.platform.packaging.carvelobjects import served_by
from pvbus.core.platform.resolve.deciding import Decider
from pvbus.core.platform.resolve.observing import OBSERVE_SECONDS, observe_source
from pvbus.core.platform.resolve.plans import Settings
from pvbus.core.platform.resolve.state import NAMESPACE, ScopeState

_source = msgspec.json.Decoder(SourceRow)
_content = msgspec.json.Decoder(ContentRow)
_lock = msgspec.json.Decoder(LockRow)
_established = msgspec.json.Decoder(EstablishedRow)

CHANGES_SHOWN = 3
_DEFINITION = KindRef("apiextensions.k8s.io", "CustomResourceDefinition", "v1")


class ResolveController(ServiceController):
    """Installs in, the lock out. Where a decision fails, the lock stays as it is."""

    name = "resolve"

    def __init__(
        self,
        *,
        partitions: int,
        settings: Settings | None = None,
        observe_seconds: float = OBSERVE_SECONDS,
        namespace: str = NAMESPACE,
    ) -> None:
        """Create a controller without partitions.

        partitions: how many partitions the bus has
        observe_seconds: seconds between two looks at a source
        namespace: where the pull secrets of Crossplane's installs are
        """
        self._partitions = partitions
        self._namespace = namespace
        self._settings = settings or Settings()
        self._observe_seconds = observe_seconds
        self._states: dict[int, ScopeState] = {}
        self._deciders: dict[int, Decider] = {}
        self._requests = KindRequests(self.name, (*MIRRORED, DEPLOYMENT))  # for establish, too
        self._solved = 0

    @property
    def evaluations(self) -> int:
        """Number of components solved so far."""
        return self._solved + sum(each.solved for each in self._deciders.values())

    @property
    def decisions(self) -> int:
        """Number of decisions on a lock that is held now."""
        return sum(each.decisions for each in self._deciders.values())

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        self._states[partition] = ScopeState(self._namespace)
        self._deciders[partition] = Decider(self._settings)
        self._requests.forget(partition)

    def close(self, partition: int) -> None:
        self._states.pop(partition, None)
        closed = self._deciders.pop(partition, None)
        self._solved += closed.solved if closed else 0

    def keys(self, partition: int) -> Iterable[str]:
        state = self._states.get(partition)
        if state is None or partition != self._partition:
            return ()
        return [SCOPE, *(f"{SCOPE}|{source}" for source in state.sources)]

    @property
    def _partition(self) -> int:
        """The partition that has the rows of the scope."""
        return partition_of(SCOPE, self._partitions)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == WATCHES:
            self._requests.load(key, value)
            return ()
        state = self._states.get(partition)
        if state is None:
            return ()
        if is_marker(key):
            changed = topic == INSTALLS and state.sync.load(partition, key, value)
            state.changes.is_all |= changed
            return (SCOPE,) if changed and partition == self._partition else ()
        scoped = ScopedKey.parse(key)
        if topic == INSTALLS:
            matters, sources = state.observe(scoped.rest, value)
            if not matters:
                return ()
            return (SCOPE, *(f"{SCOPE}|{each}" for each in sorted(sources) if each in state.sources))
        if topic == ESTABLISHED:
            row = _established.decode(value) if value is not None else None
            return (SCOPE,) if state.set_established(scoped.rest, row) else ()
        if topic == LOCK:
            state.set_lock(scoped.rest, _lock.decode(value) if value is not None else None)
        else:
            return self._load_source(state, scoped, value)
        return (SCOPE,)

    @staticmethod
    def _load_source(state: ScopeState, key: ScopedKey, value: bytes | None) -> Iterable[str]:
        source, bar, digest = key.rest.rpartition("|")
        if bar:
            state.set_content(source, digest, _content.decode(value) if value is not None else None)
            return (SCOPE,)
        state.set_source(key.rest, _source.decode(value) if value is not None else None)
        return (SCOPE, str(key))

    def store(self, partition: int, put: Put) -> Iterable[str]:
        state = self._states.get(partition)
        if state is None or put.topic not in (SOURCES, LOCK):
            return ()
        key, row = ScopedKey.parse(put.key), put.row
        if put.topic == LOCK:
            assert row is None or isinstance(row, LockRow)
            state.set_lock(key.rest, row)
            return (SCOPE,)
        source, bar, digest = key.rest.rpartition("|")
        if bar:
            assert row is None or isinstance(row, ContentRow)
            state.set_content(source, digest, row)
            return (SCOPE,)
        assert row is None or isinstance(row, SourceRow)
        state.set_source(key.rest, row)
        return (SCOPE, put.key)

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        state = self._states[partition]
        scoped = ScopedKey.parse(key)
        if scoped.rest:
            return (yield from observe_source(state, scoped, now, self._observe_seconds))
        if requests := self._requests.take(partition):
            return Outcome(requests, "changed")
        if pending := next(state.pending(), ""):
            return Outcome(result="waiting", waiting=(f"the list of {pending}",))
        for okey in state.unread_schemas():
            definition = yield Get(_DEFINITION, "", ObjectKey.parse(okey).name)
            if okey in state.definitions:
                state.changes.is_carvel = True
                state.schemas[okey] = served_by([definition]).schemas if definition is not None else {}
        decider = self._deciders[partition]
        if not decider.is_due(state):
            waiting = decider.waiting[:CHANGES_SHOWN]
            return Outcome(result="waiting" if waiting else "unchanged", waiting=waiting)
        decision = decider.decide(state)
        state.demands = decision.demands
        puts = [Put(LOCK, f"{SCOPE}|{okey}", row) for okey, row in decision.rows.items()]
        puts += [Put(SOURCES, f"{SCOPE}|{source}", row) for source, row in decision.sources.items()]
        puts += [Put(SOURCES, f"{SCOPE}|{each}", None) for each in decision.contents]
        waiting = decision.waiting[:CHANGES_SHOWN]
        result = "changed" if puts else "waiting" if waiting else "unchanged"
        return Outcome(tuple(puts), result, waiting=waiting)
