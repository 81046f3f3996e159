"""What a set says of kinds that cannot be listed."""

import pytest

from pvbus.core.codec import encode_row
from pvbus.core.keys import sync_key
from pvbus.core.records import OBJECTS, SyncMarker
from tests.simulation.parts import SITE
from tests.unit.core.unrolling import part, reported


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("", 'no matches for kind "Site" in version "example.org/v1"'),
        (
            'no matches for kind "Site" in group "example.org"',
            'no matches for kind "Site" in version "example.org/v1"',
        ),
        ("403 Forbidden: sites is forbidden", "403 Forbidden: sites is forbidden"),
    ],
)
def test_a_kind_that_is_not_served_is_named_with_the_version_of_the_set(said: str, message: str) -> None:
    """The observer knows no version; the set does. Other reasons are passed on as they are."""
    found = part(sites=("s1",))
    value = encode_row(SyncMarker(state="unavailable", epoch=2, message=said))
    found.controller.load(OBJECTS, 0, sync_key(*SITE), value)
    assert reported(found) == ("NoMatchingTargets", message)
