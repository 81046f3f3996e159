"""What an attempt of inject sees of the objects it may inject."""

import msgspec

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.records import InjectableRow
from pvbus.core.variants.inject.view import InjectView, ViewCandidates

KIND = ("fleet.example.dev", "v1", "Cluster")
KEY = okey(KIND[0], KIND[2], "default", "edge-1")


def row(replicas: int) -> bytes:
    content = msgspec.Raw(msgspec.json.encode({"replicas": replicas}))
    return msgspec.json.encode(InjectableRow(exists=True, uid="1", content=content, digest=str(replicas)))


def test_an_attempt_sees_what_was_there_when_it_began() -> None:
    """A row that goes (its request was withdrawn and made again), or changes, while an attempt runs does not
    reach it: its outcome is remembered under the inputs it began with."""
    view = InjectView(1)
    view.load_injectable(0, KEY, row(1))
    candidates = ViewCandidates(view, "default", [(*KIND, "edge-1")])
    view.load_injectable(0, KEY, None)
    assert candidates.listing(*KIND).objects == {"edge-1": {"replicas": 1}}
    view.load_injectable(0, KEY, row(2))
    assert candidates.listing(*KIND).objects == {"edge-1": {"replicas": 1}}
    assert ViewCandidates(view, "default", [(*KIND, "edge-1")]).listing(*KIND).objects == {
        "edge-1": {"replicas": 2}
    }
