"""The RolloutPolicies as promote sees them: by namespace, in the order in which they have a target."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.api.rollouts import RolloutPolicy, RolloutPolicySpec
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.markers import NOT_SERVED, SyncView, is_marker, marker_kind
from pvbus.core.kernel.objectrows import POLICY
from pvbus.core.promotion.protocol.quarantines import is_quarantine
from pvbus.core.promotion.protocol.selection import rank
from pvbus.core.promotion.protocol.validation import validate_policy

POLICY_KIND = str(POLICY)

_policy = msgspec.json.Decoder(RolloutPolicy)


class Policy(NamedTuple):
    """A policy and the problems of its spec, in words: with any it approves nothing."""

    object: RolloutPolicy
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.object.metadata.name

    @property
    def spec(self) -> RolloutPolicySpec:
        return self.object.spec


class PolicyView:
    """All RolloutPolicies of the cluster."""

    def __init__(self, partitions: int) -> None:
        self._sync = SyncView(partitions)
        self._policies: dict[str, dict[str, Policy]] = {}
        self._ranked: dict[str, tuple[Policy, ...]] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> Iterable[str] | None:
        """Apply a record of `pvbus.policies`; return the namespaces that it concerns, None for all.

        A change of the status or the metadata concerns nobody: a rollout writes it all the time.
        """
        if is_quarantine(key):
            return ()
        if is_marker(key):
            is_ours = marker_kind(key) == POLICY_KIND
            return None if is_ours and self._sync.load(partition, key, value) else ()
        name = Key.parse(key)
        table = self._policies.setdefault(name.namespace, {})
        before = table.pop(name.name, None)
        if value is not None:
            read = _policy.decode(value)
            if before is not None and _essence(before.object) == _essence(read):
                table[name.name] = before
                return ()
            table[name.name] = Policy(read, tuple(validate_policy(read.spec)))
        self._ranked[name.namespace] = tuple(sorted(table.values(), key=lambda each: rank(each.object)))
        return (name.namespace,)

    def of(self, namespace: str) -> Sequence[Policy]:
        """Return the policies of a namespace: of those that select a target, the first has it."""
        return self._ranked.get(namespace, ())

    def names_canary(self, namespace: str, variant: str) -> bool:
        """Tell whether a policy of a namespace names a variant as its canary."""
        return any(variant in each.spec.canaries for each in self.of(namespace))

    def is_known(self, namespace: str) -> bool:
        """Tell whether a missing policy of this namespace does not exist. A kind that is not installed has no
        objects."""
        marker = self._sync.marker(POLICY_KIND)
        if marker is not None and marker.state == "unavailable":
            return marker.message.startswith(NOT_SERVED)
        return self._sync.ok(POLICY_KIND, namespace)


def _essence(policy: RolloutPolicy) -> tuple[object, ...]:
    return policy.metadata.uid, policy.metadata.creation_timestamp, policy.spec
