"""What goes and what stays when an install is deleted, before anything is."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pvbus.core.kernel.keys import namespaced_name
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.packaging.carvelfacts import ORPHANED, Facts
from pvbus.core.platform.resolve.carvel import decided_rows

Cause = Literal["asked", "dependant", "dependency", "policy"]


class Going(NamedTuple):
    """An install that goes. cause: with `policy`, pvbus deletes it itself, because its owner says so."""

    okey: str
    package: str
    version: str
    cause: Cause
    why: str
    uid: str = ""


class Staying(NamedTuple):
    """An install that is concerned and stays. is_harmed: whether it cannot be any more what it should be."""

    okey: str
    package: str
    version: str
    why: str
    is_harmed: bool = False


class RemovalPlan(NamedTuple):
    """What the deletion of an install means for others.

    goes: the installs that go, in the order of deletion: what needs others before what is needed
    stays: the installs that are concerned and stay
    """

    goes: tuple[Going, ...]
    stays: tuple[Staying, ...]

    @property
    def is_more(self) -> bool:
        """Whether more goes than what was asked for, or something is harmed."""
        return len(self.goes) > 1 or any(each.is_harmed for each in self.stays)


def removal_plan(facts: Facts, okey: str, *, dependants: bool, dependencies: bool) -> RemovalPlan:
    """Return what the deletion of an install means. Raises KeyError if there is no such install.

    dependants: whether what needs the install goes as well, users' installs among it
    dependencies: whether what was created for it goes, whatever the policy says, unless what stays holds it
    """
    install = facts.installs[okey]
    rows = decided_rows(facts)
    going = {okey: Going(okey, install.package, rows[okey].version, "asked", "you delete it", install.uid)}
    if dependants:
        _add_dependants(facts, rows, going)
    if dependencies:
        _add_dependencies(facts, rows, going)
    after = decided_rows(_without(facts, rows, going))
    for each, row in rows.items():
        if each not in going and each in facts.installs and each in after and after[each].status == "removed":
            why = f"nobody else needs it, and {_names(row.holders)} says that it goes"
            going[each] = _going(facts, each, row, "policy", why)
    stays = [
        staying
        for each, row in rows.items()
        if each not in going and (staying := _staying(each, row, after, going)) is not None
    ]
    return RemovalPlan(_removal_order(rows, going), tuple(stays))


def _going(facts: Facts, okey: str, row: LockRow, cause: Cause, why: str) -> Going:
    install = facts.installs.get(okey)
    return Going(okey, row.package, row.version, cause, why, install.uid if install else "")


def _add_dependants(facts: Facts, rows: Mapping[str, LockRow], going: dict[str, Going]) -> None:
    pending = list(going)
    while pending:
        needed = pending.pop(0)
        for each, row in rows.items():
            if each in going or each not in facts.installs:
                continue
            if any(one.install == needed and not one.is_optional for one in row.dependencies):
                going[each] = _going(facts, each, row, "dependant", f"it needs {namespaced_name(needed)}")
                pending.append(each)


def _add_dependencies(facts: Facts, rows: Mapping[str, LockRow], going: dict[str, Going]) -> None:
    """Add what was created for what goes: all that nothing but these, or other such installs, hold."""
    candidates = {
        each for each, row in rows.items() if row.holders and each in facts.installs and each not in going
    }
    reached: set[str] = set()
    pending = list(going)
    while pending:
        holder = pending.pop()
        for each in candidates - reached:
            if holder in rows[each].holders:
                reached.add(each)
                pending.append(each)
    while retained := {each for each in reached if not set(rows[each].holders) <= reached | going.keys()}:
        reached -= retained
    for each in sorted(reached):
        why = f"it was created for {_names(rows[each].holders)}"
        going[each] = _going(facts, each, rows[each], "dependency", why)


def _without(facts: Facts, rows: Mapping[str, LockRow], going: Mapping[str, Going]) -> Facts:
    return facts._replace(
        installs={each: install for each, install in facts.installs.items() if each not in going},
        rows={each: row for each, row in rows.items() if each not in going},
    )


def _staying(
    okey: str, row: LockRow, after: Mapping[str, LockRow], going: Mapping[str, Going]
) -> Staying | None:
    """Return what becomes of an install that has to do with what goes, None for another."""
    found = after.get(okey)
    if found is None:
        return None
    needs = sorted({each.install for each in row.dependencies if each.install in going})
    if needs:
        if found.status != "locked":
            why = f"it needs {_names(needs)}, and fails without: {found.message or found.reason}"
            return Staying(okey, row.package, row.version, why, is_harmed=row.status == "locked")
        instead = sorted(
            {each.install for each in found.dependencies} - {one.install for one in row.dependencies}
        )
        why = (
            f"it needs {_names(needs)}, and gets {_names(instead)}"
            if instead
            else f"it does without {_names(needs)}"
        )
        return Staying(okey, row.package, row.version, why)
    held = [each for each in row.holders if each in going]
    if not held:
        return None
    if found.holders:
        why = f"{_names(found.holders)} needs it" + (", and owns it then" if row.holders[0] in going else "")
        return Staying(okey, row.package, row.version, why)
    why = "nobody needs it any more; it stays as yours" if found.reason == ORPHANED else found.message
    return Staying(okey, row.package, row.version, why)


def _removal_order(rows: Mapping[str, LockRow], going: Mapping[str, Going]) -> tuple[Going, ...]:
    """Return what goes: what needs others first. In a cycle the names decide."""
    left, found = dict(sorted(going.items())), []
    while left:
        needed = {
            one.install
            for each in left
            for one in rows[each].dependencies
            if one.install in left and one.install != each
        }
        first = next((each for each in left if each not in needed), next(iter(left)))
        found.append(left.pop(first))
    return tuple(found)


def _names(okeys: tuple[str, ...] | list[str]) -> str:
    return ", ".join(namespaced_name(each) for each in okeys)
