"""The resolver by brute force: every assignment of versions, judged by the rules as they are documented."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from pvbus.core.platform.solver.closure import Catalog as Order
from pvbus.core.platform.solver.closure import wish_order
from pvbus.core.platform.solver.facts import (
    ConflictFact,
    DefectFact,
    DowngradeFact,
    Fact,
    NeedFact,
    PinFact,
    StayFact,
    WishFact,
)
from pvbus.core.platform.solver.masterminds import parse_range, parse_version
from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    Need,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Problem,
    Requirement,
    Wish,
)
from pvbus.core.platform.solver.semver import ConstraintError, Key

Location = tuple[str, str]
Versions = Mapping[Location, Candidate]
"""What is there: a location that is missing has nothing."""

ASSIGNMENTS_MAX = 30_000


class Answer(NamedTuple):
    """statuses: of the wishes, in their order. versions: what is there, by location."""

    statuses: tuple[int, ...]
    versions: dict[Location, str]


@lru_cache(None)
def key(version: str) -> Key:
    return parse_version(version).key


@lru_cache(None)
def in_range(text: str, version: str) -> bool:
    if not text:
        return not parse_version(version).pre
    try:
        return parse_range(text).matches(parse_version(version))
    except ConstraintError:
        return False


@lru_cache(None)
def is_range(text: str) -> bool:
    try:
        parse_range(text)
    except ConstraintError:
        return False
    return True


def leaves(need: Need) -> list[PackageNeed | OfferNeed | PlatformNeed]:
    if isinstance(need, AnyOf):
        return [leaf for each in need.alternatives for leaf in leaves(each)]
    return [need]


class Oracle:
    """The rules for one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.policy = problem.policy
        self.packages = {package.name: package for package in problem.packages}
        self.installed = {(each.target, each.package): each for each in problem.installed}
        self.targets = {target.name: target for target in problem.targets}
        self.wishes = sorted(problem.wishes, key=lambda wish: wish_order(Order(problem), wish))
        self.rooted = {(wish.target, wish.package) for wish in self.wishes}
        self.levels = self._levels()
        self.order = sorted(self.levels, key=lambda location: (self.levels[location], location))
        wanted = {
            (location[0], leaf.offer)
            for location in self.order
            for candidate in self.candidates(location)
            for requirement in candidate.requirements
            for leaf in leaves(requirement.need)
            if isinstance(leaf, OfferNeed) and leaf.offer not in self.offers(location[0])
        }
        self.last = sorted(
            self.order,
            key=lambda p: (
                not any((p[0], offer) in wanted for c in self.candidates(p) for offer in c.provides)
            ),
        )

    def candidates(self, location: Location) -> list[Candidate]:
        package, installed = self.packages.get(location[1]), self.installed.get(location)
        found = list(package.candidates) if package else []
        if installed and all(each.version != installed.version for each in found):
            found.append(installed.candidate or Candidate(version=installed.version))
        return found

    def providers(self, offer: str) -> set[str]:
        found = {p.name for p in self.problem.packages for c in p.candidates if offer in c.provides}
        return found | {
            each.package
            for each in self.problem.installed
            if each.candidate is not None and offer in each.candidate.provides
        }

    def _levels(self) -> dict[Location, int]:
        """Return the longest chain above each location, by definition; a cycle counts once."""
        below: dict[Location, set[Location]] = {}
        pending = list(self.rooted)
        while pending:
            location = pending.pop()
            if location not in below:
                below[location] = {
                    other
                    for candidate in self.candidates(location)
                    for requirement in candidate.requirements
                    for other in self._possible(location, requirement)
                }
                pending += below[location]
        reach = {location: set(others) for location, others in below.items()}
        for middle in reach:
            for location in reach:
                if middle in reach[location]:
                    reach[location] |= reach[middle]
        levels = dict.fromkeys(reach, 0)
        for _ in reach:  # as often as a chain can be long
            for location in reach:
                for other in below[location]:
                    if location not in reach[other]:
                        levels[other] = max(levels[other], levels[location] + 1)
                    else:
                        levels[other] = levels[location] = max(levels[other], levels[location])
        return levels

    def _possible(self, location: Location, requirement: Requirement) -> Iterator[Location]:
        for leaf in leaves(requirement.need):
            if isinstance(leaf, PackageNeed):
                yield self.location_of(location, leaf)
            elif isinstance(leaf, OfferNeed) and leaf.offer not in self.offers(location[0]):
                for name in self.providers(leaf.offer):
                    alone = self.policy.search and self.providers(leaf.offer) == {name}
                    if alone or (location[0], name) in self.installed:
                        yield location[0], name

    def offers(self, target: str) -> tuple[str, ...]:
        return self.targets[target].offers if target in self.targets else ()

    def location_of(self, holder: Location, need: PackageNeed) -> Location:
        return (holder[0] if need.target is None else need.target, need.package)

    def size(self) -> int:
        total = 1
        for location in self.order:
            total *= len(self.candidates(location)) + 1
        return total

    def assignments(self) -> Iterator[Versions]:
        choices = [[None, *self.candidates(location)] for location in self.order]
        for chosen in product(*choices):
            yield {
                location: each for location, each in zip(self.order, chosen, strict=True) if each is not None
            }

    # the rules

    def leaf_met(
        self, versions: Versions, holder: Location, leaf: PackageNeed | OfferNeed | PlatformNeed
    ) -> bool:
        if isinstance(leaf, PackageNeed):
            found = versions.get(self.location_of(holder, leaf))
            return found is not None and self.package_matches(leaf, found)
        if isinstance(leaf, PlatformNeed):
            if self.policy.ignore_platforms:
                return True
            platforms = dict(self.targets[holder[0]].platforms) if holder[0] in self.targets else {}
            return leaf.platform in platforms and in_range(leaf.range, platforms[leaf.platform])
        if leaf.offer in self.offers(holder[0]):
            return True
        return any(p[0] == holder[0] and leaf.offer in c.provides for p, c in versions.items())

    @staticmethod
    def package_matches(need: PackageNeed, candidate: Candidate) -> bool:
        return candidate.digest == need.digest if need.digest else in_range(need.range, candidate.version)

    def wish_met(self, versions: Versions, wish: Wish) -> bool:
        found = versions.get((wish.target, wish.package))
        return found is not None and in_range(wish.range, found.version)

    def defects(self, candidate: Candidate) -> set[str]:
        found = {candidate.defect} if candidate.defect else set()
        for requirement in candidate.requirements:
            for leaf in leaves(requirement.need):
                if not isinstance(leaf, OfferNeed) and leaf.range and not is_range(leaf.range):
                    if not requirement.optional:
                        found.add(leaf.range)
        return found

    def is_valid(self, versions: Versions) -> bool:
        for location, candidate in versions.items():
            if self.defects(candidate) or not self._may_change(location, candidate):
                return False
            for requirement in candidate.requirements:
                if not requirement.optional and not self.met(versions, location, requirement):
                    return False
            for conflict in candidate.conflicts:
                other = (location[0], conflict.package)
                if (
                    other != location
                    and other in versions
                    and self._conflicts(conflict.range, versions[other])
                ):
                    return False
        return self.has_reasons(versions)

    def met(self, versions: Versions, location: Location, requirement: Requirement) -> bool:
        return any(self.leaf_met(versions, location, leaf) for leaf in leaves(requirement.need))

    @staticmethod
    def _conflicts(text: str, candidate: Candidate) -> bool:
        return not text or in_range(text, candidate.version)

    def _may_change(self, location: Location, candidate: Candidate) -> bool:
        installed = self.installed.get(location)
        if installed is None or installed.version == candidate.version:
            return True
        if self.policy.versions == "pinned":
            return False
        is_allowed = self.policy.downgrades or installed.is_downgradable
        return is_allowed or key(candidate.version) >= key(installed.version)

    def has_reasons(self, versions: Versions) -> bool:
        """Whether each package is wanted, installed, or needed by one that has a reason."""
        founded = {location for location in versions if location in self.rooted or location in self.installed}
        while True:
            new = {
                location
                for location in versions
                if location not in founded
                and any(self._is_reason(versions, holder, location) for holder in founded)
            }
            if not new:
                return len(founded) == len(versions)
            founded |= new

    def _is_reason(self, versions: Versions, holder: Location, location: Location) -> bool:
        for requirement in versions[holder].requirements:
            for leaf in leaves(requirement.need):
                if isinstance(leaf, PackageNeed):
                    if self.location_of(holder, leaf) == location and self.package_matches(
                        leaf, versions[location]
                    ):
                        return True
                elif isinstance(leaf, OfferNeed) and self.policy.search and holder[0] == location[0]:
                    if leaf.offer not in self.offers(location[0]) and self.providers(leaf.offer) == {
                        location[1]
                    }:
                        if leaf.offer in versions[location].provides:
                            return True
        return False

    # the order

    def statuses(self, versions: Versions) -> tuple[int, ...]:
        found = []
        for wish in self.wishes:
            location = (wish.target, wish.package)
            here, installed = versions.get(location), self.installed.get(location)
            stays = here is not None and installed is not None and here.version == installed.version
            found.append(0 if self.wish_met(versions, wish) else 1 if stays else 2)
        return tuple(found)

    def changes(self, versions: Versions) -> int:
        if self.policy.versions != "minimal-change":
            return 0
        return sum(
            location in self.installed and self.installed[location].version != candidate.version
            for location, candidate in versions.items()
        )

    def rank(self, location: Location, candidate: Candidate) -> int:
        def order(each: Candidate) -> tuple[Key, str]:
            return key(each.version), each.version

        rising = sorted(self.candidates(location), key=order)
        policy, installed = self.policy.versions, self.installed.get(location)
        if policy == "highest" or (policy != "lowest-satisfying" and installed is None):
            return rising[::-1].index(candidate)
        if installed is None:
            return rising.index(candidate)
        own = next(index for index, each in enumerate(rising) if each.version == installed.version)
        return [*rising[own:], *rising[:own][::-1]].index(candidate)

    def answers(self, versions: Versions) -> list[int]:
        """Return the answers to the questions in their order; the smallest list is the best solution."""
        statuses = self.statuses(versions)
        found = [*statuses, self.changes(versions)]
        needed = {(w.target, w.package) for w, s in zip(self.wishes, statuses, strict=True) if s < 2}
        asked: set[Location] = set()
        absent: set[Location] = set()
        while True:
            open_ = [location for location in self.order if location in needed and location not in asked]
            if not open_:
                rest = [p for p in self.last if p not in asked and p not in absent]
                if not rest:
                    return found
                found.append(int(rest[0] in versions))
                (needed if rest[0] in versions else absent).add(rest[0])
                continue
            location = open_[0]
            asked.add(location)
            candidate = versions[location]
            found.append(self.rank(location, candidate))
            for requirement in candidate.requirements:
                self._answer(versions, location, requirement, found, needed)

    def _answer(
        self,
        versions: Versions,
        location: Location,
        requirement: Requirement,
        found: list[int],
        needed: set[Location],
    ) -> None:
        order = sorted(leaves(requirement.need), key=lambda leaf: not self._exists(location, leaf))
        position = next(
            (i for i, leaf in enumerate(order) if self.leaf_met(versions, location, leaf)), len(order)
        )
        if requirement.optional or len(order) > 1:
            found.append(position)
        if position < len(order):
            needed.update(self._brought_in(location, order[position]))

    def _brought_in(
        self, location: Location, leaf: PackageNeed | OfferNeed | PlatformNeed
    ) -> Iterable[Location]:
        if isinstance(leaf, PackageNeed):
            return [self.location_of(location, leaf)]
        if isinstance(leaf, OfferNeed) and leaf.offer not in self.offers(location[0]) and self.policy.search:
            names = self.providers(leaf.offer)
            return [(location[0], name) for name in names] if len(names) == 1 else []
        return []

    def _exists(self, location: Location, leaf: PackageNeed | OfferNeed | PlatformNeed) -> bool:
        if self.leaf_met({}, location, leaf):
            return True
        for other in self.order:
            for candidate in self.candidates(other):
                if self.leaf_met({other: candidate}, location, leaf):
                    if other in self.rooted:
                        return True
                    if other in self.installed and self.installed[other].version == candidate.version:
                        return True
        return False

    def best(self) -> Answer:
        valid = (versions for versions in self.assignments() if self.is_valid(versions))
        best = min(valid, key=self.answers)
        return Answer(self.statuses(best), {location: each.version for location, each in best.items()})

    # explanations

    def is_possible(self, facts: Collection[Fact]) -> bool:
        return any(
            self.has_reasons(versions) and all(self._holds(versions, fact) for fact in facts)
            for versions in self.assignments()
        )

    def _holds(self, versions: Versions, fact: Fact) -> bool:
        if isinstance(fact, WishFact):
            return self.wish_met(versions, fact.wish)
        here = versions.get(fact.location)
        if isinstance(fact, StayFact):
            return here is not None and here.version == fact.version
        if here is None:
            return True
        match fact:
            case NeedFact():
                return fact.requirement not in here.requirements or self.met(
                    versions, fact.location, fact.requirement
                )
            case ConflictFact():
                other = versions.get((fact.location[0], fact.conflict.package))
                excluded = other is not None and self._conflicts(fact.conflict.range, other)
                return fact.conflict not in here.conflicts or not excluded
            case DefectFact():
                return here.version != fact.version
            case DowngradeFact():
                return key(here.version) >= key(fact.version)
            case PinFact():
                return here.version == fact.version
