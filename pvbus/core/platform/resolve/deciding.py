"""The decisions on a scope: on the groups in which something has changed, and on Carvel's installs."""

from collections.abc import Iterable

from pvbus.core.kernel.packagerows import (
    LockRow,
)
from pvbus.core.platform.packaging.imageconfigs import Access
from pvbus.core.platform.resolve.carvel import carvel_rows
from pvbus.core.platform.resolve.crossplane import CrossplaneFamily
from pvbus.core.platform.resolve.groups import Changes, Groups, Member, installs_of, sources_of
from pvbus.core.platform.resolve.plans import Decision, Settings
from pvbus.core.platform.resolve.solutions import ComponentCache, Solver
from pvbus.core.platform.resolve.state import ScopeState


class Decider:
    """Decides for one scope; keeps the solutions of components that have not changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.solver = Solver()
        self.carvel = ComponentCache()
        self._groups = Groups()
        self._offers: frozenset[str] = frozenset()
        self._demands: dict[str, Access] = {}
        self._waits: dict[str, Member] = {}
        self._disowned: set[str] = set()
        self._is_recovering = False
        self.decisions = 0

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return what some install waits for, in words."""
        return tuple(self._waits)

    @property
    def solved(self) -> int:
        """Number of components solved so far."""
        return self.solver.solved + self.carvel.solved

    def is_due(self, state: ScopeState) -> bool:
        """Return whether something has changed that a decision depends on."""
        changes = state.changes
        if changes.is_all or changes.members or changes.unstored:
            return True
        if changes.is_carvel and state.carvel_okeys:
            return True
        return bool(changes.is_owning and self._disowned) or state.offers() != self._offers

    def decide(self, state: ScopeState) -> Decision:
        """Return what changes. Caller: only while no kind is pending.

        Only the groups are decided on in which something has changed, and those that new needs link to them.
        All groups are if more than single members changed, if the API kinds changed that are there without a
        package or that some package begins to need, or while the content of a revision that was found in the
        cluster is not known.

        The members whose rows change here count as changed at the next decision, unless the decision is
        settled and its rows are stored: what is not stored afterwards is decided on again.
        """
        self.decisions += 1
        changes = state.changes
        changes.members.update(changes.unstored)
        is_all = changes.is_all or state.offers() != self._offers or self._is_recovering
        wanted = self.solver.wanted
        deciding = self._deciding(state, None if is_all else self._affected(changes))
        if not is_all and not self.solver.wanted <= wanted:  # whatever is not read may provide it
            is_all = True
            deciding = self._deciding(state, None)
        found = deciding.decision()
        if deciding.is_recovering and not is_all:  # nobody must get an object of what is not read
            is_all = True
            deciding = self._deciding(state, None)
            found = deciding.decision()
        self._is_recovering = deciding.is_recovering
        decision = self._merge(deciding, found)
        self._offers = state.offers()
        rows: dict[str, LockRow | None] = {}
        if is_all or changes.is_carvel:
            self.carvel.forget()
            rows = carvel_rows(state, self.carvel, self._settings.policy, self._settings.platforms)
        changes.clear()
        changes.is_carvel = bool(rows)
        if decision.is_settled:
            changes.unstored.update(_rows_of(decision))
        else:
            changes.members.update(_changed_by(decision))
        return decision._replace(rows={**decision.rows, **rows})

    def _affected(self, changes: Changes) -> set[Member]:
        changed = set(changes.members)
        if changes.is_owning:
            changed.update(Member("install", okey) for okey in self._disowned)
        return self._groups.linked(changed)

    def _deciding(self, state: ScopeState, only: set[Member] | None) -> CrossplaneFamily:
        """Return a decision for groups, with those that have become one with them."""
        while True:
            deciding = CrossplaneFamily(state, self.solver, self._settings, only)
            deciding.prepare()
            if only is None:
                return deciding
            more = self._groups.linked(each for link in deciding.links() for each in link) - only
            only |= more
            if not any(each.kind == "install" for each in more):
                return deciding

    def _merge(self, deciding: CrossplaneFamily, decision: Decision) -> Decision:
        """Keep what a decision found, beside what was found for other groups; return it for all."""
        only = deciding.only
        if only is None:
            self._groups, self._demands, self._waits = Groups(), {}, {}
            self._disowned.clear()
        else:
            for source in sources_of(only):
                self._demands.pop(source, None)
            self._waits = {text: each for text, each in self._waits.items() if each not in only}
            self._disowned.difference_update(installs_of(only))
        self._groups.replace(only or (), deciding.links())
        self._demands.update(decision.demands)
        self._waits.update(deciding.waits)
        self._disowned.update(deciding.disowned())
        self.solver.keep(None if only is None else set(sources_of(only)))
        return decision._replace(demands=self._demands, waiting=tuple(self._waits))


def _rows_of(decision: Decision) -> Iterable[tuple[Member, object]]:
    for okey, row in decision.rows.items():
        yield Member("install", okey), row
    for source, row_of_source in decision.sources.items():
        yield Member("source", source), row_of_source


def _changed_by(decision: Decision) -> Iterable[Member]:
    yield from (member for member, _ in _rows_of(decision))
    for content in decision.contents:
        yield Member("source", content.rpartition("|")[0])
