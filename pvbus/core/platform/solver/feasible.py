"""What some versions can satisfy together, as CaDiCaL answers it: where the ordered search has no end.

A component becomes a formula: every clause of every version, and at most one version of a node. CaDiCaL says
whether a solution exists in which some literals hold; it knows nothing of our order. `Guide` therefore
answers the questions of the ordered search one by one, each under the answers so far: what is possible is
answered as preferred, everything else the other way. A solution at hand that agrees is a proof, so most
questions cost nothing. The first solution in the order of the questions is the result, as without a guide.

A question that CaDiCaL does not settle within its conflicts is answered as in the solution at hand, and is
noted as unproven: of a wish, it is undecided; of a version, the solution may not be the best one. What was
answered before stays. Conflicts are counted, not seconds, so an answer is the same on every machine.

The library is imported when a formula is made: most processes never need one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from pvbus.core.platform.solver.graph import Graph

QUESTIONS_MAX = 20
"""So many wishes may use up all their conflicts, before each other one gets a single conflict; so many
questions about versions may, before the others are answered as in the solution at hand. More makes a hard
component slower, up to a second for each wish; fewer leaves more of it undecided, or further from the best
versions."""
VERSION_SHARE = 25
"""A question about a version gets this part of the conflicts of a wish: its answer only makes a solution
better, and there are many more such questions."""
ALL_SHARE = 5
"""The question for all wishes at once has the conflicts of so many: its answer settles most of them. Of ten
random families of 1,000 packages, 20 versions and 3 needs, seven need more than those of one wish, none three
times as many."""
ASSUMED_MAX = 400_000
"""So many earlier answers may be assumed in all questions about versions, some five seconds of work: the rest
of a component of thousands of packages is answered as in the solution at hand."""
UNLIMITED = 1_000_000_000
"""Conflicts for a question whose answer is known to be yes: for a solution at all, which grants no wish."""
COUNTS_MAX = 200_000
"""More variables than this count no changes: their clauses would take seconds."""
PAIRWISE_MAX = 6
"""Up to so many versions of a node each pair has a clause; with more, a chain of variables needs fewer."""


class Formula:
    """Clauses in CaDiCaL. Literals are those of `search`: 2v and 2v + 1.

    assumed: literals that hold in every question
    """

    def __init__(self, *, is_sparse: bool = False) -> None:
        from pysat.solvers import Cadical195

        self._solver: Cadical195 = Cadical195()
        if is_sparse:  # what nothing needs is tried as absent: easy questions stay easy beside hard ones
            self._solver.configure({"phase": 0, "forcephase": 1})
        self._further = 0
        self._model: list[int] = []
        self.assumed: list[int] = []
        self.has_model = False

    def add(self, literals: Iterable[int]) -> None:
        """Add a clause; the solution at hand may violate it."""
        self._solver.add_clause([_number(each) for each in literals])
        self.has_model = False

    def further(self) -> int:
        """Return the positive literal of a variable that no graph has."""
        self._further += 1
        return -2 * self._further

    def exclude(self, variables: Sequence[int]) -> None:
        """Allow at most one of the variables."""
        if len(variables) <= PAIRWISE_MAX:
            for index, variable in enumerate(variables):
                for other in variables[index + 1 :]:
                    self.add((2 * variable + 1, 2 * other + 1))
            return
        before = None
        for variable in variables:
            after = self.further()  # whether one of the variables up to this one is true
            self.add((2 * variable + 1, after))
            if before is not None:
                self.add((before ^ 1, after))
                self.add((2 * variable + 1, before ^ 1))
            before = after

    def is_possible(self, literals: Sequence[int], conflicts_max: int) -> bool | None:
        """Say whether a solution has the literals; None if that took too many conflicts.

        Afterwards the solution at hand is the one that was found.
        """
        self._solver.conf_budget(max(1, conflicts_max))
        answer: bool | None = self._solver.solve_limited(
            [*map(_number, self.assumed), *map(_number, literals)]
        )
        if answer:
            self._model = self._solver.get_model()
            self.has_model = True
        return answer

    def conflicts(self) -> int:
        """Return how many conflicts there were in all questions."""
        return int(self._solver.accum_stats()["conflicts"])

    def core(self) -> set[int]:
        """Return those literals of the last question that exclude each other."""
        return {_literal(each) for each in self._solver.get_core() or ()}

    def holds(self, literal: int) -> bool:
        """Say whether a literal holds in the solution at hand."""
        number = _number(literal)
        position = abs(number) - 1
        return (position < len(self._model) and self._model[position] > 0) == (number > 0)


def _number(literal: int) -> int:
    """Return a literal as CaDiCaL has it: odd numbers for a graph's variables, even ones for further ones."""
    variable = literal >> 1
    number = 2 * variable + 1 if variable >= 0 else -2 * variable
    return -number if literal & 1 else number


def _literal(number: int) -> int:
    size = abs(number)
    variable = size // 2 if size & 1 else -size // 2
    return 2 * variable + (number < 0)


def formula_of(
    graph: Graph, held: Collection[int] | None = None, *, is_sparse: bool = False
) -> tuple[Formula, dict[int, int]]:
    """Return a graph as a formula, and a literal for each held fact, which its clauses need to count.

    held: the numbers of facts; clauses of others are left out. None: every clause, without such literals
    """
    formula = Formula(is_sparse=is_sparse)
    switches = {fact: formula.further() for fact in held or ()}
    for node in graph.nodes:
        formula.exclude(node.variables)
        for variable in node.variables:
            for raw in graph.compile(variable).clauses:
                if held is None or raw.fact is None:
                    formula.add(raw.literals)
                elif raw.fact in switches:
                    formula.add((switches[raw.fact] ^ 1, *raw.literals))
    return formula, switches


