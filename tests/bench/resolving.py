"""The resolver beside resolvelib: 100, 1,000 and 10,000 packages, and random unsatisfiable problems.

resolvelib (pip's resolver) answers a smaller question: one version of each package, without alternatives,
offers, conflicts and minimal reasons, and the best solution is not promised. Both get the same problem.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from resolvelib import AbstractProvider, BaseReporter, Resolver
from resolvelib.resolvers import ResolutionImpossible, ResolutionTooDeep

from pvbus.core.platform.solver.closure import Catalog
from pvbus.core.platform.solver.model import Candidate, Package, PackageNeed, Problem, Requirement, Wish
from pvbus.core.platform.solver.resolving import resolve
from tests.bench.report import Row

Result = TypeVar("Result")
VERSIONS = 20
NEEDS = 3
GOAL_SECONDS = 1.0
BESIDE_SECONDS = 20.0
"""CPU that resolvelib gets for a problem. A row says where it gave up: the ratio is an upper bound then."""
LIMITED_SHARE = 0.05  # of the ranges have an upper bound, as in catalogs of real packages few have
ROUNDS_BESIDE = 1_000_000
UNSATISFIABLE = 200


def catalog(
    count: int, seed: int, *, limited: float = LIMITED_SHARE, spread: int = 20
) -> tuple[Package, ...]:
    """Return packages that need later ones; a version needs what its predecessor needed, or more."""
    rng = Random(seed)
    packages = []
    for index in range(count):
        needed = sorted({index + 1 + int(rng.expovariate(1 / spread)) for _ in range(NEEDS)})
        lowest = dict.fromkeys(needed, 0)
        candidates = []
        for minor in range(VERSIONS):
            requirements = []
            for other in (each for each in needed if each < count):
                lowest[other] = max(lowest[other], rng.randint(0, minor))
                low = lowest[other]
                upper = f", <1.{low + rng.randint(1, VERSIONS)}.0" if rng.random() < limited else ""
                need = PackageNeed(package=f"p{other:05}", range=f">=1.{low}.0{upper}")
                requirements.append(Requirement(need=need))
            candidates.append(Candidate(version=f"1.{minor}.0", requirements=tuple(requirements)))
        packages.append(Package(name=f"p{index:05}", candidates=tuple(candidates)))
    return tuple(packages)


def problem(count: int, seed: int = 1) -> Problem:
    """Return a problem whose wishes lead to nearly all packages."""
    wishes = tuple(Wish(package=f"p{index:05}") for index in range(0, count, max(1, count // 10)))
    return Problem(packages=catalog(count, seed), wishes=wishes)


def narrow(seed: int) -> Problem:
    """Return 12 packages of 10 versions that need others in narrow ranges: most wishes exclude each other."""
    rng = Random(seed)
    packages = []
    for index in range(12):
        candidates = []
        for minor in range(10):
            requirements = []
            for other in sorted({index + rng.randint(1, 4) for _ in range(2)} & set(range(12))):
                low = rng.randint(0, 9)
                text = f">=1.{low}.0, <1.{low + rng.randint(1, 4)}.0"
                requirements.append(Requirement(need=PackageNeed(package=f"p{other:05}", range=text)))
            candidates.append(Candidate(version=f"1.{minor}.0", requirements=tuple(requirements)))
        packages.append(Package(name=f"p{index:05}", candidates=tuple(candidates)))
    wishes = tuple(Wish(package=f"p{index:05}", range=">=1.6.0") for index in range(0, 8, 2))
    return Problem(packages=tuple(packages), wishes=wishes)


FAMILIES = (
    (1_000, 20, 3, 1, 0.2),
    (1_000, 20, 3, 2, 0.1),
    (1_000, 20, 3, 3, 0.2),
    (1_000, 20, 3, 7, 0.0),
    (500, 20, 3, 1, 0.2),
    (300, 10, 3, 7, 0.2),
    (10_000, 5, 2, 1, 0.05),
)
"""Packages, versions, needs, seed, share of `~`: harder than catalogs of real packages."""
FAMILY_SECONDS = 10.0
REACH = 50


def family(count: int, versions: int, needs_max: int, seed: int, tilde: float) -> Problem:
    """Return packages that need some of the next fifty: some `~`, of the others half `>=` and half `<`."""
    rng = Random(seed)
    packages = []
    for index in range(count):
        below = range(index + 1, min(count, index + 1 + REACH))
        others = sorted(rng.sample(below, min(needs_max, len(below))))
        candidates = []
        for number in range(versions):
            needs = []
            for other in others:
                low = rng.randint(0, versions - 1)
                if rng.random() < tilde:
                    text = f"~1.{low // 4}"
                elif rng.random() < 0.5:
                    text = f">=1.{low // 4}.{low % 4}"
                else:
                    text = f"<1.{(low + 1) // 4}.{(low + 1) % 4}"
                needs.append(Requirement(need=PackageNeed(package=f"p{other:05}", range=text)))
            version = f"1.{number // 4}.{number % 4}"
            candidates.append(Candidate(version=version, requirements=tuple(needs)))
        packages.append(Package(name=f"p{index:05}", candidates=tuple(candidates)))
    wished = sorted(rng.sample(range(count), max(1, count // 20)))
    return Problem(packages=tuple(packages), wishes=tuple(Wish(package=f"p{index:05}") for index in wished))


def families(*, small: bool) -> Iterator[Row]:
    """Yield the seconds for each family, with how much of it is granted."""
    for count, versions, needs, seed, tilde in ((60, 20, 3, 1, 0.2),) if small else FAMILIES:
        taken, resolution = seconds(resolve, family(count, versions, needs, seed, tilde))
        granted = sum(outcome.status == "granted" for outcome in resolution.outcomes)
        name = (
            f"{count:,} packages, {versions} versions, {needs} needs, seed {seed}, {tilde:.0%} with ~: "
            f"{granted} of {len(resolution.outcomes)} granted"
        )
        yield Row("resolve", name, taken, "s CPU", FAMILY_SECONDS, "less")


def unsatisfiable(count: int) -> Iterator[tuple[float, float]]:
    """Yield the times of ours and of resolvelib for problems in which not every wish can be granted."""
    seed, found = 0, 0
    while found < count:
        seed += 1
        made = narrow(seed)
        ours, resolution = seconds(resolve, made)
        if any(outcome.status != "granted" for outcome in resolution.outcomes):
            found += 1
            yield ours, seconds(with_resolvelib, made)[0]


class Provider(AbstractProvider[PackageNeed, tuple[str, Candidate], str]):
    """Gives resolvelib the same packages, ranges read once as ours are."""

    def __init__(self, made: Problem) -> None:
        self._catalog = Catalog(made)
        self._end = time.process_time() + BESIDE_SECONDS
        self._newest = {package.name: tuple(reversed(package.candidates)) for package in made.packages}

    def identify(self, requirement_or_candidate: PackageNeed | tuple[str, Candidate]) -> str:
        if isinstance(requirement_or_candidate, PackageNeed):
            return requirement_or_candidate.package
        return requirement_or_candidate[0]

    def get_preference(
        self, identifier: str, resolutions: Any, candidates: Any, information: Any, backtrack_causes: Any
    ) -> Any:
        return identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[PackageNeed]],
        incompatibilities: Mapping[str, Iterator[tuple[str, Candidate]]],
    ) -> Sequence[tuple[str, Candidate]]:
        if time.process_time() > self._end:
            raise ResolutionTooDeep(0)
        needs = list(requirements[identifier])
        excluded = {candidate.version for _, candidate in incompatibilities[identifier]}
        return [
            (identifier, candidate)
            for candidate in self._newest.get(identifier, ())
            if candidate.version not in excluded and all(self._fits(need, candidate) for need in needs)
        ]

    def is_satisfied_by(self, requirement: PackageNeed, candidate: tuple[str, Candidate]) -> bool:
        return self._fits(requirement, candidate[1])

    def get_dependencies(self, candidate: tuple[str, Candidate]) -> Iterable[PackageNeed]:
        needs = (requirement.need for requirement in candidate[1].requirements)
        return [need for need in needs if isinstance(need, PackageNeed)]

    def _fits(self, need: PackageNeed, candidate: Candidate) -> bool:
        if not need.range:
            return True
        wanted = self._catalog.range("masterminds", need.range)
        version = self._catalog.version("masterminds", candidate.version)
        return not isinstance(wanted, str) and version is not None and wanted.matches(version)


def with_resolvelib(made: Problem) -> bool:
    """Resolve with resolvelib; say whether it found a solution."""
    resolver = Resolver(Provider(made), BaseReporter())
    needs = [PackageNeed(package=wish.package, range=wish.range) for wish in made.wishes]
    try:
        resolver.resolve(needs, max_rounds=ROUNDS_BESIDE)
    except (ResolutionImpossible, ResolutionTooDeep):
        return False
    return True


def seconds(of: Callable[[Problem], Result], made: Problem) -> tuple[float, Result]:
    before = time.process_time()
    result = of(made)
    return time.process_time() - before, result


async def resolving(*, small: bool) -> list[Row]:
    """CPU seconds of ours, and as a multiple of resolvelib's; explanations are part of ours."""
    rows = []
    for count in (20, 100) if small else (100, 1_000, 10_000):
        made = problem(count)
        ours = min(seconds(resolve, made)[0] for _ in range(3))
        other, solved = seconds(with_resolvelib, made)
        goal = GOAL_SECONDS if count == 1_000 else None
        name = f"{count:,} packages of {VERSIONS} versions" + (
            "" if solved else f", which resolvelib gives up after {BESIDE_SECONDS:.0f} s"
        )
        rows.append(Row("resolve", name, ours, "s CPU", goal, "less", ours / other, "resolvelib's"))
    rows += families(small=small)
    times = list(unsatisfiable(10 if small else UNSATISFIABLE))
    for name, pick in (("worst", max), ("mean", lambda those: sum(those) / len(those))):
        ours, other = pick([one for one, _ in times]), pick([one for _, one in times])
        label = f"{name} of {len(times):,} unsatisfiable: what can be granted, and each reason"
        rows.append(
            Row(
                "resolve",
                label,
                ours * 1000,
                "ms CPU",
                None,
                "less",
                ours / other,
                "resolvelib's, which only fails",
            )
        )
    return rows
