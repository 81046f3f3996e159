"""What the decision on a scope is made of: settings, the plan for each install, and its outcome."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP as PKG
from pvbus.core.kernel.packagerows import (
    LockedRevision,
    LockRow,
    LockStatus,
    SourceRow,
    holders_of,
)
from pvbus.core.platform.packaging.imageconfigs import Access
from pvbus.core.platform.packaging.reading import Problem
from pvbus.core.platform.resolve.revisions import (
    History,
    Request,
    is_held,
)
from pvbus.core.platform.resolve.solutions import Part
from pvbus.core.platform.resolve.state import ScopeState
from pvbus.core.platform.solver.model import Chosen, Outcome, Policy, Requirement, Wish
from pvbus.core.platform.solver.states import DependencyReport


class Settings(NamedTuple):
    """How to choose, and what the cluster runs.

    platforms: names of platforms with their versions
    is_verified_beside: whether another installer verifies signatures; else what needs one is refused
    """

    policy: Policy = Policy(versions="minimal-change")
    platforms: tuple[tuple[str, str], ...] = ()
    is_verified_beside: bool = False


class Decision(NamedTuple):
    """What a decision changes.

    rows: okey -> the lock's row; None ends it
    sources: source -> its row; None ends it
    contents: `<source>|<digest>` of each content that nobody needs any more
    demands: source -> how it is read
    waiting: what some install waits for, in words
    is_settled: whether it is certain that a decision on the stored result changes nothing
    """

    rows: Mapping[str, LockRow | None]
    sources: Mapping[str, SourceRow | None]
    contents: tuple[str, ...]
    demands: Mapping[str, Access]
    waiting: tuple[str, ...] = ()
    is_settled: bool = False


class Plan:
    """An install, and what is decided for it so far, in both families.

    install: None for an install that establish is to create
    row: its row in the lock before the decision
    holders: the installs that it was made for, the owner first; () for a user's
    outcome: the outcome of its wish, None while that is unknown
    chosen: the version that its package has in the solution, None while that is unknown
    asked: the requirements of this version as its package says them
    reports: the state of each dependency of a version that is not granted
    wait: what it waits for, in words, "" for nothing
    fault: status, reason and message of an install that the resolver is not asked for
    """

    def __init__(self, okey: str, install: Install | None, row: LockRow | None) -> None:
        self.okey = okey
        self.install = install
        self.row = row
        self.package = install.package if install else row.package if row else ""
        self.holders = holders_of(install, row)
        self.outcome: Outcome | None = None
        self.chosen: Chosen | None = None
        self.asked: tuple[Requirement, ...] = ()
        self.reports: tuple[DependencyReport, ...] = ()
        self.wait = ""
        self.fault: tuple[LockStatus, str, str] | None = None

    @property
    def is_created(self) -> bool:
        """Whether pvbus decides its version: it was made for others."""
        return bool(self.holders)


class RevisionPlan(Plan):
    """The plan of an install of Crossplane's family.

    pin: the digest that the install names, itself or by its tag; "" while that is unknown
    part: the component of its package, None while that is unknown
    is_stuck: whether the wait ends only after somebody acts
    """

    def __init__(self, okey: str, install: Install | None, row: LockRow | None, history: History) -> None:
        super().__init__(okey, install, row)
        self.history = history
        self.request = Request()
        self.pin = ""
        self.wish: Wish | None = None
        self.part: Part | None = None
        self.is_stuck = False

    @property
    def is_pinned(self) -> bool:
        return (
            self.install is not None and bool(self.install.tag or self.install.digest) and not self.is_created
        )

    @property
    def wanted(self) -> str:
        """What a user asks for, where a new content is activated by itself; "" elsewhere."""
        install = self.install
        if install is None or install.is_manual or self.is_created:
            return ""
        return f"{install.package}:{install.tag}@{install.digest} {install.range}"

    @property
    def is_manual(self) -> bool:
        """Whether a new content waits for a user: so it is said, or one has activated another revision."""
        return (self.install.is_manual if self.install else False) or is_held(self.history, self.wanted)


def is_ours(okey: str) -> bool:
    return okey.startswith(f"{PKG}/")


def history_of(row: LockRow) -> History:
    return History(row.revisions, row.observed)


def with_objects(history: History, state: ScopeState, package: str) -> History:
    """Return a history with the objects of the contents that were read."""
    found: list[LockedRevision] = []
    for each in history.revisions:
        content = state.content(package, each.digest)
        found.append(msgspec.structs.replace(each, objects=content.objects) if content else each)
    return history._replace(revisions=tuple(found))


def removed(row: LockRow, message: str = "") -> LockRow:
    """Return the order to end an install."""
    return msgspec.structs.replace(
        row, status="removed", reason="Removed", message=message, dependencies=(), template={}
    )


def faulty(row: LockRow | None, status: LockStatus, reason: str, message: str) -> LockRow:
    found = row or LockRow(status="broken")
    return msgspec.structs.replace(found, status=status, reason=reason, message=message)


def unreadable(row: LockRow | None, problem: Problem) -> LockRow:
    """Return the row of an install that cannot be read; it is of the object that cannot."""
    message = f"the install cannot be read: {problem.message}: correct that, and it is decided on again"
    found = faulty(row, "broken", "InvalidInstall", message)
    if problem.bare is None:
        return found
    return msgspec.structs.replace(found, uid=problem.bare.uid, generation=problem.bare.generation)


def settles(state: ScopeState, rows: Mapping[str, LockRow | None]) -> bool:
    """Return whether a decision on the result of another one certainly changes nothing.

    The other one must free nothing. It may say that an install waits, or which object a row is of; and if it
    grants all of its installs what they want, it may give some of them their first version: once that is
    installed the same solution is still the best one. Where objects of revisions are left, users may have
    asked for something in them.

    state: with the lock's rows before
    rows: okey -> row of every install that was decided on; None ends it
    """
    lock = state.lock
    is_all_granted = all(
        row is not None and row.status == "locked" and not row.reason for row in rows.values()
    )
    return all(
        _says_little(lock.get(okey), row)
        or (is_all_granted and _is_first_version(lock.get(okey), row) and not state.seen_revisions(okey))
        for okey, row in rows.items()
    )


def _says_little(before: LockRow | None, row: LockRow | None) -> bool:
    if row is None or row == before:
        return row == before
    known = before or LockRow(status="waiting", package=row.package)
    same = msgspec.structs.replace(known, uid=row.uid, generation=row.generation)
    if row.status == known.status == "waiting":
        same = msgspec.structs.replace(same, package=row.package, reason=row.reason, message=row.message)
    return row == same


def _is_first_version(before: LockRow | None, row: LockRow | None) -> bool:
    """Return whether nothing but the version is new; what others follow in a row is as before."""
    if before is None or row is None:
        return row is not None
    inherited = (row.holders, row.removal, row.template)
    return not before.revisions and inherited == (before.holders, before.removal, before.template)


def shown(okey: str) -> str:
    """Name an object as kubectl does: `Provider aws`, `Role team/reader`."""
    key = ObjectKey.parse(okey)
    return f"{key.kind} {key.namespace}{'/' if key.namespace else ''}{key.name}"
