"""Small random problems of every kind of need, policy and state, each from a seed."""

from random import Random
from typing import TypeVar

from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    Conflict,
    Installed,
    Need,
    OfferNeed,
    Package,
    PackageNeed,
    PlatformNeed,
    Policy,
    Problem,
    Requirement,
    Target,
    Wish,
)

T = TypeVar("T")

VERSIONS = ("1.0.0", "1.1.0", "2.0.0", "2.0.0-rc.1", "3.0.0", "1.0.0+1")
USUAL = ("", "", ">=1.0.0", ">=1.1.0", ">=2.0.0", "<2.0.0", "<3.0.0", "!=2.0.0", ">=2.0.0-0")
RANGES = (*USUAL, "=1.0.0", "^1.1.0", ">=3.0.0", "<2.0.0 || >=3.0.0", ">=1.0.0, <2.0.0", ">=4.0.0")
OFFERS = ("API example.org/v1 Thing", "API example.org/v1 Other", "capability backup")


class Maker:
    """Makes one problem."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.names = "ABCDEF"[: self.rng.choice([2, 3, 4, 4, 5, 5])]
        self.targets = self.rng.choice([("",), ("",), ("",), ("east", "west")])
        self.offers_often = self.rng.random() < 0.4

    def problem(self) -> Problem:
        rng = self.rng
        packages = tuple(self._package(name) for name in self.names if rng.random() < 0.98)
        return Problem(
            packages=packages,
            wishes=tuple(self._wish() for _ in range(rng.randint(1, 3))),
            installed=self._installed(packages),
            targets=tuple(self._target(name) for name in self.targets),
            policy=Policy(
                versions=rng.choice(["highest", "highest", "minimal-change", "lowest-satisfying", "pinned"]),
                downgrades=rng.random() < 0.3,
                search=rng.random() < 0.4,
                ignore_platforms=rng.random() < 0.1,
            ),
        )

    def _package(self, name: str) -> Package:
        count = self.rng.randint(1, 3 if len(self.targets) == 1 else 2)
        return Package(
            name=name, candidates=tuple(self._candidate(v) for v in self.rng.sample(VERSIONS, count))
        )

    def _candidate(self, version: str) -> Candidate:
        rng = self.rng
        return Candidate(
            version=version,
            digest=rng.choice(["", "sha256:1", "sha256:2"]),
            requirements=tuple(self._requirement() for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))),
            provides=(rng.choice(OFFERS),) if rng.random() < (0.4 if self.offers_often else 0.05) else (),
            conflicts=(Conflict(package=rng.choice(self.names), range=rng.choice(RANGES)),)
            if rng.random() < 0.1
            else (),
            defect="it is broken" if rng.random() < 0.04 else "",
        )

    def _requirement(self) -> Requirement:
        return Requirement(need=self._need(0), optional=self.rng.random() < 0.15)

    def _need(self, depth: int) -> Need:
        rng = self.rng
        share = rng.random()
        names = self.names if rng.random() < 0.98 else "Z"
        if share < 0.15 and depth < 2:
            return AnyOf(alternatives=tuple(self._need(depth + 1) for _ in range(rng.randint(1, 3))))
        if share < (0.5 if self.offers_often else 0.2):
            return OfferNeed(offer=rng.choice(OFFERS))
        if share < 0.55 and rng.random() < 0.2:
            return PlatformNeed(platform="kubernetes", range=rng.choice([">=1.30.0", "<1.30.0", "nothing"]))
        target = rng.choice(self.targets) if rng.random() < 0.3 else None
        if rng.random() < 0.05:
            return PackageNeed(package=rng.choice(self.names), digest="sha256:1", target=target)
        text = rng.choice(USUAL) if rng.random() < 0.8 else rng.choice((*RANGES, "no range"))
        return PackageNeed(package=rng.choice(names), range=text, target=target)

    def _wish(self) -> Wish:
        rng = self.rng
        return Wish(
            package=rng.choice(self.names),
            target=rng.choice(self.targets),
            range=rng.choice(USUAL) if rng.random() < 0.8 else rng.choice(RANGES),
            pinned=rng.random() < 0.2,
            name=f"wish-{rng.randint(1, 9)}",
        )

    def _installed(self, packages: tuple[Package, ...]) -> tuple[Installed, ...]:
        found = []
        for target in self.targets:
            for package in packages:
                if self.rng.random() < 0.35:
                    version = self.rng.choice(package.candidates).version
                    candidate = None
                    if self.rng.random() < 0.15:
                        version, candidate = "1.2.0", self._candidate("1.2.0")
                    found.append(
                        Installed(
                            package=package.name,
                            target=target,
                            version=version,
                            candidate=candidate,
                            is_downgradable=self.rng.random() < 0.2,
                        )
                    )
        return tuple(found)

    def _target(self, name: str) -> Target:
        offers = (self.rng.choice(OFFERS),) if self.rng.random() < 0.2 else ()
        return Target(name=name, offers=offers, platforms=(("kubernetes", "1.32.0"),))


def random_problem(seed: int) -> Problem:
    return Maker(seed).problem()


def shuffled(problem: Problem, seed: int) -> Problem:
    """Return the same problem with every list whose order has no meaning in another one."""
    rng = Random(seed)

    def mixed(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(rng.sample(items, len(items)))

    packages = tuple(
        Package(name=each.name, language=each.language, candidates=mixed(each.candidates))
        for each in mixed(problem.packages)
    )
    return Problem(
        packages=packages,
        wishes=mixed(problem.wishes),
        installed=mixed(problem.installed),
        targets=mixed(problem.targets),
        policy=problem.policy,
    )
