"""A schedule of users and faults for packages that depend on each other, and what must come of it."""

import copy
from collections import Counter
from collections.abc import Iterable

from pvbus.core.kernel.packagerows import LockRow
from pvbus.ports.cluster import Kind, Object
from tests.kit.processes import run_simulated
from tests.simulation.packages_judge import OWNER, PAGE, PKG, actives, is_paused
from tests.simulation.packages_storm import Storm
from tests.simulation.packages_world import (
    REGISTRY,
    PackagesWorld,
    Published,
    annotation,
    crd,
    key_of,
)
from tests.simulation.schedule import seeded

STEPS = 40
TAGS = ("v1.0.0", "v1.1.0", "v2.0.0")
BROKEN = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: no-manifest\n"
INSTALLS = (
    ("base", "base", "Provider"),
    ("other", "base", "Provider"),
    ("net", "net", "Provider"),
    ("app", "app", "Configuration"),
    ("pack", "app", "Package"),
    ("rival", "rival", "Provider"),
    ("loop", "loop-a", "Configuration"),
    ("old", "old", "Provider"),
    ("picky", "picky", "Provider"),
    ("foreign", "foreign", "Provider"),
    ("adopts", "adopts", "Provider"),
    ("bad", "bad", "Provider"),
    ("alone", "alone", "Provider"),
)
"""Names of installs, and what they are of. Two are of one package, and two bring the same object."""
ALWAYS = (
    *("install", "remove", "move tag", "policy", "limit", "activate", "deactivate", "pause", "unpause"),
    *(
        "delete revision",
        "edit revision",
        "edit object",
        "delete object",
        "edit page",
        "kills",
        "buses emptied",
    ),
    *("rows locked", "rows waiting", "rows refused", "rows broken", "rows removed", "objects adopted"),
    *("objects handed over", "sources down", "contents with another digest", "partitions lagging"),
    *("create Provider", "create CustomResourceDefinition", "create ConfigurationRevision"),
)
"""What must have happened in many schedules."""
ANSWERS_ALONE = ("alone", "adopts")
"""Packages that nothing else has to do with: whatever others do, they are installed."""


def publish_all(world: PackagesWorld) -> None:
    publish = world.registries.publish
    for number, tag in enumerate(TAGS):
        publish("base", tag, ["Base", ("Extra", "Shared", "Extra")[number]])
        publish("net", tag, ["Net"], depends=[("base", "v1.0.0", "")])
        depends = [("net", "v1.0.0", ""), ("base", "v1.1.0", "")]
        publish("app", tag, ["App"], kind="Configuration", depends=depends)
        publish("rival", tag, ["Base", "Rival"] if number < 2 else ["Rival"])
        publish("loop-a", tag, ["LoopA"], kind="Configuration", depends=[("loop-b", "v1.0.0", "")])
        publish("loop-b", tag, ["LoopB"], kind="Configuration", depends=[("loop-a", "v1.0.0", "")])
        publish("old", tag, ["Old"], depends=[("base", "v1.0.0", "v2.0.0")])
        publish("picky", tag, ["Picky"], depends=[("base", "v9.0.0", "")] if number == 0 else ())
        publish("foreign", tag, ["Foreign"])
        publish("adopts", tag, ["Adopted"])
        publish("bad", tag, ["Bad"], text=BROKEN if number == 0 else "")
        publish("alone", tag, ["Alone", f"Alone{number}"])


