"""The best solution of a component, and why the wishes that it does not grant are impossible."""

from collections.abc import Sequence
from typing import NamedTuple

from pvbus.core.platform.solver.closure import Catalog, Component
from pvbus.core.platform.solver.explaining import minimal
from pvbus.core.platform.solver.facts import Fact, StayFact, WishFact
from pvbus.core.platform.solver.feasible import UNLIMITED, Guide
from pvbus.core.platform.solver.graph import Graph, RawClause, Root
from pvbus.core.platform.solver.model import (
    Chosen,
    Edge,
    Explanation,
    Outcome,
    Requirement,
    Status,
    flattened,
)
from pvbus.core.platform.solver.questions import Questions
from pvbus.core.platform.solver.search import SearchLimitError
from pvbus.core.platform.solver.wording import explained, given_up

SEARCH_CONFLICTS_MAX = 300
"""More cost up to half a second, and lead nowhere where a guide is needed; fewer ask for one too early, which
takes longer than these conflicts: it needs the clauses of every version. A component of more than
`SEARCH_PACKAGES` has more in proportion, as its clauses are more."""
SEARCH_PACKAGES = 1_000


class Solution(NamedTuple):
    """The solution of a component.

    refusals: index of a wish that is not granted, and the facts that exclude it
    unproven: how many answers about versions are possible, and not proved the best
    """

    outcomes: tuple[Outcome, ...]
    chosen: tuple[Chosen, ...]
    refusals: tuple[tuple[int, tuple[Fact, ...]], ...] = ()
    unproven: int = 0


