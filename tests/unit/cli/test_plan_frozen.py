"""Which proposals a plan leaves as they are: read from the bus and from the API server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.planpreview import read_frozen
from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS
from tests.tools.bustables import write_tables
from tests.unit.cli.test_plan_rollouts import quarantine
from tests.unit.cli.test_rollout import revision, set_of, variant

FROZEN = "it stays as planned until attempt 3 of RolloutPolicy default/edge is over (onNewRevision: Finish)"


def order(**fields: Any) -> ApprovalRow:
    return ApprovalRow(
        **{"uid": "uid-a", "attempt": 3, "order": "freeze", "revision": "edge.a.1", "digest": "d", **fields}
    )


@pytest.mark.parametrize(
    ("row", "isolated", "words"),
    [
        (order(), False, FROZEN),
        (order(order="approve", is_frozen=True), False, FROZEN),
        (order(order="approve"), False, ""),
        (order(uid="another"), False, ""),
        (order(revision="edge.a.0"), False, ""),
        (None, True, "goes nowhere: quarantine web-1-1 covers it"),
        (None, False, ""),
    ],
)
def test_a_proposal_stays_while_a_rollout_or_a_quarantine_keeps_it(
    tmp_path: Path, row: ApprovalRow | None, isolated: bool, words: str
) -> None:
    owner, proposal = variant("a"), revision("a", number=1)
    proposal["metadata"]["name"] = "edge.a.1"
    owner["metadata"]["uid"] = "uid-a"
    owner["spec"]["upstream"] = set_of(2)["spec"]["upstream"]
    cluster: Any = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
    if isolated:
        cluster.put(quarantine())
    if row is not None:
        write_tables(tmp_path / "bus.db", [(APPROVALS, "default/a|edge", row)])

    async def said() -> str:
        frozen = await read_frozen(cluster, str(tmp_path))
        return frozen(msgspec.convert(owner, PackageVariant), proposal)

    why = asyncio.run(said())
    assert words in why
    assert bool(words) == bool(why)
