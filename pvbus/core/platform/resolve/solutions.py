"""Solves the components of a scope, each only if something that can matter for it has changed."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.platform.resolve.problem import Offered, Switches, offered_package
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.closure import Catalog, Component, Location, components_of
from pvbus.core.platform.solver.model import (
    Chosen,
    Installed,
    OfferNeed,
    Outcome,
    Package,
    PackageNeed,
    Policy,
    Problem,
    Resolution,
    Target,
    Wish,
    flattened,
)
from pvbus.core.platform.solver.resolving import joined
from pvbus.core.platform.solver.solving import Solution, solve
from pvbus.core.platform.solver.states import DependencyReport, dependencies_of


class Asked(NamedTuple):
    """What is asked of the resolver.

    installed: location -> digest of the active revision
    switches: package -> what its install leaves out of account
    needed: package -> digest and version of each content that must be among its versions
    offers: the API kinds that the cluster has without a package
    platforms: name and version of each platform
    downgrades: the locations that may get a version below the installed one
    """

    wishes: tuple[Wish, ...]
    installed: Mapping[Location, str]
    switches: Mapping[str, Switches]
    needed: Mapping[str, frozenset[tuple[str, str]]]
    offers: frozenset[str]
    platforms: tuple[tuple[str, str], ...]
    policy: Policy
    downgrades: frozenset[Location]


class Part(NamedTuple):
    """A component with its solution.

    reports: name of a wish that is not granted -> the state of each dependency
    """

    nodes: tuple[Location, ...]
    outcomes: tuple[Outcome, ...]
    chosen: Mapping[Location, Chosen]
    reports: Mapping[str, tuple[DependencyReport, ...]]


class ComponentCache:
    """Solves problems, and keeps the solutions of the components of the last ones.

    solved: number of components solved so far.
    """

    def __init__(self) -> None:
        self.solved = 0
        self._solutions: dict[Problem, Solution] = {}
        self._used: dict[Problem, Solution] = {}

    def forget(self) -> None:
        """Forget the solutions that nobody asked for since this was called last."""
        self._solutions, self._used = self._used, {}

    def resolve(self, problem: Problem) -> Resolution:
        """Return what `pvbus.core.platform.solver.resolving.resolve` returns."""
        catalog = Catalog(problem)
        components = components_of(catalog, problem.wishes)
        return joined(catalog, [self._solve(problem, each) for each in components])

    def _solve(self, problem: Problem, component: Component) -> Solution:
        nodes = {node for _, node in component.nodes}
        names = {name for _, name in nodes}
        part = msgspec.structs.replace(
            problem,
            packages=tuple(each for each in problem.packages if each.name in names),
            wishes=component.wishes,
            installed=tuple(each for each in problem.installed if (each.target, each.package) in nodes),
        )
        found = self._solutions.get(part) or self._used.get(part)
        if found is None:
            self.solved += 1
            found = solve(Catalog(part), component)
        self._used[part] = found
        return found


class Solver:
    """Solves what is asked, and keeps solutions. solved: number of components solved so far."""

    def __init__(self) -> None:
        self.solved = 0
        self.offered: dict[str, Offered] = {}
        self._keys: dict[str, object] = {}
        self._parts: dict[object, tuple[Part, tuple[object, ...]]] = {}
        self._used: dict[object, tuple[Part, tuple[object, ...]]] = {}
        self._by_name: dict[str, set[object]] = {}
        self._named: set[str] = set()
        self._wanted: Counter[str] = Counter()

    @property
    def wanted(self) -> frozenset[str]:
        """Return the API kinds that packages need."""
        return frozenset(self._wanted)

    def label(self, package: str, version: str) -> tuple[str, str]:
        """Return what a chosen version stands for: a tag, and a digest, "" if that is not known."""
        return self.offered[package].labels.get(version, (version, ""))

    def text(self, package: str, digest: str) -> str:
        """Return the text of a content's version, "" if the package does not have it."""
        labels = self.offered[package].labels
        return next((text for text, (_, each) in labels.items() if each == digest), "")

    def solve(self, asked: Asked, names: Collection[str]) -> list[Part]:
        """Return the components with their solutions. names: what `offer` returned."""
        packages = tuple(self.offered[name].package for name in names)
        catalog = Catalog(self._problem(asked, packages))
        parts = []
        for component in components_of(catalog, asked.wishes):
            key, held = self._fingerprint(asked, catalog, component)
            found = self._parts.get(key)
            if found is None:
                self.solved += 1
                found = (self._part(asked, component), held)
            self._used[key] = found
            parts.append(found[0])
        return parts

    def keep(self, names: Collection[str] | None) -> None:
        """Forget what was not used since the last call: solutions, and packages that were read.

        names: the packages whose solutions are looked at, and that may be forgotten; None for all
        """
        for key in list(self._parts) if names is None else self._keys_of(names):
            if key not in self._used:
                self._forget(key)
        for key, found in self._used.items():
            self._parts[key] = found
            for _, name in found[0].nodes:
                self._by_name.setdefault(name, set()).add(key)
        self._used = {}
        for name in list(self.offered) if names is None else names:
            if name not in self._named:
                self._drop(name)
        self._named = set()

    def _keys_of(self, names: Collection[str]) -> set[object]:
        return {key for name in names for key in self._by_name.get(name, ())}

    def _forget(self, key: object) -> None:
        found = self._parts.pop(key)
        for _, name in found[0].nodes:
            keys = self._by_name.get(name, set())
            keys.discard(key)
            if not keys:
                self._by_name.pop(name, None)

    # ------------------------------------------------------------ packages

    def offer(self, state: ScopeState, asked: Asked) -> list[str]:
        """Read every package that can come to be needed; return their names. What nothing has touched is read
        already."""
        for name in state.touched:
            self._keys.pop(name, None)
        state.touched.clear()
        first = [wish.package for wish in asked.wishes]
        first += [package for _, package in asked.installed]
        first += asked.needed
        wanted: tuple[str, ...] | None = None
        while wanted != (found := tuple(sorted(self._wanted))):
            wanted = found
            names = self._read_with(state, asked, first, wanted)
        self._named.update(names)
        return names

    def _read_with(
        self, state: ScopeState, asked: Asked, first: Iterable[str], wanted: tuple[str, ...]
    ) -> list[str]:
        """Read the packages, and return their names in order. wanted: see `offered_package`."""
        pending = list(first)
        done: dict[str, None] = {}
        pinned: dict[str, set[tuple[str, str]]] = {}
        while pending:
            name = pending.pop()
            if name in done:
                continue
            done[name] = None
            for need in needs_of(self._read(state, name, asked, pinned.get(name, ()), wanted)):
                if need.digest and (need.digest, "") not in pinned.setdefault(need.package, set()):
                    pinned[need.package].add((need.digest, ""))
                    done.pop(need.package, None)
                pending.append(need.package)
        return sorted(done)

    def _read(
        self,
        state: ScopeState,
        name: str,
        asked: Asked,
        pinned: Iterable[tuple[str, str]],
        wanted: tuple[str, ...],
    ) -> Offered:
        """Read a package. pinned: digests and versions that others need."""
        switches, needed = asked.switches.get(name, Switches()), asked.needed.get(name, frozenset())
        known = {digest for digest, _ in needed}
        needed |= {each for each in pinned if each[0] not in known}
        former = self.offered.get(name)
        key = (switches, needed, () if former is not None and former.is_read else wanted)
        if former is None or self._keys.get(name) != key:
            self._drop(name)
            found = self.offered[name] = offered_package(state, name, needed, switches, wanted)
            self._keys[name] = (switches, needed, () if found.is_read else wanted)
            self._wanted.update(wants_of(found))
        return self.offered[name]

    def _drop(self, name: str) -> None:
        """Forget a package that was read."""
        self._keys.pop(name, None)
        former = self.offered.pop(name, None)
        if former is not None:
            self._wanted.subtract(wants_of(former))
            self._wanted += Counter()  # what nobody wants any more is no key

    # ------------------------------------------------------------ components

    def _problem(self, asked: Asked, packages: Sequence[Package]) -> Problem:
        installed = tuple(
            Installed(
                package=node[1], version=self.text(node[1], digest), is_downgradable=node in asked.downgrades
            )
            for node, digest in asked.installed.items()
        )
        return Problem(
            packages=tuple(packages),
            wishes=asked.wishes,
            installed=installed,
            targets=(Target(offers=tuple(sorted(asked.offers)), platforms=asked.platforms),),
            policy=asked.policy,
        )

    def _fingerprint(
        self, asked: Asked, catalog: Catalog, component: Component
    ) -> tuple[object, tuple[object, ...]]:
        """Return what a solution rests on, and the packages that must live as long as it is kept.

        The first part compares packages by id, which is safe only while they live.
        """
        nodes = tuple(node for _, node in component.nodes)
        packages = tuple(self.offered[name].package for _, name in nodes if name in self.offered)
        wanted = {offer for node in nodes for offer in catalog.needs(node).offers}
        key = (
            nodes,
            component.wishes,
            tuple(id(each) for each in packages),
            tuple((node, asked.installed[node]) for node in nodes if node in asked.installed),
            frozenset(wanted & asked.offers),
            tuple(node for node in nodes if node in asked.downgrades),
            asked.platforms,
            asked.policy,
        )
        return key, packages

    def _part(self, asked: Asked, component: Component) -> Part:
        """Solve a component, as a problem of its own."""
        nodes = tuple(node for _, node in component.nodes)
        names = dict.fromkeys(name for _, name in nodes)
        own = asked._replace(
            wishes=component.wishes,
            installed={node: asked.installed[node] for node in nodes if node in asked.installed},
        )
        problem = self._problem(own, [self.offered[name].package for name in names if name in self.offered])
        catalog = Catalog(problem)
        solution = _joined([solve(catalog, each) for each in components_of(catalog, own.wishes)])
        chosen = {(each.target, each.package): each for each in solution.chosen}
        return Part(nodes, solution.outcomes, chosen, _reports(problem, solution))


