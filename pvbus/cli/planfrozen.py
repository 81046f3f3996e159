"""What promotion keeps proposed as planned, for a plan: the orders of rollouts, and the quarantines.

The orders are on the bus. Where that is not read, as of a cluster, a plan shows those proposals as taken
back.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.core.kernel.keys import Key, TargetKey
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.promotion.promote.verdicts import frozen_by, outlived_by
from pvbus.core.promotion.protocol.quarantines import Content, Quarantines, set_of
from pvbus.core.promotion.protocol.selection import upstream_of
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.returning import Frozen

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

Orders = Mapping[str, Mapping[str, ApprovalRow]]
"""By NAMESPACE/NAME of a PackageVariant and policy, the order that keeps a revision proposed."""
_order = msgspec.json.Decoder(ApprovalRow)
_quarantines = list[Quarantine]


async def read_frozen(cluster: "HttpCluster", data: str | None) -> Frozen:
    """Return what tells which proposals stay. data: the folder of the bus, None if that is not known."""
    return frozen_of(await _read_orders(data) if data else {}, await _read_quarantines(cluster))


def frozen_of(orders: Orders, quarantines: Sequence[Object]) -> Frozen:
    """Return what tells which proposals stay, as promote does. Upstreams are compared by name alone."""
    lasting: dict[str, Quarantines] = {}
    for each in msgspec.convert(list(quarantines), _quarantines):
        namespace = each.metadata.namespace
        lasting.setdefault(namespace, Quarantines(namespace)).put(each.metadata.name, each)

    def frozen(variant: PackageVariant, proposal: Object) -> str:
        meta, name = variant.metadata, proposal["metadata"]["name"]
        content = Content(set_of(variant), upstream_of(variant), None)
        known = lasting.get(meta.namespace)
        if known is not None and (refused := known.refusal(content, meta.name)):
            return outlived_by(refused)
        for policy, row in orders.get(str(Key(meta.namespace, meta.name)), {}).items():
            if (row.uid, row.revision) == (meta.uid, name):
                return frozen_by(Key(meta.namespace, policy), row.attempt)
        return ""

    return frozen


def orders_of(rows: Mapping[str, bytes]) -> Orders:
    """Return the orders that keep something proposed. rows: of `pvbus.approvals`."""
    found: dict[str, dict[str, ApprovalRow]] = {}
    for text, value in rows.items():
        row, key = _order.decode(value), TargetKey.parse(text)
        if row.keeps_proposed:
            found.setdefault(key.vkey, {})[key.set_name] = row
    return found


async def _read_orders(data: str) -> Orders:
    try:
        async with open_existing_bus(data, None) as bus:
            return orders_of(await read_rows(bus, APPROVALS))
    except (PvbusError, UsageError):
        return {}  # a bus without promotion: `rollouts_after` says what is not known of a policy


async def _read_quarantines(cluster: "HttpCluster") -> list[Object]:
    try:
        resource = await cluster.resource(QUARANTINE)
        return (await cluster.list(resource)).items if resource is not None else []
    except PermanentError:  # rights on these kinds are promotion's, which may be others'
        return []