def solve(catalog: Catalog, component: Component) -> Solution:
    """Return what becomes of the wishes of a component, and the versions that are to be there.

    The ordered search alone is tried first: it makes only the clauses of versions that it tries, so it is the
    fastest where conflicts are few, as they mostly are. Past `SEARCH_CONFLICTS_MAX` a guide answers its
    questions, with the policy's `conflicts_max` for each wish.
    """
    graph = Graph(catalog, component)
    try:
        share = max(1, len(graph.nodes) // SEARCH_PACKAGES)
        return _solution(Questions(graph, share * SEARCH_CONFLICTS_MAX))
    except SearchLimitError:
        guide = Guide(graph, catalog.policy.conflicts_max)
        return _solution(Questions(graph, UNLIMITED, guide))


def _solution(questions: Questions) -> Solution:
    """Solve in steps.

    1. Find the first solution in the order of the questions: it settles which wishes are granted.
    2. Read from this search why each other wish is impossible. This has to be done before anything is added
       to the search, as that takes back the assignments from which the reasons are read.
    3. With the policy `minimal-change`, search on among the solutions that answer the wishes alike.
    4. Reduce the reasons to facts of which none can be left out, by what was read. A version that was not
       read may bring anything, and so it is no reason.
    """
    graph, guide = questions.graph, questions.guide
    catalog, component = graph.catalog, graph.component
    counted = _changes(graph) if catalog.policy.versions == "minimal-change" else []
    questions.search.count(counted)
    possible = questions.solve()
    assert possible, "granting no wish is always possible"
    statuses = [_status(questions, root) for root in graph.roots]
    refused = _behind_all(questions, statuses)
    chosen = _fewest_changes(graph, questions, counted)
    read = catalog.as_read() if refused else catalog
    if refused:
        refused = minimal(read, component, refused, component.wishes)
    explanations = {index: explained(read, facts) for index, facts in refused.items()}
    for index, status in enumerate(statuses):
        if status == "undecided":
            explanations[index] = given_up(graph.roots[index].wish, catalog.policy.conflicts_max, graph)
    outcomes = tuple(
        _outcome(graph, root, status, chosen, explanations.get(index))
        for index, (root, status) in enumerate(zip(graph.roots, statuses, strict=True))
    )
    refusals = tuple((index, tuple(facts)) for index, facts in refused.items())
    versions = tuple(_chosen(graph, chosen, index) for index in chosen)
    return Solution(outcomes, versions, refusals, guide.unproven_versions() if guide else 0)


def _status(questions: Questions, root: Root) -> Status:
    if questions.search.is_true(root.granted):
        return "granted"
    if questions.guide is not None and 2 * root.granted in questions.guide.unproven:
        return "undecided"
    return "stays" if root.stays is not None and questions.search.is_true(root.stays) else "quarantined"


def _behind_all(questions: Questions, statuses: Sequence[Status]) -> dict[int, list[Fact]]:
    """Return facts that exclude each wish that is refused: they are enough, and mostly not too many.

    A guide says only that a wish is impossible: then all facts are taken, with what was granted before.
    """
    graph = questions.graph
    refused = {i: root for i, root in enumerate(graph.roots) if statuses[i] not in ("granted", "undecided")}
    if questions.guide is None:
        return {index: _behind(graph, questions, index, root) for index, root in refused.items()}
    facts = [fact for fact in graph.facts if not isinstance(fact, WishFact | StayFact)]
    return {index: facts + _wished(graph, questions, index) for index in refused}


def _behind(graph: Graph, questions: Questions, index: int, root: Root) -> list[Fact]:
    """Read from the own search the facts that exclude a wish, the wish among them.

    What the wished versions say themselves is among them: the nearest reason may be there.
    """
    bits, decisions = questions.search.facts_behind(2 * root.granted + 1)
    bits |= 1 << graph.fact(WishFact(index, root.wish))
    for other, earlier in enumerate(graph.roots):
        if earlier.granted in decisions:
            bits |= 1 << graph.fact(WishFact(other, earlier.wish))
        if earlier.stays is not None and earlier.stays in decisions:
            bits |= 1 << graph.fact(graph.stay_fact(earlier))
    own = {raw.fact for variable in root.matching for raw in graph.compile(variable).clauses}
    return [fact for number, fact in enumerate(graph.facts) if bits >> number & 1 or number in own]


def _wished(graph: Graph, questions: Questions, index: int) -> list[Fact]:
    """Return a wish, and what was granted or stays before it."""
    found: list[Fact] = []
    for number, root in enumerate(graph.roots[:index]):
        if questions.search.is_true(root.granted):
            found.append(WishFact(number, root.wish))
        elif root.stays is not None and questions.search.is_true(root.stays):
            found.append(graph.stay_fact(root))
    return [*found, WishFact(index, graph.roots[index].wish)]


def _changes(graph: Graph) -> list[int]:
    """Return the variables that change an installed package."""
    return [
        variable
        for node in graph.nodes
        if node.installed is not None
        for variable in node.variables
        if variable != node.variables[node.installed]
    ]


def _fewest_changes(graph: Graph, questions: Questions, counted: list[int]) -> dict[int, int]:
    """Return the chosen variables, with as few changes as the wishes that are granted allow.

    The answers to the wishes become clauses first, so that no wish is lost for fewer changes. Then each
    search must have fewer changes than the one before. The last one that succeeds has the fewest, and of
    these solutions it is the first in the order of the questions.
    """
    best = questions.chosen()
    if not counted:
        return best
    search, counts = questions.search, set(counted)
    answered = [
        2 * variable + (not search.is_true(variable))
        for root in graph.roots
        for variable in (root.granted, root.stays)
        if variable is not None and not search.is_open(variable)
    ]
    for literal in answered:
        questions.require(RawClause((literal,), None))
    while (changes := sum(variable in counts for variable in best.values())) > 0:
        if not questions.bound(changes - 1) or not questions.solve():
            break
        best = questions.chosen()
    return best


def _outcome(
    graph: Graph, root: Root, status: Status, chosen: dict[int, int], explanation: Explanation | None
) -> Outcome:
    node = graph.nodes[root.node]
    if status in ("granted", "stays"):
        version = graph.candidate(chosen[root.node]).version
    else:
        version = node.candidates[node.installed].version if node.installed is not None else ""
    return Outcome(wish=root.wish, status=status, version=version, explanation=explanation)


def _chosen(graph: Graph, chosen: dict[int, int], index: int) -> Chosen:
    node, candidate = graph.nodes[index], graph.candidate(chosen[index])
    return Chosen(
        target=node.location[0],
        package=node.location[1],
        version=candidate.version,
        digest=candidate.digest,
        edges=tuple(_edge(graph, chosen, index, each) for each in candidate.requirements),
    )


def _edge(graph: Graph, chosen: dict[int, int], index: int, requirement: Requirement) -> Edge:
    """Find what meets a requirement: the first alternative in the order of preference that is met."""
    node = graph.nodes[index]
    for leaf in graph.preferred(node, flattened(requirement.need)):
        met = graph.find_met(node, leaf)
        if met.always:
            return Edge(requirement=requirement, status="exists")
        for variable in met.variables:
            owner = graph.owners[variable]
            if chosen.get(owner) == variable:
                target, package = graph.nodes[owner].location
                return Edge(requirement=requirement, status="met", target=target, provider=package)
    return Edge(requirement=requirement, status="unmet")
