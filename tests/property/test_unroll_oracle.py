"""Unrolling and rendering together reach what the oracle expects, in whatever order news arrives.

The two controllers run over dictionaries: no bus, no clock, no cluster. Time passes only when
nothing else can be done.
"""

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import CatchUp, Create, Delete, Get, Update
from pvbus.core.kernel.keys import SET_UID_LABEL, colliding_variant_name, digest, sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import rows_of, topics_of
from pvbus.core.kernel.records import (
    OBJECTS,
    UNROLL,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildRow,
    SyncMarker,
)
from pvbus.core.kernel.topics import partition_key
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import TURN_TARGETS, UnrollController
from pvbus.core.variants.unroll.removal import RemovalLimits
from tests.kit.deciding import drive
from tests.kit.oracle import Names, Thing, expected_variants

Object = dict[str, Any]
SITE = Kind("example.org", "Site")
KINDS = {
    "PackageVariantSet": Kind("config.porch.kpt.dev", "PackageVariantSet"),
    "PackageVariant": Kind("config.porch.kpt.dev", "PackageVariant"),
    "Repository": Kind("config.porch.kpt.dev", "Repository"),
    "PackageRevision": Kind("porch.kpt.dev", "PackageRevision"),
    "Site": SITE,
}
UNLIMITED = RemovalLimits(removals_max=1_000_000)
ROUNDS_MAX = 400  # a world of this size settles in a few dozen; more means that it never does


