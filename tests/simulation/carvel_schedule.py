"""A schedule of users and faults for Carvel's packages, and what must come of it."""

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.packagerows import LockRow
from pvbus.ports.cluster import Kind, Object
from tests.kit.processes import run_simulated
from tests.simulation.carvel_judge import INSTALL_GROUP, OWNER, CarvelJudge, holder_of
from tests.simulation.packages_judge import annotation, key_of
from tests.simulation.packages_storm import Storm
from tests.simulation.packages_world import PackagesWorld
from tests.simulation.schedule import seeded

STEPS = 40
NAMESPACE = "demo"
ACCOUNT = "installer"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
INSTALL = Kind(INSTALL_GROUP, "PackageInstall")
PACKAGE = Kind("data.packaging.carvel.dev", "Package")
CONFIG_MAP = Kind("", "ConfigMap")
VERSIONS = ("1.0.0", "1.1.0", "2.0.0")
REMOVAL = "pvbus.dev/dependency-removal"
ALONE = ("alone", "adopts")
"""Packages that nothing else has to do with: whatever others do, they are installed."""


class Content(NamedTuple):
    """A version of a package. depends: names of packages with the ranges. objects: names of ConfigMaps."""

    objects: tuple[str, ...]
    depends: tuple[tuple[str, str], ...] = ()


CONTENTS: dict[str, tuple[Content, Content, Content]] = {
    "base": (Content(("base",)), Content(("base", "extra")), Content(("base", "shared"))),
    "net": (Content(("net",), (("base", ">=1.0.0"),)),) * 3,
    "app": (Content(("app",), (("net", ">=1.0.0"), ("base", ">=1.1.0"))),) * 3,
    "old": (Content(("old",), (("base", "<2.0.0"),)),) * 3,
    "rival": (Content(("base", "rival")), Content(("rival",)), Content(("rival",))),
    "loop-a": (Content(("loop-a",), (("loop-b", ">=1.0.0"),)),) * 3,
    "loop-b": (Content(("loop-b",), (("loop-a", ">=1.0.0"),)),) * 3,
    "picky": (Content(("picky",), (("base", ">=9.0.0"),)), Content(("picky",)), Content(("picky",))),
    "foreign": (Content(("foreign",)),) * 3,
    "adopts": (Content(("adopted",)),) * 3,
    "alone": (Content(("alone", "alone-0")), Content(("alone", "alone-1")), Content(("alone",))),
}
INSTALLS = (
    *(("base", "base"), ("other", "base"), ("net", "net"), ("app", "app"), ("again", "app"), ("old", "old")),
    *(("rival", "rival"), ("loop", "loop-a"), ("picky", "picky"), ("foreign", "foreign")),
    *(("adopts", "adopts"), ("alone", "alone")),
)
"""Names of installs, and what they are of. Two are of one package, and two bring the same object."""
ALWAYS = (
    *("install", "remove", "policy", "take over", "edit install", "edit object", "delete object"),
    *("withdraw package", "publish package", "kills", "buses emptied", "objects adopted"),
    *("rows locked", "rows refused", "rows removed", "create PackageInstall", "delete PackageInstall"),
    *("create ConfigMap", "update ConfigMap", "delete ConfigMap", "partitions lagging"),
)
"""What must have happened in many schedules."""


def full(package: str) -> str:
    return f"{package}.test.dev"


def config_map(name: str, text: str) -> Object:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"text": text}}


def package_of(package: str, version: str) -> Object:
    content = CONTENTS[package][VERSIONS.index(version)]
    objects = [config_map(name, f"{package} {version}") for name in content.objects]
    files = {"config.yml": "\n---\n".join(msgspec.json.encode(each).decode() for each in objects)}
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": f"{full(package)}.{version}", "namespace": NAMESPACE},
        "spec": {
            "refName": full(package),
            "version": version,
            "dependencies": [
                {"package": {"refName": full(name), "version": range_}} for name, range_ in content.depends
            ],
            "template": {
                "spec": {
                    "fetch": [{"inline": {"paths": files}}],
                    "template": [{"ytt": {}}],
                    "deploy": [{"kapp": {}}],
                }
            },
        },
    }


