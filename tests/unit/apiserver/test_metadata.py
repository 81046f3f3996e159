"""Metadata by itself: what checks of it remember, and finalizers."""

from typing import Any

import pytest

from pvbus.controlplane.apiserver import metadata as meta
from pvbus.controlplane.apiserver import requests as rq
from pvbus.core.api import names


def complete(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "namespace": "default", **fields}


def test_long_texts_are_not_remembered() -> None:
    """Checks of keys and values are remembered by the thousand, so what they were about must be small."""
    remembered = (names._checked_key, names._checked_value, rq._wanted)
    before = [cache.cache_info().currsize for cache in remembered]
    long = "a" * 100_000
    labels = {"k": long, long: "v", f"{long}/b": "v"}
    assert meta.problems(complete(labels=labels, annotations={long: ""}), namespaced=True)
    assert rq.wanted(f"application/json;a={long}").shape == ""
    after = [cache.cache_info().currsize for cache in remembered]
    assert [late - early <= 1 for early, late in zip(before, after, strict=True)] == [True] * 3
    assert after[2] == before[2]


@pytest.mark.parametrize(
    ("finalizer", "qualified", "fine"),
    [
        ("example.com/a", True, True),
        ("orphan", True, True),
        ("cleanup", True, False),
        ("cleanup", False, True),
        ("a b", False, False),
        ("/a", False, False),
        ("", False, False),
    ],
)
def test_finalizers(finalizer: str, qualified: bool, fine: bool) -> None:
    """Only the core group's kinds want a domain in the name of a finalizer."""
    found = meta.problems(complete(finalizers=[finalizer]), namespaced=True, qualified_finalizers=qualified)
    assert (not found) is fine
