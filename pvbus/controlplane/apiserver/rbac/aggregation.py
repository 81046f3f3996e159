"""Fills ClusterRoles with an aggregationRule with the rules of those that it selects.

Source: Kubernetes 1.36, pkg/controller/clusterroleaggregation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pvbus.controlplane.apiserver.entries import Change
from pvbus.controlplane.apiserver.garbage import Worklist
from pvbus.controlplane.apiserver.rbac.policy import CLUSTER_ROLE
from pvbus.controlplane.apiserver.registry import Registry
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.core.api.selectors import matches, requirements_of
from pvbus.core.api.variants import LabelSelector
from pvbus.ports.cluster import Object

USER = "system:serviceaccount:kube-system:clusterrole-aggregation-controller"


class Aggregator:
    """Follows every change of a ClusterRole; `work.run()` writes those whose rules change by it."""

    def __init__(self, store: Store, registry: Registry, writer: Writer) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self._gathering: set[str] = set()
        self.work = Worklist("role aggregation", self._handle)
        store.observe(self._observe)

    def begin(self) -> None:
        """Look at every role once."""
        for entry in self._store.table(CLUSTER_ROLE).in_order():
            self._note(entry.key[1], entry.share())

    async def settle(self) -> None:
        """Fill the roles now: the first requests after a start must not be refused."""
        for name in sorted(self._gathering):
            await self._handle(name)

    def _observe(self, change: Change) -> None:
        if change.kind != CLUSTER_ROLE:
            return
        name = change.entry.key[1]
        if change.type == "DELETED":
            self._gathering.discard(name)
        else:
            self._note(name, change.entry.share())
        for each in self._gathering:
            self.work.add(each)

    def _note(self, name: str, role: Object) -> None:
        if role.get("aggregationRule"):
            self._gathering.add(name)
            self.work.add(name)
        else:
            self._gathering.discard(name)

    async def _handle(self, name: str) -> bool:
        endpoint = self._registry.storage(CLUSTER_ROLE)
        entry = self._store.get(CLUSTER_ROLE, ("", name))
        if endpoint is None or entry is None or not entry.share().get("aggregationRule"):
            return True
        roles = [each.share() for each in self._store.table(CLUSTER_ROLE).in_order()]
        rules = aggregated(entry.share(), roles)
        if rules != (entry.share().get("rules") or []):
            await self._writer.update(
                endpoint, entry.key, lambda role: {**role, "rules": rules}, Options(USER, [])
            )
        return True


def aggregated(role: Object, roles: Sequence[Object]) -> list[Mapping[str, Any]]:
    """Return the rules of the roles that a role selects, each once.

    roles: all ClusterRoles, in the order of their names
    """
    found: list[Mapping[str, Any]] = []
    for rule in _selected_rules(role, roles):
        if rule not in found:
            found.append(rule)
    return found


def _selected_rules(role: Object, roles: Sequence[Object]) -> Iterator[Mapping[str, Any]]:
    for given in role["aggregationRule"].get("clusterRoleSelectors") or ():
        wanted = requirements_of(msgspec.convert(given, LabelSelector))
        for each in roles:
            is_other = each["metadata"]["name"] != role["metadata"]["name"]
            if is_other and matches(wanted, each["metadata"].get("labels") or {}):
                yield from each.get("rules") or ()