def _joined(solutions: Iterable[Solution]) -> Solution:
    found = list(solutions)
    outcomes = tuple(each for one in found for each in one.outcomes)
    return Solution(outcomes, tuple(each for one in found for each in one.chosen))


def _reports(problem: Problem, solution: Solution) -> dict[str, tuple[DependencyReport, ...]]:
    refused = tuple(each for each in solution.outcomes if each.status != "granted")
    if not refused:
        return {}
    found = dependencies_of(problem, Resolution(outcomes=refused, chosen=solution.chosen))
    return {outcome.wish.name: each for outcome, each in zip(refused, found, strict=True)}


def wants_of(offered: Offered) -> Iterable[str]:
    """Yield the API kinds that the versions of a package need."""
    for candidate in offered.package.candidates:
        for requirement in candidate.requirements:
            for leaf in flattened(requirement.need):
                if isinstance(leaf, OfferNeed):
                    yield leaf.offer


def needs_of(offered: Offered) -> Iterable[PackageNeed]:
    """Yield what the versions of a package need of other packages."""
    for candidate in offered.package.candidates:
        for requirement in candidate.requirements:
            for leaf in flattened(requirement.need):
                if isinstance(leaf, PackageNeed):
                    yield leaf


def kinds_of(offered: Offered) -> set[str]:
    """Return the API kinds that versions of a package need or bring."""
    found: set[str] = set()
    for candidate in offered.package.candidates:
        found.update(candidate.provides)
        for requirement in candidate.requirements:
            found.update(leaf.offer for leaf in flattened(requirement.need) if isinstance(leaf, OfferNeed))
    return found
