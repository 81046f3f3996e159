"""The states of a variant's downstream, what is found out about each, and the action that follows.

States are not stored: each attempt reads them from the package revisions. `ACTIONS` has every pair that can
occur, and `pvbus.core.inject` takes every action from it.
"""

from collections.abc import Mapping
from enum import StrEnum

from pvbus.core.errors import InvariantError


class DownstreamState(StrEnum):
    """A package revision of the downstream package, or NONE: the variant has no revision there."""

    NONE = "no revision"
    FOREIGN = "foreign revision"
    DRAFT = "Draft"
    PROPOSED = "Proposed"
    PUBLISHED = "Published"
    DELETION_PROPOSED = "DeletionProposed"


class Finding(StrEnum):
    """What is found out about it.

    WANTED: the variant is to have it. UNWANTED: the adoption policy and its record leave it to others.
    OWNED: a living owner has the package. GOING: the variant's revision is being deleted.

    CURRENT: it holds the upstream, and all changes of the variant. CHANGED: it lacks such a change, or its
    first render. BEHIND: the upstream has changed. BASE_LOST: so it has, and what it held cannot be read.

    OVERTAKEN: somebody else has published a later revision of the package, made from one of the variant's.
    REPLACED: so somebody has, but the variant cannot go on from that revision.

    LEFT: the variant has another downstream now. ENDED: the variant is deleted. RELEASED: either of them,
    with the deletion policy `orphan`.
    """

    WANTED = "wanted"
    UNWANTED = "not to be adopted"
    OWNED = "owned by another"
    GOING = "being deleted"
    CURRENT = "as wanted"
    CHANGED = "content to change"
    BEHIND = "upstream changed"
    BASE_LOST = "upstream changed, base lost"
    OVERTAKEN = "edit published since"
    REPLACED = "replaced by another revision"
    LEFT = "downstream changed"
    ENDED = "variant deleted"
    RELEASED = "orphaned"


class Action(StrEnum):
    """What to do. REPORT: tell a person what to do; WAIT: another event follows. REBASE: merge the new
    upstream into the draft; MERGE: merge the later revision into it; UPGRADE and EDIT: make a draft of it;
    SAVE: write the draft's files."""

    NOTHING = "nothing"
    REPORT = "report"
    WAIT = "wait"
    ADOPT = "adopt"
    CLONE = "clone"
    SAVE = "save"
    REBASE = "rebase"
    MERGE = "merge"
    EDIT = "edit"
    UPGRADE = "upgrade"
    REPUBLISH = "publish again"
    DELETE = "delete"
    PROPOSE_DELETION = "propose deletion"
    DISOWN = "disown"


ACTIONS: Mapping[DownstreamState, Mapping[Finding, Action]] = {
    DownstreamState.NONE: {
        Finding.WANTED: Action.CLONE,
        Finding.OWNED: Action.REPORT,
        Finding.GOING: Action.WAIT,
    },
    DownstreamState.FOREIGN: {
        Finding.WANTED: Action.ADOPT,
        Finding.UNWANTED: Action.NOTHING,
    },
    DownstreamState.DRAFT: {
        Finding.CURRENT: Action.NOTHING,
        Finding.CHANGED: Action.SAVE,
        Finding.BEHIND: Action.REBASE,
        Finding.BASE_LOST: Action.REPORT,
        Finding.OVERTAKEN: Action.MERGE,
        Finding.REPLACED: Action.REPORT,
        Finding.LEFT: Action.DELETE,
        Finding.ENDED: Action.DELETE,
        Finding.RELEASED: Action.DISOWN,
    },
    DownstreamState.PROPOSED: {
        Finding.CURRENT: Action.NOTHING,
        Finding.CHANGED: Action.REPORT,
        Finding.BEHIND: Action.REPORT,
        Finding.BASE_LOST: Action.REPORT,
        Finding.OVERTAKEN: Action.REPORT,
        Finding.REPLACED: Action.REPORT,
        Finding.LEFT: Action.DELETE,
        Finding.ENDED: Action.DELETE,
        Finding.RELEASED: Action.DISOWN,
    },
    DownstreamState.PUBLISHED: {
        Finding.CURRENT: Action.NOTHING,
        Finding.CHANGED: Action.EDIT,
        Finding.BEHIND: Action.UPGRADE,
        Finding.BASE_LOST: Action.REPORT,
        Finding.REPLACED: Action.REPORT,
        Finding.LEFT: Action.PROPOSE_DELETION,
        Finding.ENDED: Action.PROPOSE_DELETION,
        Finding.RELEASED: Action.DISOWN,
    },
    DownstreamState.DELETION_PROPOSED: {
        Finding.WANTED: Action.REPUBLISH,
        Finding.LEFT: Action.NOTHING,
        Finding.ENDED: Action.DISOWN,  # else garbage collection would delete it without approval
        Finding.RELEASED: Action.DISOWN,
    },
}


def action(state: DownstreamState, finding: Finding) -> Action:
    """Return what follows. Raises InvariantError for a pair that cannot occur."""
    pairs = ACTIONS[state]
    if finding not in pairs:
        raise InvariantError(f"downstream: {state} -> {finding} is not a pair of the table")
    return pairs[finding]


def left(policy: str, *, ended: bool) -> Finding:
    """Return the finding about a revision that the variant gives up; an unknown policy deletes nothing."""
    if policy not in ("", "delete"):
        return Finding.RELEASED
    return Finding.ENDED if ended else Finding.LEFT
