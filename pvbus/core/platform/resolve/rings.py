"""Finds installs that need each other in a ring, and says so in their rows.

Such installs are decided on and installed as one step. Nobody can install or remove one of them alone, which
is seldom meant, so a person is told.
"""

from collections.abc import Iterable, Mapping

import msgspec

from pvbus.core.kernel.packagerows import DEPENDENCY_CYCLE, LockRow
from pvbus.core.platform.resolve.plans import shown
from pvbus.core.platform.solver.connected import strongly_connected

NAMED_MAX = 8
"""Installs of a ring that a message names."""


def with_rings(rows: Mapping[str, LockRow | None]) -> dict[str, LockRow | None]:
    """Return the rows that change, as rings are found or have gone; a row with another reason keeps that."""
    edges = {okey: _needs(row, rows) for okey, row in rows.items() if row is not None}
    rings = _rings(edges)
    changed: dict[str, LockRow | None] = {}
    for okey, row in rows.items():
        if row is None or row.status != "locked" or row.reason not in ("", DEPENDENCY_CYCLE):
            continue
        message = _words(rings[okey]) if okey in rings else ""
        reason = DEPENDENCY_CYCLE if message else ""
        if (row.reason, row.message if row.reason else "") != (reason, message):
            changed[okey] = msgspec.structs.replace(row, reason=reason, message=message)
    return changed


def _needs(row: LockRow, rows: Mapping[str, LockRow | None]) -> tuple[str, ...]:
    found = (each.install for each in row.dependencies if each.condition != _OTHER_VERSION)
    return tuple(dict.fromkeys(okey for okey in found if rows.get(okey) is not None))


_OTHER_VERSION = "FoundPackageInstallRequiresDifferentVersion"
"""What is there does not meet the need."""


def _rings(edges: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return for each install of a ring the shortest way back to itself, which it begins and ends."""
    graph = {("", okey): [("", each) for each in others] for okey, others in edges.items()}
    found: dict[str, tuple[str, ...]] = {}
    for group in strongly_connected(graph):
        members = {okey for _, okey in group}
        if len(members) > 1:
            found.update({okey: _way_back(okey, edges, members) for okey in members})
    return found


def _way_back(start: str, edges: Mapping[str, Iterable[str]], members: set[str]) -> tuple[str, ...]:
    before: dict[str, str] = {}
    pending = [start]
    for here in pending:
        for other in sorted(members.intersection(edges[here]) - before.keys()):
            before[other] = here
            pending.append(other)
        if start in before:
            break
    way = [start, before[start]]
    while way[-1] != start:
        way.append(before[way[-1]])
    return tuple(reversed(way))


def _words(ring: tuple[str, ...]) -> str:
    first, *others = map(shown, ring)
    middle = others[:-1][:NAMED_MAX]
    more = len(others) - 1 - len(middle)
    links = [*middle, *([f"{more} more" if more > 1 else "another one"] if more else []), others[-1]]
    return f"{first} needs {', which needs '.join(links)}: they are installed and removed as one"
