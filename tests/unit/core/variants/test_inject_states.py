"""The downstream of a variant: every pair of a state and a finding against a second table, and in a world."""

import pytest

from pvbus.core.errors import InvariantError
from pvbus.core.variants.revisions.states import (
    ACTIONS,
    FINDINGS,
    Action,
    DownstreamState,
    Finding,
    OldContent,
    UpstreamState,
    action,
    left,
)

# ! cannot occur
EXPECTED = """
finding                     no-revision foreign-revision Draft   Proposed Published        DeletionProposed
wanted                      clone       adopt            !       !        !                publish-again
not-to-be-adopted           !           nothing          !       !        !                !
owned-by-another            report      !                !       !        !                !
being-deleted               wait        !                !       !        !                !
as-wanted                   !           !                nothing nothing  nothing          !
content-to-change           !           !                save    report   edit             !
upstream-changed            !           !                rebase  report   upgrade          !
upstream-changed,-outside-of-published-revisions ! !      rebase  report   edit             !
upstream-changed,-base-lost !           !                report  report   report           !
tag-of-the-upstream-moved   !           !                report  report   report           !
edit-published-since        !           !                merge   report   !                !
replaced-by-another-revision !          !                report  report   report           !
downstream-changed          !           !                delete  delete   propose-deletion nothing
variant-deleted             !           !                delete  delete   propose-deletion disown
orphaned                    !           !                disown  disown   disown           disown
given-up,-edited-by-people  !           !                keep    keep     !                !
"""


def words(text: str) -> str:
    return text.replace("-", " ")


HEADS, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
CASES = [
    (DownstreamState(words(state)), Finding(words(line[0])), after)
    for line in LINES
    for state, after in zip(HEADS[1:], line[1:], strict=True)
]


@pytest.mark.parametrize(("state", "finding", "after"), CASES)
def test_every_pair_has_its_action_or_cannot_occur(
    state: DownstreamState, finding: Finding, after: str
) -> None:
    if after == "!":
        with pytest.raises(InvariantError, match=f"{state} -> {finding} is not a pair"):
            action(state, finding)
    else:
        assert action(state, finding) is Action(words(after))


def test_the_second_table_is_complete() -> None:
    assert len(CASES) == len(DownstreamState) * len(Finding) == len(set(CASES))
    assert ACTIONS.keys() == set(DownstreamState)


@pytest.mark.parametrize(
    ("policy", "ended", "finding"),
    [
        ("", False, Finding.LEFT),
        ("delete", True, Finding.ENDED),
        ("orphan", True, Finding.RELEASED),
        ("orphan", False, Finding.RELEASED),
        ("Delete", True, Finding.RELEASED),
    ],
)
def test_an_unknown_policy_deletes_nothing(policy: str, ended: bool, finding: Finding) -> None:
    assert left(policy, ended=ended) is finding


# of the old upstream there is: a published revision, a commit or draft, a revision of its workspace, nothing
UPSTREAMS = {
    UpstreamState.HELD: [Finding.CURRENT] * 4,
    UpstreamState.UNPUBLISHED: [Finding.CURRENT] * 4,
    UpstreamState.OPEN: [*[Finding.OUTSIDE] * 3, Finding.BASE_LOST],
    UpstreamState.RELEASED: [Finding.BEHIND, *[Finding.OUTSIDE] * 2, Finding.BASE_LOST],
    UpstreamState.RETAGGED: [Finding.BEHIND, *[Finding.OUTSIDE] * 2, Finding.BASE_LOST],
    UpstreamState.REFUSED: [Finding.TAG_MOVED] * 4,
}


@pytest.mark.parametrize("upstream", UpstreamState)
def test_every_upstream_beside_every_old_content_has_its_finding(upstream: UpstreamState) -> None:
    assert [FINDINGS[upstream][old] for old in OldContent] == UPSTREAMS[upstream]


@pytest.mark.parametrize(
    "state", [DownstreamState.DRAFT, DownstreamState.PROPOSED, DownstreamState.PUBLISHED]
)
def test_every_finding_about_the_upstream_has_an_action_for_each_revision_that_stays(
    state: DownstreamState,
) -> None:
    """What cannot be merged is reported, whatever the lifecycle; a proposal is never written to."""
    for findings in FINDINGS.values():
        for finding in findings.values():
            after = action(state, finding)
            assert (after is Action.REPORT) >= (finding is Finding.BASE_LOST)
            assert state is not DownstreamState.PROPOSED or after in (Action.NOTHING, Action.REPORT)


def test_what_people_edited_is_kept_unless_the_policy_keeps_all() -> None:
    assert left("delete", ended=True, edited=True) is left("", ended=False, edited=True) is Finding.EDITED
    assert left("orphan", ended=True, edited=True) is Finding.RELEASED
