"""The states of a variant's downstream, what is found out about each, and the action that follows.

States are not stored: each attempt reads them from the package revisions. `ACTIONS` has every pair that can
occur, and `pvbus.core.variants.inject` takes every action from it.
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
    """What is found out about a revision of the downstream package.

    WANTED: the variant is to have it
    UNWANTED: the adoption policy and its record leave it to others
    OWNED: a living owner has the package
    GOING: the variant's revision is being deleted
    CURRENT: it holds the upstream, and all changes of the variant
    CHANGED: it lacks a change of the variant, or its first render
    BEHIND: the upstream has changed, and an upgrade task can name what it was and is
    OUTSIDE: the upstream has changed, and no upgrade task can name what it was or is
    BASE_LOST: the upstream has changed, and what the revision held of it cannot be read
    TAG_MOVED: the tag of what it holds is on another commit now, which the variant refuses
    OVERTAKEN: somebody else has published a later revision of the package, made from one of the variant's
    REPLACED: somebody else has published a later revision, and the variant cannot go on from it
    LEFT: the variant has another downstream now
    ENDED: the variant is deleted
    RELEASED: the variant left it or is deleted, with the deletion policy `orphan`
    EDITED: the variant left it or is deleted, and people have written to the draft
    """

    WANTED = "wanted"
    UNWANTED = "not to be adopted"
    OWNED = "owned by another"
    GOING = "being deleted"
    CURRENT = "as wanted"
    CHANGED = "content to change"
    BEHIND = "upstream changed"
    OUTSIDE = "upstream changed, outside of published revisions"
    BASE_LOST = "upstream changed, base lost"
    TAG_MOVED = "tag of the upstream moved"
    OVERTAKEN = "edit published since"
    REPLACED = "replaced by another revision"
    LEFT = "downstream changed"
    ENDED = "variant deleted"
    RELEASED = "orphaned"
    EDITED = "given up, edited by people"


class Action(StrEnum):
    """What to do with a revision of the downstream package, or about its absence.

    REPORT: tell a person what to do
    WAIT: do nothing, as another event follows
    SAVE: write the draft's files
    REBASE: merge the new upstream into the draft
    MERGE: merge the later revision into the draft
    UPGRADE, EDIT: make a draft of it; after EDIT, the next look rebases what is OUTSIDE
    KEEP: release it with a mark, so that its variant has it again one day
    """

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
    KEEP = "keep"


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
        Finding.OUTSIDE: Action.REBASE,
        Finding.BASE_LOST: Action.REPORT,
        Finding.TAG_MOVED: Action.REPORT,
        Finding.OVERTAKEN: Action.MERGE,
        Finding.REPLACED: Action.REPORT,
        Finding.LEFT: Action.DELETE,
        Finding.ENDED: Action.DELETE,
        Finding.RELEASED: Action.DISOWN,
        Finding.EDITED: Action.KEEP,
    },
    DownstreamState.PROPOSED: {
        Finding.CURRENT: Action.NOTHING,
        Finding.CHANGED: Action.REPORT,
        Finding.BEHIND: Action.REPORT,
        Finding.OUTSIDE: Action.REPORT,
        Finding.BASE_LOST: Action.REPORT,
        Finding.TAG_MOVED: Action.REPORT,
        Finding.OVERTAKEN: Action.REPORT,
        Finding.REPLACED: Action.REPORT,
        Finding.LEFT: Action.DELETE,
        Finding.ENDED: Action.DELETE,
        Finding.RELEASED: Action.DISOWN,
        Finding.EDITED: Action.KEEP,
    },
    DownstreamState.PUBLISHED: {
        Finding.CURRENT: Action.NOTHING,
        Finding.CHANGED: Action.EDIT,
        Finding.BEHIND: Action.UPGRADE,
        Finding.OUTSIDE: Action.EDIT,
        Finding.BASE_LOST: Action.REPORT,
        Finding.TAG_MOVED: Action.REPORT,
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


class UpstreamState(StrEnum):
    """The wanted upstream, beside the one that the lock of a revision records.

    HELD: they are the same
    UNPUBLISHED: it is the draft of the lock, saved since, and the variant follows publications
    OPEN: it is another draft or proposal, or a saved one whose saves are followed
    RELEASED: it is a published revision
    RETAGGED: it is the one of the lock, whose tag was moved to another commit
    REFUSED: its tag was moved likewise, and the variant refuses moved tags
    """

    HELD = "as in the lock"
    UNPUBLISHED = "saved since, publications are followed"
    OPEN = "another draft or proposal, or saves are followed"
    RELEASED = "published"
    RETAGGED = "as in the lock, but its tag has moved"
    REFUSED = "as in the lock, but its tag has moved, which is refused"


class OldContent(StrEnum):
    """What is left of the content that a lock records, for a merge.

    NAMED: an upgrade task can name a published revision for it
    COMMIT: it can be read, from git or a draft
    NAMESAKE: there is only a revision of the same package and workspace
    LOST: there is not even that
    """

    NAMED = "a published revision"
    COMMIT = "a commit or a draft"
    NAMESAKE = "a revision of its workspace"
    LOST = "nothing"


_UNCHANGED = dict.fromkeys(OldContent, Finding.CURRENT)
_UNTASKED = dict.fromkeys(OldContent, Finding.OUTSIDE) | {OldContent.LOST: Finding.BASE_LOST}

FINDINGS: Mapping[UpstreamState, Mapping[OldContent, Finding]] = {
    UpstreamState.HELD: _UNCHANGED,
    UpstreamState.UNPUBLISHED: _UNCHANGED,
    UpstreamState.OPEN: _UNTASKED,
    UpstreamState.RELEASED: _UNTASKED | {OldContent.NAMED: Finding.BEHIND},
    UpstreamState.RETAGGED: _UNTASKED | {OldContent.NAMED: Finding.BEHIND},
    UpstreamState.REFUSED: dict.fromkeys(OldContent, Finding.TAG_MOVED),
}
MOVED = frozenset(state for state, findings in FINDINGS.items() if findings is not _UNCHANGED)
"""The states in which the content of the lock is looked for."""


def action(state: DownstreamState, finding: Finding) -> Action:
    """Return what follows. Raises InvariantError for a pair that cannot occur."""
    pairs = ACTIONS[state]
    if finding not in pairs:
        raise InvariantError(f"downstream: {state} -> {finding} is not a pair of the table")
    return pairs[finding]


def left(policy: str, *, ended: bool, edited: bool = False) -> Finding:
    """Return the finding about a revision that the variant gives up; an unknown policy deletes nothing.

    edited: it is open, and people have written to it."""
    if policy not in ("", "delete"):
        return Finding.RELEASED
    if edited:
        return Finding.EDITED
    return Finding.ENDED if ended else Finding.LEFT
