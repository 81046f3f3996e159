"""The states of an install: every pair of a state and a finding against a second table."""

import pytest

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.establish.states import (
    ACTIONS,
    InstallAction,
    InstallFinding,
    InstallState,
    action,
    state_of,
)

# ! cannot occur
EXPECTED = """
finding                              no-row  to-be-made locked  waiting refused broken  removed
nothing-left                         nothing !          !       !       !       !       !
recorded                             forget  !          !       !       !       !       !
undecided                            !       nothing    !       !       !       !       !
decided                              !       make       !       !       !       !       !
being-deleted-with-its-objects       !       !          !       !       !       !       delete-objects
gone                                 !       !          !       !       !       !       forget
a-user's                             !       !          !       !       !       !       forget
a-user's,-being-deleted              !       !          !       !       !       !       await-the-end
to-be-deleted                        !       !          !       !       !       !       delete
to-be-left                           !       !          !       !       !       !       release
not-seen-as-ordered                  !       !          nothing nothing nothing nothing !
paused-or-being-deleted              !       !          nothing nothing nothing nothing !
unreadable                           !       !          nothing nothing nothing report  !
nothing-whole                        !       !          !       report  report  report  !
others-install                       !       !          follow  !       !       !       !
dependency-not-healthy               !       !          wait    !       !       !       !
compared-lately                      !       !          keep    !       keep    keep    !
another-installer-at-work            !       !          yield   !       yield   yield   !
a-version-whole                      !       !          !       !       repair  repair  !
ready                                !       !          apply   !       !       !       !
"""


def words(text: str) -> str:
    return text.replace("-", " ")


HEADS, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
CASES = [
    (InstallState(words(state)), InstallFinding(words(line[0])), after)
    for line in LINES
    for state, after in zip(HEADS[1:], line[1:], strict=True)
]


@pytest.mark.parametrize(("state", "finding", "after"), CASES)
def test_every_pair_has_its_action_or_cannot_occur(
    state: InstallState, finding: InstallFinding, after: str
) -> None:
    if after == "!":
        with pytest.raises(InvariantError, match=f"{state} -> {finding} is not a pair"):
            action(state, finding)
    else:
        assert action(state, finding) is InstallAction(words(after))


def test_the_second_table_is_complete() -> None:
    assert len(CASES) == len(InstallState) * len(InstallFinding) == len(set(CASES))
    assert ACTIONS.keys() == set(InstallState)
    assert {after for pairs in ACTIONS.values() for after in pairs.values()} == set(InstallAction)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (None, InstallState.NO_ROW),
        (LockRow(status="locked"), InstallState.TO_MAKE),
        (LockRow(status="waiting"), InstallState.TO_MAKE),
        (LockRow(status="removed"), InstallState.REMOVED),
        (LockRow(status="removed", uid="u"), InstallState.REMOVED),
        (LockRow(status="locked", uid="u"), InstallState.LOCKED),
        (LockRow(status="waiting", uid="u"), InstallState.WAITING),
        (LockRow(status="refused", uid="u"), InstallState.REFUSED),
        (LockRow(status="broken", uid="u"), InstallState.BROKEN),
    ],
)
def test_the_state_is_the_locks_order(row: LockRow | None, state: InstallState) -> None:
    assert state_of(row) is state