class CarvelWorld(PackagesWorld):
    """Users have Packages, PackageInstalls and ConfigMaps of their own."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.judge = CarvelJudge()

    def storm(self) -> None:
        super().storm()
        # What is created after its install is gone would stay: it has no owner that could collect it.
        self.faults.late = 0.0

    def judged(self, verb: str, before: Object | None, after: Object, subresource: str) -> None:
        super().judged(verb, before, after, subresource)
        writer = self.cluster._user
        if not self.by_user and after["kind"] == "ConfigMap" and writer != USER:
            self.judge.problems.append(f"{key_of(after)} was written by {writer!r}")

    def check_rest(self) -> None:
        # Two installs may want one object: the API server decides, so their writes of it may cross.
        self.faults.broken = [each for each in self.faults.broken if "'ConfigMap'" not in each]
        super().check_rest()

    def package_installs(self) -> list[Object]:
        return self.objects(INSTALL)

    def install_package(self, name: str, package: str, range_: str) -> None:
        """Install a package, or change the range of its install."""
        current = self.find(INSTALL, name, NAMESPACE)
        obj: Object = copy.deepcopy(current or {}) or {
            "apiVersion": f"{INSTALL_GROUP}/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {},
        }
        reference = {"refName": full(package), "versionSelection": {"constraints": range_}}
        obj["spec"] = {**obj["spec"], "serviceAccountName": ACCOUNT, "packageRef": reference}
        self.change(obj)


class Schedule(Storm):
    """One seed."""

    world: CarvelWorld

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(CarvelWorld(seed), steps)

    def prepare(self) -> None:
        self._publish_all()
        self.world.own(config_map("foreign", "somebody's"), controller=True)
        self.world.own(config_map("mine", "a user's"))
        self.world.change(config_map("adopted", "a user's, until its package comes"))

    def finish(self) -> None:
        self._publish_all()
        for name in ALONE:
            self.world.install_package(name, name, ">=1.0.0")

    def problems(self) -> list[str]:
        return problems_of(self.world)

    def _publish_all(self) -> None:
        for package in CONTENTS:
            for version in VERSIONS:
                self.world.change(package_of(package, version))

    def _range(self) -> str:
        return self.random.choice(["1.0.0", ">=1.0.0 <2.0.0", ">=1.0.0", "2.0.0"])

    # ------------------------------------------------------------ users

    async def act(self) -> None:
        what = self.random.choice(
            ["install"] * 6
            + ["remove", "remove", "policy", "take over", "edit install", "edit object", "delete object"]
            + ["withdraw package", "publish package"]
        )
        self.counts[what] += 1
        match what:
            case "install":
                self.world.install_package(*self.random.choice(INSTALLS), self._range())
            case "withdraw package" | "publish package":
                await self._change_package(what)
            case "edit object" | "delete object":
                await self._change_object(what)
            case _:
                await self._change_install(what)

    async def _change_package(self, what: str) -> None:
        obj = package_of(self.random.choice(list(CONTENTS)), self.random.choice(VERSIONS))
        found = self.world.find(PACKAGE, obj["metadata"]["name"], NAMESPACE)
        if what == "publish package":
            self.world.change(obj)
        elif found is not None:
            await self.world.drop(found)

    async def _change_install(self, what: str) -> None:
        obj = self._one(self.world.package_installs())
        if obj is None:
            return
        annotations = dict(obj["metadata"].get("annotations") or {})
        match what:
            case "remove":
                await self.world.drop(obj)
                return
            case "policy":
                annotations[REMOVAL] = self.random.choice(["orphan", "delete", "keep-if-used"])
            case "take over":
                annotations.pop(OWNER, None)
            case _:
                if annotation(obj, OWNER):  # an API server refuses a user's edit of it
                    return
                obj["spec"]["packageRef"]["versionSelection"] = {"constraints": self._range()}
        obj["metadata"]["annotations"] = annotations
        self.world.change(obj)

    async def _change_object(self, what: str) -> None:
        obj = self._one([each for each in self.world.objects(CONFIG_MAP) if holder_of(each)])
        if obj is None:
            return
        if what == "delete object":
            await self.world.drop(obj)
        else:
            obj["data"]["text"] = "edited by hand"
            self.world.change(obj)

    def _one(self, found: Sequence[Object]) -> Object | None:
        return copy.deepcopy(self.random.choice(found)) if found else None


# ------------------------------------------------------------ what must come of it


def problems_of(world: CarvelWorld) -> list[str]:
    """Return what is not as the rules of packages say, at rest, with every Package there."""
    installs = {key_of(each): each for each in world.package_installs()}
    found = [f"{key} has no row in the lock" for key in installs if key not in world.lock()]
    for key, row in world.lock().items():
        found += [f"{key}: {text}" for text in _problems(world, key, row, installs.get(key))]
    return found


def _problems(world: CarvelWorld, key: str, row: LockRow, obj: Object | None) -> Iterable[str]:
    done = world.done().get(key)
    is_healthy = done is not None and done.is_healthy
    if obj is None:
        if not (row.holders and not row.uid and row.status in ("refused", "waiting")):
            yield f"it has a row ({row.status} {row.reason}), and no object"
        return
    package = row.package.removesuffix(".test.dev")
    if row.status == "waiting":
        yield f"it waits, and everything is known: {row.message}"
    if row.status == "locked":
        content = CONTENTS[package][VERSIONS.index(row.version)]
        gaps = [name for name, range_ in content.depends if not _found(world, row, name, range_)]
        waits = any(not _is_healthy(world, _found(world, row, *each)) for each in content.depends)
        taken = [each for each in content.objects if _is_anothers(world, key, each)]
        if is_healthy and (gaps or taken):
            yield f"it is healthy, without {gaps}, and others have {taken}"
        if not is_healthy and not gaps and not waits and not taken:
            yield f"nothing is in its way, and it is not healthy: {done}"
        for name in content.objects if is_healthy else ():
            live = world.find(CONFIG_MAP, name, NAMESPACE)
            if live is None or live["data"]["text"] != f"{package} {row.version}":
                yield f"it is healthy, and {name} is {live and live['data']}"
    if annotation(obj, OWNER) and not row.holders:
        yield f"it was created, and nobody holds it: {row.reason}"
    if package in ALONE and not is_healthy:
        yield f"nothing is in its way, and it is {row.status} {row.reason} {row.message}, {done}"


def _is_anothers(world: CarvelWorld, key: str, name: str) -> bool:
    live = world.find(CONFIG_MAP, name, NAMESPACE)
    return live is not None and (holder_of(live) or name) != key


def _found(world: CarvelWorld, row: LockRow, name: str, range_: str) -> str:
    """Return the install that a row names for a dependency, "" if it is gone or its version does not fit."""
    lock = world.lock()
    found = [each.install for each in row.dependencies if each.package == full(name)]
    return next((key for key in found if key in lock and _fits(lock[key].version, range_)), "")


def _is_healthy(world: CarvelWorld, key: str) -> bool:
    done = world.done()
    return key in done and done[key].is_healthy


def _fits(version: str, range_: str) -> bool:
    bound = _number(range_.lstrip("<>="))
    return _number(version) < bound if range_.startswith("<") else _number(version) >= bound


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


def play(seed: int, steps: int = STEPS) -> Counter[str]:
    """Play a schedule; return what was exercised. Raises AssertionError for what must not be."""
    with seeded(seed):
        return run_simulated(Schedule(seed, steps).play(), context={"carvel seed": seed})


__all__ = ["ALWAYS", "Schedule", "play", "problems_of"]
