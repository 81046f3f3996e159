"""`pvbus diff --set` and `pvbus explain`: what people edited, before a deletion and after it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR, KEPT_LABEL, SET_UID_LABEL
from pvbus.ports.cluster import Object
from tests.tools.bustables import write_tables

Captured = pytest.CaptureFixture[str]
CONFIG = "config.porch.kpt.dev/v1alpha"


def made(api: str, kind: str, name: str, spec: Object | None = None, **metadata: Any) -> Object:
    meta = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec or {}}


def revision(name: str, lifecycle: str = "Draft", *, owned: bool = True, **metadata: Any) -> Object:
    owners = [{"kind": "PackageVariant", "name": "web-edge", "uid": "v"}] if owned else []
    spec = {"repository": "edge", "packageName": "web", "lifecycle": lifecycle}
    return made("porch.kpt.dev/v1alpha1", "PackageRevision", name, spec, ownerReferences=owners, **metadata)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "kubeconfig").write_text("")
    write_tables(tmp_path / "bus.db", [])
    marks: Any = {
        "annotations": {EDITED_BY: "ann", KEPT_FOR: "gone/gone-edge@"},
        "labels": {KEPT_LABEL: "true"},
    }
    objects = [
        made(f"{CONFIG}2", "PackageVariantSet", "web", uid="s"),
        made(f"{CONFIG}1", "PackageVariant", "web-edge", uid="v", labels={SET_UID_LABEL: "s"}),
        revision("edge.web.1", "Published", annotations={EDITED_BY: "bob"}),
        revision("edge.web.2", annotations={EDITED_BY: "ann"}),
        revision("edge.web.3"),
        revision("edge.gone.1", owned=False, **marks),
    ]
    cluster = MemoryCluster(objects, now=lambda: "2026-01-01T00:00:00Z")

    async def connect(path: Path) -> MemoryCluster:
        return cluster

    monkeypatch.setattr(HttpCluster, "connect", connect)
    return str(tmp_path)


def test_the_edits_of_a_set_are_listed(data: str, capsys: Captured) -> None:
    assert run(["diff", "--set", "default/web", "--data", data]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "PackageVariantSet default/web: 1 of 2 drafts with edits of people; if the set is deleted, "
        "these stay:",
        "  edge.web.2 (Draft) of default/web-edge: edited by ann",
    ]
    run(["diff", "--set", "default/web", "-o", "json", "--data", data])
    assert [each["draft"] for each in json.loads(capsys.readouterr().out)["edited"]] == ["edge.web.2"]


@pytest.mark.parametrize("arguments", [[], ["default/web-edge", "--set", "default/web"]])
def test_one_variant_or_one_set_is_named(data: str, arguments: list[str], capsys: Captured) -> None:
    assert run(["diff", *arguments, "--data", data]) == 2
    assert "--set NAMESPACE/SET" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["default/gone-edge"], ["--set", "default/gone"]])
def test_what_stayed_is_named_after_its_variant_or_set_is_gone(
    data: str, arguments: list[str], capsys: Captured
) -> None:
    with pytest.raises(SystemExit) as end:
        run(["explain", *arguments, "--data", data])
    assert end.value.code == 1
    assert (
        "  kept: edge.gone.1 (Draft) of default/gone-edge, which has left it; edited by ann; applied again, "
        "the variant has it back"
    ) in capsys.readouterr().out.splitlines()
