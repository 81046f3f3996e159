"""The revisions of an install, for any order of tags, policies, limits and users' activations."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.platform.resolve.revisions import (
    ACTIVE,
    INACTIVE,
    History,
    Intent,
    RevisionObject,
    advanced,
    rebuilt,
    request_of,
)

DIGESTS = st.sampled_from("abcde")
STEPS = st.lists(
    st.tuples(DIGESTS, st.booleans(), st.integers(0, 3), st.sets(DIGESTS, max_size=2)), max_size=25
)


def objects_of(history: History, activated: set[str], generation: int) -> list[RevisionObject]:
    """Return the objects as establish wrote them, some of them activated by a user since."""
    found = []
    for each in history.revisions:
        wrote = ACTIVE if each.is_active else INACTIVE
        desired = ACTIVE if each.digest in activated else wrote
        found.append(
            RevisionObject(each.name, each.digest, each.revision, "", "", desired, wrote, generation)
        )
    return found


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_one_content_is_one_revision_and_exactly_one_is_active_once_one_was(
    steps: list[tuple[str, bool, int, set[str]]],
) -> None:
    history, was_active = History(), False
    for number, (tag, is_manual, limit, activated) in enumerate(steps, start=1):
        intent = Intent(tag, f"aws-{tag}", is_manual=is_manual, history_max=limit)
        request = request_of(history, objects_of(history, activated, number))
        after = advanced(history, intent, request)
        active = [each for each in after.revisions if each.is_active]
        assert len(active) == 1 or (not active and not was_active)
        was_active = was_active or bool(active)
        assert len({each.digest for each in after.revisions}) == len(after.revisions)
        assert [each.revision for each in after.revisions] == sorted({e.revision for e in after.revisions})
        if limit:
            assert len(after.revisions) - len(active) <= limit
        known = history.active
        if active and (known is None or active[0].digest != known.digest):
            assert active[0].revision == max(each.revision for each in (*history.revisions, *active))
        assert advanced(after, intent, request_of(after, objects_of(after, set(), number))) == after
        written = objects_of(after, set(), number)
        again = rebuilt(written, active[0].name if active else "")
        assert [(e.digest, e.is_active) for e in again.revisions] == [
            (e.digest, e.is_active) for e in after.revisions
        ]
        history = after
