"""Why wishes are impossible together: a set of facts without a superfluous one."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pvbus.core.errors import InvariantError
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
from pvbus.core.platform.solver.feasible import formula_of
from pvbus.core.platform.solver.graph import Graph
from pvbus.core.platform.solver.model import OfferNeed, PackageNeed, Wish, flattened

REDUCED_MAX = 1_000
"""A reason of more facts is not reduced, as each fact takes a question about all others."""
_ORDER = (WishFact, StayFact, PinFact, DowngradeFact, NeedFact, ConflictFact, DefectFact)


class Reasons:
    """Facts as a formula, each of which can be left out.

    gave_up: whether a set of facts was left with too few conflicts; it counts as possible then
    """

    def __init__(self, catalog: Catalog, component: Component, facts: Sequence[Fact]) -> None:
        self._graph = graph = Graph(catalog, component)
        self._conflicts_max = catalog.policy.conflicts_max
        self.begin()
        numbers = [graph.fact(fact) for fact in facts]
        self._formula, switches = formula_of(graph, numbers)
        self._switches = [switches[number] for number in numbers]
        for fact, literal in zip(facts, self._switches, strict=True):
            if isinstance(fact, WishFact | StayFact):
                self._add_root(fact, literal)

    def _add_root(self, fact: WishFact | StayFact, literal: int) -> None:
        """Let a literal imply what a wish, or an installed version that stays, demands."""
        for root in self._graph.roots:
            node = self._graph.nodes[root.node]
            if isinstance(fact, WishFact) and fact.wish == root.wish:
                self._formula.add((literal ^ 1, *(2 * each for each in root.matching)))
            elif root.stays is not None and fact == self._graph.stay_fact(root):
                assert node.installed is not None
                self._formula.add((literal ^ 1, 2 * node.variables[node.installed]))

    def begin(self) -> None:
        """Begin the reasons for another wish, with all its conflicts."""
        self._conflicts_left = self._conflicts_max
        self.gave_up = False

    def core(self, facts: Iterable[int]) -> list[int] | None:
        """Return those of the facts that exclude each other, None if some versions satisfy all.

        facts: their places in the list that the formula was made of
        """
        held = {self._switches[fact]: fact for fact in facts}
        while (answer := self._ask(held)) is not False:
            self.gave_up = self.gave_up or answer is None
            literals = self._graph.find_unfounded(self._chosen()) if answer and self._graph.presence else None
            if literals is None:
                return None
            self._formula.add(literals)
        core = self._formula.core()
        return [fact for literal, fact in held.items() if literal in core]

    def _ask(self, held: Iterable[int]) -> bool | None:
        before = self._formula.conflicts()
        answer = self._formula.is_possible([*held], self._conflicts_left)
        self._conflicts_left -= self._formula.conflicts() - before
        return answer

    def _chosen(self) -> dict[int, int]:
        holds, owners = self._formula.holds, self._graph.owners
        return {owner: variable for variable, owner in enumerate(owners) if holds(2 * variable)}


def minimal(
    catalog: Catalog, component: Component, refused: Mapping[int, Collection[Fact]], wishes: Sequence[Wish]
) -> dict[int, list[Fact]]:
    """Return, for each refused wish, facts that exclude each other, of which none can be left out.

    One formula of all facts serves all wishes: that of a large component takes seconds to make.

    refused: place of a wish among `wishes`, and facts that exclude each other, the wish among them

    Raises InvariantError if the given ones do not exclude each other.
    """
    facts = sorted({fact for given in refused.values() for fact in given}, key=_order)
    reasons = Reasons(catalog, _relevant(catalog, component, facts), facts)
    neighbours = _neighbours(facts)
    found = {}
    for index, given in refused.items():
        distances = _distances(neighbours, node_of(wishes[index]))
        found[index] = _reduced(catalog, component, _nearest(reasons, facts, set(given), distances))
    return found


def _reduced(catalog: Catalog, component: Component, near: Sequence[Fact]) -> list[Fact]:
    """Leave out each fact once. If the rest still exclude each other, only those facts stay that are needed
    for that; if not, the fact is necessary.

    Invariant: necessary and pending facts together exclude each other. Facts are tried in an order of their
    own, from the farthest from what users want to the nearest, so that the nearest ones are left.
    """
    if len(near) > REDUCED_MAX:
        return list(near)
    reasons = Reasons(catalog, _relevant(catalog, component, near), near)  # a small formula answers fast
    necessary: list[int] = []
    pending = list(range(len(near)))
    while pending and not reasons.gave_up:
        fact = pending.pop()
        core = reasons.core([*necessary, *pending])
        if core is None:
            necessary.append(fact)
        else:
            pending = [each for each in core if each not in necessary]
    return [near[fact] for fact in sorted([*necessary, *pending])]


def _nearest(
    reasons: Reasons, facts: Sequence[Fact], given: Collection[Fact], distances: Mapping[Location, int]
) -> list[Fact]:
    """Return those of the given facts that exclude each other, from as near as there are any."""
    reasons.begin()
    away = {
        number: distances.get(_location(fact), len(distances))
        for number, fact in enumerate(facts)
        if fact in given
    }
    for radius in sorted(set(away.values())):
        core = reasons.core(number for number, distance in away.items() if distance <= radius)
        if core is not None:
            return [facts[number] for number in core]
    if reasons.gave_up:
        return [facts[number] for number in away]
    raise InvariantError("facts that are said to exclude each other do not")


def _neighbours(facts: Iterable[Fact]) -> dict[Location, set[Location]]:
    neighbours: dict[Location, set[Location]] = {}
    for fact in facts:
        for other in _packages_in(fact):
            neighbours.setdefault(_location(fact), set()).add(other)
            neighbours.setdefault(other, set()).add(_location(fact))
    return neighbours


def _distances(neighbours: Mapping[Location, set[Location]], start: Location) -> dict[Location, int]:
    """Return how many needs, in either direction, lie between a package and each other one."""
    distances, pending = {start: 0}, [start]
    for here in pending:
        for other in sorted(neighbours.get(here, set()) - distances.keys()):
            distances[other] = distances[here] + 1
            pending.append(other)
    return distances


def _location(fact: Fact) -> Location:
    return node_of(fact.wish) if isinstance(fact, WishFact) else fact.location


def _packages_in(fact: Fact) -> Iterable[Location]:
    """Yield the packages that a fact names, without its own."""
    if isinstance(fact, ConflictFact):
        yield fact.location[0], fact.conflict.package
    elif isinstance(fact, NeedFact):
        for leaf in flattened(fact.requirement.need):
            if isinstance(leaf, PackageNeed):
                yield fact.location[0] if leaf.target is None else leaf.target, leaf.package


def _order(fact: Fact) -> tuple[int, str]:
    return _ORDER.index(type(fact)), repr(fact)


def _relevant(catalog: Catalog, component: Component, facts: Iterable[Fact]) -> Component:
    """Leave out the nodes that no fact names, unless an offer is needed, which any package may provide."""
    locations: set[Location] = set()
    for fact in facts:
        if isinstance(fact, NeedFact) and _is_offered(catalog, fact):
            return component
        locations |= {_location(fact), *_packages_in(fact)}
    nodes = tuple(each for each in component.nodes if each[1] in locations)
    wishes = tuple(wish for wish in component.wishes if node_of(wish) in locations)
    return Component(nodes, wishes)


def _is_offered(catalog: Catalog, fact: NeedFact) -> bool:
    """Say whether packages can provide an offer that is needed."""
    offers = catalog.target(fact.location[0]).offers
    return any(
        isinstance(leaf, OfferNeed) and leaf.offer not in offers and catalog.providers(leaf.offer)
        for leaf in flattened(fact.requirement.need)
    )
