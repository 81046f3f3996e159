"""Fleets in the middle of their rollouts, of which each is rehearsed and then lived through.

All situations share one world, with the services of promotion alone: variants, revisions and files are put
there as the other services would. At `SNAPSHOT` every rollout is rehearsed from what is there; from then on
all goes well, as a rehearsal supposes: who was not ready becomes ready, people approve.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.adapters.memory.virtual_time import EPOCH, SimulatedClock
from pvbus.cli.rolloutdocument import Document, document_of
from pvbus.cli.rolloutmoves import laid_over
from pvbus.cli.rolloutrows import read_rollout
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.keys import ChildKey, Key
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Target
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Kind, Object, Resource
from tests.simulation.cluster import API_VERSIONS, POLICY, QUARANTINE, STOP
from tests.simulation.world import RESOURCES, REVISION, SET, VARIANT, Running, SimulatedWorld

SPRING = 1_806_194_700.0
"""2027-03-28 00:45 UTC: in a quarter of an hour Berlin's clock goes from 02:00 to 03:00."""
AWAY, SNAPSHOT, END = 50.0, 60.0, 1_020.0
SETTLE = "90s"
HEALTHY = "Healthy"
WAVES = [{"count": 1}, {"percent": 50}, {"percent": 100}]

Step = tuple[str, int, int, str]
"""approve or restore, attempt, wave, target."""


class Situation(NamedTuple):
    """A fleet of one policy.

    spec: fields of the policy
    sites: how many targets there are
    script: seconds after the start, and what happens then
    without: sites that have no package at first
    late: sites that do not become ready with what is published before the snapshot
    failing: sites that fail with version 2
    waits: whether the attempt has to begin after the snapshot
    change: what is changed at the snapshot, by a file in the rehearsal
    members: how many packages go as one: with 2, each pair of sites is one unit of a train
    """

    spec: Mapping[str, Any] = {}
    sites: int = 4
    script: Sequence[tuple[float, Callable[["Stage", str], None]]] = ()
    without: Collection[int] = ()
    late: Collection[int] = ()
    failing: Collection[int] = ()
    waits: bool = False
    change: Callable[["Stage", str], list[Object]] | None = None
    members: int = 1

    def sets(self, case: str) -> list[str]:
        """Return the sets of its targets: one for each member of a train."""
        return [case, *(f"{case}{number}" for number in range(1, self.members))]

    def set_of(self, case: str, site: int) -> str:
        return self.sets(case)[site % self.members]

    def policy(self, case: str) -> dict[str, Any]:
        """Return the spec of its policy."""
        settle = SETTLE if self.waits else "0s"
        spec = {"revisions": {"set": case}, "approval": "Always", "settle": settle, "waves": WAVES}
        if self.members == 1:
            return {**spec, **self.spec}
        members = [{"set": name} for name in self.sets(case)]
        train = {"mode": "InOrder", "label": "unit", "members": members, **self.spec.get("train", {})}
        if train["mode"] == "Together":
            del train["label"]
        selector = {"matchLabels": {"case": case}}
        return {**spec, "revisions": {"selector": selector}, **self.spec, "train": train}


class Stopping(NamedTuple):
    """A stop of all rollouts.

    at: seconds after the start
    lets_roll_backs: whether rollbacks go on
    is_lifted: whether it is lifted at the snapshot
    """

    at: float
    lets_roll_backs: bool = False
    is_lifted: bool = True


class Outcome(NamedTuple):
    """steps: what is ordered, in order. state: of the rollout at the end. canaries: why it waits for them.
    targets: the states of the targets of the last attempt, none if a rehearsal sees no attempt begin."""

    steps: list[Step]
    state: str
    canaries: str
    targets: dict[str, str]


def target_of(case: str, site: int) -> str:
    return f"{case}-s{site}"


