"""Finds what there is to decide on: the installs of some groups, with what the lock has of them."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import LockRow, is_ending
from pvbus.core.platform.packaging.reading import Problem
from pvbus.core.platform.resolve.asking import Asking
from pvbus.core.platform.resolve.groups import Member, installs_of
from pvbus.core.platform.resolve.plans import (
    RevisionPlan,
    history_of,
    is_ours,
    removed,
    shown,
    unreadable,
    with_objects,
)
from pvbus.core.platform.resolve.revisions import rebuilt, request_of
from pvbus.core.platform.resolve.state import ScopeState

Only = Collection[Member] | None
"""The groups that a decision is on; None for all."""


class Planned(NamedTuple):
    """What there is to decide on.

    rows: okey -> row of an install that needs no decision: it is gone, going or unreadable; None ends the row
    plans: okey -> plan of every other install
    by_package: package -> okey of the install that counts for it
    ending: package -> okey of its former install, while that is still there
    """

    rows: dict[str, LockRow | None]
    plans: dict[str, RevisionPlan]
    by_package: dict[str, str]
    ending: dict[str, str]


def planned(state: ScopeState, only: Only, asking: Asking) -> Planned:
    """Return what there is to decide on; ask for what tags name."""
    found = Planned(_gone(state, only), {}, {}, {})
    _add_installed(found, state, only, asking)
    for okey in locked(state, only):
        row = state.lock[okey]
        if okey not in state.installs and okey not in found.rows and row.holders and row.status != "removed":
            found.plans[okey] = RevisionPlan(okey, None, row, history_of(row))
    for okey in (*locked(state, only), *found.rows):
        ending = found.rows.get(okey, state.lock.get(okey))
        if ending is not None and ending.status == "removed" and okey not in found.plans:
            found.ending.setdefault(ending.package, okey)
    for plan in in_order(found.plans.values(), state):
        first = found.by_package.setdefault(plan.package, plan.okey)
        if first != plan.okey:
            plan.fault = (
                "refused",
                "DuplicatePackage",
                f"{shown(first)} installs {plan.package} already",
            )
    return found


def locked(state: ScopeState, only: Only) -> Iterable[str]:
    """Return the installs of these groups that have a row in the lock, in the lock's order."""
    if only is None:
        return [okey for okey in state.lock if is_ours(okey)]
    return sorted(okey for okey in installs_of(only) if is_ours(okey) and okey in state.lock)


def in_order(plans: Iterable[RevisionPlan], state: ScopeState) -> list[RevisionPlan]:
    """Return plans: who has revisions first, then by age, so that the first one wins a conflict."""

    def order(plan: RevisionPlan) -> tuple[object, ...]:
        seen = state.installs.get(plan.okey)
        return (not plan.history.revisions, seen.created if seen else "~", plan.okey)

    return sorted(plans, key=order)


def with_children(okeys: Collection[str], plans: Mapping[str, RevisionPlan]) -> list[RevisionPlan]:
    """Return the plans of some installs, and of all that were made for these alone."""
    parts = {okey for okey, plan in plans.items() if okey in okeys or (plan.is_created and not plan.fault)}
    while others := {
        okey for okey in parts if okey not in okeys and not parts.issuperset(plans[okey].holders)
    }:
        parts -= others
    return [plans[okey] for okey in parts]


def _gone(state: ScopeState, only: Only) -> dict[str, LockRow | None]:
    """Order the end of what has no install any more, and forget what establish has ended."""
    rows: dict[str, LockRow | None] = {}
    for okey in locked(state, only):
        row = state.lock[okey]
        if okey in state.installs:
            continue
        is_to_be_made = bool(row.holders) and not row.uid and row.status != "removed"
        if is_to_be_made or not state.is_gone(okey):
            continue
        if okey not in state.established:
            rows[okey] = None
        elif row.status != "removed":
            rows[okey] = removed(row)
    return rows


def _add_installed(found: Planned, state: ScopeState, only: Only, asking: Asking) -> None:
    for okey in _installed(state, only):
        seen, row = state.installs[okey], state.lock.get(okey)
        if seen.install.is_deleted:
            package = "" if isinstance(seen.install, Problem) else seen.install.package
            found.rows[okey] = removed(row or LockRow(status="removed", package=package))
        elif isinstance(seen.install, Problem):
            found.rows[okey] = unreadable(row, seen.install)
        elif not is_ending(seen.install, row, is_established=okey in state.established):
            found.plans[okey] = _plan_of(okey, seen.install, row, state, asking)


def _installed(state: ScopeState, only: Only) -> Iterable[str]:
    """Return the installs of these groups that exist."""
    if only is None:
        return [okey for okey in state.installs if is_ours(okey)]
    return sorted(okey for okey in installs_of(only) if is_ours(okey) and okey in state.installs)


def _plan_of(
    okey: str, install: Install, row: LockRow | None, state: ScopeState, asking: Asking
) -> RevisionPlan:
    if row is not None and row.package == install.package:
        history = history_of(row)
    else:
        history = rebuilt(state.seen_revisions(okey), state.installs[okey].current)
    plan = RevisionPlan(okey, install, row, with_objects(history, state, install.package))
    if not install.is_paused:
        plan.request = request_of(plan.history, state.seen_revisions(okey))
        plan.pin = install.digest or asking.digest(install.package, install.tag)
    return plan
