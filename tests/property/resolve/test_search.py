"""The search against brute force on small sets of clauses, in which often every variable is a decision."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random

from pvbus.core.platform.solver.search import Clause, Search

SEEDS = 1_000
CONFLICTS_MAX = 1_000
"""Far more than six variables can have."""


class Case:
    """Clauses over variables, the answers that are preferred, and whether at most one variable is true.

    It is the search's asker: it decides on the variables in order. A clause comes with the first variable of
    which it needs that it is false, or before the search.
    """

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self.size = rng.randint(1, 6)
        self.preferred = [rng.random() < 0.7 for _ in range(self.size)]
        self.is_exclusive = rng.random() < 0.1
        self.clauses = [self._clause(rng) for _ in range(rng.randint(0, 3 * self.size))]
        self.search = Search(self, CONFLICTS_MAX)
        self.search.variables(self.size, exclusive=self.is_exclusive)

    def _clause(self, rng: Random) -> tuple[int, ...]:
        variables = rng.sample(range(self.size), min(self.size, rng.randint(1, 3)))
        return tuple(2 * variable + rng.randint(0, 1) for variable in variables)

    # ------------------------------------------------------------ the search's questions

    def next_decision(self) -> int | None:
        found = next((each for each in range(self.size) if self.search.is_open(each)), None)
        return None if found is None else 2 * found + (not self.preferred[found])

    def undone(self, trail_length: int) -> None:
        """Nothing is remembered."""

    def clauses_of(self, variable: int) -> Iterable[Clause]:
        return [clause for owner, clause in self._owned() if owner == variable]

    def _owned(self) -> Iterator[tuple[int | None, Clause]]:
        """Yield each clause with its variable. It is the fact of its number."""
        for number, literals in enumerate(self.clauses):
            owner = min((each >> 1 for each in literals if each & 1), default=None)
            yield owner, Clause(list(literals), 1 << number)

    # ------------------------------------------------------------ answers

    def found(self) -> tuple[bool, ...] | None:
        """Return the first solution of the search, None if it has none."""
        first = [clause for owner, clause in self._owned() if owner is None]
        if not all(self.search.add(clause) for clause in first) or not self.search.solve():
            return None
        return tuple(self.search.is_true(each) for each in range(self.size))

    def solutions(self, clauses: Sequence[tuple[int, ...]]) -> Iterator[tuple[bool, ...]]:
        """Yield all solutions, the preferred ones first."""
        for answers in product((True, False), repeat=self.size):
            values = tuple(answer == wanted for answer, wanted in zip(answers, self.preferred, strict=True))
            is_allowed = not self.is_exclusive or sum(values) <= 1
            if is_allowed and all(
                any(values[each >> 1] != each & 1 for each in clause) for clause in clauses
            ):
                yield values


def test_the_solution_is_the_first_one_in_the_askers_order() -> None:
    """Of all assignments that the clauses allow, the search finds the preferred one."""
    for seed in range(SEEDS):
        case = Case(seed)
        assert case.found() == next(case.solutions(case.clauses), None), f"seed {seed}"
