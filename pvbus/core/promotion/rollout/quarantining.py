"""Writes what an attempt is blamed for as Quarantines, of which each is created once.

The name of a quarantine is made of policy, attempt and number, so one that a killed process has written is
found again. What is there stays as it is: its scope is that of the time when it was written, and a person may
have ended it.
"""

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from pvbus.core.api.promotion import PROMOTION_API, PROMOTION_GROUP
from pvbus.core.api.quarantines import Quarantine, QuarantineSpec
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Effect, Get, KindRef
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.rolloutrows import Isolate, Isolated

QUARANTINE = KindRef(PROMOTION_GROUP, "Quarantine", "v1alpha1")
CONTENTS_MAX = 10_000
"""Of one object: a digest takes 67 bytes of it, and etcd takes no object above 1.5 MB."""
UID_CHARACTERS = 8
POLICY_CHARACTERS_MAX = 200
"""Of a name: it has at most 253 characters. Two policies that share them differ by their uids."""


def quarantine_name(policy: RolloutPolicy, attempt: int, number: int) -> str:
    """Return the name of a quarantine. number: of those of the attempt, from 1."""
    meta = policy.metadata
    head = meta.name[:POLICY_CHARACTERS_MAX].rstrip("-.")
    return f"{head}-{attempt}-{number}-{meta.uid[:UID_CHARACTERS]}".rstrip("-")


def quarantine_names(policy: RolloutPolicy, attempt: int, isolations: int) -> tuple[str, ...]:
    """Return the names of the quarantines that an attempt has written."""
    return tuple(quarantine_name(policy, attempt, number) for number in range(1, isolations + 1))


def write_quarantine(action: Isolate, policy: RolloutPolicy) -> Generator[Effect, Any, Isolated]:
    """Create what is not there; say why where the API server refuses that."""
    name = quarantine_name(policy, action.attempt, action.number)
    is_lasting = False
    for number, spec in enumerate(parts_of(action.spec, policy)):
        body = _body(policy, f"{name}-{number}" if number else name, spec)
        meta = body["metadata"]
        try:
            live = yield Get(QUARANTINE, meta["namespace"], meta["name"])
            if live is None:
                live = yield Create(QUARANTINE, body)
        except PermanentError as error:
            return Isolated(action.attempt, action.number, refusal=part(str(error)))
        is_lasting |= msgspec.convert(live, Quarantine).spec.released is None
    return Isolated(action.attempt, action.number, is_lasting=is_lasting)


def parts_of(spec: QuarantineSpec, policy: RolloutPolicy) -> Iterator[QuarantineSpec]:
    """Yield a spec with the scope of its policy, the set that it names or every PackageVariant of the
    namespace, in as many parts as its contents need."""
    name, train = policy.spec.revisions.set, policy.spec.train
    sets: tuple[str, ...] = (name,) if name else ()
    if spec.combinations and train is not None:
        sets = tuple(member.set for member in train.members)
    whole = msgspec.structs.replace(spec, policy=policy.metadata.name, sets=sets)
    for start in range(0, max(len(spec.contents), 1), CONTENTS_MAX):
        contents = spec.contents[start : start + CONTENTS_MAX]
        rest = {} if not start else {"upstreams": (), "combinations": ()}
        yield msgspec.structs.replace(whole, contents=contents, **rest)


def _body(policy: RolloutPolicy, name: str, spec: QuarantineSpec) -> dict[str, Any]:
    return {
        "apiVersion": PROMOTION_API,
        "kind": QUARANTINE.kind,
        "metadata": {"namespace": policy.metadata.namespace, "name": name},
        "spec": msgspec.to_builtins(spec),
    }
