"""What the bus has of the rollout of one policy."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.core.errors import PvbusError, UsageError
from pvbus.core.kernel.keys import ChildKey, Key, is_child
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.records import CANDIDATES, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.topics import partition_key
from pvbus.ports.bus import Bus

_rollout = msgspec.json.Decoder(Rollout)
_target = msgspec.json.Decoder(Target)
_candidate = msgspec.json.Decoder(CandidateRow)


class Rows(NamedTuple):
    """What the bus has of one policy.

    rollout: its rollout, without one that of a policy that had no attempt
    targets: its targets, by the names of the variants
    candidates: its candidates, by the names of the variants
    """

    rollout: Rollout
    targets: Mapping[str, Target]
    candidates: Mapping[str, CandidateRow]


async def rows_of(data: str | None, kubeconfig: str | None, bus_url: str | None, key: Key) -> Rows | str:
    """Return the rows of a policy, or in words why they are not known."""
    if not bus_url and (kubeconfig or not data):
        return "the targets are on the bus: name it with --bus"
    try:
        async with open_existing_bus(data or "", bus_url) as bus:
            return await read_rollout(bus, key)
    except (PvbusError, UsageError) as exc:
        return f"the targets are not known, as the bus cannot be read: {exc}"


async def read_rollout(bus: Bus, key: Key) -> Rows:
    rollout, targets, candidates = Rollout(), {}, {}
    for name, value in (await read_rows(bus, ROLLOUTS, key=str(key))).items():
        if partition_key(ROLLOUTS, name) != str(key):
            continue
        if is_child(name):
            targets[ChildKey.parse(name).variant] = _target.decode(value)
        else:
            rollout = _rollout.decode(value)
    for name, value in (await read_rows(bus, CANDIDATES, key=str(key))).items():
        if partition_key(CANDIDATES, name) == str(key):
            candidates[ChildKey.parse(name).variant] = _candidate.decode(value)
    return Rows(rollout, targets, candidates)
