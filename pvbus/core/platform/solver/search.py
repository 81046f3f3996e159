"""A search for the first solution in an order that the caller asks in: conflict-driven, with learned clauses.

A literal is an int: 2v says that variable v is true, 2v + 1 that it is false. The caller is asked for the
next decision, and decides in an order of its own; whatever is learned follows from the clauses, so the first
solution found is the first one in that order. A variable's clauses are made only when it first becomes true,
as most versions of most packages are never tried.

Each clause has a bit set of the facts that it stands for, and what is learned has those of its origins: the
facts that make something impossible are known without a second search.
"""

from collections.abc import Iterable
from typing import Protocol

from pvbus.core.errors import PvbusError


class SearchLimitError(PvbusError):
    """The search had more conflicts than its limit."""


class Clause:
    """One of the literals holds. As a reason it may lack the literal that it implies.

    literals: in any order; the search puts the two that it watches first
    facts: the facts that it stands for, as a bit set of their numbers; 0 for what holds without a fact
    """

    __slots__ = ("facts", "literals")

    def __init__(self, literals: list[int], facts: int) -> None:
        self.literals = literals
        self.facts = facts


Reason = Clause | int | None
"""A clause; a literal that is true and excludes the other; None for a decision."""


class Asker(Protocol):
    """Decides in order, and makes the clauses of variables."""

    def next_decision(self) -> int | None:
        """Return a literal that is open, None if nothing is left to ask."""

    def undone(self, trail_length: int) -> None:
        """Forget the answers that rest on assignments after the first `trail_length`."""

    def clauses_of(self, variable: int) -> Iterable[Clause]:
        """Return the clauses of a variable that became true for the first time."""


