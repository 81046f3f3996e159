"""What applying a manifest makes of a living object, and in which order manifests go."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.manifests import Manifest
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.apply import apply, merged_into, rank
from pvbus.core.errors import UsageError

LIVE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "resourceVersion": "7", "labels": {"kept": "yes", "x": "old"}},
    "data": {"gone": "1", "size": "small"},
}


def config_map(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "a", **fields.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **fields}


def memory_cluster() -> MemoryCluster:
    return MemoryCluster([], now=lambda: "2026-01-01T00:00:00Z")


def test_top_level_fields_are_replaced_and_labels_added() -> None:
    """What a manifest says of data is all of it; labels of others stay, and so does the version."""
    merged = merged_into(LIVE, config_map(metadata={"labels": {"x": "new"}}, data={"size": "large"}))
    assert merged["data"] == {"size": "large"}
    assert merged["metadata"] == {
        "name": "a",
        "resourceVersion": "7",
        "labels": {"kept": "yes", "x": "new"},
    }


def test_what_is_not_mentioned_stays() -> None:
    """A manifest that says nothing new is equal to what lives, status included."""
    live = {**LIVE, "status": {"phase": "Active"}, "spec": {"finalizers": ["x"]}}
    assert merged_into(live, config_map()) == live


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("v1", "Namespace")),
        (("v1", "Namespace"), ("config.porch.kpt.dev/v1alpha1", "Repository")),
        (("config.porch.kpt.dev/v1alpha1", "Repository"), ("v1", "ConfigMap")),
        (("v1", "ConfigMap"), ("config.porch.kpt.dev/v1alpha2", "PackageVariantSet")),
        (("example.dev/v1", "Repository"), ("config.porch.kpt.dev/v1alpha1", "PackageVariant")),
    ],
)
def test_order(earlier: tuple[str, str], later: tuple[str, str]) -> None:
    """What others need goes first."""
    first, second = ({"apiVersion": version, "kind": kind} for version, kind in (earlier, later))
    assert rank(first) < rank(second)


async def test_a_second_time_writes_nothing() -> None:
    """Objects are created once, updated when they differ, and left alone when they do not."""
    cluster = memory_cluster()
    manifests = [Manifest(Path("a.yaml"), 1, config_map(data={"size": "small"}))]
    assert list((await apply(cluster, manifests)).values()) == ["created"]
    assert list((await apply(cluster, manifests)).values()) == ["same"]
    assert [write.verb for write in cluster.writes] == ["create"]
    changed = [Manifest(Path("a.yaml"), 1, config_map(data={"size": "large"}))]
    assert list((await apply(cluster, changed)).values()) == ["updated"]
    assert [write.verb for write in cluster.writes] == ["create", "update"]


async def test_an_unknown_kind_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every manifest that is refused is listed, with file and document."""
    monkeypatch.setattr("pvbus.cli.apply.SERVED_SECONDS", 0.0)
    thing = {"apiVersion": "x.dev/v1", "kind": "Thing", "metadata": {"name": "t"}}
    manifests = [Manifest(Path("a.yaml"), 2, thing), Manifest(Path("b.yaml"), 1, {**thing, "kind": "Other"})]

    async def none(*_: Any, **__: Any) -> None:
        """No kind is served."""

    cluster = memory_cluster()
    monkeypatch.setattr(cluster, "resource", none)
    with pytest.raises(UsageError, match=r"a\.yaml, document 2: Thing t: .*\n.*b\.yaml, document 1: Other t"):
        await apply(cluster, manifests)
