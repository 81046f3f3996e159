"""When the rows of a kind are complete, as its markers in all partitions say."""

from typing import Any

import pytest

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.markers import SyncView
from pvbus.core.kernel.records import SyncMarker

KEY = sync_key("example.org", "Site")
KIND = "example.org/Site"


def view(*markers: tuple[Any, int] | None) -> SyncView:
    """A view of as many partitions as there are markers, each (state, epoch), or none."""
    found = SyncView(len(markers))
    for partition, marker in enumerate(markers):
        if marker is not None:
            found.load(partition, KEY, encode_row(SyncMarker(state=marker[0], epoch=marker[1])))
    return found


@pytest.mark.parametrize(
    ("markers", "is_ok"),
    [
        ([("ok", 2), ("ok", 2), ("ok", 2)], True),
        ([("ok", 2), ("ok", 2), None], False),
        ([("ok", 2), None, None], False),
        ([("ok", 2), ("ok", 1), ("ok", 2)], False),
        ([("ok", 2), ("ok", 2), ("ok", 3)], False),
        ([("ok", 2), ("ok", 2), ("syncing", 2)], False),
        ([("ok", 2), ("unavailable", 2), ("ok", 2)], False),
        ([("ok", 2), ("ok", 2), ("unwatched", 2)], False),
        ([("syncing", 2), ("syncing", 2), ("syncing", 2)], False),
    ],
    ids=lambda value: str(value),
)
def test_a_kind_is_complete_when_all_partitions_say_so_with_one_epoch(
    markers: list[Any], is_ok: bool
) -> None:
    assert view(*markers).ok(KIND, "default") is is_ok


def test_partitions_that_disagree_read_as_syncing_with_the_highest_epoch() -> None:
    marker = view(("ok", 2), ("unavailable", 3)).marker(KIND)
    assert marker is not None
    assert (marker.state, marker.epoch) == ("syncing", 3)


def test_what_was_never_marked_or_lost_a_marker_is_not_complete() -> None:
    assert not SyncView(1).ok(KIND, "default")
    one = view(("ok", 1), ("ok", 1))
    assert one.load(1, KEY, None) is True
    assert not one.ok(KIND, "default")


def test_a_marker_is_news_only_where_it_changes_what_all_say() -> None:
    one = view(("ok", 1), ("ok", 1))
    again = encode_row(SyncMarker(state="ok", epoch=2))
    assert one.load(0, KEY, again) is True, "complete, and now in doubt"
    assert one.load(0, KEY, again) is False
    assert one.load(1, KEY, again) is True, "complete again"
