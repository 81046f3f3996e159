"""One decision on the installs that belong together, the same for the families of Crossplane and of Carvel.

`decide` has the steps; a `Family` has what differs: how versions are found, what a row says of them, which
installs are made for others and with which spec. A decision is made from the tables alone, and decisions on
their own results come to an end.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import LockedDependency, LockRow, Removal
from pvbus.core.platform.packaging.carvelfacts import ORPHANED
from pvbus.core.platform.resolve.plans import Plan, removed
from pvbus.core.platform.resolve.reporting import Provider, dependencies_met, dependencies_open
from pvbus.core.platform.resolve.rings import with_rings
from pvbus.core.platform.solver.model import Requirement

P = TypeVar("P", bound=Plan)


class Need(NamedTuple):
    """A need of one install for another.

    is_held: whether the holder may have the other installed, and so keeps it
    """

    holder: str
    install: str
    is_held: bool = True


class Family(Protocol[P]):
    """What a decision does in the way of one family.

    plans: okey -> plan of an install; `solve` and `create` add those that are created
    rows: okey -> row of an install, None to end it; at first those that need no decision
    lock: okey -> row before the decision
    unreadable: the installs that cannot be read: what they hold is not known to be unneeded
    """

    plans: dict[str, P]
    rows: dict[str, LockRow | None]
    lock: Mapping[str, LockRow]
    unreadable: Collection[str]

    def install(self, okey: str) -> Install | None:
        """Return an install that is there, also one that is being deleted."""

    def solve(self) -> None:
        """Give each plan its outcome and its version."""

    def conclude(self, plan: P) -> LockRow:
        """Return the row of one install, without what others decide for it."""

    def in_order(self) -> Iterable[P]:
        """Return the plans, so that who comes first gets what several want."""

    def create(self) -> None:
        """Add an install for each chosen package that has none."""

    def is_decided(self, plan: P) -> bool:
        """Return whether what an install needs is known: its wish is granted, or others need it."""

    def needs(self) -> Iterable[Need]:
        """Return who needs whom of the chosen versions."""

    def pass_on(self, plan: P, row: LockRow, owner: str) -> LockRow:
        """Return the row of a created install with the spec that its owner gives it."""

    def find(self, plan: P, package: str, requirement: Requirement) -> Provider:
        """Return the install of a package as a plan sees it."""

    def is_known(self, plan: P, package: str) -> bool:
        """Return whether a package has versions."""


def decide(family: Family[P]) -> None:
    """Decide on all plans of a family: afterwards `family.rows` has the row of each.

    1. Solve, and give each plan its part of the solution.
    2. Write the row of each install. Who comes first gets the objects that several of them bring.
    3. Lock an install for each chosen package that has none.
    4. Give the created installs their holders, and end those that nobody needs.
    5. Report the dependencies, for which the holders are needed, and the rings of installs among them.
    """
    family.solve()
    for plan in family.in_order():
        family.rows[plan.okey] = _still_orphaned(plan, family.conclude(plan))
    family.create()
    _settle_created(family)
    _report(family)
    family.rows.update(with_rings(family.rows))


def _still_orphaned(plan: Plan, row: LockRow) -> LockRow:
    """Return a row that says what establish has to write on an install which nobody needs any more."""
    if plan.is_created or plan.row is None or plan.row.reason != ORPHANED or row.reason:
        return row
    return msgspec.structs.replace(row, reason=ORPHANED, message=plan.row.message)


def _settle_created(family: Family[P]) -> None:
    """Give every created install its holders, and end those that have none.

    Of those that none holds only these end that no other of them held: what an install needs stays while that
    is there. Packages that need each other in a cycle begin with the first one.
    """
    needs = list(family.needs())
    needed: dict[str, set[str]] = {}
    for need in needs:
        if need.is_held:
            needed.setdefault(need.install, set()).add(need.holder)
    created = [plan for plan in family.plans.values() if plan.is_created and _is_alive(family, plan)]
    retained = _retained(family, created, needed)
    holders = {plan.okey: _holders(plan, needed.get(plan.okey, set()), retained) for plan in created}
    left = {okey for okey, held_by in holders.items() if not held_by}
    first = {okey for okey in left if not left & set(family.plans[okey].holders) - {okey}}
    first = first or {min(left, default="")}
    for plan in created:
        row, held_by = family.rows[plan.okey], holders[plan.okey]
        assert row is not None
        if held_by:
            row = msgspec.structs.replace(row, holders=held_by, removal=_removal(family, held_by[0], holders))
            row = family.pass_on(plan, row, held_by[0])
        elif plan.okey in first:
            is_used = any(need.install == plan.okey for need in needs)
            row = _without_holders(family, plan, row, holders, is_used)
        else:
            row = msgspec.structs.replace(row, holders=plan.holders)
        family.rows[plan.okey] = row


def _is_alive(family: Family[P], plan: P) -> bool:
    row = family.rows.get(plan.okey)
    return row is not None and row.status != "removed"


def _retained(family: Family[P], created: Iterable[P], needed: Mapping[str, Collection[str]]) -> set[str]:
    """Return the installs that could not be decided on, and what was created for them.

    They hold what they held: nothing that they rest on is given up.
    """
    undecided = [plan for plan in created if not family.is_decided(plan)]
    retained = {*family.unreadable, *(plan.okey for plan in undecided if plan.okey in needed)}
    retained |= {
        okey for okey, plan in family.plans.items() if not (plan.is_created or family.is_decided(plan))
    }
    while more := {plan.okey for plan in undecided if retained & set(plan.holders)} - retained:
        retained |= more
    return retained


def _holders(plan: Plan, needing: Collection[str], retained: Collection[str]) -> tuple[str, ...]:
    """Return the holders of an install, the former ones first, so that the owner is the eldest."""
    former = [okey for okey in plan.holders if okey in needing or okey in retained]
    return (*former, *sorted(set(needing) - set(former)))


def _removal(family: Family[P], okey: str, holders: Mapping[str, Sequence[str]]) -> Removal:
    """Return what an install wants done with what only it held.

    For a created one its owner says so, and what a user writes is so of all that was created for it at once:
    the install may be deleted before the next decision.

    holders: of created installs, by this decision
    """
    seen: set[str] = set()
    row = family.lock.get(okey)
    while okey not in seen:
        seen.add(okey)
        install, plan = family.install(okey), family.plans.get(okey)
        if install is not None and not install.owner and not (plan is not None and plan.is_created):
            return install.removal
        row = family.lock.get(okey, row)
        owners = holders.get(okey) or (plan.holders if plan is not None else ())
        if not owners:
            break
        okey = owners[0]
    return row.removal if row is not None else "orphan"


def _without_holders(
    family: Family[P], plan: P, row: LockRow, holders: Mapping[str, Sequence[str]], is_used: bool
) -> LockRow:
    """Return the row of a created install that has lost its last holder. is_used: whether others need it."""
    names = ", ".join(ObjectKey.parse(okey).name for okey in plan.holders)
    if plan.install is None:
        return removed(row)
    owner = plan.holders[0]
    removal = _removal(family, owner, holders) if family.install(owner) else row.removal
    former = plan.row
    is_ours = former is not None and bool(former.template) and former.uid in ("", plan.install.uid)
    if removal == "orphan" or not is_ours or (removal == "keep-if-used" and is_used):
        text = f"it was created for {names}, and stays without it"
        return msgspec.structs.replace(row, holders=(), template={}, reason=ORPHANED, message=text)
    return removed(row, f"it was created for {names}")


def _report(family: Family[P]) -> None:
    """Add what is known of the dependencies; of an install that could not be decided on they stay."""
    for plan in family.plans.values():
        if not (plan.wait or plan.fault) and _is_alive(family, plan):
            row, dependencies = family.rows[plan.okey], _dependencies(family, plan)
            if row is not None and dependencies is not None:
                family.rows[plan.okey] = msgspec.structs.replace(row, dependencies=dependencies)


def _dependencies(family: Family[P], plan: P) -> tuple[LockedDependency, ...] | None:
    """Return the state of the dependencies of an install, None if nobody asked for it."""

    def find(package: str, requirement: Requirement) -> Provider:
        provider = family.find(plan, package, requirement)
        row = family.rows.get(provider.okey)
        is_owned = row is not None and row.holders[:1] == (plan.okey,)
        return provider._replace(is_owned=is_owned, note="" if is_owned else provider.note)

    if plan.outcome is not None and plan.outcome.status != "granted":
        return dependencies_open(plan.reports, find)
    if plan.chosen is None:
        return None
    asked = plan.asked or tuple(edge.requirement for edge in plan.chosen.edges)
    return dependencies_met(plan.chosen, asked, find, lambda package: family.is_known(plan, package))
