"""Release: carries out the orders of promote and of rollouts, and writes the lifecycle of PackageRevisions.

It decides nothing. `lifecycles` has promote's orders, `approvals` and `restoring` those of rollouts. Each is
carried out at most once, whatever is repeated, and whenever a process ends. Their outcomes are one row per
variant; the last outcome of each policy stays, as its rollout reports why a target failed.

It also keeps a fleet-wide stop. Each partition confirms a stop on its object, for the generation that it
follows: once no order of the partition is under way that began before the stop was seen. So nothing that it
began is written after that, except by a process that has lost its lease, which has at most one write on its
way.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.stops import RolloutStop
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.effects import Effect, KindRef, Outcome, Patch, Put, Reconciliation
from pvbus.core.kernel.keys import Key, TargetKey, reconciled_partition
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, Carried, PromotionRow, ReleaseRow, Verdict
from pvbus.core.kernel.records import APPROVALS, DESIRED, POLICIES, PROMOTIONS, RELEASES, VARIANTS, DesiredRow
from pvbus.core.promotion.protocol.quarantines import QuarantineView
from pvbus.core.promotion.protocol.stops import StopView, concerns_stops
from pvbus.core.promotion.protocol.unowned import address_of, is_unowned
from pvbus.core.promotion.release import approvals, lifecycles
from pvbus.core.promotion.release.orders import GONE, HELD, Guards, Order
from pvbus.core.variants.revisions.holding import Holder, holder_of, unheld, until_held


class ReleaseState:
    """What release knows of one variant.

    raw: the PackageVariant, as encoded on the bus
    desired: the row of its set, for the hold
    promotion: promote's orders
    orders: name of a RolloutPolicy -> the order of its rollout
    row: the last outcomes
    """

    __slots__ = ("desired", "orders", "promotion", "raw", "row")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.desired: DesiredRow | None = None
        self.promotion: PromotionRow | None = None
        self.orders: dict[str, ApprovalRow] = {}
        self.row: ReleaseRow | None = None

    def take(self, row: PromotionRow | None) -> bool:
        """Take the orders of a row; return whether it says anything new to release: the candidates are the
        rollouts' concern."""
        before = self.promotion
        self.promotion = replace(row, candidates={}, contents={}) if row is not None else None
        return self.promotion is None or self.promotion != before

    @property
    def is_empty(self) -> bool:
        return self.raw is None and self.desired is None and not self.is_asked

    @property
    def is_asked(self) -> bool:
        """Whether there is an order, or an outcome of one."""
        return self.promotion is not None or self.row is not None or bool(self.orders)

    @property
    def has_orders(self) -> bool:
        verdicts = self.promotion.verdicts if self.promotion is not None else ()
        return bool(self.orders) or any(verdict.order for verdict in verdicts)

    @property
    def is_over(self) -> bool:
        """Whether no outcome is of interest any more. Those of rollouts are while the variant is there."""
        if self.promotion is not None or self.orders:
            return False
        return self.raw is None or self.row is None or not self.row.approvals


STOP = KindRef(PROMOTION_GROUP, "RolloutStop", "v1alpha1")
UNDER_WAY_SECONDS = 0.2
"""Between two looks whether orders that began before a stop are over."""


def confirming_key(partition: int, partitions: int) -> str:
    """Return the key under which a partition confirms stops. It has no namespace, so no variant has it."""
    keys = (f"stop-{number}" for number in count())
    return next(key for key in keys if reconciled_partition(key, partitions) == partition)


class StopGate:
    """What release knows of stops, and which orders began before it did."""

    def __init__(self, partitions: int) -> None:
        self.view = StopView(partitions)
        self._count = partitions
        self._keys = [confirming_key(number, partitions) for number in range(partitions)]
        self._seen = 0
        self._begun: Counter[tuple[int, int]] = Counter()

    def load(self, partition: int, key: str, value: bytes | None) -> tuple[list[str], bool]:
        """Apply a record; return the keys that confirm it, and whether orders are held otherwise."""
        is_news = self.view.load(partition, key, value)
        self._seen += is_news
        return list(self._keys), is_news

    def key(self, partition: int) -> str:
        return self._keys[partition]

    @contextmanager
    def carrying(self, partition: int) -> Iterator[None]:
        """Count an order while it is carried out."""
        begun = (partition, self._seen)
        self._begun[begun] += 1
        try:
            yield
        finally:
            self._begun[begun] -= 1
            if not self._begun[begun]:
                del self._begun[begun]

    def confirm(self, partition: int) -> Generator[Effect, Any, Outcome]:
        """Confirm what is not confirmed yet."""
        unconfirmed = list(self._unconfirmed(partition))
        if not unconfirmed:
            return Outcome()
        if any(at == partition and seen < self._seen for at, seen in self._begun):
            return Outcome(
                result="waiting", again_after=UNDER_WAY_SECONDS, waiting=("orders that are under way",)
            )
        for stop in unconfirmed:
            meta = stop.metadata
            status = {"partitions": self._count, "confirmed": {str(partition): meta.generation}}
            try:
                yield Patch(STOP, meta.namespace, meta.name, {"status": status}, subresource="status")
            except PermanentError as error:
                if error.reason != "NotFound":  # deleted meanwhile
                    raise
        return Outcome(result="changed")

    def _unconfirmed(self, partition: int) -> Iterable[RolloutStop]:
        return (
            stop
            for stop in self.view.stops()
            if stop.status.confirmed.get(str(partition)) != stop.metadata.generation
            or stop.status.partitions != self._count
        )


