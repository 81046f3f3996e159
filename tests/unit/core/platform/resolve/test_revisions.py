"""The revisions of one install: identity, activation, numbers, the limit of the history."""

import pytest

from pvbus.core.platform.resolve.revisions import (
    History,
    Intent,
    Request,
    RevisionObject,
    advanced,
    next_digest,
    rebuilt,
    request_of,
)

NOBODY = Request()


def intent(digest: str, *, is_manual: bool = False, limit: int = 1) -> Intent:
    return Intent(digest, name=f"aws-{digest}", version=digest, is_manual=is_manual, history_max=limit)


def after(*digests: str, is_manual: bool = False, limit: int = 1) -> History:
    """Return the history of an install whose tag moves through these digests."""
    history = History()
    for digest in digests:
        history = advanced(history, intent(digest, is_manual=is_manual, limit=limit), NOBODY)
    return history


def shown(history: History) -> list[str]:
    """Return the revisions as `<number><digest>`, the active one with a star."""
    return [f"{each.revision}{each.digest}{'*' if each.is_active else ''}" for each in history.revisions]


def asks(history: History, *digests: str, generation: int = 7) -> Request:
    """Return what follows when a user activates these revisions in their objects."""
    objects = [
        RevisionObject(each.name, each.digest, desired="Active", wrote="Inactive", generation=generation)
        for each in history.revisions
        if each.digest in digests
    ]
    return request_of(history, objects)


def test_the_first_content_is_active_at_once_if_the_policy_is_automatic() -> None:
    assert shown(after("a")) == ["1a*"]


def test_the_same_content_never_makes_a_second_revision() -> None:
    history = after("a", "a", "a")
    assert shown(history) == ["1a*"]
    assert advanced(history, intent("a"), NOBODY) == history


def test_a_moved_tag_makes_a_revision_and_ends_the_former_one_in_one_row() -> None:
    assert shown(after("a", "b")) == ["1a", "2b*"]


def test_a_tag_that_moves_back_activates_the_revision_that_is_there() -> None:
    assert shown(after("a", "b", "a")) == ["2b", "3a*"]


def test_with_a_manual_policy_the_first_revision_waits_for_a_user() -> None:
    assert shown(after("a", is_manual=True)) == ["1a"]


def test_with_a_manual_policy_the_active_revision_stays() -> None:
    history = advanced(after("a"), intent("b", is_manual=True), NOBODY)
    assert shown(history) == ["1a*", "2b"]
    assert shown(advanced(history, intent("b", is_manual=True), NOBODY)) == ["1a*", "2b"]


def test_a_policy_that_becomes_automatic_changes_nothing_until_the_tag_moves() -> None:
    history = advanced(after("a"), intent("b", is_manual=True), NOBODY)
    history = advanced(history, intent("b"), NOBODY)
    assert shown(history) == ["1a*", "2b"]
    assert shown(advanced(history, intent("c"), NOBODY)) == ["2b", "3c*"]


@pytest.mark.parametrize("digest", ["a", "b"])
def test_any_kept_revision_can_be_activated_and_gets_the_highest_number(digest: str) -> None:
    history = after("a", "b", "c", limit=0)
    changed = advanced(history, intent("c", limit=0), asks(history, digest))
    assert shown(changed)[-1] == f"4{digest}*"
    assert [each.digest for each in changed.revisions if each.is_active] == [digest]


def test_the_newest_one_gets_a_new_number_too_when_it_is_activated() -> None:
    history = advanced(after("a"), intent("b", is_manual=True), NOBODY)
    assert shown(advanced(history, intent("b", is_manual=True), asks(history, "b"))) == ["1a", "3b*"]


def test_an_activation_is_acted_on_once() -> None:
    history = after("a", "b", limit=0)
    request = asks(history, "a")
    changed = advanced(history, intent("b", limit=0), request)
    moved = advanced(changed, intent("c", limit=0), asks(changed, "a"))
    assert shown(moved) == ["2b", "3a", "4c*"]
    assert advanced(moved, intent("c", limit=0), asks(moved, "a")) == moved
    again = advanced(moved, intent("c", limit=0), asks(moved, "a", generation=8))
    assert shown(again) == ["2b", "4c", "5a*"]


def test_what_establish_wrote_late_is_no_activation() -> None:
    history = after("a", "b")
    late = [RevisionObject("aws-a", "a", desired="Active", wrote="Active", generation=3)]
    assert request_of(history, late) == NOBODY


def test_an_object_without_the_note_of_establish_says_nothing() -> None:
    history = after("a", "b")
    assert request_of(history, [RevisionObject("aws-a", "a", desired="Active", generation=3)]) == NOBODY


