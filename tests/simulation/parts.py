"""Single controllers with events given by hand, for scenarios that depend on the order of events."""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from pvbus.core.errors import TooLargeError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import CatchUp, Outcome, Put
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import rows_of, topics_of
from pvbus.core.kernel.records import (
    OBJECTS,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildResult,
    ChildRow,
    SetResult,
    SyncMarker,
    TargetRow,
)
from pvbus.core.kernel.topics import child_of
from pvbus.core.variants.render.controller import SPEC_BYTES_MAX, RenderController
from pvbus.core.variants.unroll.controller import CHUNK_PUTS, UnrollController
from pvbus.core.variants.unroll.opinion import Opinions
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.core.variants.unroll.signedplans import NO_PLANS, PlanPolicy
from tests.kit.deciding import drive

Object = dict[str, Any]
SET = Kind("config.porch.kpt.dev", "PackageVariantSet")
VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
REPOSITORY = Kind("config.porch.kpt.dev", "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
SITE = Kind("example.org", "Site")
KINDS = (SET, VARIANT, REPOSITORY, REVISION, SITE)


def marker(state: Any, epoch: int = 1, versions: tuple[str, ...] = ("v1", "v1alpha1", "v1alpha2")) -> bytes:
    value = encode_row(SyncMarker(state=state, epoch=epoch, versions=versions if state == "ok" else ()))
    assert value is not None
    return value


def obj(kind: Kind, name: str, **fields: Any) -> Object:
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
    }
    meta |= fields.pop("metadata", {})
    return {"kind": kind.kind, "metadata": meta, **fields}


def site(name: str, **labels: str) -> Object:
    return obj(SITE, name, metadata={"labels": labels})


def upstream() -> Object:
    spec = {"repository": "up", "packageName": "base", "revision": 1, "workspaceName": "v1"}
    return obj(REVISION, "up.base.v1", spec=spec)


def site_set(name: str = "alpha", *, generation: int = 1, template: Any = None, **metadata: Any) -> Object:
    """A set of one variant per Site with the label `env: prod`, in repository r1."""
    target = {
        "objectSelector": {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}},
        "template": template or {"downstream": {"repo": "r1", "packageExpr": "target.name"}},
    }
    spec = {"upstream": {"repo": "up", "package": "base", "revision": 1}, "targets": [target]}
    return obj(SET, name, spec=spec, metadata={"generation": generation, **metadata})


def of_set(uid: str) -> Object:
    """Return the metadata that makes a variant a set's: the label, and the owner reference."""
    owner = {"apiVersion": "config.porch.kpt.dev/v1alpha2", "kind": "PackageVariantSet", "name": "alpha"}
    return {
        "labels": {"config.porch.kpt.dev/packagevariantset": uid},
        "ownerReferences": [{**owner, "uid": uid, "controller": True}],
    }