class Schedule(Storm):
    """One seed."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(PackagesWorld(seed), steps)

    def prepare(self) -> None:
        publish_all(self.world)
        self.world.own(crd("Foreign", text="somebody's"), controller=True)
        self.world.own(crd("Mine", text="a user's"))
        self.world.change(crd("Adopted", text="a user's, until its package comes"))

    def finish(self) -> None:
        self.world.registries.down.clear()
        self.world.registries.wrong.clear()
        for name, source, _ in INSTALLS:
            if source in ANSWERS_ALONE:
                self._install(name, source, "Provider", tag=self.random.choice(TAGS))

    def problems(self) -> list[str]:
        return problems_of(self.world)

    # ------------------------------------------------------------ users

    async def act(self) -> None:
        what = self.random.choice(
            ["install"] * 6
            + ["remove", "move tag", "policy", "limit", "activate", "activate", "deactivate", "pause"]
            + ["delete revision", "edit revision", "edit object", "delete object", "unpause", "edit page"]
        )
        self.counts[what] += 1
        name, source, kind = self.random.choice(INSTALLS)
        match what:
            case "install":
                self._install(name, source, kind, tag=self.random.choice(TAGS))
            case "move tag":
                self._move(source)
            case "policy" | "limit" | "pause" | "unpause" | "remove":
                await self._change_install(what)
            case "activate" | "deactivate" | "delete revision" | "edit revision":
                await self._change_revision(what)
            case "edit page":
                await self._change_page()
            case _:
                await self._change_object(what)

    async def _change_page(self) -> None:
        """Edit or delete the published lock."""
        for page in self.world.objects(Kind(PKG, PAGE)):
            if self.random.random() < 0.5:
                await self.world.drop(page)
            else:
                self.world.change({**page, "spec": {"customResourceDefinitions": {"bases": "mine"}}})

    def _install(self, name: str, source: str, kind: str, tag: str) -> None:
        self.world.install(name, source, tag, kind)

    def _move(self, source: str) -> None:
        """Publish another content under a tag that there is."""
        tag = self.random.choice(TAGS)
        published = self.world.registries.contents[self.world.registries.tags[f"{REGISTRY}/{source}"][tag]]
        if not published.is_broken:
            names = [_kind_name(each) for each in published.objects]
            self.world.registries.publish(
                source,
                tag,
                names,
                kind=published.kind,
                depends=published.depends,
                salt=str(self.random.randrange(3)),
            )

    async def _change_install(self, what: str) -> None:
        found = self.world.installs()
        if not found:
            return
        obj = copy.deepcopy(self.random.choice(found))
        match what:
            case "remove":
                await self.world.drop(obj)
                return
            case "policy":
                obj["spec"]["revisionActivationPolicy"] = self.random.choice(["Manual", "Automatic"])
            case "limit":
                obj["spec"]["revisionHistoryLimit"] = self.random.choice([0, 1, 2])
            case _:
                value = "true" if what == "pause" else "false"
                annotations = {**(obj["metadata"].get("annotations") or {}), "crossplane.io/paused": value}
                obj["metadata"]["annotations"] = annotations
        self.world.change(obj)

    async def _change_revision(self, what: str) -> None:
        found = self.world.revisions()
        if not found:
            return
        obj = copy.deepcopy(self.random.choice(found))
        match what:
            case "activate":
                self.world.desire(obj, "Active")
            case "deactivate":
                self.world.desire(obj, "Inactive")
            case "delete revision":
                await self.world.drop(obj)
            case _:
                obj["metadata"]["annotations"] = {}
                obj["metadata"]["labels"] = {"edited": "by-hand"}
                obj["spec"]["image"] = "edited.example.org/by-hand"
                self.world.change(obj)

    async def _change_object(self, what: str) -> None:
        found = self.world.packaged()
        if not found:
            return
        obj = copy.deepcopy(self.random.choice(found))
        if what == "delete object":
            await self.world.drop(obj)
        else:
            obj["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "edited by hand"
            self.world.change(obj)

    # ------------------------------------------------------------ accidents

    async def meet_accident(self, luck: float) -> None:
        """Besides what is common, registries go and come back."""
        registries = self.world.registries
        if 0.21 <= luck < 0.26:
            (registries.down if self.random.random() < 0.5 else registries.wrong).add(
                f"{REGISTRY}/{self.random.choice(INSTALLS)[1]}"
            )
        elif 0.26 <= luck < 0.31:
            registries.down.clear()
            registries.wrong.clear()
        else:
            await super().meet_accident(luck)


def _kind_name(key: str) -> str:
    """Return the kind that a definition is of: its plural without the s is enough, as capitals do not count
    in its name."""
    plural = key.rpartition("|")[2].partition(".")[0]
    return next(name for name in NAMES if f"{name.lower()}s" == plural)


NAMES = (
    *("Base", "Extra", "Shared", "Net", "App", "Rival", "LoopA", "LoopB", "Old", "Picky", "Foreign"),
    *("Adopted", "Bad", "Alone", "Alone0", "Alone1", "Alone2"),
)


# ------------------------------------------------------------ what must come of it


def problems_of(world: PackagesWorld) -> list[str]:
    """Return what is not as the rules of packages say, at rest, with every source reachable."""
    return [f"{key}: {text}" for key, row in world.lock().items() for text in _problems(world, key, row)]


def _problems(world: PackagesWorld, key: str, row: LockRow) -> Iterable[str]:
    lock, done = world.lock(), world.done()
    obj = next((each for each in world.installs() if key_of(each) == key), None)
    if obj is None and row.holders and not row.uid and row.status in ("refused", "waiting"):
        return  # it is not made before it may be
    if obj is None:
        yield f"it has a row ({row.status} {row.reason}), and no object"
        return
    if is_paused(obj):
        return
    content = content_of(world, row.digest)
    is_healthy = key in done and done[key].is_healthy
    if row.status == "locked" and actives(row):
        assert content is not None
        if content.is_broken:
            yield "its active content is broken"
        gaps = list(_gaps(world, content))
        if not gaps and not _is_foreign(content) and not is_healthy:
            yield f"nothing is in its way, and it is not healthy: {done.get(key)}"
        if is_healthy and _is_foreign(content):
            yield "an object is somebody else's, and it is healthy"
    elif row.status == "refused" and row.reason == "DuplicatePackage":
        others = [each for each, other in lock.items() if other.package == row.package and each != key]
        paused = {key_of(each) for each in world.installs() if is_paused(each)}  # their rows stand still
        if all(lock[each].reason == "DuplicatePackage" and each not in paused for each in others):
            yield "no other install has its package"
    elif row.status == "refused" and row.reason == "ObjectOwned" and wanted_of(world, obj) is not None:
        objects = _wanted_objects(world, obj, row)
        rivals = {each for k, r in lock.items() if k != key for rev in r.revisions for each in rev.objects}
        if not objects & rivals:
            yield f"no other install has its objects: {row.message}"
    elif row.status == "broken":
        wanted = wanted_of(world, obj)
        if wanted is not None and not wanted.is_broken:
            yield f"its content can be used: {row.message}"
    elif row.status == "waiting":
        yield f"it waits, and every source answers: {row.message}"
    if _is_alone(world, obj) and not annotation(obj, OWNER):
        wanted = wanted_of(world, obj)
        is_manual = obj["spec"].get("revisionActivationPolicy") == "Manual"
        if row.status != "locked" or not (is_healthy or is_manual):
            yield f"nothing is in its way, and it is {row.status} {row.reason} {row.message}"
        if wanted is not None and not any(each.digest == wanted.digest for each in row.revisions):
            if row.observed != wanted.digest:
                yield "it has no revision of what its tag names"


def _gaps(world: PackagesWorld, content: Published) -> Iterable[str]:
    """Yield the dependencies that nothing healthy meets."""
    done = world.done()
    for source, lowest, below in content.depends:
        for key, row in world.lock().items():
            if row.package != f"{REGISTRY}/{source}" or not (key in done and done[key].is_healthy):
                continue
            if _number(row.version) >= _number(lowest) and (
                not below or _number(row.version) < _number(below)
            ):
                break
        else:
            yield source


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.partition("+")[0].lstrip("v").split(".")) if version else ()


def _is_foreign(content: Published) -> bool:
    return any(each.endswith("|foreigns.example.org") for each in content.objects)


def content_of(world: PackagesWorld, digest: str) -> Published | None:
    return world.registries.contents.get(digest)


def wanted_of(world: PackagesWorld, obj: Object) -> Published | None:
    """Return the content that the tag of an install names now."""
    source, _, tag = str(obj["spec"]["package"]).rpartition(":")
    return content_of(world, world.registries.tags.get(source, {}).get(tag, ""))


def _wanted_objects(world: PackagesWorld, obj: Object, row: LockRow) -> set[str]:
    contents = [wanted_of(world, obj), *(content_of(world, each.digest) for each in row.revisions)]
    return {each for content in contents if content is not None for each in content.objects}


def _is_alone(world: PackagesWorld, obj: Object) -> bool:
    return str(obj["spec"]["package"]).rpartition(":")[0].rpartition("/")[2] in ANSWERS_ALONE


def play(seed: int, steps: int = STEPS) -> Counter[str]:
    """Play a schedule; return what was exercised. Raises AssertionError for what must not be."""
    with seeded(seed):
        return run_simulated(Schedule(seed, steps).play(), context={"packages seed": seed})


__all__ = ["ALWAYS", "PKG", "Schedule", "play", "problems_of"]