def test_of_two_activations_the_newest_revision_is_taken_and_both_are_acted_on() -> None:
    history = after("a", "b", "c", limit=0)
    request = asks(history, "a", "b")
    changed = advanced(history, intent("c", limit=0), request)
    assert shown(changed) == ["1a", "3c", "4b*"]
    assert asks(changed, "a", "b") == NOBODY


def test_a_user_cannot_leave_a_package_without_an_active_revision() -> None:
    history = after("a")
    request = request_of(
        history, [RevisionObject("aws-a", "a", desired="Inactive", wrote="Active", generation=4)]
    )
    assert request.deactivate
    changed = advanced(history, intent("a"), request)
    assert shown(changed) == ["1a*"]
    assert changed.revisions[0].asked == 4


@pytest.mark.parametrize(
    ("limit", "retained"),
    [(1, ["3c", "4d*"]), (3, ["1a", "2b", "3c", "4d*"]), (0, ["1a", "2b", "3c", "4d*"])],
)
def test_the_limit_counts_inactive_revisions_and_zero_keeps_all(limit: int, retained: list[str]) -> None:
    assert shown(after("a", "b", "c", "d", limit=limit)) == retained


def test_a_lower_limit_takes_the_oldest_ones() -> None:
    history = after("a", "b", "c", "d", limit=0)
    assert shown(advanced(history, intent("d", limit=2), NOBODY)) == ["2b", "3c", "4d*"]


def test_the_active_revision_is_kept_however_old_it_is() -> None:
    history = after("a")
    for digest in "bcde":
        history = advanced(history, intent(digest, is_manual=True), NOBODY)
    assert shown(history) == ["1a*", "5e"]


def test_a_former_active_one_outside_of_the_limit_goes_when_another_is_activated() -> None:
    history = advanced(after("a"), intent("b", is_manual=True, limit=2), NOBODY)
    history = advanced(history, intent("c", is_manual=True, limit=2), NOBODY)
    assert shown(history) == ["1a*", "2b", "3c"]
    changed = advanced(history, intent("d", is_manual=True, limit=2), asks(history, "b"))
    assert shown(changed) == ["3c", "4d", "5b*"]


def test_nothing_is_to_be_active_while_no_content_is_known() -> None:
    assert next_digest(History(), intent(""), NOBODY) == ""
    assert advanced(History(), intent(""), NOBODY) == History()


def test_an_unknown_tag_leaves_the_active_revision() -> None:
    assert shown(advanced(after("a"), intent(""), NOBODY)) == ["1a*"]


def seen(digest: str, number: int, desired: str, wrote: str = "") -> RevisionObject:
    return RevisionObject(
        f"aws-{digest}", digest, number, desired=desired, wrote=wrote or desired, generation=9
    )


@pytest.mark.parametrize(
    ("objects", "current", "expected", "reason"),
    [
        ([seen("a", 1, "Inactive"), seen("b", 2, "Active")], "", ["1a", "2b*"], "the active one is active"),
        ([seen("a", 1, "Active"), seen("b", 2, "Active")], "", ["1a", "2b*"], "of two the newest"),
        ([seen("a", 1, "Inactive"), seen("b", 2, "Inactive")], "aws-a", ["1a*", "2b"], "the status says it"),
        ([seen("a", 1, "Inactive")], "", ["1a"], "none ever was"),
        ([seen("a", 1, "Inactive", "Active")], "", ["1a*"], "a user's change is acted on later"),
        ([seen("a", 1, "Active", "Inactive"), seen("b", 2, "Active")], "", ["1a", "2b*"], "the same"),
        ([seen("a", 2, "Active"), seen("b", 2, "Inactive")], "", ["2a*", "3b"], "numbers differ"),
        ([seen("a", 1, "Active"), RevisionObject("old-a", "a", 2)], "", ["1a*"], "one revision per content"),
    ],
)
def test_the_history_is_read_from_the_cluster_if_the_lock_was_lost(
    objects: list[RevisionObject], current: str, expected: list[str], reason: str
) -> None:
    assert shown(rebuilt(objects, current)) == expected, reason
    assert shown(rebuilt(reversed(objects), current)) == expected, reason


def test_an_activation_that_was_not_acted_on_is_found_after_a_loss_of_the_lock() -> None:
    objects = [seen("a", 1, "Active", "Inactive"), seen("b", 2, "Active")]
    history = rebuilt(objects, "")
    assert shown(advanced(history, intent("b"), request_of(history, objects))) == ["2b", "3a*"]
