"""A component as variables and clauses: one variable per version of a node, in the order of preference.

The clauses of a version are made when the search tries it. Requirements that several versions of a package
share are one fact. A requirement with alternatives, or an optional one, has a variable per alternative, which
the search asks for.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.platform.solver.closure import Catalog, Component, Location, node_of
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
from pvbus.core.platform.solver.languages import Version, admits
from pvbus.core.platform.solver.model import (
    Candidate,
    Conflict,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Requirement,
    Wish,
    flattened,
)
from pvbus.core.platform.solver.ranking import ranked

Leaf = PackageNeed | OfferNeed | PlatformNeed


class Node(NamedTuple):
    """A package in a target.

    number: its place in the order of decisions, see `pvbus.core.platform.solver.closure`
    variables: one for each candidate, in the order of the candidates: the preferred one first
    installed: index of the installed version among the candidates, None if there is none
    """

    number: int
    location: Location
    candidates: tuple[Candidate, ...]
    variables: range
    installed: int | None


class RawClause(NamedTuple):
    literals: tuple[int, ...]
    fact: int | None


Question = tuple[tuple[int, tuple[int, ...]], ...]
"""Alternatives in the order of preference: the variable of each, and the nodes that it brings in."""


class Compiled(NamedTuple):
    """A version as the search sees it.

    clauses: the clauses that say what follows from it
    needed: the nodes that it needs
    questions: its alternatives and optional needs, in order
    """

    clauses: tuple[RawClause, ...]
    needed: tuple[int, ...]
    questions: tuple[Question, ...]


class Met(NamedTuple):
    """What meets one need.

    always: whether it is met in any case
    variables: otherwise the variables of which any meets it
    nodes: the nodes that have to be brought in for that
    """

    always: bool
    variables: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


class Root(NamedTuple):
    """A wish, with its variables.

    node: the number of its node
    matching: the variables of the candidates that the wish accepts
    granted: the variable that says that the wish is granted
    stays: the variable that says that the installed version stays, None without an installed version
    """

    wish: Wish
    node: int
    matching: tuple[int, ...]
    granted: int
    stays: int | None


class Graph:
    """The variables of a component, and what they mean."""

    def __init__(self, catalog: Catalog, component: Component) -> None:
        self.catalog = catalog
        self.component = component
        self.facts: list[Fact] = []
        self._fact_indexes: dict[Fact, int] = {}
        self._requirement_facts: dict[tuple[Location, int], int] = {}
        self._compiled: dict[int, Compiled] = {}
        self._matching: dict[tuple[int, PackageNeed], tuple[int, ...]] = {}
        self.count = 0
        self.nodes: list[Node] = []
        self.owners: list[int] = []
        self._by_location: dict[Location, Node] = {}
        for _, location in component.nodes:
            self._add_node(location)
        self.rooted = {node_of(wish) for wish in component.wishes}
        self.presence = self._presences()
        self.roots = [self._root(index, wish) for index, wish in enumerate(component.wishes)]

    def variable(self) -> int:
        self.count += 1
        return self.count - 1

    def fact(self, fact: Fact) -> int:
        """Return the number of a fact."""
        if fact not in self._fact_indexes:
            self._fact_indexes[fact] = len(self.facts)
            self.facts.append(fact)
        return self._fact_indexes[fact]

    def candidate(self, variable: int) -> Candidate:
        node = self.nodes[self.owners[variable]]
        return node.candidates[variable - node.variables.start]

    def version(self, node: Node, candidate: Candidate) -> Version | None:
        return self.catalog.version(self.catalog.language_of(node.location[1]), candidate.version)

    def _add_node(self, location: Location) -> None:
        catalog = self.catalog
        installed = catalog.installed.get(location)
        candidates = ranked(
            catalog.candidates(location),
            lambda text: catalog.version(catalog.language_of(location[1]), text),
            catalog.policy.versions,
            installed.version if installed else None,
        )
        position = None
        if installed is not None and installed.is_preferred:
            candidates = tuple(sorted(candidates, key=lambda each: each.version != installed.version))
        if installed is not None:
            position = next(i for i, each in enumerate(candidates) if each.version == installed.version)
        variables = range(self.count, self.count + len(candidates))
        node = Node(len(self.nodes), location, candidates, variables, position)
        self.count += len(candidates)
        self.owners += [node.number] * len(candidates)
        self.nodes.append(node)
        self._by_location[location] = node

    def _presences(self) -> dict[int, int]:
        """Return a variable for each node that can provide an offer that a node of the component needs."""
        found = {}
        needed = {
            (node.location[0], offer)
            for node in self.nodes
            for offer in self.catalog.needs(node.location).offers
            if offer not in self.catalog.target(node.location[0]).offers
        }
        for node in self.nodes if needed else ():
            if any(
                (node.location[0], offer) in needed for each in node.candidates for offer in each.provides
            ):
                found[node.number] = self.variable()
        return found

    def _root(self, index: int, wish: Wish) -> Root:
        node = self._by_location[node_of(wish)]
        matching = self.matching(node, need_of(wish))
        stays = self.variable() if node.installed is not None else None
        self.fact(WishFact(index, wish))
        return Root(wish, node.number, matching, self.variable(), stays)

    def stay_fact(self, root: Root) -> StayFact:
        node = self.nodes[root.node]
        assert node.installed is not None
        return StayFact(node.location, node.candidates[node.installed].version)

    def matching(self, node: Node, need: PackageNeed) -> tuple[int, ...]:
        """Return the variables of the versions that meet a need of this package."""
        key = (node.number, need)
        if key not in self._matching:
            self._matching[key] = tuple(
                variable
                for variable, candidate in zip(node.variables, node.candidates, strict=True)
                if matches(self.catalog, need, candidate)
            )
        return self._matching[key]

    def compile(self, variable: int) -> Compiled:
        """Return what a version means."""
        if variable not in self._compiled:
            self._compiled[variable] = self._compile(variable)
        return self._compiled[variable]

    def find_supported(self, variable: int) -> set[int]:
        """Return the variables that a version is a reason for, be it an alternative or an optional need."""
        node = self.nodes[self.owners[variable]]
        found: set[int] = set()
        for requirement in self.candidate(variable).requirements:
            for leaf in flattened(requirement.need):
                met = self.find_met(node, leaf)
                if isinstance(leaf, PackageNeed) or met.nodes:
                    found.update(met.variables)
        return found

    def has_reason(self, index: int) -> bool:
        """Say whether a node is there without a need: it is installed, or a user wants it."""
        node = self.nodes[index]
        return node.installed is not None or node.location in self.rooted

    def find_unfounded(self, chosen: Mapping[int, int]) -> tuple[int, ...] | None:
        """Return a clause against packages that only offers bring in, None if there are none.

        A package has a reason to be there if a user wants it or it is installed, or if a package with a
        reason needs it. What provides an offer for nobody but itself must not appear from nowhere.

        chosen: the variable of each node that is there

        The clause names every reason from outside: also other versions of the packages that are without one.
        """
        nodes = {variable: index for index, variable in chosen.items()}
        founded = {index for index in chosen if self.has_reason(index)}
        pending = sorted(founded)
        while pending:
            for variable in self.find_supported(chosen[pending.pop()]):
                index = nodes.get(variable)
                if index is not None and index not in founded:
                    founded.add(index)
                    pending.append(index)
        unfounded = chosen.keys() - founded
        if not unfounded:
            return None
        atoms = {chosen[index] for index in unfounded}
        reasons = (
            2 * variable
            for variable in range(len(self.owners))
            if variable not in atoms and self.find_supported(variable) & atoms
        )
        return (2 * min(atoms) + 1, *reasons)

    def _compile(self, variable: int) -> Compiled:
        node, candidate = self.nodes[self.owners[variable]], self.candidate(variable)
        false = 2 * variable + 1
        clauses = [RawClause((false,), fact) for fact in self._exclusions(node, variable, candidate)]
        needed: list[int] = []
        questions: list[Question] = []
        for requirement in candidate.requirements:
            leaves = flattened(requirement.need)
            fact = None if requirement.optional else self._requirement_fact(node.location, requirement)
            if fact is None or len(leaves) > 1:
                question, made = self._question(node, leaves)
                clauses += made
                if fact is not None:
                    clauses.append(RawClause((false, *(2 * each for each, _ in question)), fact))
                questions.append(question)
                continue
            met = self.find_met(node, leaves[0])
            if not met.always:
                clauses.append(RawClause((false, *(2 * each for each in met.variables)), fact))
                needed += met.nodes
        for conflict in candidate.conflicts:
            clauses += self._conflict(node, false, conflict)
        return Compiled(tuple(clauses), tuple(needed), tuple(questions))

    def _requirement_fact(self, location: Location, requirement: Requirement) -> int:
        key = (location, id(requirement))  # the catalog holds every requirement, so an id is never used again
        if key not in self._requirement_facts:
            self._requirement_facts[key] = self.fact(NeedFact(location, requirement))
        return self._requirement_facts[key]

    def _exclusions(self, node: Node, variable: int, candidate: Candidate) -> list[int]:
        found = []
        if candidate.defect:
            found.append(self.fact(DefectFact(node.location, candidate.version, candidate.defect)))
        for text in self._unreadable(candidate):
            found.append(self.fact(DefectFact(node.location, candidate.version, text)))
        if node.installed is None or variable == node.variables[node.installed]:
            return found
        current = node.candidates[node.installed]
        if self.catalog.policy.versions == "pinned":
            found.append(self.fact(PinFact(node.location, current.version)))
        elif not (self.catalog.policy.downgrades or self.catalog.installed[node.location].is_downgradable):
            before, after = self.version(node, current), self.version(node, candidate)
            if before is not None and after is not None and after.key < before.key:
                found.append(self.fact(DowngradeFact(node.location, current.version)))
        return found

    def _unreadable(self, candidate: Candidate) -> list[str]:
        """Return what is wrong with the ranges of a version."""
        found = []
        for requirement in candidate.requirements:
            for leaf in flattened(requirement.need):
                if not isinstance(leaf, OfferNeed) and leaf.range:
                    text = self.catalog.range(leaf.language, leaf.range)
                    if isinstance(text, str) and not requirement.optional:
                        found.append(f"the range {leaf.range!r} cannot be read: {text}")
        for conflict in candidate.conflicts:
            unreadable = self.catalog.range(conflict.language, conflict.range) if conflict.range else None
            if isinstance(unreadable, str):
                found.append(f"the range {conflict.range!r} cannot be read: {unreadable}")
        return found

    def _question(self, node: Node, leaves: tuple[Leaf, ...]) -> tuple[Question, list[RawClause]]:
        """Return the alternatives in the order of preference: what exists is first."""
        answers, clauses = [], []
        for leaf in self.preferred(node, leaves):
            met = self.find_met(node, leaf)
            if not met.always and not met.variables:
                continue
            answer = self.variable()
            answers.append((answer, met.nodes))
            if not met.always:
                clauses.append(RawClause((2 * answer + 1, *(2 * each for each in met.variables)), None))
        return tuple(answers), clauses

    def preferred(self, node: Node, leaves: tuple[Leaf, ...]) -> list[Leaf]:
        """Return alternatives in the order of preference: what exists already is first."""
        return sorted(leaves, key=lambda leaf: not self._exists(node, leaf))

    def _exists(self, node: Node, leaf: Leaf) -> bool:
        """Say whether a need is met by what is installed, the target, or by a package that a user wants."""
        met = self.find_met(node, leaf)
        if met.always:
            return True
        for variable in met.variables:
            owner = self.nodes[self.owners[variable]]
            if owner.location in self.rooted:
                return True
            if owner.installed is not None and variable == owner.variables[owner.installed]:
                return True
        return False

    def find_met(self, node: Node, leaf: Leaf) -> Met:
        """Return what meets one need of a node."""
        if isinstance(leaf, PlatformNeed):
            return Met(self._has_platform(node, leaf))
        if isinstance(leaf, OfferNeed):
            return self._offered(node, leaf)
        location = (node.location[0] if leaf.target is None else leaf.target, leaf.package)
        other = self._by_location.get(location)
        if other is None:
            return Met(False)  # the component is a part of itself, for an explanation that does not need this
        return Met(False, self.matching(other, leaf), (other.number,))

    def _has_platform(self, node: Node, need: PlatformNeed) -> bool:
        if self.catalog.policy.ignore_platforms:
            return True
        wanted = self.catalog.range(need.language, need.range)
        for name, text in self.catalog.target(node.location[0]).platforms:
            version = self.catalog.version(need.language, text)
            if name == need.platform and version is not None and not isinstance(wanted, str):
                return wanted.matches(version)
        return False

    def _offered(self, node: Node, need: OfferNeed) -> Met:
        target = node.location[0]
        if need.offer in self.catalog.target(target).offers:
            return Met(True)
        variables: list[int] = []
        nodes: list[int] = []
        providers = self.catalog.providers(need.offer)
        for package in providers:
            other = self._by_location.get((target, package))
            if other is None:
                continue
            variables += [
                variable
                for variable, candidate in zip(other.variables, other.candidates, strict=True)
                if need.offer in candidate.provides
            ]
            if self.catalog.policy.search and len(providers) == 1:
                nodes.append(other.number)
        return Met(False, tuple(variables), tuple(nodes))

    def _conflict(self, node: Node, false: int, conflict: Conflict) -> list[RawClause]:
        other = self._by_location.get((node.location[0], conflict.package))
        if other is None or other is node:
            return []
        wanted = self.catalog.range(conflict.language, conflict.range) if conflict.range else None
        if isinstance(wanted, str):
            return []  # the version has a defect
        fact = self.fact(ConflictFact(node.location, conflict))
        found = []
        for variable, candidate in zip(other.variables, other.candidates, strict=True):
            version = self.catalog.version(conflict.language, candidate.version)
            if wanted is None or (version is not None and wanted.matches(version)):
                found.append(RawClause((false, 2 * variable + 1), fact))
        return found


def need_of(wish: Wish) -> PackageNeed:
    """Return a wish as a need of its package."""
    return PackageNeed(
        package=wish.package,
        range=wish.range,
        digest=wish.digest,
        language=wish.language,
        prereleases=wish.prereleases,
    )


def matches(catalog: Catalog, need: PackageNeed, candidate: Candidate) -> bool:
    """Say whether a version meets a need of its package. A range that cannot be read matches nothing."""
    if need.digest:
        return candidate.digest == need.digest
    version = catalog.version(need.language, candidate.version)
    if version is None:
        return False
    if not need.range:
        return admits(version, need.prereleases)
    if not catalog.is_in_range(need.language, need.range, version):
        return False
    return need.language != "carvel" or admits(version, need.prereleases)
