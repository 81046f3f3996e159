"""Why wishes are impossible together: a set of facts without a superfluous one."""

from collections.abc import Collection, Iterable, Sequence

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
from pvbus.core.platform.solver.graph import Graph
from pvbus.core.platform.solver.model import OfferNeed, PackageNeed, flattened
from pvbus.core.platform.solver.questions import Questions

_ORDER = (WishFact, StayFact, PinFact, DowngradeFact, NeedFact, ConflictFact, DefectFact)


def minimal(catalog: Catalog, component: Component, facts: Collection[Fact]) -> list[Fact]:
    """Return facts that exclude each other, of which none can be left out: the others alone are possible.

    Each fact is left out once. If the rest still exclude each other, only those facts stay that the search
    needed for that; if not, the fact is necessary. Invariant: necessary and pending facts together exclude
    each other. Facts are tried in an order of their own, from the farthest from what users want to the
    nearest, so that the nearest ones are left.

    Raises InvariantError if the given ones do not exclude each other.
    """
    graph = Graph(catalog, _relevant(catalog, component, facts))
    pending = _core(graph, sorted(facts, key=_order))
    if pending is None:
        raise InvariantError("facts that are said to exclude each other do not")
    necessary: list[Fact] = []
    while pending:
        fact = pending.pop()
        core = _core(graph, [*necessary, *pending])
        if core is None:
            necessary.append(fact)
        else:
            pending = [each for each in pending if each in core]
    return sorted(necessary, key=_order)


def _core(graph: Graph, facts: Sequence[Fact]) -> list[Fact] | None:
    """Return those of the facts that exclude each other, None if some versions satisfy all."""
    questions = Questions(graph, graph.catalog.policy.conflicts_max, facts)
    if questions.solve():
        return None
    return [fact for fact in facts if questions.search.core >> graph.fact(fact) & 1]


def _order(fact: Fact) -> tuple[int, str]:
    return _ORDER.index(type(fact)), repr(fact)


def _relevant(catalog: Catalog, component: Component, facts: Iterable[Fact]) -> Component:
    """Leave out the nodes that no fact names, unless an offer is needed, which any package may provide."""
    locations: set[Location] = set()
    for fact in facts:
        if isinstance(fact, WishFact):
            locations.add(node_of(fact.wish))
            continue
        locations.add(fact.location)
        if isinstance(fact, ConflictFact):
            locations.add((fact.location[0], fact.conflict.package))
        elif isinstance(fact, NeedFact):
            for leaf in flattened(fact.requirement.need):
                if isinstance(leaf, OfferNeed) and leaf.offer not in catalog.target(fact.location[0]).offers:
                    return component
                if isinstance(leaf, PackageNeed):
                    locations.add((fact.location[0] if leaf.target is None else leaf.target, leaf.package))
    nodes = tuple(each for each in component.nodes if each[1] in locations)
    wishes = tuple(wish for wish in component.wishes if node_of(wish) in locations)
    return Component(nodes, wishes)