class UnrollWorld:
    """A cluster as a dictionary, and both controllers on one partition."""

    def __init__(self, turn_targets: int = TURN_TARGETS) -> None:
        nonces = (f"{number:08x}" for number in count(1))
        self.unroll = UnrollController(
            partitions=1,
            elapsed=lambda: self.now,
            nonce=lambda: next(nonces),
            limits=UNLIMITED,
            turn_targets=turn_targets,
        )
        self.render = RenderController()
        self.objects: dict[tuple[str, str], Object] = {}
        self.rows: dict[str, ChildRow] = {}
        self.now = 1_000_000.0
        self.version = 0
        self.dirty: dict[tuple[Any, str], None] = {}
        self.answered: frozenset[str] = frozenset()
        for controller in (self.unroll, self.render):
            controller.open(0)

    def synced(self) -> None:
        """Say that everything that exists has been told."""
        marker = SyncMarker(state="ok", epoch=1, versions=("v1", "v1alpha1", "v1alpha2"))
        for kind in KINDS.values():
            for topic in dict.fromkeys((OBJECTS, *topics_of(kind, requested=True))):
                self._load(topic, sync_key(*kind), encode_row(marker))

    def put(self, obj: Object) -> Object:
        """Store an object as an API server does, and tell the controllers."""
        self.version += 1
        key = (obj["kind"], obj["metadata"]["name"])
        old = self.objects.get(key)
        meta = {
            "uid": f"uid-{key[1]}-{self.version}",
            "generation": 1,
            "namespace": "default",
            **obj["metadata"],
            "resourceVersion": str(self.version),
        }
        if old is not None:
            changed = old.get("spec") != obj.get("spec")
            meta |= {"uid": old["metadata"]["uid"], "generation": old["metadata"]["generation"] + changed}
        stored: dict[str, Any] = json.loads(json.dumps({**obj, "metadata": meta}))
        self.objects[key] = stored
        kind = KINDS[obj["kind"]]
        for row in rows_of(kind, stored, topics_of(kind, requested=True)):
            self._load(row.topic, row.key, row.value)
        return stored

    def remove(self, kind: str, name: str) -> None:
        obj = self.objects.pop((kind, name), None)
        if obj is not None:
            for row in rows_of(KINDS[kind], obj, topics_of(KINDS[kind], requested=True)):
                self._load(row.topic, row.key, None)

    def _load(self, topic: str, key: str, value: bytes | None) -> None:
        for controller in (self.unroll, self.render):
            if topic in (*controller.inputs, *controller.broadcast):
                for dirtied in controller.load(topic, 0, key, value):
                    self.dirty[controller, dirtied] = None

    def _reconcile(self, controller: Any, key: str) -> bool:
        wrote = False

        def perform(effect: Any) -> Any:
            nonlocal wrote
            answer, did = self._apply(effect)
            wrote |= did
            return answer

        outcome = drive(controller.reconcile(0, key, self.now), perform)
        for put in outcome.puts:
            value = encode_row(put.row)
            if put.topic == UNROLL:
                name = put.key.partition("|")[2]
                self.rows.pop(put.key, None)
                if isinstance(put.row, ChildRow):
                    self.rows[put.key] = put.row
                assert name
            assert partition_key(put.topic, put.key)
            if put.topic == WATCHES:
                self._answer(put.key, put.row)
            for dirtied in controller.store(0, put):
                self.dirty[controller, dirtied] = None
            for other in (self.unroll, self.render):
                if other is not controller and put.topic in (*other.inputs, *other.broadcast):
                    for dirtied in other.load(put.topic, 0, put.key, value):
                        self.dirty[other, dirtied] = None
        if outcome.again_after == 0:
            self.dirty[controller, key] = None
        return wrote or bool(outcome.puts)

    def _answer(self, key: str, row: Any) -> None:
        """Answer a check request at once: everything that exists has been reported already."""
        if isinstance(row, CheckRequest):
            self._load(OBJECTS, key, encode_row(CheckAnswer(nonce=row.nonce)))
        elif row is None and key in self.answered:
            self._load(OBJECTS, key, None)
        self.answered = (self.answered | {key}) if isinstance(row, CheckRequest) else self.answered - {key}

    def _apply(self, effect: Any) -> tuple[Any, bool]:
        match effect:
            case Get(kind=kind, name=name):
                return self.objects.get((kind.kind, name)), False
            case Create(object=obj):
                assert ("PackageVariant", obj["metadata"]["name"]) not in self.objects
                return self.put(obj), True
            case Update(object=obj):
                key = ("PackageVariant", obj["metadata"]["name"])
                assert self.objects[key]["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]
                return self.put(obj), True
            case Delete(name=name, uid=uid):
                assert self.objects["PackageVariant", name]["metadata"]["uid"] == uid
                self.remove("PackageVariant", name)
                return True, True
            case CatchUp():
                return None, False
        raise AssertionError(effect)

    def settle(self) -> None:
        """Run until nothing changes any more, even after a long time; collect garbage as Kubernetes does."""
        quiet = 0
        for _ in range(ROUNDS_MAX):
            acted = self._collect_garbage()
            while self.dirty:
                acted |= self.turn()
            quiet = 0 if acted else quiet + 1
            if quiet > 2:
                return
            self.now += 601.0 if quiet else 6.0
            for controller in (self.unroll, self.render):
                self.dirty |= {(controller, key): None for key in controller.keys(0)}
        raise AssertionError("the world never settles")

    def turn(self) -> bool:
        """Look at one dirty key; tell whether that did anything."""
        if not self.dirty:
            return False
        controller, key = self._next()
        del self.dirty[controller, key]
        return self._reconcile(controller, key)

    def _next(self) -> tuple[Any, str]:
        """Sets first: which of two sets creates a variant may depend on who is quicker otherwise."""
        waiting = list(self.dirty)
        return next((item for item in waiting if item[0] is self.unroll), waiting[-1])

    def _collect_garbage(self) -> bool:
        uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
        orphans = [
            name
            for (kind, name), obj in self.objects.items()
            if any(o["uid"] not in uids for o in obj["metadata"].get("ownerReferences", ()))
        ]
        for name in orphans:
            self.remove("PackageVariant", name)
        return bool(orphans)

    def of(self, kind: str, type_: Any) -> list[Any]:
        return [msgspec.convert(obj, type_) for (k, _), obj in sorted(self.objects.items()) if k == kind]

    def variants(self) -> dict[str, str]:
        """Digest of the spec and owner, by vkey."""
        return {
            f"default/{v.metadata.name}": digest(
                [v.spec, next((o.uid for o in v.metadata.owner_references), "")]
            )
            for v in self.of("PackageVariant", PackageVariant)
        }

    def names(self) -> Names:
        found: dict[str, dict[str, Any]] = {}
        by_rank = sorted(self.rows.items(), reverse=True)  # of two with one downstream the last one counts
        for key, row in sorted(by_rank, key=lambda item: item[1].state == "present"):
            skey, _, name = key.partition("|")
            if row.state != "gone":
                found.setdefault(skey, {})[name] = row.downstream
        return found


def expected(world: UnrollWorld, children: list[PackageVariant], names: Names) -> dict[str, str]:
    things = [
        Thing(str(SITE), "default", name, obj["metadata"].get("labels", {}))
        for (kind, name), obj in world.objects.items()
        if kind == "Site"
    ]
    found = expected_variants(
        world.of("PackageVariantSet", PackageVariantSet),
        things,
        world.of("Repository", Repository),
        world.of("PackageRevision", PackageRevision),
        existing_children=children,
        remembered_names=names,
    )
    return {vkey: digest([e.spec, e.owner]) for vkey, e in found.items()}


REPOSITORIES = ("b", "c", "b-c")
labels = st.dictionaries(st.sampled_from(("fleet", "to")), st.sampled_from(("edge", "b", "c")))
templates = st.sampled_from(
    (
        None,
        {},
        {"downstream": {"repoExpr": "target.labels['to']"}},
        {
            "downstream": {"package": "c"},
            "labelExprs": [{"key": "f", "valueExpr": "repository.labels['fleet']"}],
        },
    )
)
listed = st.lists(
    st.builds(
        lambda repo, packages: {"name": repo, "packageNames": packages},
        st.sampled_from(REPOSITORIES),
        st.lists(st.sampled_from(("base", "c", "c-base")), min_size=1, max_size=2, unique=True),
    ),
    min_size=1,
    max_size=2,
).map(lambda repositories: {"repositories": repositories})
selecting = st.dictionaries(st.just("fleet"), st.sampled_from(("edge", "b")))
by_repository = selecting.map(lambda chosen: {"repositorySelector": {"matchLabels": chosen}})
by_site = selecting.map(
    lambda chosen: {"objectSelector": {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": chosen}}
)


def targeted(target: Object, template: Object | None) -> Object:
    return target if template is None else {**target, "template": template}


sets = st.builds(
    lambda name, targets: {
        "kind": "PackageVariantSet",
        "metadata": {"name": name, "creationTimestamp": f"2026-01-0{len(name)}T00:00:00Z"},
        "spec": {"upstream": {"repo": "up", "package": "base", "revision": 1}, "targets": targets},
    },
    st.sampled_from(("a", "a-b")),
    st.lists(
        st.builds(targeted, st.one_of(listed, by_repository, by_site), templates), min_size=1, max_size=3
    ),
)
repositories = st.builds(
    lambda name, own: {"kind": "Repository", "metadata": {"name": name, "labels": own}, "spec": {}},
    st.sampled_from(REPOSITORIES),
    labels,
)
sites = st.builds(
    lambda name, own: {"kind": "Site", "metadata": {"name": name, "labels": own}},
    st.sampled_from(("b", "s1", "s2")),
    labels,
)
revisions = st.sampled_from((1, 1, 1, 0)).map(
    lambda number: {
        "kind": "PackageRevision",
        "metadata": {"name": "up.base.v1"},
        "spec": {"repository": "up", "packageName": "base", "revision": number, "workspaceName": "v1"},
    }
)
mine = st.sampled_from(("a-b-base", "a-c-base", "a-b-c-base")).map(
    lambda name: {
        "kind": "PackageVariant",
        "metadata": {"name": name},
        "spec": {"downstream": {"repo": "x", "package": "y"}},
    }
)
news = st.lists(st.one_of(sets, repositories, sites), max_size=8)


def tell(world: UnrollWorld, objects: Iterable[Object]) -> None:
    for obj in objects:
        world.put(obj)


def test_two_new_downstreams_that_join_to_one_name_both_get_a_variant() -> None:
    world = UnrollWorld()
    downstreams = [{"name": "b-c", "packageNames": ["d"]}, {"name": "b", "packageNames": ["c-d"]}]
    spec = {
        "upstream": {"repo": "up", "package": "base", "revision": 1},
        "targets": [{"repositories": downstreams}],
    }
    revision = {"repository": "up", "packageName": "base", "revision": 1, "workspaceName": "v1"}
    tell(
        world,
        [
            {"kind": "PackageRevision", "metadata": {"name": "up.base.v1"}, "spec": revision},
            {"kind": "PackageVariantSet", "metadata": {"name": "a"}, "spec": spec},
        ],
    )
    world.synced()
    world.settle()
    assert set(world.variants()) == {
        "default/a-b-c-d",
        f"default/{colliding_variant_name('a', 'b', 'c-d')}",
    }


@given(first=news, upstream=revisions, person=st.lists(mine, max_size=1))
@settings(max_examples=150, deadline=None)
def test_from_nothing_the_sets_get_what_the_oracle_expects(
    first: list[Object], upstream: Object, person: list[Object]
) -> None:
    world = UnrollWorld()
    tell(world, [upstream, *person, *first])
    children = world.of("PackageVariant", PackageVariant)
    world.synced()
    world.settle()
    note(f"{sorted(world.objects)}")
    assert world.variants() == expected(world, children, {})


UPSTREAM = {"repo": "up", "package": "base", "revision": 1}


def made(name: str, day: int, *targets: Object) -> Object:
    meta = {"name": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
    return {
        "kind": "PackageVariantSet",
        "metadata": meta,
        "spec": {"upstream": UPSTREAM, "targets": list(targets)},
    }


def of(repository: str) -> Object:
    return {"repositories": [{"name": repository, "packageNames": ["base"]}]}


@example(
    # Set `a` has the variant `a-b-c-base`, of repository `b-c`, and gives it up; set `a-b` wants that name
    # for repository `c`, and must get it.
    first=[],
    upstream={
        "kind": "PackageRevision",
        "metadata": {"name": "up.base.v1"},
        "spec": {"repository": "up", "packageName": "base", "revision": 1, "workspaceName": "v1"},
    },
    person=[],
    changes=[
        made("a", 1, {"repositorySelector": {"matchLabels": {}}}, of("b")),
        {"kind": "Repository", "metadata": {"name": "b-c", "labels": {}}, "spec": {}},
        made("a-b", 3, {"repositorySelector": {"matchLabels": {"fleet": "edge"}}}),
        "settle",
        made("a", 1, of("b")),
        made("a-b", 3, of("c")),
    ],
    turn_targets=1,
)
@given(
    first=news,
    upstream=revisions,
    person=st.lists(mine, max_size=1),
    changes=st.lists(
        st.one_of(
            sets,
            repositories,
            sites,
            revisions,
            st.tuples(
                st.sampled_from(("PackageVariantSet", "Repository", "Site", "PackageVariant")),
                st.sampled_from(("a", "a-b", "b", "c", "b-c", "s1", "a-b-base", "a-b-c-base")),
            ),
            st.sampled_from(("settle", "turn")),
        ),
        max_size=12,
    ),
    turn_targets=st.sampled_from((1, 2, TURN_TARGETS)),
)
@settings(max_examples=150, deadline=None)
def test_after_any_history_the_variants_are_a_fixed_point_of_the_oracle(
    first: list[Object], upstream: Object, person: list[Object], changes: list[Any], turn_targets: int
) -> None:
    """Also where sets are looked at a target at a time, and change while they are."""
    world = UnrollWorld(turn_targets)
    tell(world, [upstream, *person, *first])
    world.synced()
    for change in changes:
        if change == "settle":
            world.settle()
        elif change == "turn":
            world.turn()
        elif isinstance(change, tuple):
            world.remove(*change)
        else:
            world.put(change)
    world.settle()
    note(f"{world.names()}")
    children = world.of("PackageVariant", PackageVariant)
    assert world.variants() == expected(world, children, world.names())
    for child in children:
        owners = {owner.uid for owner in child.metadata.owner_references}
        assert owners == {child.metadata.labels[SET_UID_LABEL]} if owners else True