REFUSED_RETRY_SECONDS = 60.0  # a write that the API server refuses may be allowed later (RBAC, webhooks)
LOOK_AGAIN_SECONDS = 10.0
"""At an order on another state: its sender sees the new state and changes its order. If the state is the old
one again before that, the order stands, and no record comes."""
OUTCOMES_MAX = 10
"""Of rollouts, in a row. A policy that is gone leaves its last one; more would only make the row longer."""
NOTES = ("stranded", "freeze")
"""Rows of rollouts that are no orders to release."""
CHANGED = "promote to decide on the PackageVariant as it is now"

_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)
_promotion = msgspec.json.Decoder(PromotionRow)
_approval = msgspec.json.Decoder(ApprovalRow)
_release = msgspec.json.Decoder(ReleaseRow)


class _Part(NamedTuple):
    """The outcomes of one sender's orders, and what keeps the others waiting."""

    done: tuple[Any, ...] = ()
    waiting: tuple[str, ...] = ()
    result: str = ""
    again_after: float | None = None


class ReleaseController(KeyedController[ReleaseState]):
    """Orders in, lifecycles out.

    A row is short: an outcome per order, with a message that is cut. Where a decision fails, the order stays
    on the bus as one that nobody has carried out.
    """

    name = "release"
    evaluations = 0

    def __init__(self, *, partitions: int) -> None:
        """Create a controller without partitions. partitions: how many partitions the bus has."""
        super().__init__(lambda _: ReleaseState())
        self._quarantines = QuarantineView(partitions)
        self._gate = StopGate(partitions)

    # ------------------------------------------------------------ records in

    @staticmethod
    def has_work(state: ReleaseState) -> bool:
        return state.is_asked

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == POLICIES and concerns_stops(key):
            confirming, is_news = self._gate.load(partition, key, value)
            return [*confirming, *(self._keys_with_orders(None) if is_news else ())]
        if topic == POLICIES:
            changed = self._quarantines.load(partition, key, value)
            return self._keys_with_orders(changed)
        table = self._tables.get(partition)
        if table is None or is_marker(key):
            return ()
        policy = ""
        if topic == APPROVALS:
            key, policy = TargetKey.parse(key)
        seen = self._ensure_state(partition, key)
        if topic == VARIANTS:
            seen.raw = value
        elif topic == DESIRED:
            seen.desired = _desired.decode(value) if value is not None else None
        elif topic == PROMOTIONS:
            if not seen.take(_promotion.decode(value) if value is not None else None):
                return ()
        elif topic == APPROVALS:
            seen.orders.pop(policy, None)
            row = _approval.decode(value) if value is not None else None
            if row is not None and row.order not in NOTES:
                seen.orders[policy] = row
        else:
            seen.row = _release.decode(value) if value is not None else None
        if seen.is_empty:
            del table[key]
            return ()
        return (key,) if seen.is_asked else ()

    def keys(self, partition: int) -> Iterable[str]:
        return [*super().keys(partition), self._gate.key(partition)]

    def _keys_with_orders(self, namespaces: Iterable[str] | None) -> list[str]:
        """Return the keys of these namespaces with an order of a rollout, None for all namespaces."""
        known = None if namespaces is None else set(namespaces)
        return [
            key
            for table in self._tables.values()
            for key, seen in table.items()
            if seen.orders and (known is None or address_of(key).namespace in known)
        ]

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == RELEASES and partition in self._tables:
            seen = self._ensure_state(partition, put.key)
            seen.row = put.row if isinstance(put.row, ReleaseRow) else None
        return ()

    # ------------------------------------------------------------ carrying out

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        if key == self._gate.key(partition):
            return (yield from self._gate.confirm(partition))
        seen = self.state(partition, key)
        if seen is None:
            return Outcome()
        if seen.is_over:
            return Outcome((Put(RELEASES, key, None),), "changed") if seen.row is not None else Outcome()
        if not seen.has_orders:
            return Outcome()
        with self._gate.carrying(partition):
            steps = _carry_out(key, seen, Guards(self._quarantines, self._gate.view))
            return (yield from until_held(steps, lambda: _holder(seen)))


