"""The order of the decisions, which is what makes a solution the best one.

First each wish is asked for: granted, else whether the installed version stays, else neither. Then, of the
packages that what is answered so far needs, the nearest to the wishes is asked for its version, and after
that for its alternatives and optional needs. When nothing is needed any more, the packages that could provide
an offer are asked for, and then all others; absent is preferred. The first solution in this order is the
result. An answer never depends on later ones.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from pvbus.core.platform.solver.facts import WishFact
from pvbus.core.platform.solver.feasible import Guide
from pvbus.core.platform.solver.graph import Compiled, Graph, RawClause
from pvbus.core.platform.solver.search import Clause, Search

ROOT = -1
PROVIDER = -2


class Questions:
    """Asks for a component, in the order that the module describes.

    What was answered is a stack, `_entries`: the length of the trail at an answer, what was asked, and the
    nodes that the answer brought in. When the search goes back, the entries of a longer trail are popped.
    All that the others rest on is still assigned, so they are not asked again.

    Invariants: a node is needed as long as the entry that brought it in first is on the stack; the nodes that
    `hard` brings in are always needed. Every node that is needed and not asked for is in the heap. The heap
    may also have other nodes and a node twice, which are skipped when they come up.

    guide: answers each question, None if the search finds the answers itself
    search: the search that is asked for decisions and holds the assignments
    _presence: node -> the variable that is true if any version of the node is chosen
    _providers: the nodes that have such a variable, those that can provide a needed offer first
    _entries: length of the trail, ROOT, PROVIDER or the number of a node, and the nodes that were brought in
    """

    def __init__(self, graph: Graph, conflicts_max: int, guide: Guide | None = None) -> None:
        self.graph = graph
        self.guide = guide
        self.search = Search(self, conflicts_max)
        self.possible = True
        """Whether the facts leave anything to search."""
        self._asked: set[int] = set()
        self._needed: set[int] = set()
        self._heap: list[int] = []
        self._entries: list[tuple[int, int, list[int]]] = []
        self._roots_asked = 0
        self._presence = dict(graph.presence)
        self._providers = sorted(graph.presence)
        self._providers_asked = 0
        for node in graph.nodes:
            self.search.variables(len(node.variables), exclusive=True)
        self.search.grow(graph.count)
        for index in self._providers:
            self._name_presence(index)
        self._add_wishes()

    def _add_wishes(self) -> None:
        graph = self.graph
        for index, root in enumerate(graph.roots):
            fact = graph.fact(WishFact(index, root.wish))
            self.require(RawClause((2 * root.granted + 1, *(2 * each for each in root.matching)), fact))
            if root.stays is not None:
                node = graph.nodes[root.node]
                assert node.installed is not None
                literals = (2 * root.stays + 1, 2 * node.variables[node.installed])
                self.require(RawClause(literals, graph.fact(graph.stay_fact(root))))

    def require(self, raw: RawClause) -> None:
        if self.guide is not None:
            self.guide.add(raw.literals)
        self.possible = self.possible and self.search.add(_clause(raw))

    def bound(self, bound: int) -> bool:
        """Allow at most so many changes of the variables that the search counts; return False if that is
        impossible, or not known to be possible.
        """
        if self.guide is not None and not self.guide.bound(bound):
            return False
        return self.search.bound(bound)

    def solve(self) -> bool:
        """Search the first solution in which every package has a reason to be there."""
        if not self.possible or not self.search.solve():
            self.possible = False
            return False
        while (clause := self._unfounded()) is not None:
            self._ask_for_all()
            self.require(clause)
            if not self.possible or not self.search.solve():
                self.possible = False
                return False
        return True

    def _ask_for_all(self) -> None:
        """Ask for every node: what no offer brings in can be the reason for what one does."""
        for node in self.graph.nodes:
            if node.number not in self._presence:
                self._presence[node.number] = self.graph.variable()
                self.search.grow(self.graph.count)
                self._name_presence(node.number)
        others = sorted(self._presence.keys() - self.graph.presence.keys())
        self._providers = [*sorted(self.graph.presence), *others]
        self.undone(-1)  # a position among the providers means nothing any more, so all is asked again

    def _name_presence(self, index: int) -> None:
        for variable in self.graph.nodes[index].variables:
            self.require(RawClause((2 * variable + 1, 2 * self._presence[index]), None))

    def chosen(self) -> dict[int, int]:
        """Return the variable of each node that is to be installed."""
        found = {}
        for index in sorted(self._asked):
            for variable in self.graph.nodes[index].variables:
                if self.search.is_true(variable):
                    found[index] = variable
        return found

    def clauses_of(self, variable: int) -> Iterable[Clause]:
        if variable >= len(self.graph.owners):
            return ()
        compiled = self.graph.compile(variable)
        self.search.grow(self.graph.count)
        return [_clause(raw) for raw in compiled.clauses]

    def next_decision(self) -> int | None:
        literal = self._next_question()
        if literal is None or self.guide is None:
            return literal
        return self.guide.settle(self.search.decisions, literal)

    def _next_question(self) -> int | None:
        literal = self._ask_wishes()
        if literal is not None:
            return literal
        while True:
            index = self._next_needed()
            if index is not None:
                literal = self._ask_node(index)
            elif self._providers_asked < len(self._providers):
                literal = self._ask_provider()
            else:
                return None
            if literal is not None:
                return literal

    def undone(self, trail_length: int) -> None:
        # An answer rests on nothing after the trail as it was then, so an equal length leaves it valid.
        while self._entries and self._entries[-1][0] > trail_length:
            _, kind, entered = self._entries.pop()
            self._needed.difference_update(entered)
            if kind == ROOT:
                self._roots_asked -= 1
            elif kind == PROVIDER:
                self._providers_asked -= 1
            else:
                self._asked.discard(kind)
                heappush(self._heap, kind)

    def _commit(self, kind: int, entered: Iterable[int]) -> None:
        """Record an answer, with the nodes that it brings in."""
        self._entries.append((len(self.search.trail), kind, self._enter(entered)))

    def _enter(self, nodes: Iterable[int]) -> list[int]:
        new = []
        for node in nodes:
            if node not in self._needed:
                self._needed.add(node)
                heappush(self._heap, node)
                new.append(node)
        return new

    def _next_needed(self) -> int | None:
        heap = self._heap
        while heap and (heap[0] in self._asked or heap[0] not in self._needed):
            heappop(heap)
        return heap[0] if heap else None

    def _ask_wishes(self) -> int | None:
        values = self.search.values
        while self._roots_asked < len(self.graph.roots):
            root = self.graph.roots[self._roots_asked]
            for variable in (root.granted, root.stays):
                if variable is None or values[2 * variable] is False:
                    continue
                if values[2 * variable] is None:
                    return 2 * variable
                entered = [root.node]
                break
            else:
                entered = []
            self._roots_asked += 1
            self._commit(ROOT, entered)
        return None

    def _ask_provider(self) -> int | None:
        index = self._providers[self._providers_asked]
        presence = 2 * self._presence[index]
        if index not in self._asked and self.search.values[presence] is None:
            return presence + 1
        self._providers_asked += 1
        is_present = index not in self._asked and self.search.values[presence]
        self._commit(PROVIDER, [index] if is_present else [])
        return None

    def _ask_node(self, index: int) -> int | None:
        values = self.search.values
        for variable in self.graph.nodes[index].variables:
            value = values[2 * variable]
            if value is None:
                return 2 * variable
            if value:
                break
        else:
            raise AssertionError(f"{self.graph.nodes[index].location} is needed, and has no version")
        compiled = self.graph.compile(variable)
        entered = list(compiled.needed)
        literal = self._ask_alternatives(compiled, entered)
        if literal is None:
            self._asked.add(index)
            self._commit(index, entered)
        return literal

    def _ask_alternatives(self, compiled: Compiled, entered: list[int]) -> int | None:
        values = self.search.values
        for question in compiled.questions:
            for answer, nodes in question:
                value = values[2 * answer]
                if value is None:
                    return 2 * answer
                if value:
                    entered += nodes
                    break
        return None

    def _unfounded(self) -> RawClause | None:
        """Return a clause against packages that only offers bring in, None if there are none."""
        brought = {node for _, kind, entered in self._entries if kind == PROVIDER for node in entered}
        if all(self.graph.has_reason(index) for index in brought):
            return None
        literals = self.graph.find_unfounded(self.chosen())
        return None if literals is None else RawClause(literals, None)


def _clause(raw: RawClause) -> Clause:
    return Clause(list(raw.literals), 0 if raw.fact is None else 1 << raw.fact)
