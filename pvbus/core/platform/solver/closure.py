"""What can matter for the wishes: the packages that they may need, in connected components.

A node is a package in a target. Its level is the length of the longest chain of packages that may need it,
cycles counted as one; nodes are ordered by level, target and name. That order is the order of the decisions:
a package is decided after all that may need it, so that its version is seldom taken back. A component shares
no need, conflict or offer with another, so each is solved apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.platform.solver.connected import Location, strongly_connected
from pvbus.core.platform.solver.languages import LANGUAGES, Version, VersionError, VersionRange
from pvbus.core.platform.solver.model import (
    Candidate,
    OfferNeed,
    Package,
    PackageNeed,
    Problem,
    Target,
    Wish,
    flattened,
)
from pvbus.core.platform.solver.semver import ConstraintError


class Needs(NamedTuple):
    """What the versions of a package may need.

    packages: target and name of each package, with None for the target of the holder
    offers: the offers that they need
    conflicts: the packages that they exclude
    """

    packages: frozenset[tuple[str | None, str]]
    offers: frozenset[str]
    conflicts: frozenset[str]


class Catalog:
    """Packages by name, with what was read of their texts; each text is read once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.policy = problem.policy
        self.packages = {package.name: package for package in problem.packages}
        self.installed = {(each.target, each.package): each for each in problem.installed}
        self._former: dict[str, list[Candidate]] = {}
        for each in problem.installed:
            if each.candidate is not None:
                self._former.setdefault(each.package, []).append(each.candidate)
        self.targets = {target.name: target for target in problem.targets}
        self._needs: dict[Location, Needs] = {}
        self._versions: dict[tuple[str, str], Version | None] = {}
        self._ranges: dict[tuple[str, str], VersionRange | str] = {}
        self._matches: dict[tuple[str, str, str], bool] = {}
        self._providers: dict[str, list[str]] | None = None
        _check(problem)

    def target(self, name: str) -> Target:
        return self.targets.get(name) or Target(name=name)

    def language_of(self, package: str) -> str:
        found = self.packages.get(package)
        return found.language if found else "masterminds"

    def candidates(self, node: Location) -> tuple[Candidate, ...]:
        """Return all versions, among them the installed one even if the package has it no more."""
        package, installed = self.packages.get(node[1]), self.installed.get(node)
        listed = package.candidates if package else ()
        if installed is None or any(each.version == installed.version for each in listed):
            return listed
        return (*listed, installed.candidate or Candidate(version=installed.version))

    def version(self, language: str, text: str) -> Version | None:
        """Read a version; None if it is none."""
        key = (language, text)
        if key not in self._versions:
            try:
                self._versions[key] = LANGUAGES[language].parse_version(text)
            except VersionError:
                self._versions[key] = None
        return self._versions[key]

    def range(self, language: str, text: str) -> VersionRange | str:
        """Read a range; a text if it is none, which says why."""
        key = (language, text)
        if key not in self._ranges:
            try:
                self._ranges[key] = LANGUAGES[language].parse_range(text)
            except ConstraintError as exc:
                self._ranges[key] = str(exc)
        return self._ranges[key]

    def is_in_range(self, language: str, text: str, version: Version) -> bool:
        """Say whether a range has a version of its language; a range that cannot be read has none.

        Packages share texts, so each pair is asked once.
        """
        key = (language, text, version.text)
        if key not in self._matches:
            wanted = self.range(language, text)
            self._matches[key] = not isinstance(wanted, str) and wanted.matches(version)
        return self._matches[key]

    def providers(self, offer: str) -> list[str]:
        """Return the names of the packages of which a version provides an offer, in order."""
        if self._providers is None:
            self._providers = {}
            for name in sorted({*self.packages, *self._former}):
                package = self.packages.get(name)
                candidates = [*(package.candidates if package else ()), *self._former.get(name, ())]
                for each in sorted({offer for candidate in candidates for offer in candidate.provides}):
                    self._providers.setdefault(each, []).append(name)
        return self._providers.get(offer, [])

    def as_read(self) -> "Catalog":
        """Return the catalog in which versions provide what was read of them, and nothing that is assumed.

        It has no solution that this one lacks, so facts that exclude each other here do so there, too.
        """
        packages = tuple(map(_as_read, self._problem.packages))
        if packages == self._problem.packages:
            return self
        return Catalog(msgspec.structs.replace(self._problem, packages=packages))

    def needs(self, node: Location) -> Needs:
        """Return what the versions of a node may need."""
        installed = self.installed.get(node)
        key = node if installed is not None and installed.candidate else ("", node[1])
        if key not in self._needs:
            self._needs[key] = _needs_of(self.candidates(node))
        return self._needs[key]


def _check(problem: Problem) -> None:
    """Raise ValueError for what has no meaning: the same thing twice, or an unknown language."""
    names = [package.name for package in problem.packages]
    nodes = [(each.target, each.package) for each in problem.installed]
    targets = [target.name for target in problem.targets]
    for each in (names, nodes, targets):
        if len(set(each)) < len(each):
            twice = next(one for index, one in enumerate(each) if one in each[:index])
            raise ValueError(f"{twice}: given twice")
    for package in problem.packages:
        versions = [candidate.version for candidate in package.candidates]
        if len(set(versions)) < len(versions):
            raise ValueError(f"package {package.name}: a version is given twice")
        if package.language not in LANGUAGES:
            raise ValueError(f"package {package.name}: no language is called {package.language}")