class Search:
    """One search.

    Invariants: a clause is watched at two of its literals, which are the last ones to become false; a
    variable that is true has its clauses, once its assignment was propagated. So a clause needs a look only
    when a literal that it is watched at becomes false, and going back has no watches to repair.

    `solve` repeats three steps. It propagates: it assigns every literal that a clause implies, until nothing
    follows or a clause is violated. If a clause is violated, it learns a clause that excludes the cause, and
    goes back to the lowest level at which the learned clause implies a literal. If not, it has the asker
    decide on a literal, which begins a level. A clause that is violated at level 0 rests on no decision, so
    there is no solution. Learned clauses are never dropped, and the search never reorders decisions: after
    it went back, the asker asks the same questions, and passes over the answers that are excluded by now.

    values: literal -> whether it holds, None while its variable is open
    trail: the literals that hold, in the order in which they were assigned
    conflicts: number of violated clauses so far
    _level: number of decisions on the trail
    _levels: variable -> the level at which it was assigned; of an open one, an outdated number
    _limits: level - 1 -> the length of the trail when that level began
    _reasons: variable -> why it was assigned; of an open one, an outdated reason
    _root_facts: variable -> the facts from which it follows, if it was assigned at level 0
    _expanded: variable -> whether its clauses were made
    _watches: literal -> the clauses that are watched at it
    _head: how many literals of the trail were propagated
    _exclusives: variable -> the variables of which at most one is true, itself among them; None without any
    _counted, _countable: the variables that `bound` limits, as flags and as a list
    _count: how many of these are true and were propagated
    _bound: how many of these may be true, None for any number
    """

    def __init__(self, asker: Asker, conflicts_max: int) -> None:
        self._asker = asker
        self.values: list[bool | None] = []
        self.trail: list[int] = []
        self.conflicts = 0
        self._conflicts_max = conflicts_max
        self._level = 0
        self._levels: list[int] = []
        self._reasons: list[Reason] = []
        self._root_facts: list[int] = []
        self._expanded: list[bool] = []
        self._watches: list[list[Clause]] = []
        self._limits: list[int] = []
        self._head = 0
        self._exclusives: list[range | None] = []
        self._counted: list[bool] = []
        self._count = 0
        self._bound: int | None = None
        self._countable: list[int] = []

    def variables(self, count: int, *, exclusive: bool = False) -> range:
        """Add variables; of exclusive ones at most one is true."""
        first = len(self._levels)
        added = range(first, first + count)
        self.values += [None] * (2 * count)
        self._levels += [0] * count
        self._reasons += [None] * count
        self._root_facts += [0] * count
        self._expanded += [False] * count
        self._watches += [[] for _ in range(2 * count)]
        self._exclusives += [added if exclusive else None] * count
        self._counted += [False] * count
        return added

    def grow(self, total: int) -> None:
        """Add variables until there are so many."""
        if total > len(self._levels):
            self.variables(total - len(self._levels))

    def is_true(self, variable: int) -> bool:
        return self.values[2 * variable] is True

    def is_open(self, variable: int) -> bool:
        return self.values[2 * variable] is None

    def count(self, variables: Iterable[int]) -> None:
        """Name the variables that `bound` limits."""
        for variable in variables:
            self._counted[variable] = True
            self._countable.append(variable)

    def bound(self, bound: int) -> bool:
        """Allow at most so many of the counted variables, never more than before; return False if that is
        impossible.
        """
        self._backtrack(0)
        self._bound = bound
        return self._settle(self._limit())

    def add(self, clause: Clause) -> bool:
        """Add a clause at the root; return False if there is no solution any more."""
        self._backtrack(0)
        return self._settle(self._attach(clause))

    def decisions(self) -> list[int]:
        """Return the literals that were decided on, in order."""
        return [self.trail[length] for length in self._limits]

    def solve(self) -> bool:
        """Search the first solution; return False if there is none."""
        while True:
            conflict = self._propagate()
            if conflict is not None:
                if not self._settle(conflict):
                    return False
                continue
            literal = self._asker.next_decision()
            if literal is None:
                return True
            self._level += 1
            self._limits.append(len(self.trail))
            self._assign(literal, None)

    def facts_behind(self, literal: int) -> tuple[int, set[int]]:
        """Return the facts from which a true literal follows, and the decisions that it follows from."""
        facts, decisions = 0, set[int]()
        pending, visited = [literal >> 1], {literal >> 1}
        while pending:
            variable = pending.pop()
            if self._levels[variable] == 0:
                facts |= self._root_facts[variable]
                continue
            reason = self._reasons[variable]
            if reason is None:
                decisions.add(variable)
                continue
            if isinstance(reason, Clause):
                facts |= reason.facts
            for other in _antecedents(reason):
                if other not in visited:
                    visited.add(other)
                    pending.append(other)
        return facts, decisions

    def _settle(self, conflict: Clause | None) -> bool:
        """Learn from violated clauses until none is left; return False if there is no solution."""
        while conflict is not None:
            self.conflicts += 1
            if self.conflicts > self._conflicts_max:
                raise SearchLimitError(f"no solution after {self._conflicts_max:,} conflicts")
            # The analysis works on the highest level in the clause. A clause can be made after all its
            # literals became false, so that need not be the present level.
            level = max((self._levels[each >> 1] for each in conflict.literals), default=0)
            if level == 0:
                return False
            self._backtrack(level)
            learned, back = self._analyze(conflict)
            involved = [literal >> 1 for literal in learned.literals]
            self._backtrack(back)
            conflict = self._attach(learned)
            if conflict is None:
                conflict = self._expand_rivals(involved)
        return True

    def _expand_rivals(self, variables: Iterable[int]) -> Clause | None:
        """Add the clauses of all versions of packages that were part of a conflict: there, most will be
        tried.
        """
        for variable in variables:
            for other in self._exclusives[variable] or ():
                if not self._expanded[other]:
                    violated = self._expand(other)
                    if violated is not None:
                        return violated  # at once: what is expanded next could go back and lose it
        return None

    def _attach(self, clause: Clause) -> Clause | None:
        """Watch a clause, and imply its last open literal. Returns it if it is violated."""
        literals, values = clause.literals, self.values
        if len(literals) > 1:
            # The watches must be the last literals to become false. Those that are not false come first, then
            # those that the search frees first when it goes back. There are as many levels as variables at
            # most: so many if each was decided on.
            levels = self._levels
            above = len(levels) + 1
            literals.sort(
                key=lambda each: above if values[each] is not False else levels[each >> 1], reverse=True
            )
            self._watches[literals[0]].append(clause)
            self._watches[literals[1]].append(clause)
        elif literals and self._level and values[literals[0]] is not False:
            self._backtrack(0)  # a single literal is not watched, so it must hold at the root
        if not literals or values[literals[0]] is False:
            return clause
        if values[literals[0]] is None and (len(literals) == 1 or values[literals[1]] is False):
            self._assign(literals[0], clause)
        return None

    def _assign(self, literal: int, reason: Reason) -> None:
        """Make an open literal true at the present level; what follows from it is left to `_propagate`."""
        variable = literal >> 1
        self.values[literal] = True
        self.values[literal ^ 1] = False
        self._levels[variable] = self._level
        self._reasons[variable] = reason
        if self._level == 0:  # it is never undone, so its facts can be summed up once for every analysis
            facts = reason.facts if isinstance(reason, Clause) else 0
            for other in _antecedents(reason):
                if other != variable:
                    facts |= self._root_facts[other]
            self._root_facts[variable] = facts
        self.trail.append(literal)

    def _propagate(self) -> Clause | None:
        """Assign all that follows from the trail; return the first violated clause, None if there is none."""
        values, trail = self.values, self.trail
        while self._head < len(trail):
            literal = trail[self._head]
            self._head += 1
            if not literal & 1:
                conflict = self._became_true(literal >> 1)
                if conflict is not None:
                    return conflict
            false = literal ^ 1
            watching, self._watches[false] = self._watches[false], []
            keep = self._watches[false]
            for index, clause in enumerate(watching):
                literals = clause.literals
                # The false literal goes second, so that the first is the one that the clause may imply.
                if literals[0] == false:
                    literals[0], literals[1] = literals[1], false
                first = literals[0]
                if values[first] is True:
                    # The watch at a false literal may stay: going back frees it no later than the first one.
                    keep.append(clause)
                    continue
                for position in range(2, len(literals)):
                    other = literals[position]
                    if values[other] is not False:
                        # The watch moves to a literal that can still become false, and so be noticed.
                        literals[1], literals[position] = other, false
                        self._watches[other].append(clause)
                        break
                else:
                    # All but the first are false, this one as the last of them, so the watch stays here.
                    keep.append(clause)
                    if values[first] is False:
                        keep += watching[index + 1 :]  # the search goes back, and they were not looked at
                        return clause
                    self._assign(first, clause)
        return None

    def _became_true(self, variable: int) -> Clause | None:
        """Exclude the rivals of a variable, keep the bound, and make its clauses; return a violated one.

        Rivals and the bound need no stored clauses: there would be one for each pair of versions, and the
        true literal suffices as the reason.
        """
        literal, values = 2 * variable, self.values
        if self._counted[variable]:
            self._count += 1
        others = self._exclusives[variable]
        if others is not None:
            for other in others:
                if other == variable:
                    continue
                value = values[2 * other]
                if value is None:
                    self._assign(2 * other + 1, literal)
                elif value:
                    return Clause([literal + 1, 2 * other + 1], 0)
        if self._counted[variable]:
            conflict = self._limit()
            if conflict is not None:
                return conflict
        if not self._expanded[variable]:
            return self._expand(variable)
        return None

    def _expand(self, variable: int) -> Clause | None:
        """Add the clauses of a variable; return one that is violated."""
        self._expanded[variable] = True
        violated = [clause for clause in self._asker.clauses_of(variable) if self._attach(clause) is not None]
        # A clause of one literal is not watched, so it must be the one that is learned from.
        return min(violated, key=lambda clause: len(clause.literals), default=None)

    def _limit(self) -> Clause | None:
        """Keep the bound: the counted variables that are true exclude the others when it is reached."""
        if self._bound is None or self._count < self._bound:
            return None
        true = [2 * each + 1 for each in self._countable if self.values[2 * each]]
        if len(true) > self._bound:
            return Clause(true, 0)
        reason = Clause(true, 0)
        for each in self._countable:
            if self.values[2 * each] is None:
                self._assign(2 * each + 1, reason)
        return None

    def _analyze(self, conflict: Clause) -> tuple[Clause, int]:
        """Return the clause that is learned from a conflict of the present level, and the level to go back
        to.

        In the violated clause, each literal of the present level is replaced by the antecedents from which
        it became false, the last one on the trail first, until a single literal of the level is left: the
        first unique implication point, from which the conflict follows with the lower levels alone.
        `open_count` is the number of such literals that are not replaced yet. Literals of level 0 hold in
        any case: only their facts are taken. The highest level among the other literals is the lowest one at
        which all of them are false, and so imply the remaining one.
        """
        levels, level = self._levels, self._level
        facts, visited, lower = conflict.facts, set[int](), []
        open_count, position = 0, len(self.trail) - 1
        reason: Reason = conflict
        while True:
            for other in _antecedents(reason):
                if other in visited:
                    continue
                visited.add(other)
                if levels[other] == 0:
                    facts |= self._root_facts[other]
                elif levels[other] == level:
                    open_count += 1
                else:
                    lower.append(other)
            # The trail is in the order of the levels, so what is left of this one is found first.
            while self.trail[position] >> 1 not in visited:
                position -= 1
            literal = self.trail[position]
            position -= 1
            open_count -= 1
            if open_count == 0:
                break
            reason = self._reasons[literal >> 1]
            if isinstance(reason, Clause):
                facts |= reason.facts
        literals = [literal ^ 1]
        literals += [2 * each + 1 if self.values[2 * each] else 2 * each for each in lower]
        return Clause(literals, facts), max((levels[each] for each in lower), default=0)

    def _backtrack(self, level: int) -> None:
        """Take back what was assigned above a level; have the asker forget the answers that rest on it."""
        if level >= self._level:
            return
        length = self._limits[level]
        for position in range(len(self.trail) - 1, length - 1, -1):
            literal = self.trail[position]
            self.values[literal] = self.values[literal ^ 1] = None
            if position < self._head and not literal & 1 and self._counted[literal >> 1]:
                self._count -= 1  # those after the head were not counted yet
        del self.trail[length:]
        del self._limits[level:]
        self._level = level
        self._head = min(self._head, length)
        self._asker.undone(length)


def _antecedents(reason: Reason) -> Iterable[int]:
    if isinstance(reason, Clause):
        return [literal >> 1 for literal in reason.literals]
    return () if reason is None else (reason >> 1,)
