"""Resolves a problem: each connected component apart, so that what is broken stops nothing else."""

from collections.abc import Sequence

from pvbus.core.platform.solver.closure import Catalog, components_of, wish_order
from pvbus.core.platform.solver.connected import strongly_connected
from pvbus.core.platform.solver.model import Problem, Resolution
from pvbus.core.platform.solver.solving import Solution, solve
from pvbus.core.platform.solver.transaction import needed_by


def resolve(problem: Problem) -> Resolution:
    """Return the best solution of a problem. Raises ValueError if something is given twice.

    Wishes that cannot be granted have an explanation, and the other wishes are granted without them. Equal
    problems have equal solutions, in whatever order their lists are.
    """
    catalog = Catalog(problem)
    components = components_of(catalog, problem.wishes)
    return joined(catalog, [solve(catalog, component) for component in components])


def joined(catalog: Catalog, solutions: Sequence[Solution]) -> Resolution:
    """Return the solutions of all components of a problem as one."""
    outcomes = [outcome for solution in solutions for outcome in solution.outcomes]
    chosen = [each for solution in solutions for each in solution.chosen]
    chosen.sort(key=lambda each: (each.target, each.package))
    edges = {(each.target, each.package): needed_by(each) for each in chosen}
    return Resolution(
        outcomes=tuple(sorted(outcomes, key=lambda outcome: wish_order(catalog, outcome.wish))),
        chosen=tuple(chosen),
        cycles=tuple(
            cycle for cycle in strongly_connected(edges) if len(cycle) > 1 or cycle[0] in edges[cycle[0]]
        ),
        components=len(solutions),
        unproven=sum(solution.unproven for solution in solutions),
    )
