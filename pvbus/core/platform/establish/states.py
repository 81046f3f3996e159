"""The states of an install, what is found out about each, and the action that follows.

The state is the lock's order; nothing else is stored. Each pass finds out one thing about the install, the
first of `InstallFinding` that holds (`pvbus.core.platform.establish.findings`), and takes the action that
`ACTIONS` has for the pair. It has every pair that can occur; any other is a bug, and raises InvariantError.
"""

from collections.abc import Mapping
from enum import StrEnum

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.packagerows import LockRow


class InstallState(StrEnum):
    """What the lock orders for an install.

    NO_ROW: the lock has no row of it; a row of what was done may be left
    TO_MAKE: others need it, and it does not exist yet
    LOCKED: it gets what it asks for
    WAITING, REFUSED, BROKEN: it does not get what it asks for, for the reason in the row
    REMOVED: it is to end
    """

    NO_ROW = "no row"
    TO_MAKE = "to be made"
    LOCKED = "locked"
    WAITING = "waiting"
    REFUSED = "refused"
    BROKEN = "broken"
    REMOVED = "removed"


class InstallFinding(StrEnum):
    """What is found out about an install; of those that hold, the first one counts.

    Without a row:
    NOTHING_LEFT, RECORDED: whether there is a row of what was done

    To be made:
    UNDECIDED, DECIDED: whether it is known with which spec

    To end:
    HOLDING: it is being deleted, and our finalizer holds it until its objects are gone
    GONE: its object is gone, or is another one of its name
    USERS_GOING: it was not made for others, and is being deleted
    USERS: it was not made for others
    UNNEEDED: the lock says to delete it
    NEEDED: the lock says to leave it, or to leave it while others need it, and they do

    In all other states:
    BEHIND: its object is not there, or is another one of its name: the mirror or the lock is behind. What is
        read from the API server may show it once more, after UNMET and COMPARED, which need no reading
    LEFT_ALONE: it is being deleted, or is paused
    UNREADABLE: what it asks for cannot be read
    BARE: it gets nothing, and has nothing whole in the cluster
    UNMET: an install that it needs is not healthy
    COMPARED: the cluster was compared with the lock lately
    OTHERS: Crossplane or kapp-controller install it
    RIVALLED: another installer writes it, beside pvbus
    WHOLE: it gets nothing new, and a version in the cluster is whole
    READY: nothing is in the way
    """

    NOTHING_LEFT = "nothing left"
    RECORDED = "recorded"
    UNDECIDED = "undecided"
    DECIDED = "decided"
    HOLDING = "being deleted with its objects"
    GONE = "gone"
    USERS_GOING = "a user's, being deleted"
    USERS = "a user's"
    UNNEEDED = "to be deleted"
    NEEDED = "to be left"
    BEHIND = "not seen as ordered"
    LEFT_ALONE = "paused or being deleted"
    UNREADABLE = "unreadable"
    BARE = "nothing whole"
    UNMET = "dependency not healthy"
    COMPARED = "compared lately"
    OTHERS = "others install"
    RIVALLED = "another installer at work"
    WHOLE = "a version whole"
    READY = "ready"


class InstallAction(StrEnum):
    """What to do with an install, and what the row of what was done says then.

    NOTHING: no effect
    FORGET: the row goes
    MAKE: create the install
    REPORT: the row says what the lock says
    FOLLOW: the row says what the other installer reports
    WAIT: the row says what is waited for
    KEEP: look again later
    YIELD: write nothing; the row says who else writes
    APPLY: write the revisions and objects of the locked version
    REPAIR: write those of the version that it has
    AWAIT: the row stays until the install is gone
    DELETE_OBJECTS: delete what it has, then its finalizer
    DELETE: delete the install
    RELEASE: remove the mark of its holder; the row goes
    """

    NOTHING = "nothing"
    FORGET = "forget"
    MAKE = "make"
    REPORT = "report"
    FOLLOW = "follow"
    WAIT = "wait"
    KEEP = "keep"
    YIELD = "yield"
    APPLY = "apply"
    REPAIR = "repair"
    AWAIT = "await the end"
    DELETE_OBJECTS = "delete objects"
    DELETE = "delete"
    RELEASE = "release"


_S, _F, _A = InstallState, InstallFinding, InstallAction

_UNSEEN = {_F.BEHIND: _A.NOTHING, _F.LEFT_ALONE: _A.NOTHING, _F.UNREADABLE: _A.NOTHING}
_UNGRANTED = {
    **_UNSEEN,
    _F.BARE: _A.REPORT,
    _F.COMPARED: _A.KEEP,
    _F.RIVALLED: _A.YIELD,
    _F.WHOLE: _A.REPAIR,
}

ACTIONS: Mapping[InstallState, Mapping[InstallFinding, InstallAction]] = {
    _S.NO_ROW: {_F.NOTHING_LEFT: _A.NOTHING, _F.RECORDED: _A.FORGET},
    _S.TO_MAKE: {_F.UNDECIDED: _A.NOTHING, _F.DECIDED: _A.MAKE},
    _S.LOCKED: {
        **_UNSEEN,
        _F.OTHERS: _A.FOLLOW,
        _F.UNMET: _A.WAIT,
        _F.COMPARED: _A.KEEP,
        _F.RIVALLED: _A.YIELD,
        _F.READY: _A.APPLY,
    },
    _S.WAITING: {**_UNSEEN, _F.BARE: _A.REPORT},  # until it is decided, nothing that it has is put right
    _S.REFUSED: _UNGRANTED,
    _S.BROKEN: {**_UNGRANTED, _F.UNREADABLE: _A.REPORT},  # what it asked for before is not known any more
    _S.REMOVED: {
        _F.HOLDING: _A.DELETE_OBJECTS,
        _F.GONE: _A.FORGET,
        _F.USERS: _A.FORGET,
        _F.USERS_GOING: _A.AWAIT,
        _F.UNNEEDED: _A.DELETE,
        _F.NEEDED: _A.RELEASE,
    },
}


def state_of(row: LockRow | None) -> InstallState:
    """Return the state that a row of the lock puts its install in."""
    if row is None:
        return InstallState.NO_ROW
    if row.status != "removed" and not row.uid:
        return InstallState.TO_MAKE
    return InstallState(row.status)


def action(state: InstallState, finding: InstallFinding) -> InstallAction:
    """Return what follows. Raises InvariantError for a pair that cannot occur."""
    pairs = ACTIONS[state]
    if finding not in pairs:
        raise InvariantError(f"install: {state} -> {finding} is not a pair of the table")
    return pairs[finding]