class Stage(SimulatedWorld):
    """One world of many situations. stops: what its rehearsals say of a stop first."""

    def __init__(self, situations: Mapping[str, Situation], stopping: Stopping | None = None) -> None:
        super().__init__(watched=False)
        self.stopping = stopping
        self.stops = ""
        self.clock = SimulatedClock(SPRING)
        self.situations = situations
        self.steps: dict[str, list[Step]] = {case: [] for case in situations}
        self.is_well = False
        self._rows: dict[str, Target] = {}
        self._behind: set[tuple[str, int, int]] = set()
        plurals = {POLICY: "rolloutpolicies", QUARANTINE: "quarantines", STOP: "rolloutstops"}
        for kind, plural in plurals.items():
            self.cluster.serve(Resource(PROMOTION_GROUP, "v1alpha1", kind.kind, plural, True))
        for case, situation in situations.items():
            self._begin(case, situation)

    def _begin(self, case: str, situation: Situation) -> None:
        for name in situation.sets(case):
            self.put(SET, name, spec=self._set_spec(name, 2))
        for site in range(situation.sites):
            if site not in situation.without:
                self.join(case, site)
        self.put(POLICY, case, spec=situation.policy(case))

    @staticmethod
    def _set_spec(name: str, version: int) -> Object:
        return {"upstream": {"repo": "up", "package": name, "revision": version}, "targets": []}

    def find(self, kind: Kind, name: str, namespace: str = "default") -> Object | None:
        return self.cluster.peek(kind, namespace, name)

    # ------------------------------------------------------------ what the other services do

    def join(self, case: str, site: int, *, has_former: bool = True) -> None:
        """Add a target with a proposal of version 2, and with version 1 published."""
        name = target_of(case, site)
        stage = "production" if site % 2 else "test"
        set_name = self.situations[case].set_of(case, site)
        owner = self.find(SET, set_name)
        assert owner is not None
        owners = [
            {
                "kind": SET.kind,
                "name": set_name,
                "uid": owner["metadata"]["uid"],
                "apiVersion": API_VERSIONS[SET],
            }
        ]
        spec = {
            "upstream": {"repo": "up", "package": set_name, "revision": 2},
            "downstream": {"repo": "r1", "package": name},
        }
        labels = {"case": case, "stage": stage, "unit": f"u{site // self.situations[case].members}"}
        self.put(
            VARIANT, name, spec=spec, metadata={"labels": labels, "ownerReferences": owners, "generation": 1}
        )
        if has_former:
            self.revise(case, site, 1, "Published")
        self.revise(case, site, 2)

    def revise(self, case: str, site: int, version: int, lifecycle: str = "Proposed", **more: Any) -> None:
        """Put a revision with its files, and the variant's report on it."""
        name = target_of(case, site)
        variant = self.find(VARIANT, name)
        assert variant is not None
        owner = {
            "apiVersion": API_VERSIONS[VARIANT],
            "kind": VARIANT.kind,
            "name": name,
            "uid": variant["metadata"]["uid"],
            "controller": True,
        }
        revision = f"r1.{name}.v{version}"
        key = {"repository": "r1", "packageName": name, "workspaceName": f"v{version}"}
        spec: dict[str, Any] = {**key, "lifecycle": lifecycle}
        if lifecycle == "Published":
            spec["revision"] = version
        files = {"Kptfile": "kind: Kptfile\n", "app.yaml": f"kind: App\nname: {name}\nversion: {version}\n"}
        self.put(RESOURCES, revision, spec={**key, "resources": files})
        source = self.situations[case].set_of(case, site)
        lock = {"git": {"directory": source, "ref": f"{source}/v{version}"}}
        metadata = {"ownerReferences": [owner], "labels": {"case": case}}
        status = {"upstreamLock": lock}
        self.put(REVISION, revision, spec={**spec, **more}, metadata=metadata, status=status)
        self.report(case, site, revision)

    def report(
        self,
        case: str,
        site: int,
        revision: str,
        *,
        status: str = "True",
        reason: str = "Looked",
        is_late: bool = False,
    ) -> None:
        """Report on a revision in the variant's status. is_late: as of an earlier generation."""
        variant = self.find(VARIANT, target_of(case, site))
        if variant is None:
            return
        generation = variant["metadata"].get("generation", 1) + is_late
        conditions: list[Object] = [
            {
                "type": "Ready",
                "status": status,
                "reason": reason,
                "observedGeneration": generation - is_late,
            }
        ]
        if not is_late:
            conditions.append({"type": HEALTHY, "status": status, "reason": "Looked", "message": revision})
        self.put(
            VARIANT,
            target_of(case, site),
            metadata={"generation": generation},
            status={"conditions": conditions, "downstreamTargets": [{"name": revision}]},
        )

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        super().wrote(verb, obj, subresource)
        if verb != "update" or subresource != "approval" or obj["spec"]["lifecycle"] != "Published":
            return
        name = obj["spec"]["packageName"]
        mine = [each for each in self.objects(REVISION) if each["spec"]["packageName"] == name]
        obj["spec"]["revision"] = max(0, *(each["spec"].get("revision", 0) for each in mine)) + 1
        case, _, site = name.rpartition("-s")
        situation, revision = self.situations[case], obj["metadata"]["name"]
        is_late = int(site) in situation.late and not self.is_well
        is_bad = int(site) in situation.failing and revision.endswith(".v2")
        is_behind = any(key[:2] == (case, int(site)) for key in self._behind)  # its next draft is to come
        reason = "UpstreamChanged" if is_behind else "Looked"
        self.report(
            case,
            int(site),
            revision,
            status=str(not is_bad and not is_behind),
            reason=reason,
            is_late=is_late,
        )

    # ------------------------------------------------------------ what people do

    def annotate(self, kind: Any, name: str, **annotations: str) -> None:
        obj = self.find(kind, name)
        assert obj is not None
        both = {**(obj["metadata"].get("annotations") or {}), **annotations}
        self.put(kind, name, metadata={"annotations": both})

    def order(self, case: str, command: str, value: str) -> None:
        self.annotate(POLICY, case, **{f"{PROMOTION_GROUP}/{command}": value})

    def stop_all(self, *, lifted: bool = False) -> None:
        """Stop all rollouts, or lift that."""
        assert self.stopping is not None
        entry: Object = {"name": "1", "reason": "payments are down", "by": "ann"}
        entry["letRollBacks"] = self.stopping.lets_roll_backs
        end = {"reason": "they are back", "by": "ann", "at": "2027-03-28T00:46:00Z"}
        self.put(STOP, "fleet", spec={"entries": [{**entry, "lifted": end} if lifted else entry]})

    def move(self, case: str, version: int) -> None:
        """Let the set follow another revision, as unroll, inject and promote carry it out."""
        for set_name in self.situations[case].sets(case):
            self.put(SET, set_name, spec=self._set_spec(set_name, version))
        for site in range(self.situations[case].sites):
            name = target_of(case, site)
            variant = self.find(VARIANT, name)
            if variant is None:
                continue
            upstream = {**variant["spec"]["upstream"], "revision": version}
            self.put(VARIANT, name, spec={**variant["spec"], "upstream": upstream})
            if self._is_kept(name):
                self._behind.add((case, site, version))
                self.report(case, site, f"r1.{name}.v2", status="False", reason="UpstreamChanged")
            else:
                self._make_draft(case, site, version)

    def _make_draft(self, case: str, site: int, version: int) -> None:
        name = target_of(case, site)
        for each in self.objects(REVISION):
            if each["spec"]["packageName"] == name and each["spec"]["lifecycle"] in ("Draft", "Proposed"):
                self.cluster.remove(REVISION, "default", each["metadata"]["name"])
        self.revise(case, site, version)

    def _is_kept(self, name: str) -> bool:
        """Tell whether a rollout keeps the proposal of a target as planned."""
        is_proposed = any(
            each["spec"]["packageName"] == name and each["spec"]["lifecycle"] == "Proposed"
            for each in self.objects(REVISION)
        )
        return is_proposed and name in self._rows and self._rows[name].is_frozen

    def _catch_up(self) -> None:
        """Make the drafts of variants whose proposals are kept no more."""
        for case, site, version in sorted(self._behind):
            if not self._is_kept(target_of(case, site)):
                self._behind.discard((case, site, version))
                self._make_draft(case, site, version)

    # ------------------------------------------------------------ both ends

    def add_worker(self, service: str) -> Running:
        running = super().add_worker(service)
        running.clock.skew = SPRING - EPOCH
        if service == "rollout":
            running.bus.on_step = self._stepped
        return running

    def _stepped(self, lease: Lease, outputs: Sequence[Output]) -> None:
        """Note each order with its wave, which is in the target's row of the same step."""
        for output in outputs:
            if output.topic == ROLLOUTS and b"|" in output.key and output.value is not None:
                key = ChildKey.parse(output.key.decode())
                self._rows[key.variant] = msgspec.json.decode(output.value, type=Target)
        if not self.is_well:
            return
        steps: list[tuple[int, str, Step]] = []  # what is ordered in one step has the order of the plan
        for output in outputs:
            if output.topic != APPROVALS or output.value is None:
                continue
            order = msgspec.json.decode(output.value, type=ApprovalRow)
            target = output.key.decode().partition("|")[0].partition("/")[2]
            row = self._rows[target]
            if order.order in ("approve", "restore"):
                step = (order.order, order.attempt, row.wave, target)
                steps.append((row.position, target.rpartition("-s")[0], step))
        for _, case, ordered in sorted(steps):
            self.steps[case].append(ordered)

    async def play(self) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
        """Return what the rehearsals say, and what happens then."""
        await self.start(("ingest", "promote", "rollout", "release"))
        script = sorted(
            ((at, case, act) for case, each in self.situations.items() for at, act in each.script),
            key=lambda entry: entry[:2],
        )
        if self.stopping is not None:
            script.append((self.stopping.at, "fleet", lambda stage, _: stage.stop_all()))
        script.append((AWAY, "", lambda *_: None))
        for at, case, act in sorted(script, key=lambda entry: (entry[0], bool(entry[1]))):
            await asyncio.sleep(max(0.0, at - self.now))
            if not case:
                await self.kill(next(name for name in self.running if name.startswith("release")))
            act(self, case)
        await asyncio.sleep(SNAPSHOT - self.now)
        rehearsed = await self.rehearse()
        await self._go_on()
        lived = {case: await self.outcome(case) for case in self.situations}
        await self.close()
        return rehearsed, lived

    async def _go_on(self) -> None:
        self.is_well = True
        self.add_worker("release")
        if self.stopping is not None and self.stopping.is_lifted:
            self.stop_all(lifted=True)
        for case, situation in self.situations.items():
            for site in situation.late:
                self._become_ready(case, site)
            policy = self.find(POLICY, case)
            assert policy is not None
            if f"{PROMOTION_GROUP}/pause" in (policy["metadata"].get("annotations") or {}):
                self.order(case, "pause", "false")
            if situation.change is not None:
                version = situation.change(self, case)[0]["spec"]["upstream"]["revision"]
                self.move(case, version)
        while self.now < END:
            for _ in range(10):
                await asyncio.sleep(1.0)
                self._catch_up()
            for case in self.situations:
                await self._approve(case)

    def _become_ready(self, case: str, site: int) -> None:
        name = target_of(case, site)
        variant = self.find(VARIANT, name)
        if variant is not None and variant["status"]["downstreamTargets"]:
            is_bad = site in self.situations[case].failing
            revision = variant["status"]["downstreamTargets"][0]["name"]
            self.report(case, site, revision, status=str(not is_bad))

    async def _approve(self, case: str) -> None:
        """Approve what waits for a person."""
        policy = self.find(POLICY, case)
        assert policy is not None
        status = policy.get("status") or {}
        phase, attempt = status.get("phase", ""), status.get("attempt", 0)
        is_asked = policy["spec"]["approval"] == "Manual" or any(
            "person" in check for wave in policy["spec"]["waves"] for check in wave.get("checks", ())
        )
        if is_asked and phase in ("Rolling", "Holding"):
            wave = status["wave"] if phase == "Holding" or status["wave"] > 1 else 0
            self.order(case, "approve", f"{attempt}.{wave}")

    # ------------------------------------------------------------ what is compared

    async def rehearse(self) -> dict[str, Outcome]:
        """Rehearse all rollouts from what is there; each with a change by file from what follows then."""
        kinds = {SET.kind, VARIANT.kind, REVISION.kind, POLICY.kind, QUARANTINE.kind, STOP.kind}
        objects = [each for each in self.cluster.objects() if each["kind"] in kinds]
        keys = [Key("default", case) for case in self.situations]
        rows = {key: await read_rollout(self.bus, key) for key in keys}
        failing = {target_of(case, site) for case, each in self.situations.items() for site in each.failing}
        now = self.clock.now()
        document = document_of(objects, now, rows=rows, failing=failing)
        plain, self.stops = document["policies"], document["stops"]
        found = {each["name"]: said(each) for each in plain if each["name"] in self.situations}
        for case, situation in self.situations.items():
            if situation.change is not None:
                after, name = laid_over(objects, situation.change(self, case)), ("default", case)
                mine = [target_of(case, site) for site in situation.failing]
                found[case] = said(document_of(after, now, name=name, rows=rows, failing=mine)["policies"][0])
        return found

    async def outcome(self, case: str) -> Outcome:
        rows = await read_rollout(self.bus, Key("default", case))
        rollout = rows.rollout
        mine = (row for row in rows.targets.values() if row.attempt == rollout.attempt)
        states = {row.target: _state(row.state.value) for row in mine}
        steps = sorted(dict.fromkeys(self.steps[case]), key=lambda step: (step[1], step[0], step[2]))
        return Outcome(steps, rollout.state.value, rollout.canary_reason, dict(sorted(states.items())))


def said(policy: Document) -> Outcome:
    """Return what a document says. What was ordered before is no news."""
    assert not policy["problems"], policy["problems"]
    steps: list[Step] = []
    for attempt in (policy, *policy["then"]):
        for verb, field in (("approve", "approved"), ("restore", "restored")):
            for wave in attempt["waves"]:
                before = {each["target"]: each["before"] for each in wave["targets"]}
                steps += [
                    (verb, attempt["attempt"], wave["number"], target)
                    for target in wave[field]
                    if (verb, before.get(target)) not in (("approve", "ordered"), ("restore", "undoing"))
                ]
    last = [policy, *policy["then"]][-1]
    canaries = next((each for each in last["waitsFor"] if each.startswith("its canaries")), "")
    states = {each["target"]: _state(each["state"]) for wave in last["waves"] for each in wave["targets"]}
    reason = canaries.partition("(")[2].partition(")")[0]
    return Outcome(steps, last["end"]["state"], reason, dict(sorted(states.items())))


def _state(text: str) -> str:
    """A target that is not tried any more is skipped, or gone if its quarantine is seen a moment before."""
    return "gone" if text == "skipped" else text
