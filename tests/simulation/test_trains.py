"""Trains through all services: two sets whose packages go as one on each site."""

import asyncio

from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.cluster import POLICY
from tests.simulation.rolling import Rolling, begin, targets

TRAIN = {"mode": "InOrder", "label": "site", "members": [{"set": "db"}, {"set": "web"}]}
PACKAGES = {"web": "target.name", "db": "'db-' + target.name"}


class Sets(Rolling):
    """Two sets over the same sites, whose variants have the site as a label."""

    def move(self) -> None:
        self.version += 1
        for name, package in PACKAGES.items():
            self.set(name, [_labelled(each, package) for each in targets(self.version)])

    def order(self) -> list[str]:
        """The packages whose approval was written, in order."""
        return [name.split(".")[1] for name, _ in self.approved]


def _labelled(target: Object, package: str) -> Object:
    template = target["template"]
    label = {"key": "site", "valueExpr": "target.name"}
    downstream = {**template["downstream"], "packageExpr": package}
    return {**target, "template": {**template, "downstream": downstream, "labelExprs": [label]}}


def test_a_train_goes_in_order_on_each_site_and_comes_back_in_reverse() -> None:
    async def main() -> None:
        world = Sets(in_flight_max=1)
        await begin(world, sites=3, train=TRAIN, budgets={"maxInFlight": 1})
        await world.converge()
        rollout, rows = world.rollout()
        assert rollout.state is RolloutState.COMPLETED
        assert world.order() == [f"{head}s{site}" for site in range(3) for head in ("db-", "")]
        assert {row.unit for row in rows.values()} == {f"s{site}/db+web" for site in range(3)}

        world.move()
        await world.converge()
        attempt = world.rollout()[0].attempt
        world.annotate(**{"promotion.pvbus.dev/roll-back": str(attempt)})
        await world.converge()
        rollout, rows = world.rollout()
        assert rollout.state is RolloutState.ROLLED_BACK
        assert {row.state for row in rows.values()} == {TargetState.UNDONE}
        restored = [
            each for each in world.revisions() if each["spec"]["workspaceName"].startswith("rollback-")
        ]
        restored.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        assert [each["spec"]["packageName"] for each in restored][:2] == ["s0", "db-s0"]
        policy = world.find(POLICY, "web")
        assert policy is not None
        assert policy["status"]["targets"] == {"total": 3, "rolledBack": 3}
        await world.close()

    run_simulated(main())


def test_a_site_that_lacks_a_member_waits_and_goes_when_it_has_it() -> None:
    async def main() -> None:
        world = Sets(in_flight_max=9)
        await begin(
            world, sites=2, train=TRAIN | {"members": [{"set": "db"}, {"set": "web"}, {"set": "api"}]}
        )
        await asyncio.sleep(60)
        assert world.order() == []
        (progress,) = (
            each
            for each in (world.find(POLICY, "web") or {})["status"]["conditions"]
            if each["type"] == "Progressing"
        )
        assert progress["reason"] == "TrainIncomplete"
        assert "waits for member api" in progress["message"]
        world.put(POLICY, "web", spec={**(world.find(POLICY, "web") or {})["spec"], "train": TRAIN})
        await world.converge()
        assert sorted(world.order()) == ["db-s0", "db-s1", "s0", "s1"]
        await world.close()

    run_simulated(main())