def _carry_out(address: str, seen: ReleaseState, guards: Guards) -> Reconciliation:
    if is_unowned(address):
        return (yield from _carry_out_unowned(address, seen))
    key = Key.parse(address)
    if seen.raw is None:
        return Outcome(result="waiting", waiting=(GONE,))
    variant = _variant.decode(seen.raw)
    row = ReleaseRow(uid=variant.metadata.uid)
    if seen.row is not None and seen.row.uid == row.uid:
        row = seen.row
    proposals = yield from _proposals(key, seen, variant)
    ended = yield from _approvals(seen, variant, row.approvals, guards)
    row = msgspec.structs.replace(row, carried=proposals.done or row.carried, approvals=ended.done)
    wanted = row if row.carried or row.approvals else None
    puts = () if wanted == seen.row else (Put(RELEASES, str(key), wanted),)
    waiting = (*proposals.waiting, *ended.waiting)
    again = min((one.again_after for one in (proposals, ended) if one.again_after), default=None)
    result = proposals.result or ("waiting" if waiting else "changed" if puts else "unchanged")
    return Outcome(puts, result, again_after=again, waiting=waiting)


def _carry_out_unowned(key: str, seen: ReleaseState) -> Reconciliation:
    """Carry out promote's order on a revision that no variant owns. One that has an owner by now is not what
    the order was made on."""
    promotion = seen.promotion
    if promotion is None:
        return Outcome()
    orders = [verdict for verdict in promotion.verdicts if verdict.order]
    part = yield from _carry_orders(address_of(key).namespace, orders)
    row = ReleaseRow(uid=promotion.uid, carried=part.done) if part.done else seen.row
    puts = () if row == seen.row else (Put(RELEASES, key, row),)
    result = part.result or ("waiting" if part.waiting else "changed" if puts else "unchanged")
    return Outcome(puts, result, again_after=part.again_after, waiting=part.waiting)


def _holder(seen: ReleaseState) -> Holder | None:
    return holder_of(_variant.decode(seen.raw), seen.desired) if seen.raw is not None else None


def _proposals(key: Key, seen: ReleaseState, variant: PackageVariant) -> Generator[Effect, Any, _Part]:
    """Carry out promote's orders."""
    promotion, meta = seen.promotion, variant.metadata
    orders = [verdict for verdict in promotion.verdicts if verdict.order] if promotion is not None else []
    if promotion is None or not orders:
        return _Part()
    if (meta.uid, meta.generation) != (promotion.uid, promotion.generation) or meta.deletion_timestamp:
        return _Part(waiting=(CHANGED,))
    if holder := _holder(seen):
        return _Part(waiting=(unheld(holder),))
    return (yield from _carry_orders(key.namespace, orders))


def _carry_orders(namespace: str, orders: Sequence[Verdict]) -> Generator[Effect, Any, _Part]:
    done: list[Carried] = []
    for verdict in orders:
        carried = yield from lifecycles.carry_out(namespace, verdict)
        done += [carried] if carried is not None else []
    if any(one.outcome == "refused" for one in done):
        return _Part(tuple(done), (), "failed", REFUSED_RETRY_SECONDS)
    if len(done) < len(orders):
        waiting = ("promote to decide on the revision as it is now",)
        return _Part(tuple(done), waiting, "", LOOK_AGAIN_SECONDS)
    return _Part(tuple(done))


def _approvals(
    seen: ReleaseState, variant: PackageVariant, before: tuple[Approval, ...], guards: Guards
) -> Generator[Effect, Any, _Part]:
    """Carry out the orders of rollouts. The outcome of a policy stays until its next order has one."""
    done: list[Approval] = []
    waiting: list[str] = []
    again = None
    holder = _holder(seen)
    for policy, row in sorted(seen.orders.items()):
        order = Order(policy, row, variant, bool(holder), partial(_stands, seen, policy, row), guards)
        former = next((each for each in before if each.policy == policy), None)
        ended = yield from approvals.carry_out(order, former)
        if isinstance(ended, str):
            waiting.append(unheld(holder) if ended == HELD else ended)
            again = again if ended in (GONE, HELD) else LOOK_AGAIN_SECONDS
        elif not approvals.is_lasting(ended):
            again = LOOK_AGAIN_SECONDS
        outcome = former if isinstance(ended, str) else ended
        done += [outcome] if outcome is not None else []
    done += [each for each in before if each.policy not in seen.orders]
    return _Part(tuple(done[: max(OUTCOMES_MAX, len(seen.orders))]), tuple(dict.fromkeys(waiting)), "", again)


def _stands(seen: ReleaseState, policy: str, row: ApprovalRow) -> bool:
    return seen.orders.get(policy) == row
