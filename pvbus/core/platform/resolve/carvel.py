"""Carvel's part of a decision: facts for `pvbus.core.platform.packaging.carvel`, and the rows it changes."""

from collections.abc import Iterable, Mapping
from typing import Any

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CARVEL_PACKAGE
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.packaging.carvel import Facts, decide
from pvbus.core.platform.packaging.reading import Problem
from pvbus.core.platform.resolve.plans import removed, unreadable
from pvbus.core.platform.resolve.solutions import ComponentCache
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.model import Policy

_HEAD = f"{CARVEL_INSTALL}|"


def carvel_rows(
    state: ScopeState, cache: ComponentCache, policy: Policy, platforms: tuple[tuple[str, str], ...]
) -> dict[str, LockRow | None]:
    """Return the rows of Carvel's installs that change, by okey; None ends one.

    Nothing changes while their list is not complete, or that of the Packages.
    """
    if not all(_is_listed(state, str(kind)) for kind in (CARVEL_INSTALL, CARVEL_PACKAGE)):
        return {}
    before = {okey: row for okey, row in state.lock.items() if okey.startswith(_HEAD)}
    installs, problems = _installs(state)
    facts = Facts(
        installs=installs,
        packages=tuple(each for _, each in sorted(state.packages.items())),
        rows=before,
        offers=frozenset(offer for offers in state.definitions.values() for offer in offers),
        schemas=_schemas(state.schemas.values()),
        platforms=platforms,
        established=frozenset(okey for okey in state.established if okey.startswith(_HEAD)),
        policy=policy,
    )
    after: dict[str, LockRow | None] = {**dict.fromkeys(before), **decide(facts, cache.resolve)}
    for okey, problem in problems.items():
        broken = unreadable(before.get(okey), problem)
        after[okey] = removed(before.get(okey, broken)) if problem.is_deleted else broken
    return {okey: row for okey, row in after.items() if row != before.get(okey) and _may_change(state, okey)}


def _is_listed(state: ScopeState, kind: str) -> bool:
    marker = state.sync.marker(kind)
    return marker is not None and marker.state == "ok"


def _installs(state: ScopeState) -> tuple[dict[str, Install], dict[str, Problem]]:
    """Return the installs, and those that cannot be read."""
    found: dict[str, Install] = {}
    problems: dict[str, Problem] = {}
    for okey, seen in state.installs.items():
        if not okey.startswith(_HEAD):
            continue
        if isinstance(seen.install, Problem):
            problems[okey] = seen.install
        else:
            found[okey] = seen.install
    return found, problems


def _may_change(state: ScopeState, okey: str) -> bool:
    """Whether a row may follow from its install: it is there, is to be created, or is certainly gone."""
    row = state.lock.get(okey)
    return okey in state.installs or row is None or not row.uid or state.is_gone(okey)


def _schemas(found: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    return {offer: schema for each in found for offer, schema in each.items()}
