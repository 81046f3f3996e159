"""Invariants of removal, hold and readiness, checked while a schedule runs; and a count of what it did.

A `Watcher` sees every committed step of the bus, every write when a worker sends it and again when the
server has applied it, and every change of the users. It computes what was allowed at that moment and records
each violation; a schedule fails at its end with all of them.

| invariant | judged | compares |
| --- | --- | --- |
| checked | at the order | the answers to the set's check requests, of the last minute |
| wanted | at the DELETE, applied | the oracle for the owning set, all moments from the check to the order |
| order-age | at the DELETE, sent | record time of the order |
| guard | at the DELETE, applied | unconfirmed removals of the set in ten minutes; its children before them |
| hold | at any write, sent | the annotation and when the writer could know of it |
| ready | at a status, applied | all moments since the generation was made; of children, also shortly before |

A set's Ready is compared with each moment as a whole, and only where no moment has all of it, with each child
at a moment of its own: services watch objects one by one, and the API has no snapshot of several kinds. How
often that is needed is counted ("ready, each child at a moment of its own").
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from pvbus.core.api.variants import Downstream, PackageVariant
from pvbus.core.kernel.keys import CHECK_PREFIX, HOLD, Key
from pvbus.core.kernel.records import (
    DESIRED,
    OBJECTS,
    SETRESULTS,
    TARGETS,
    UNROLL,
    WATCHES,
    ChildRow,
    DesiredRow,
    SetResult,
    TargetRow,
)
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Object
from tests.kit.faults import LAG_SECONDS
from tests.kit.oracle import Expected, Thing, expected_variants
from tests.kit.processes import Process
from tests.simulation.facts import (
    WITHDRAWALS,
    Inputs,
    Moment,
    Order,
    Violation,
    facts_of,
    is_as_expected,
    without_withdrawal,
)

ORDER_SECONDS = 60.0
GUARD_SECONDS = 600.0
READ_SECONDS = 45.0
"""How long before its answer the read behind it may have been: a slow list, a frozen process, a step."""
KNOWN_SECONDS = LAG_SECONDS[1] + 1.0
"""A row that puts a variant on hold is known to every running worker after this time: the longest lag of a
partition, and a second to decide. Time in which the process was frozen does not count."""
UNSEEN_SECONDS = 45.0
"""How long before a generation of a set its children may have been as that generation wants them, and how
much older than the children the targets may be that a set is judged by. Services read objects in no common
order: what a user did to a child just before may be read after the change of the set, and when its render is
frozen, only after another worker has the lease (a session, a rebalance, a restore with faults)."""
LARGE_CHARACTERS = 10_000
"""Of annotations: those of a schedule are far shorter, or too large for a row of the bus."""
CALM_SECONDS = 40.0
"""Without faults, a hold is known everywhere after so long, whatever was written about it."""

_child = msgspec.json.Decoder(ChildRow)
_target = msgspec.json.Decoder(TargetRow)
_desired = msgspec.json.Decoder(DesiredRow)
_rollup = msgspec.json.Decoder(SetResult)


class WatchedWorld(Protocol):
    """The interface of a world to its watcher."""

    @property
    def now(self) -> float: ...

    @property
    def calm_since(self) -> float | None: ...

    def inputs(self) -> Inputs: ...

    def find_uid(self, uid: str) -> Object | None: ...

    def guard_limits(self) -> tuple[int, float]: ...


class Watcher:
    """See the module. `counts`: what happened, by name."""

    def __init__(self, world: WatchedWorld, *, read_seconds: float = READ_SECONDS) -> None:
        """read_seconds: how long before its answer the read behind a check may have been."""
        self._read_seconds = read_seconds
        self.violations: list[Violation] = []
        self.is_on = True
        self.counts: Counter[str] = Counter()
        self.rows: dict[str, ChildRow] = {}
        self.orders: dict[tuple[str, str], Order] = {}
        self._world = world
        self._history: list[Inputs] = []
        self._targets: dict[tuple[str, str], tuple[str, bytes | None]] = {}
        self._asked: dict[str, float] = {}
        self._answered: dict[str, tuple[float, float]] = {}
        self._born: dict[tuple[str, str], float] = {}
        self._ended: dict[tuple[str, str], float] = {}
        self._removed: dict[str, dict[str, float]] = {}
        self._confirmed: set[tuple[str, str]] = set()
        self._holds: dict[str, float] = {}
        self._knowing: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
        self._processes: dict[str, Process] = {}
        self._generations: dict[tuple[str, int], float] = {}
        self._moments: list[Moment] = []

    def _violated(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, round(self._world.now, 3), text))

    # ------------------------------------------------------------ what users do

    def wished(self) -> None:
        """Record what users want now. Caller: after each of their changes."""
        if not self.is_on:
            return
        inputs = self._world.inputs()
        self._history.append(inputs)
        for obj in inputs.sets:
            self._generation(obj.metadata.uid, obj.metadata.generation)

    def held(self, obj: Object) -> None:
        """Note whether a set or a variant is on hold. Caller: after each change of it."""
        meta = obj["metadata"]
        if (meta.get("annotations") or {}).get(HOLD) == "true" and not meta.get("deletionTimestamp"):
            if meta["uid"] not in self._holds:
                self.counts["holds of users"] += 1
                self._holds[meta["uid"]] = self._world.now
                for key in [key for key in self._knowing if key[0] == meta["uid"]]:
                    del self._knowing[key]
        else:
            self._holds.pop(meta["uid"], None)

    def confirmed(self, skey: str, names: Iterable[str], *, valid: bool) -> None:
        """Note that a user confirmed removals, with the token that is shown for them or with another.

        One of them may be done already: its DELETE was under way when the order was withdrawn.
        """
        if valid:
            self.counts["confirmations"] += 1
            for name in names:
                self._confirmed.add((skey, name))
                self._removed.get(skey, {}).pop(name, None)
        else:
            self.counts["wrong confirmations"] += 1

    def names(self) -> dict[str, dict[str, Downstream]]:
        """Return the names that the sets remember, as the oracle takes them."""
        found: dict[str, dict[str, Downstream]] = {}
        by_rank = sorted(self.rows.items(), reverse=True)  # of two with one downstream the last one counts
        for key, row in sorted(by_rank, key=lambda item: item[1].state == "present"):
            skey, _, name = key.partition("|")
            if row.state != "gone":
                found.setdefault(skey, {})[name] = row.downstream
        return found

    # ------------------------------------------------------------ the bus

    def stepped(self, lease: Lease, outputs: Sequence[Output]) -> None:
        """Record the rows of a committed step."""
        if len(outputs) > 1:
            self.counts["steps of several rows"] += 1
        for output in outputs:
            key = output.key.decode(errors="replace")
            if output.topic == WATCHES and key.startswith(CHECK_PREFIX):
                self._check_asked(key, output.value)
            elif output.topic == OBJECTS and key.startswith(CHECK_PREFIX) and output.value is not None:
                self._check_answered(key)
            elif output.topic == TARGETS:
                self._target(key, output.value)
            elif output.topic == UNROLL:
                self._row(key, output.value)
            elif output.topic == DESIRED and output.value is not None:
                self._decided(key, _desired.decode(output.value))
            elif output.topic == SETRESULTS and "|" not in key and output.value is not None:
                self._rolled(_rollup.decode(output.value))

    def _check_asked(self, key: str, value: bytes | None) -> None:
        if value is not None:
            self.counts["check requests"] += 1
            self._asked[key] = self._world.now

    def _check_answered(self, key: str) -> None:
        self.counts["check answers"] += 1
        now = self._world.now
        since = max(self._asked.get(key, now), now - self._read_seconds)
        self._answered[key] = (since, now)

    def _checked(self, skey: str) -> tuple[float, float] | None:
        """Return from when the reads behind a set's last answers may be, and when the last one came."""
        suffix, now = f"|{skey}", self._world.now
        found = [
            (since, at)
            for key, (since, at) in self._answered.items()
            if key.endswith(suffix) and now - at <= ORDER_SECONDS
        ]
        return (min(since for since, _ in found), max(at for _, at in found)) if found else None

    def _target(self, key: str, value: bytes | None) -> None:
        vkey, _, set_name = key.partition("|")
        row = _target.decode(value) if value is not None else None
        state = str(row.state) if row is not None else ""
        before, written = self._targets.get((vkey, set_name), ("", None))
        self._targets[vkey, set_name] = (state, value)
        if before == "removed" and state not in ("removed", ""):
            self.counts["withdrawals"] += 1
        if row is None or state != "removed" or value == written:
            return  # an order that was withdrawn is kept: its DELETE may be under way
        self.counts["orders"] += 1
        skey = f"{Key.parse(vkey).namespace}/{set_name}"
        checked = self._checked(skey)
        self.orders[vkey, set_name] = Order(self._world.now, row.generation, row.set_uid, skey, checked)
        if checked is None:
            self._violated("checked", f"{key}: removal ordered without an answer to a check request")

    def _row(self, key: str, value: bytes | None) -> None:
        skey, _, name = key.partition("|")
        before = self.rows.pop(key, None)
        row = _child.decode(value) if value is not None else None
        was = before.state if before is not None else ""
        state = str(row.state) if row is not None else ""
        if row is not None:
            self.rows[key] = row
        if state != was and state in ("held", "confirmed", "waiting", "removing", "withdrawn"):
            self.counts[f"rows {state}"] += 1
        if state in ("", "gone"):
            self._ended.setdefault((skey, name), self._world.now)
            self._confirmed.discard((skey, name))
        elif (skey, name) not in self._born or (skey, name) in self._ended:
            self._born[skey, name] = self._world.now
            self._ended.pop((skey, name), None)
        if state == "present":
            self._confirmed.discard((skey, name))

    def _decided(self, vkey: str, row: DesiredRow) -> None:
        if row.outcome == "conflict":
            self.counts["name conflicts"] += 1
        known = {each.uid for each in row.holders}
        if row.on_hold or row.outcome == "held":
            known |= {row.uid, row.set_uid}
        for uid in known & self._holds.keys():
            frozen = {name: process.frozen_seconds for name, process in self._processes.items()}
            self._knowing.setdefault((uid, vkey), (self._world.now, frozen))

    def _rolled(self, row: SetResult) -> None:
        if row.hold is not None and row.hold.token:
            self.counts["tokens shown"] += 1
        if row.waiting:
            self.counts["roll-ups that wait"] += 1

    # ------------------------------------------------------------ writes, when they are sent

    def sent(self, process: Process, verb: str, obj: Object, subresource: str) -> None:
        """Judge a write at the moment when a worker sends it."""
        self._processes[process.name] = process
        if subresource == "status":
            return
        kind = obj.get("kind", "")
        if verb == "delete" and kind == "PackageVariant":
            self._delete_sent(obj)
        if self._holds and kind in ("PackageVariant", "PackageRevision", "PackageRevisionResources"):
            self._judge_hold(process, verb, obj)

    def _order_of(self, vkey: str) -> Order | None:
        found = [order for (key, _), order in self.orders.items() if key == vkey]
        return max(found, key=lambda order: order.time) if found else None

    def _delete_sent(self, obj: Object) -> None:
        vkey = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        order = self._order_of(vkey)
        if order is not None and self._world.now - order.time > ORDER_SECONDS:
            age = self._world.now - order.time
            self._violated("order-age", f"{vkey}: DELETE sent {age:.1f} s after its order")

    def _judge_hold(self, process: Process, verb: str, obj: Object) -> None:
        for uid, vkey in self._held_for(obj):
            since = self._holds[uid]
            known = self._knowing.get((uid, vkey))
            late = False
            if known is not None:
                frozen = process.frozen_seconds - known[1].get(process.name, 0.0)
                late = self._world.now - known[0] - frozen > KNOWN_SECONDS
            calm = self._world.calm_since
            if calm is not None:
                late |= self._world.now - max(calm, since) > CALM_SECONDS
            if late and not self._is_withdrawal(verb, obj):
                age = self._world.now - since
                text = f"{process.name}: {verb} {obj['kind']} {obj['metadata'].get('name')} for {vkey}"
                self._violated("hold", f"{text}, on hold ({uid}) for {age:.1f} s")

    def _held_for(self, obj: Object) -> Iterator[tuple[str, str]]:
        """Yield the holds that forbid to write an object, of its variant and of that one's set, each with
        the vkey.

        The hold of a set ends with the set: garbage collection deletes its variants, or leaves them to
        nobody, and a worker that waited for the annotation to go would wait for ever.
        """
        live = self._world.find_uid(obj["metadata"].get("uid", "")) or obj
        variants = [live]
        if obj["kind"] != "PackageVariant":
            owners = [o["uid"] for o in live["metadata"].get("ownerReferences") or ()]
            variants = [found for uid in owners if (found := self._world.find_uid(uid)) is not None]
        for variant in variants:
            meta = variant["metadata"]
            owners = [o["uid"] for o in meta.get("ownerReferences") or ()]
            for uid in (meta.get("uid", ""), *owners):
                if uid in self._holds and self._holds_still(uid):
                    yield uid, f"{meta.get('namespace')}/{meta.get('name')}"

    def _holds_still(self, uid: str) -> bool:
        """Whether the object of a hold exists. A deleted set releases its variants, on hold or not, and
        garbage collection deletes them; a variant that a user deletes stays on hold."""
        obj = self._world.find_uid(uid)
        is_set = obj is not None and obj["kind"] == "PackageVariantSet"
        return obj is not None and not (is_set and obj["metadata"].get("deletionTimestamp"))

    def _is_withdrawal(self, verb: str, obj: Object) -> bool:
        """Whether a write changes nothing but the annotation that withdraws an order."""
        if obj["kind"] != "PackageVariant" or verb not in ("update", "patch"):
            return False
        if verb == "patch":
            patch = dict(obj["patch"])
            meta = dict(patch.pop("metadata", {}))
            annotations = meta.pop("annotations", {})
            allowed = {"uid", "resourceVersion"}
            return not patch and set(meta) <= allowed and set(annotations) <= set(WITHDRAWALS)
        live = self._world.find_uid(obj["metadata"].get("uid", ""))
        return live is not None and without_withdrawal(live) == without_withdrawal(obj)

    # ------------------------------------------------------------ writes, when they are applied

    def deleted(self, variant: Object) -> None:
        """Judge the DELETE of a PackageVariant by a service, which the server has just accepted."""
        if not self.is_on:
            return
        meta = variant["metadata"]
        vkey = f"{meta['namespace']}/{meta['name']}"
        self.counts["removals"] += 1
        order = self._order_of(vkey)
        now = self._world.now
        since, until = now - 150.0, now
        if order is not None:
            since, until = order.time - 150.0, order.time
            if order.checked is not None:
                since = order.checked[0]
        child = msgspec.convert(variant, PackageVariant)
        if all(self._is_wanted(child, inputs) for inputs in self._between(since, until)):
            self._violated("wanted", f"{vkey}: deleted, though wanted from {since:.1f} to {until:.1f}")
        owner = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), None)
        if owner is not None:
            self._guard(f"{meta['namespace']}/{owner['name']}", meta["name"])

    def _is_wanted(self, child: PackageVariant, inputs: Inputs) -> bool:
        """Whether its own set keeps a child. Another set that wants the name alone gets it only after this
        child is gone; where both want it, the one whose child lives there has it, so it is put there."""
        vkey = f"{child.metadata.namespace}/{child.metadata.name}"
        expected = self.expected(inputs._replace(children=(*inputs.children, child))).get(vkey)
        controller = next((each.uid for each in child.metadata.owner_references if each.controller), "")
        return expected is not None and expected.owner in ("", controller)

    def _between(self, since: float, until: float) -> Iterator[Inputs]:
        """Yield what users wanted at some moment of an interval, also as seen kind by kind."""
        before = [i for i in self._history if i.time <= since][-1:]
        within = [i for i in self._history if since < i.time <= until]
        latest = self._world.inputs()
        moments = [*before, *within]
        yield from moments
        yield from (inputs._replace(names=latest.names, children=latest.children) for inputs in moments)
        if len(moments) > 1:  # each kind is read by itself, so rows may be of different moments
            fields = ([m.sets for m in moments], [m.things for m in moments])
            others = ([m.repositories for m in moments], [m.revisions for m in moments])
            mixes = itertools.product(*fields, *others)
            for sets, things, repositories, revisions in itertools.islice(mixes, 300):
                yield latest._replace(
                    sets=sets, things=things, repositories=repositories, revisions=revisions
                )

    def expected(self, inputs: Inputs) -> dict[str, Expected]:
        """Ask the oracle what must be there with these inputs."""
        return expected_variants(
            inputs.sets,
            inputs.things,
            inputs.repositories,
            inputs.revisions,
            remembered_names=inputs.names,
            existing_children=inputs.children,
            unknown_kinds=inputs.unknown_kinds,
        )

    def _guard(self, skey: str, name: str) -> None:
        """Count a removal, unless a user confirmed it with the token that was shown."""
        if (skey, name) in self._confirmed:
            self.counts["confirmed removals"] += 1
            return
        now = self._world.now
        recent = self._removed.setdefault(skey, {})
        recent[name] = now
        for other, time in list(recent.items()):
            if now - time > GUARD_SECONDS:
                del recent[other]
        oldest = min(recent.values())
        had = sum(
            1
            for (set_key, child), born in self._born.items()
            if set_key == skey and born < oldest and self._ended.get((set_key, child), now) >= oldest
        )
        most, share = self._world.guard_limits()
        if len(recent) > max(most, share * had):
            text = f"{skey}: {len(recent)} of {had} children removed in ten minutes, unconfirmed"
            self._violated("guard", text)

    def changed(self, objects: Iterable[Object]) -> None:
        """Record the PackageVariants and PackageRevisions after one of them has changed."""
        if not self.is_on:
            return
        variants, packages = {}, set()
        for obj in objects:
            meta = obj["metadata"]
            if obj["kind"] == "PackageVariant":
                variants[f"{meta['namespace']}/{meta['name']}"] = facts_of(obj)
                self._generation(meta["uid"], meta.get("generation", 0))
            elif obj["kind"] == "PackageRevision" and not meta.get("deletionTimestamp"):
                package = (meta["namespace"], obj["spec"]["repository"], obj["spec"]["packageName"])
                owners = [o["uid"] for o in meta.get("ownerReferences") or ()]
                packages |= {(*package, owner) for owner in owners}
        moment = Moment(self._world.now, variants, frozenset(packages))
        if not self._moments or self._moments[-1][1:] != moment[1:]:
            self._moments.append(moment)

    def _generation(self, uid: str, generation: int) -> None:
        self._generations.setdefault((uid, generation), self._world.now)

    # ------------------------------------------------------------ readiness

    def status(self, obj: Object) -> None:
        """Judge a status that a service wrote: its Ready was true at some moment."""
        if not self.is_on:
            return
        meta = obj["metadata"]
        for condition in (obj.get("status") or {}).get("conditions") or ():
            if condition["type"] != "Ready" or condition["status"] != "True":
                continue
            cause = self._generations.get((meta["uid"], condition.get("observedGeneration", 0)), 0.0)
            self.counts[f"{obj['kind']}s reported ready"] += 1
            if obj["kind"] == "PackageVariantSet":
                is_true = self._set_was_ready(meta["uid"], cause)
            else:
                is_true = any(self._variant_was_ready(obj, m) for m in self._since(cause))
            if not is_true:
                name = f"{meta['namespace']}/{meta['name']}"
                self._violated("ready", f"{obj['kind']} {name}: Ready is True, and never was since {cause}")

    def _since(self, cause: float) -> Iterator[Moment]:
        """Yield moments, the latest first, back to the one that the cause met."""
        for moment in reversed(self._moments[-200:]):
            yield moment
            if moment.time < cause:
                return

    def _variant_was_ready(self, obj: Object, moment: Moment) -> bool:
        package = obj["spec"].get("downstream") or {}
        meta = obj["metadata"]
        return (
            meta["namespace"],
            package.get("repo"),
            package.get("package"),
            meta["uid"],
        ) in moment.packages

    def _leaving(self) -> set[str]:
        """Return the children that no target wants: a set's readiness is that of the others."""
        return {
            f"{key.partition('/')[0]}/{key.partition('|')[2]}"
            for key, row in self.rows.items()
            if row.state != "present"
        }

    def _set_was_ready(self, uid: str, cause: float) -> bool:
        """Whether each child was, since the cause, as the set wants it: all at one moment, or each at one."""
        never: set[str] | None = None
        ends = [self._world.now]
        for moment in self._since(cause - UNSEEN_SECONDS):
            for unready in self._unready(uid, moment, ends, cause):
                if not unready:
                    return True
                never = unready if never is None else never & unready
            ends.append(moment.time)
        in_turn = never is not None and not never
        self.counts["ready, each child at a moment of its own"] += in_turn
        return in_turn

    def _unready(self, uid: str, moment: Moment, ends: list[float], cause: float) -> Iterator[set[str]]:
        """Yield the children that were not as the set wants them since the cause, at a moment, for each of
        the wishes that a worker may have read then.

        A moment that ended before the cause is compared with what was wanted from the cause on. ends: the
        ends of the moments that were examined, the latest first.
        """
        is_before = ends[-1] <= cause
        begin, until = (cause, ends[0]) if is_before else (moment.time, ends[-1])
        seen = max(begin - UNSEEN_SECONDS, min(begin, cause))
        wanted = [i for i in self._history if i.time <= seen][-1:] or self._history[:1]
        later = [i for i in self._history if seen < i.time <= until]
        caused = next((i for i in reversed(self._history) if i.time <= cause), self._history[0])
        leaving = self._leaving()
        for inputs in (*wanted, *later):
            if inputs.time <= cause:  # who reports this generation as ready has read it and its upstream
                inputs = inputs._replace(sets=caused.sets, revisions=caused.revisions)
            for things, names in itertools.product(_with_rows(inputs), (inputs.names, self.names())):
                expected = self.expected(inputs._replace(things=things, names=names))
                mine = {v: e for v, e in expected.items() if e.owner == uid and v not in leaving}
                yield {v for v, e in mine.items() if not is_as_expected(moment.variants.get(v), e)}


def _with_rows(inputs: Inputs) -> list[Sequence[Thing]]:
    """Return the things of inputs, and those without what is too large for the bus, if there is such a one:
    ingest logs it, and withholds the answers to checks; for a set it is not there, or as it was before."""
    small = [thing for thing in inputs.things if sum(map(len, thing.annotations.values())) < LARGE_CHARACTERS]
    return [inputs.things, small] if len(small) < len(inputs.things) else [inputs.things]
