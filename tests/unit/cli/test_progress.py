"""When an object counts as ready, and what is said of one that does not."""

from typing import Any

import msgspec
import pytest

from pvbus.cli.progress import Judged, Tally, Trouble, unsettled_repositories
from pvbus.core.kernel.keys import Key


def judged(*conditions: tuple[str, str], generation: int = 2, observed: int = 2, **metadata: Any) -> Judged:
    found = [
        {"type": type_, "status": status, "reason": "R", "message": "words", "observedGeneration": observed}
        for type_, status in conditions
    ]
    obj = {"metadata": {"generation": generation, **metadata}, "status": {"conditions": found}}
    return msgspec.convert(obj, Judged)


@pytest.mark.parametrize(
    ("reason", "obj", "ready", "why"),
    [
        ("ready for this spec", judged(("Ready", "True")), True, "not Ready (R): words"),
        ("no condition", judged(), False, "no conditions reported yet"),
        ("ready for an older spec", judged(("Ready", "True"), observed=1), False, "no conditions reported"),
        ("not ready", judged(("Ready", "False")), False, "not Ready (R): words"),
        ("stalled", judged(("Ready", "False"), ("Stalled", "True")), False, "Stalled (R): words"),
        ("held", judged(("DeletionHeld", "True"), ("Ready", "False")), False, "DeletionHeld (R): words"),
        ("going", judged(("Ready", "True"), deletionTimestamp="2026-01-01T00:00:00Z"), False, "is being"),
    ],
)
def test_judgement(reason: str, obj: Judged, ready: bool, why: str) -> None:
    """Ready is Ready=True for the present generation; otherwise the most telling condition speaks."""
    assert obj.ready is ready, reason
    assert obj.why.startswith(why), reason


def test_a_repository_that_is_being_read_is_no_reason_to_give_up() -> None:
    """Only Repositories without any word yet hold the verdict `stalled` back."""
    new = Trouble("Repository", Key("a", "new"), judged().why)
    broken = Trouble("Repository", Key("a", "broken"), judged(("Ready", "False")).why)
    variant = Trouble("PackageVariant", Key("a", "v"), judged().why)
    assert unsettled_repositories([new, broken, variant]) == [new]


def test_troubles_say_what_to_do() -> None:
    """Each kind has its own next step."""
    assert Trouble("PackageVariant", Key("a", "v"), "x").advice == "pvbus explain a/v"
    assert Trouble("PackageVariantSet", Key("a", "s"), "x").advice == "pvbus explain --set a/s"
    assert Trouble("Repository", Key("a", "r"), "x").advice == "kubectl describe repository -n a r"
    assert "; waits for content of a" in str(Trouble("PackageVariant", Key("a", "v"), "x", ("content of a",)))


def test_complete_means_everything() -> None:
    """One object short is not complete; nothing at all is."""
    assert Tally().complete
    assert Tally(1, 1, 5, 5).complete
    assert not Tally(1, 1, 5, 4).complete
    assert not Tally(1, 0, 5, 5).complete