def _as_read(package: Package) -> Package:
    if all(each.is_read or not each.provides for each in package.candidates):
        return package
    candidates = tuple(
        each if each.is_read else msgspec.structs.replace(each, provides=()) for each in package.candidates
    )
    return msgspec.structs.replace(package, candidates=candidates)


def _needs_of(candidates: Iterable[Candidate]) -> Needs:
    packages: set[tuple[str | None, str]] = set()
    offers: set[str] = set()
    conflicts: set[str] = set()
    for candidate in candidates:
        for requirement in candidate.requirements:
            for leaf in flattened(requirement.need):
                if isinstance(leaf, PackageNeed):
                    packages.add((leaf.target, leaf.package))
                elif isinstance(leaf, OfferNeed):
                    offers.add(leaf.offer)
        conflicts.update(conflict.package for conflict in candidate.conflicts)
    return Needs(frozenset(packages), frozenset(offers), frozenset(conflicts))


class Component(NamedTuple):
    """Nodes in the order of decisions with their levels, and the wishes for them, in order."""

    nodes: tuple[tuple[int, Location], ...]
    wishes: tuple[Wish, ...]


def node_of(wish: Wish) -> Location:
    return wish.target, wish.package


def wish_order(catalog: Catalog, wish: Wish) -> tuple[object, ...]:
    """Sort wishes: what is installed is first, then what is pinned, so that a newcomer loses a conflict."""
    key = (wish.target, wish.package, wish.name, wish.range, wish.digest, wish.language)
    return (
        node_of(wish) not in catalog.installed,
        not wish.pinned,
        *key,
        wish.prereleases is None,
        wish.prereleases or (),
    )


def components_of(catalog: Catalog, wishes: Iterable[Wish]) -> list[Component]:
    """Return the components that have a wish, in the order of their first nodes."""
    ordered = sorted(wishes, key=lambda wish: wish_order(catalog, wish))
    edges = _edges(catalog, ordered)
    levels = _levels(edges)
    parents = {node: node for node in levels}

    def root(node: Location) -> Location:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    # Sets that share a need, a conflict or an offer are joined, so that each component can be solved apart.
    for node in levels:
        for other in _neighbours(catalog, node, levels):
            parents[root(node)] = root(other)
    members: dict[Location, list[tuple[int, Location]]] = {}
    wished: dict[Location, list[Wish]] = {}
    for level, node in sorted((level, node) for node, level in levels.items()):
        members.setdefault(root(node), []).append((level, node))
    for wish in ordered:
        wished.setdefault(root(node_of(wish)), []).append(wish)
    found = [Component(tuple(members[key]), tuple(wished[key])) for key in members if key in wished]
    return sorted(found, key=lambda component: component.nodes[0])


def _neighbours(catalog: Catalog, node: Location, known: Mapping[Location, int]) -> Iterable[Location]:
    needs = catalog.needs(node)
    for target, package in needs.packages:
        yield (node[0] if target is None else target, package)
    for package in needs.conflicts:
        if (node[0], package) in known:
            yield node[0], package
    for offer in needs.offers:
        if offer not in catalog.target(node[0]).offers:
            for package in catalog.providers(offer):
                if (node[0], package) in known:
                    yield node[0], package


def _edges(catalog: Catalog, wishes: Iterable[Wish]) -> dict[Location, list[Location]]:
    """Return every node that can come to be needed, with the nodes that its versions may need.

    A provider that nothing else brings in is left out, unless the policy searches and it is the only one.
    """
    edges: dict[Location, list[Location]] = {}
    pending = sorted({node_of(wish) for wish in wishes})
    while pending:
        node = pending.pop()
        if node in edges:
            continue
        needs = catalog.needs(node)
        following = {(node[0] if target is None else target, package) for target, package in needs.packages}
        for offer in needs.offers:
            following.update(_brought_in(catalog, node[0], offer))
        edges[node] = sorted(following)
        pending += edges[node]
    return edges


def _levels(edges: Mapping[Location, Sequence[Location]]) -> dict[Location, int]:
    levels: dict[Location, int] = dict.fromkeys(edges, 0)
    # In this order, all that may need a group comes before it, so its level is final when it is passed on.
    for group in reversed(strongly_connected(edges)):
        level = max(levels[node] for node in group)
        levels.update(dict.fromkeys(group, level))
        for other in {other for node in group for other in edges[node]} - set(group):
            levels[other] = max(levels[other], level + 1)
    return levels


def _brought_in(catalog: Catalog, target: str, offer: str) -> Iterable[Location]:
    if offer in catalog.target(target).offers:
        return
    providers = catalog.providers(offer)
    for package in providers:
        if (target, package) in catalog.installed or (catalog.policy.search and len(providers) == 1):
            yield target, package


__all__ = ["Catalog", "Component", "Location", "components_of", "node_of", "wish_order"]