class UnrollPart:
    """The unroll controller on one partition, with a render service that agrees to everything."""

    def __init__(
        self,
        *,
        limits: RemovalLimits | None = None,
        chunk_puts: int = CHUNK_PUTS,
        opinions: Opinions | None = None,
        plans: PlanPolicy = NO_PLANS,
    ) -> None:
        self.now = 1_000_000.0  # of the clock that cannot go back; the wall clock is apart by wall_offset
        self.wall_offset = 0.0
        nonces = (f"{number:08x}" for number in count(1))
        self._make: Callable[[], UnrollController] = lambda: UnrollController(
            partitions=1,
            elapsed=lambda: self.now,
            nonce=lambda: next(nonces),
            limits=limits,
            chunk_puts=chunk_puts,
            opinions=opinions,
            plans=plans,
        )
        self.controller = self._make()
        self.controller.open(0)
        self.log: list[tuple[str, str, bytes | None]] = []
        self.targets: dict[str, TargetRow] = {}
        self.children: dict[str, ChildRow] = {}
        self.rollup: SetResult | None = None
        self.requests: dict[str, Any] = {}
        self.answers_checks = True
        self.refuses: Callable[[str], bool] = lambda name: False
        self.on_catch_up: Callable[[], None] = lambda: None
        self.render_agrees = True
        self.dirty = False
        self.steps: list[Outcome] = []

    def synced(self) -> None:
        for kind in KINDS:
            self.mark(kind, "ok")

    def mark(self, kind: Kind, state: str, epoch: int = 1) -> None:
        for topic in {OBJECTS, SETS} if kind == SET else {OBJECTS}:
            self._load(topic, sync_key(*kind), marker(state, epoch))

    def _load(self, topic: str, key: str, value: bytes | None) -> None:
        """Show the controller a record of ingest's, now and after a restart."""
        self.log.append((topic, key, value))
        self.controller.load(topic, 0, key, value)

    def tell(self, kind: Kind, thing: Object) -> None:
        for row in rows_of(kind, thing, topics_of(kind, requested=True)):
            if row.topic in (OBJECTS, SETS):
                self._load(row.topic, row.key, row.value)

    def tell_gone(self, kind: Kind, thing: Object) -> None:
        for row in rows_of(kind, thing, topics_of(kind, requested=True)):
            if row.topic in (OBJECTS, SETS):
                self._load(row.topic, row.key, None)

    def made(self, name: str, **metadata: Any) -> None:
        """Show the PackageVariant that render made of a child."""
        row = self.children[name]
        downstream = {"repo": row.downstream.repo, "package": row.downstream.package}
        metadata = {**of_set(row.set_uid), **metadata}
        self.tell(VARIANT, obj(VARIANT, name, metadata=metadata, spec={"downstream": downstream}))

    def unmade(self, name: str) -> None:
        """Show that the PackageVariant of a child is gone."""
        self.tell_gone(VARIANT, obj(VARIANT, name, metadata=of_set(self.children[name].set_uid), spec={}))

    def run(self, skey: str = "default/alpha") -> Outcome:
        """Reconcile until no pass is due at once."""
        while True:
            self.dirty = False
            outcome = self._once(skey)
            if outcome.again_after != 0 and not self.dirty:
                return outcome

    def restart(self) -> None:
        """Give the lease to a new holder: it has the rows and the objects, and nothing else."""
        objects, former = list(self.log), self.controller
        self.controller = self._make()
        self.controller.open(0)
        for topic, key, value in objects:
            self.controller.load(topic, 0, key, value)
        for name, row in self.children.items():
            self.controller.load(UNROLL, 0, f"default/alpha|{name}", encode_row(row))
        state = former.state(0, "default/alpha")
        assert state is not None
        for name, result in state.children.results.items():
            self.controller.load(SETRESULTS, 0, f"default/alpha|{name}", encode_row(result))
        self.controller.load(SETRESULTS, 0, "default/alpha", encode_row(self.rollup))
        for key, request in self.requests.items():
            self.controller.load(WATCHES, 0, key, encode_row(request))

    def run_once(self, skey: str = "default/alpha") -> Outcome:
        """Reconcile once, whatever is left to do."""
        return self._once(skey)

    def _once(self, skey: str) -> Outcome:
        def perform(effect: Any) -> None:
            assert isinstance(effect, CatchUp)
            self.on_catch_up()

        steps = self.controller.reconcile(0, skey, self.now + self.wall_offset)
        outcome: Outcome = drive(steps, perform)
        self.steps.append(outcome)
        refused = [put for put in outcome.puts if self.refuses(child_of(put.topic, put.key))]
        for put in outcome.puts:
            if put not in refused:
                self._store(put)
        self.dirty |= bool(list(self.controller.note_refusal(0, tuple(refused), TooLargeError("too large"))))
        return outcome

    def _store(self, put: Put) -> None:
        self.controller.store(0, put)
        name = put.key.partition("|")[2]
        if put.topic == UNROLL:
            self.children.pop(name, None)
            if isinstance(put.row, ChildRow):
                self.children[name] = put.row
                if put.row.state == "present" and self.render_agrees:
                    self.rendered(put.key, put.row)
        elif put.topic == TARGETS:
            name = put.key.partition("|")[0].partition("/")[2]
            self.targets.pop(name, None)
            if isinstance(put.row, TargetRow):
                self.targets[name] = put.row
        elif put.topic == SETRESULTS:
            self.rollup = put.row if isinstance(put.row, SetResult) else None
        else:
            self.requests[put.key] = put.row
            self.controller.load(put.topic, 0, put.key, encode_row(put.row))
            if isinstance(put.row, CheckRequest) and self.answers_checks:
                self.answer(put.key, put.row.nonce)
            elif put.row is None and put.key.startswith("check|"):
                self.controller.load(OBJECTS, 0, put.key, None)

    def answer(self, key: str, nonce: str) -> None:
        """Answer a check request as ingest does."""
        self.controller.load(OBJECTS, 0, key, encode_row(CheckAnswer(nonce=nonce)))
        self.dirty = True

    def rendered(self, key: str, row: ChildRow, **fields: Any) -> None:
        result = ChildResult(
            **{"set_uid": row.set_uid, "evaluated": row.digest, "applied": row.digest, **fields}
        )
        self.controller.load(SETRESULTS, 0, key, encode_row(result))

    def states(self) -> dict[str, str]:
        return {name: row.state for name, row in sorted(self.children.items())}

    def orders(self) -> dict[str, str]:
        """Return render's last target rows, by name of the PackageVariant."""
        return {name: row.state for name, row in sorted(self.targets.items())}


class RenderPart:
    """The render controller on one partition; effects are returned, not applied."""

    def __init__(self, *, spec_bytes_max: int = SPEC_BYTES_MAX) -> None:
        self.controller = RenderController(spec_bytes_max=spec_bytes_max)
        self.controller.open(0)
        self.now = 1_000_000.0
        self.controller.load(VARIANTS, 0, sync_key(*VARIANT), marker("ok"))
        self.results: dict[str, ChildResult] = {}

    def target(self, row: TargetRow | None, vkey: str, set_name: str = "alpha") -> None:
        self.controller.load(TARGETS, 0, f"{vkey}|{set_name}", encode_row(row))

    def variant(self, thing: Object | None, vkey: str) -> None:
        value = None if thing is None else msgspec.json.encode(thing)
        self.controller.load(VARIANTS, 0, vkey, value)

    def begin(self, vkey: str) -> tuple[Any, Any]:
        """Return the running decision and its first effect, None if it has none."""
        steps = self.controller.reconcile(0, vkey, self.now)
        try:
            return steps, next(steps)
        except StopIteration as end:
            self.finish(end.value)
            return end.value, None

    def go_on(self, steps: Any, answer: Any) -> Any:
        """Answer an effect; return the next one or the outcome."""
        try:
            return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
        except StopIteration as end:
            self.finish(end.value)
            return end.value

    def finish(self, outcome: Outcome) -> None:
        for put in outcome.puts:
            self.controller.store(0, put)
            if put.topic == SETRESULTS:
                self.results.pop(put.key, None)
                if isinstance(put.row, ChildResult):
                    self.results[put.key] = put.row
