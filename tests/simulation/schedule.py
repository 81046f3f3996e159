"""Schedules from one seed: what users do, what machines do, and what must be true in the end.

`live_through(seed)` plays one: an inventory in two namespaces, a storm of `ACTIONS` deeds while everything
fails now and then, then calm, confirmations, a hold with nothing but withdrawals under it, and a restart
that must be silent. It returns what happened, by name. Everything random comes from the seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pvbus.core.kernel.keys import CONFIRM_DELETION, HOLD, Key
from pvbus.core.variants.unroll.controller import TURN_TARGETS
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.outcome import (
    check_conditions,
    check_generations,
    check_restart,
    check_variants,
    check_watched,
)
from tests.simulation.world import (
    CONFIG_MAP,
    REPOSITORY,
    RESOURCES,
    REVISION,
    SET,
    SITE,
    VARIANT,
    Options,
    SimulatedWorld,
)

ACTIONS = 25
STORM_SECONDS = 150.0
SITES = [f"s{i}" for i in range(6)]
REPOSITORIES = ["r1", "r2", "r3"]
NAMESPACES = ["default", "default", "default", "other"]
RECORD_BYTES = 20_000
NOTE = "'note' in target.annotations ? target.annotations['note'] : 'none'"
TEMPLATES: list[Any] = [
    None,
    {"downstream": {"repo": "r1", "packageExpr": "'p-' + target.name"}},
    {"downstream": {"repoExpr": "target.labels['to']", "packageExpr": "'q-' + target.name"}},
    {
        "downstream": {"repo": "r2", "packageExpr": "target.name"},
        "labelExprs": [{"key": "env", "valueExpr": "target.labels['env']"}],
        "packageContext": {"dataExprs": [{"key": "fleet", "valueExpr": "repository.labels['fleet']"}]},
    },
    {
        "downstream": {"repo": "r3", "packageExpr": "'i-' + target.name"},
        "injectors": [{"group": "", "version": "v1", "kind": "ConfigMap", "nameExpr": "target.name"}],
    },
    {
        "downstream": {"repo": "r3", "packageExpr": "'n-' + target.name"},
        "packageContext": {"dataExprs": [{"key": "note", "valueExpr": NOTE}]},
    },
]
COLLIDING: dict[str, Any] = {
    "alpha": {"downstream": {"repo": "r1", "packageExpr": "'r2-' + target.name"}},
    "alpha-r1": {"downstream": {"repo": "r2", "packageExpr": "target.name"}},
}
"""Templates with which the sets of these names make variants of the same names."""


class Player:
    """Changes a world step by step, as its seed says."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.rng = world.random
        self.counts = world.watcher.counts
        self.names = ["alpha", "beta", "alpha-r1"]
        self.scenarios: tuple[tuple[float, Callable[[str], Any]], ...] = (
            (2, self._set),
            (0.5, self._delete_set),
            (5, self._relabel),
            (1, self._delete_site),
            (2, self._config_map),
            (1, self._delete_config_map),
            (1, self._repository),
            (0.3, self._delete_repository),
            (1, self._edit_variant),
            (1, self._delete_variant),
            (0.5, self._serve_or_not),
            (0.5, self._revision),
            (2, self._hold_set),
            (1, self._hold_variant),
            (2, self._confirm),
            (2, self._publish),
            (1, self._edit_draft),
            (1, self._approve_deletion),
            (1, self._annotate),
            (1, self._relabel_all),
            (1, self._copy),
        )

    async def act(self) -> None:
        """Do one action of a user."""
        weights = [weight for weight, _ in self.scenarios]
        (scenario,) = self.rng.choices([scenario for _, scenario in self.scenarios], weights)
        done = scenario(self.rng.choice(NAMESPACES))
        if done is not None:
            await done

    # ------------------------------------------------------------ what is wanted

    def targets(self, name: str) -> list[Any]:
        chosen_targets: list[Any] = []
        for _ in range(self.rng.randint(1, 2)):
            labels = {"env": self.rng.choice(["prod", "test"])}
            templates = TEMPLATES[1:]
            if name in COLLIDING and self.rng.random() < 0.5:
                templates = [COLLIDING[name]]
            match self.rng.randint(0, 5):
                case 0:
                    chosen = self.rng.sample(REPOSITORIES, 2)
                    chosen_targets.append({"repositories": [{"name": repository} for repository in chosen]})
                case 1:
                    fleet = {"fleet": self.rng.choice("ab")}
                    chosen_targets.append({"repositorySelector": {"matchLabels": fleet}})
                case 2:
                    selector = {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": labels}
                    chosen_targets.append(
                        {"objectSelector": selector, "template": self.rng.choice(templates)}
                    )
                case _:
                    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": labels}
                    chosen_targets.append(
                        {"objectSelector": selector, "template": self.rng.choice(templates)}
                    )
        return chosen_targets

    def labels(self) -> dict[str, str]:
        env = self.rng.choice(["prod", "prod", "test"])
        return {"env": env, "to": self.rng.choice(REPOSITORIES)}

    def begin(self) -> None:
        """Make the first inventory."""
        world = self.world
        world.serve_sites()
        for namespace in dict.fromkeys(NAMESPACES):
            for number in (1, 2):
                world.upstream(number, namespace=namespace)
            for name in REPOSITORIES:
                fleet = {"fleet": self.rng.choice("ab")}
                world.put(REPOSITORY, name, namespace=namespace, spec={}, metadata={"labels": fleet})
            for name in SITES if namespace == "default" else SITES[:2]:
                world.put(SITE, name, namespace=namespace, metadata={"labels": self.labels()})
            world.set("alpha", self.targets("alpha"), namespace=namespace)

    # ------------------------------------------------------------ deeds

    def _set(self, namespace: str) -> None:
        name = self.rng.choice(self.names)
        current = self.world.find(SET, name, namespace)
        targets = self.targets(name)
        if current is not None and self.rng.random() < 0.3 and len(current["spec"]["targets"]) > 1:
            targets = current["spec"]["targets"][:1]  # an entry is dropped
            self.counts["entries of targets dropped"] += 1
        revision = self.rng.choice([1, 1, 1, 2])
        self.world.set(name, targets, revision=revision, namespace=namespace)

    def _delete_set(self, namespace: str) -> Any:
        return self.world.delete(SET, self.rng.choice(self.names), namespace)

    def _relabel(self, namespace: str) -> None:
        if self.world.cluster.serves(SITE):
            site = self.rng.choice(SITES)
            self.world.put(SITE, site, namespace=namespace, metadata={"labels": self.labels()})

    def _relabel_all(self, namespace: str) -> None:
        """Mistype one label on the whole inventory, or correct it."""
        if self.world.cluster.serves(SITE):
            env = self.rng.choice(["prod", "prodd"])
            for site in SITES:
                if (obj := self.world.find(SITE, site, namespace)) is not None:
                    labels = {**obj["metadata"].get("labels", {}), "env": env}
                    self.world.put(SITE, site, namespace=namespace, metadata={"labels": labels})
            self.counts["inventories relabelled"] += 1

    def _delete_site(self, namespace: str) -> Any:
        return self.world.delete(SITE, self.rng.choice(SITES), namespace)

    def _config_map(self, namespace: str) -> None:
        data = {"region": self.rng.choice(["eu", "us"])}
        name = self.rng.choice(SITES)
        self.world.put(CONFIG_MAP, name, namespace=namespace, metadata={"labels": self.labels()}, data=data)

    def _delete_config_map(self, namespace: str) -> Any:
        return self.world.delete(CONFIG_MAP, self.rng.choice(SITES), namespace)

    def _repository(self, namespace: str) -> None:
        fleet = {"fleet": self.rng.choice("ab")}
        name = self.rng.choice(REPOSITORIES)
        self.world.put(REPOSITORY, name, namespace=namespace, spec={}, metadata={"labels": fleet})

    def _delete_repository(self, namespace: str) -> Any:
        return self.world.delete(REPOSITORY, self.rng.choice(REPOSITORIES), namespace)

    def _picked(self, namespace: str) -> Object | None:
        found = [o for o in self.world.objects(VARIANT) if o["metadata"]["namespace"] == namespace]
        return self.rng.choice(found) if found else None

    def _edit_variant(self, namespace: str) -> None:
        """Edit a variant that a set made."""
        if (picked := self._picked(namespace)) is not None:
            spec = {**picked["spec"], "labels": {"by": "hand"}}
            self.world.put(VARIANT, picked["metadata"]["name"], namespace=namespace, spec=spec)

    def _delete_variant(self, namespace: str) -> Any:
        picked = self._picked(namespace)
        name = picked["metadata"]["name"] if picked is not None else ""
        return self.world.delete(VARIANT, name, namespace)

    def _serve_or_not(self, namespace: str) -> None:
        if self.world.cluster.serves(SITE):
            self.world.unserve(SITE)
        else:
            self.bring_sites()
        self.counts["kinds unserved or served"] += 1

    def bring_sites(self) -> None:
        self.world.serve_sites()
        for site in SITES:
            self.world.put(SITE, site, metadata={"labels": self.labels()})

    def _revision(self, namespace: str) -> Any:
        number = self.rng.choice([1, 2])
        if self.world.find(REVISION, f"up.base.v{number}", namespace) is None:
            self.world.upstream(number, namespace=namespace)
            return None
        return self.world.delete(REVISION, f"up.base.v{number}", namespace)

    def _annotated(self, kind: Any, obj: Object, annotations: dict[str, str]) -> None:
        meta = obj["metadata"]
        merged = {**(meta.get("annotations") or {}), **annotations}
        self.world.put(kind, meta["name"], namespace=meta["namespace"], metadata={"annotations": merged})

    def _hold_set(self, namespace: str) -> None:
        if (obj := self.world.find(SET, self.rng.choice(self.names), namespace)) is not None:
            self._annotated(SET, obj, {HOLD: self.rng.choice(["true", "true", "false"])})

    def _hold_variant(self, namespace: str) -> None:
        if (picked := self._picked(namespace)) is not None:
            self._annotated(VARIANT, picked, {HOLD: self.rng.choice(["true", "false"])})

    def _confirm(self, namespace: str) -> None:
        """Confirm held removals, with the published token or another one."""
        held = sorted({k.partition("|")[0] for k, r in self.world.watcher.rows.items() if r.state == "held"})
        if held and self.rng.random() < 0.7:
            skey = self.rng.choice(held)
            self.world.confirm(skey, self.world.tokens(skey)[0])
        elif (obj := self.world.find(SET, self.rng.choice(self.names), namespace)) is not None:
            old = (obj["metadata"].get("annotations") or {}).get(CONFIRM_DELETION)  # a stale one
            skey = str(Key(namespace, obj["metadata"]["name"]))
            if not held:
                self.world.confirm(skey, [old or "deadbeef"])

    def _drafts(self, namespace: str, lifecycle: str) -> list[Object]:
        return [
            obj
            for obj in self.world.objects(REVISION)
            if obj["metadata"]["namespace"] == namespace
            and obj["spec"].get("lifecycle") == lifecycle
            and obj["spec"]["repository"] != "up"
        ]

    def _publish(self, namespace: str) -> None:
        """Approve a draft."""
        if drafts := self._drafts(namespace, "Draft"):
            draft = self.rng.choice(drafts)
            package = (draft["spec"]["repository"], draft["spec"]["packageName"])
            others = [
                o["spec"].get("revision", 0)
                for o in self._drafts(namespace, "Published")
                if (o["spec"]["repository"], o["spec"]["packageName"]) == package
            ]
            spec = {**draft["spec"], "lifecycle": "Published", "revision": max(others, default=0) + 1}
            self.world.put(REVISION, draft["metadata"]["name"], namespace=namespace, spec=spec)
            self.counts["drafts published"] += 1

    def _edit_draft(self, namespace: str) -> None:
        """Edit the files of a draft."""
        if drafts := self._drafts(namespace, "Draft"):
            name = self.rng.choice(drafts)["metadata"]["name"]
            obj = self.world.find(RESOURCES, name, namespace)
            if obj is not None:
                files = {**obj["spec"].get("resources", {}), "by-hand.yaml": "kind: Note\n"}
                spec = {**obj["spec"], "resources": files}
                self.world.put(RESOURCES, name, namespace=namespace, spec=spec)
                self.counts["drafts edited"] += 1

    def _approve_deletion(self, namespace: str) -> Any:
        proposed = self._drafts(namespace, "DeletionProposed")
        if not proposed:
            return None
        self.counts["deletions approved"] += 1
        return self.world.delete(REVISION, self.rng.choice(proposed)["metadata"]["name"], namespace)

    def _annotate(self, namespace: str) -> None:
        """Annotate a target; with `too-large`, the annotation does not fit into the rows."""
        if (obj := self.world.find(SITE, self.rng.choice(SITES), namespace)) is not None:
            note = self.rng.choice(["short", "other"])
            if self.rng.random() < 0.5:
                note = "x" * (self.world.options.record_bytes - self.rng.choice([600, 0]))
                self.counts["notes too large"] += 1
            self._annotated(SITE, obj, {"note": note})

    def _copy(self, namespace: str) -> None:
        """Copy a variant: to another namespace with its labels, or unchanged beside it."""
        picked = self._picked(namespace)
        if picked is None:
            return
        meta, elsewhere = picked["metadata"], self.rng.random() < 0.5
        package = "other" if namespace == "default" else "default"
        name = meta["name"] if elsewhere else f"{meta['name']}-copy"
        if elsewhere and self.world.find(VARIANT, name, package) is not None:
            return
        copied: dict[str, Any] = {"labels": dict(meta.get("labels") or {})}
        if not elsewhere:
            copied["ownerReferences"] = list(meta.get("ownerReferences") or ())
        self.world.put(
            VARIANT,
            name if elsewhere else name[:63],
            namespace=package if elsewhere else namespace,
            spec=picked["spec"],
            metadata=copied,
        )
        self.counts["variants copied"] += 1

    def tidy(self) -> None:
        """Undo what would hide the rest: annotations that are too large, and often an unserved kind."""
        if not self.world.cluster.serves(SITE) and self.rng.random() < 0.8:
            self.bring_sites()
        for obj in self.world.objects(SITE):
            note = (obj["metadata"].get("annotations") or {}).get("note", "")
            if len(note) > 1000:
                self._annotated(SITE, obj, {"note": "short"})

    # ------------------------------------------------------------ what machines do

    async def disturb(self) -> None:
        """Disturb a worker as a machine disturbs its processes."""
        world, rng = self.world, self.rng
        if not world.running:
            return
        running = world.running[rng.choice(sorted(world.running))]
        loop = asyncio.get_running_loop()
        match rng.randint(0, 15):
            case 0 | 1 | 2:
                await world.kill(running.name)
                self.counts["kills"] += 1
                await asyncio.sleep(rng.uniform(0, 5))
                world.add_worker(running.name.rpartition("-")[0])
            case 3 | 4 | 5 | 6:
                running.process.freeze()
                self.counts["freezes"] += 1
                loop.call_later(rng.choice([4.0, 8.0, 20.0, 45.0, 75.0, 170.0]), running.process.thaw)
            case 7:
                running.clock.skew = rng.choice([-3600.0, -30.0, 30.0, 700.0, 3600.0])
                self.counts["clock jumps"] += 1
            case 8:
                self.counts["bus away"] += 1
                world.faults.bus = 0.7
                await asyncio.sleep(rng.uniform(2, 20))
                world.faults.bus = 0.01
            case 9:
                self.counts["API server away"] += 1
                world.faults.unavailable = 1.0
                await asyncio.sleep(rng.uniform(2, 40))
                world.faults.unavailable = 0.03
            case 10 if rng.random() < 0.5:
                await self.restart()
            case _:
                return

    async def restart(self) -> None:
        """Kill all workers at once, and start them again."""
        world = self.world
        services = [name.rpartition("-")[0] for name in sorted(world.running)]
        for name in sorted(world.running):
            await world.kill(name)
        self.counts["restarts of everything"] += 1
        await asyncio.sleep(self.rng.uniform(0, 15))
        for service in services:
            world.add_worker(service)

    async def storm(self) -> None:
        self.world.storm()
        for _ in range(ACTIONS):
            await self.act()
            await self.disturb()
            await asyncio.sleep(self.rng.expovariate(ACTIONS / STORM_SECONDS))
        await self.world.calm()

    # ------------------------------------------------------------ a hold in calm weather

    async def hold_still(self) -> None:
        """Put a set on hold, make changes that it would write, and lift the hold; the watcher judges it."""
        sets = self.world.objects(SET)
        if not sets:
            return
        obj = self.rng.choice(sets)
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self._annotated(SET, obj, {HOLD: "true"})
        await asyncio.sleep(25.0)
        for scenario in (self._relabel, self._edit_variant, self._delete_variant, self._relabel):
            done = scenario(namespace)
            if done is not None:
                await done
            await asyncio.sleep(self.rng.uniform(0, 20))
        await asyncio.sleep(30.0)
        self.counts["holds in calm weather"] += 1
        if (held := self.world.find(SET, name, namespace)) is not None:
            self._annotated(SET, held, {HOLD: "false"})


def options(rng: random.Random) -> Options:
    return Options(
        step_records=rng.choice([4, 200, 2000]),
        turn_targets=rng.choice([1, 2, TURN_TARGETS]),
        record_bytes=RECORD_BYTES,
        tombstone_seconds=rng.choice([None, None, 300]),
        replays=rng.random() < 0.3,
    )


async def live_through(seed: int) -> Counter[str]:
    """Play the schedule of a seed; return what happened. Raises AssertionError where something is wrong."""
    limits = RemovalLimits(removals_max=3)
    world = SimulatedWorld(seed, workers=2, limits=limits, options=options(random.Random(seed)))
    player = Player(world)
    player.begin()
    await world.start()
    if player.rng.random() < 0.7:
        await asyncio.sleep(player.rng.uniform(0, 20))
    await player.storm()
    player.tidy()
    if player.rng.random() < 0.5:
        await player.hold_still()
    await world.converge(quiet=70.0)  # longer than any second look, and than ingest waits to list again
    await world.confirm_all()
    check_watched(world)
    assert world.faults.broken == []
    check_variants(world)
    check_conditions(world)
    check_generations(world)
    await check_restart(world)
    await world.close()
    return world.watcher.counts + world.faults.counts


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what draws from the global generator (workers draw their backoffs) draw from this seed."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def play(seed: int) -> Counter[str]:
    """Run `live_through` in virtual time."""
    with seeded(seed):
        return run_simulated(live_through(seed), context={"seed": seed})