class Guide:
    """Answers the questions of an ordered search.

    conflicts_max: of one wish, see `QUESTIONS_MAX` and `VERSION_SHARE`
    unproven: the literals that were preferred, and not settled
    """

    def __init__(self, graph: Graph, conflicts_max: int) -> None:
        self._graph = graph
        self._formula, _ = formula_of(graph)
        self._added: list[tuple[int, ...]] = []
        self._wishes = {
            2 * each for root in graph.roots for each in (root.granted, root.stays) if each is not None
        }
        self._changes = [
            [each for each in node.variables if each != node.variables[node.installed]]
            for node in graph.nodes
            if node.installed is not None
        ]
        self._granted = [2 * root.granted for root in graph.roots]
        self._conflicts_max = conflicts_max
        self._hard = {True: 0, False: 0}
        self._assumed = 0
        self._refuted: dict[int, list[set[int]]] = {}
        self.unproven: set[int] = set()

    def add(self, literals: Iterable[int]) -> None:
        self._added.append(tuple(literals))
        self._formula.add(self._added[-1])

    def unproven_versions(self) -> int:
        return len(self.unproven - self._wishes)

    def settle(self, decisions: Callable[[], Sequence[int]], preferred: int) -> int:
        """Return a preferred literal if it is possible with the answers so far, else its negation.

        decisions: returns the answers so far; most questions need none of them
        """
        formula = self._formula
        if formula.has_model and formula.holds(preferred):
            return preferred
        is_wish = preferred in self._wishes
        is_asked = preferred not in self.unproven and (is_wish or self._may_improve())
        if formula.has_model and not is_asked:
            self.unproven.add(preferred)
            return preferred ^ 1
        answers = decisions()
        if not formula.has_model:
            if not self._begin(answers):  # what was added since they were given excludes them
                return preferred  # the search finds that out, and learns what to take back
            return self.settle(decisions, preferred)
        if any(core <= set(answers) for core in self._refuted.get(preferred, ())):
            return preferred ^ 1
        self._assumed += 0 if is_wish else len(answers)
        answer = formula.is_possible([*answers, preferred], self._conflicts(is_wish))
        if answer:
            return preferred
        if answer is None:
            self.unproven.add(preferred)
            self._hard[is_wish] += 1
        else:
            self._refuted.setdefault(preferred, []).append(
                formula.core() - {preferred} - set(formula.assumed)
            )
        return preferred ^ 1

    def _may_improve(self) -> bool:
        """Say whether a question about a version may still be asked."""
        return self._hard[False] < QUESTIONS_MAX and self._assumed < ASSUMED_MAX

    def _conflicts(self, is_wish: bool) -> int:
        if self._hard[is_wish] >= QUESTIONS_MAX:
            return 1
        return self._conflicts_max if is_wish else self._conflicts_max // VERSION_SHARE

    def _begin(self, answers: Sequence[int]) -> bool:
        """Find a first solution with the answers: one that grants all other wishes that fit, else any."""
        if self._grant_most(answers):
            return True
        if self._formula.assumed:  # the counts of changes are in this one
            return self._formula.is_possible(answers, UNLIMITED) is True
        self._formula, _ = formula_of(self._graph, is_sparse=True)
        for literals in self._added:
            self._formula.add(literals)
        return self._formula.is_possible(answers, UNLIMITED) is True

    def _grant_most(self, answers: Sequence[int]) -> bool:
        """Find a solution that grants the open wishes; return False if that takes too many conflicts.

        Where wishes exclude each other, the last of them is left out, and the question is asked again.
        """
        formula = self._formula
        wishes = [each for each in self._granted if each not in answers and each ^ 1 not in answers]
        limit = formula.conflicts() + ALL_SHARE * self._conflicts_max
        while wishes and (left := limit - formula.conflicts()) > 0:
            answer = formula.is_possible([*answers, *wishes], left)
            if answer is not False:
                return answer is True
            excluded = formula.core().intersection(wishes)
            if not excluded:
                return False
            wishes.remove(max(excluded, key=wishes.index))
        return False

    def bound(self, bound: int) -> bool:
        """Let as few installed packages change as can be proved; return False if that is more than `bound`.

        A chain counts them: `counts[k]` follows if more than k of those so far change.
        """
        groups = self._changes
        if len(groups) * (bound + 1) > COUNTS_MAX:
            return False
        formula, counts = self._formula, list[int]()
        for variables in groups:
            here = formula.further()
            for variable in variables:
                formula.add((2 * variable + 1, here))
            after = [formula.further() for _ in range(min(len(counts) + 1, bound + 1))]
            for number, literal in enumerate(after):
                if number < len(counts):
                    formula.add((counts[number] ^ 1, literal))
                formula.add((here ^ 1, literal, *([counts[number - 1] ^ 1] if number else [])))
            counts = after
        fewest = None
        while bound >= 0 and formula.is_possible([counts[bound] ^ 1], self._conflicts_max):
            fewest = bound
            bound = sum(any(formula.holds(2 * each) for each in group) for group in groups) - 1
        if fewest is None:
            return False
        formula.assumed.append(counts[fewest] ^ 1)
        return True
