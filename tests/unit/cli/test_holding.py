"""`pvbus hold`, `unhold` and `retry`: what they write, what they say, and that twice is as once."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.objects import REVISION
from pvbus.cli.main import run
from pvbus.core.kernel.keys import HOLD, HOLD_REASON, RETRY
from pvbus.ports.cluster import Kind, Object

Captured = pytest.CaptureFixture[str]
SET, VARIANT = (Kind("config.porch.kpt.dev", f"PackageVariant{end}") for end in ("Set", ""))
FILES = Kind("porch.kpt.dev", "PackageRevisionResources")


def objects() -> list[Object]:
    """A set of `ready`, `waiting`, and `unrendered`, whose draft's pipeline has failed."""
    owner = {"name": "web", "namespace": "default", "uid": "set"}
    listed: list[Object] = [
        {"apiVersion": "config.porch.kpt.dev/v1alpha2", "kind": "PackageVariantSet", "metadata": owner}
    ]
    for name in ("ready", "waiting", "unrendered"):
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {"config.porch.kpt.dev/packagevariantset": "set"},
            "ownerReferences": [{"kind": "PackageVariantSet", "name": "web", "uid": "set"}],
        }
        status = "True" if name == "ready" else "False"
        condition = {"type": "Ready", "status": status, "reason": "Why", "observedGeneration": 1}
        listed.append(
            {
                "apiVersion": "config.porch.kpt.dev/v1alpha1",
                "kind": "PackageVariant",
                "metadata": metadata,
                "status": {"conditions": [condition]},
            }
        )
    reference = {"kind": "PackageVariant", "name": "unrendered", "uid": "unrendered"}
    metadata = {"name": "edge.web.1", "namespace": "default", "ownerReferences": [reference]}
    failed = {"type": "Rendered", "status": "False", "message": "no image"}
    for kind, spec in (("PackageRevision", {"lifecycle": "Draft"}), ("PackageRevisionResources", {})):
        listed.append(
            {
                "apiVersion": "porch.kpt.dev/v1alpha1",
                "kind": kind,
                "metadata": dict(metadata),
                "spec": spec,
                "status": {"conditions": [failed]},
            }
        )
    return listed


class Location:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "kubeconfig").write_text("")
        self.folder = folder
        self.saved: list[str] = []
        self.cluster = MemoryCluster(objects(), now=lambda: "2026-01-01T00:00:00Z")
        self.cluster.before_write = self._note
        monkeypatch.setattr(HttpCluster, "connect", self._connect)

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    def _note(self, verb: str, obj: Object) -> None:
        if obj["kind"] == FILES.kind:
            self.saved.append(obj["metadata"]["name"])

    def run(self, *arguments: str) -> int:
        return run([*arguments, "--data", str(self.folder)])

    def annotations(self, kind: Kind, name: str) -> Any:
        obj = self.cluster.peek(kind, "default", name)
        assert obj is not None
        return obj["metadata"].get("annotations") or {}

    def retry_variants(self) -> list[str]:
        return [o["metadata"]["name"] for o in self.cluster.objects_of(VARIANT) if RETRY in str(o)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    return Location(tmp_path, monkeypatch)


def test_a_set_is_held_and_released(home: Location, capsys: Captured) -> None:
    assert home.run("hold", "--set", "default/web", "--reason", "fair") == 0
    said = "PackageVariantSet default/web is on hold with its 3 variants (fair); to go on: pvbus unhold --set"
    assert said in capsys.readouterr().out
    assert home.annotations(SET, "web") == {HOLD: "true", HOLD_REASON: "fair"}
    assert home.run("hold", "--set", "web", "-n", "default") == 0
    assert "is on hold already with its 3 variants (fair)" in capsys.readouterr().out
    assert len(home.cluster.writes) == 1
    assert home.run("unhold", "default/ready") == 0
    said = "was not on hold; its set still holds it (fair): pvbus unhold --set default/web"
    assert said in capsys.readouterr().out
    assert home.run("hold", "default/ready") == 0
    assert home.run("unhold", "--set", "default/web") == 0
    assert "is no longer on hold; 1 variant of it on hold by themselves: ready" in capsys.readouterr().out
    assert home.annotations(SET, "web") == {}
    assert home.run("unhold", "default/ready") == 0
    assert home.run("unhold", "default/ready") == 0
    assert capsys.readouterr().out.endswith("PackageVariant default/ready was not on hold\n")


def test_what_fails_is_tried_again_and_a_failed_draft_is_rendered(home: Location, capsys: Captured) -> None:
    assert home.run("retry", "--set", "default/web", "--failing") == 0
    out = capsys.readouterr().out
    assert "asked for another try of 2 variants of PackageVariantSet default/web" in out
    assert "the pipelines of 1 variant have run again" in out
    assert "pvbus explain --set default/web" in out
    assert "do not exist yet are tried again within a minute" in out
    assert sorted(home.retry_variants()) == ["unrendered", "waiting"]
    asked = home.annotations(SET, "web")[RETRY]
    assert asked == home.annotations(VARIANT, "waiting")[RETRY]
    assert home.saved == ["edge.web.1"]
    before = home.annotations(VARIANT, "waiting")[RETRY]
    assert home.run("retry", "default/waiting") == 0
    assert home.annotations(VARIANT, "waiting")[RETRY] != before
    assert home.annotations(SET, "web")[RETRY] == asked
    assert "do not exist yet" not in capsys.readouterr().out
    assert home.saved == ["edge.web.1"]


def test_a_draft_that_waits_for_its_first_save_is_left_to_its_variant(home: Location) -> None:
    revision = home.cluster.peek(REVISION, "default", "edge.web.1")
    assert revision is not None
    waiting = {"type": "Rendered", "status": "Unknown", "reason": "Deferred"}
    home.cluster.put({**revision, "status": {"conditions": [waiting]}})
    assert home.run("retry", "default/unrendered") == 0
    assert home.retry_variants() == ["unrendered"]
    assert home.saved == []


def test_what_is_on_hold_is_not_tried(home: Location, capsys: Captured) -> None:
    assert home.run("hold", "--set", "default/web") == 0
    assert home.run("retry", "default/waiting") == 1
    assert "1 variant left out, on hold" in capsys.readouterr().out
    assert home.retry_variants() == home.saved == []
    assert home.run("retry", "--set", "default/web") == 1
    assert RETRY not in home.annotations(SET, "web")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("hold",), 2, "name one variant (NAMESPACE/VARIANT) or one set"),
        (("hold", "default/ready", "--set", "default/web"), 2, "name one variant"),
        (("hold", "ready/"), 2, '"ready/" names no object'),
        (("hold", "web"), 1, "a PackageVariantSet has this name; for that one write pvs/default/web"),
        (("hold", "default/typo"), 1, "there is no PackageVariant default/typo"),
        (("retry", "default/ready", "--failing"), 2, "give --set"),
    ],
)
def test_a_mistake_is_explained(
    home: Location, capsys: Captured, arguments: Any, code: int, words: str
) -> None:
    assert home.run(*arguments) == code
    assert words in capsys.readouterr().err
    assert home.cluster.writes == []
