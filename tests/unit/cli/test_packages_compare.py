"""`pvbus packages compare`: verdicts on what others have installed; nothing is written."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from pvbus.core.platform.packaging.references import digest_of
from tests.tools.fakeregistry import fake_registry
from tests.tools.images import xpkg_of

Captured = pytest.CaptureFixture[str]
ACME = "xpkg.example.org/acme"
OTHER = digest_of(b"another content")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVBUS_SOURCES_CACHE", str(tmp_path / "cache"))


def published(name: str, version: str, kind: str = "Provider", **spec: Any) -> dict[str, Any]:
    annotations = {"pvbus.dev/source": f"{ACME}/{name}", "pvbus.dev/version": version}
    annotations["pvbus.dev/digest"] = digest_of(f"{name} {version}".encode())
    meta = {"name": f"{name}-{version}", "annotations": annotations}
    return {"apiVersion": "meta.pkg.crossplane.io/v1", "kind": kind, "metadata": meta, "spec": spec}


def needs(name: str, version: str) -> list[Mapping[str, str]]:
    return [{"provider": f"{ACME}/{name}", "version": version}]


def install(name: str, tag: str, installed: str = "", kind: str = "Provider", **spec: Any) -> dict[str, Any]:
    """Return an install of Crossplane's. installed: the version in its status."""
    status: dict[str, Any] = {}
    if installed:
        content = digest_of(f"{name} {installed}".encode()).rpartition(":")[2][:12]
        identifier = f"{ACME}/{name}:{installed}"
        status = {"currentRevision": f"{name}-{content}", "currentIdentifier": identifier}
    return {
        "apiVersion": "pkg.crossplane.io/v1",
        "kind": kind,
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"package": f"{ACME}/{name}{tag}", **spec},
        "status": status,
    }


def carvel(
    name: str, range_: str, installed: str, template: Any = None, paths: Any = None, **more: Any
) -> list[dict[str, Any]]:
    """Return an install of Carvel's with Packages 1.0.0 and 2.0.0."""
    files = paths or {"cm.yml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"}
    content = {"fetch": [{"inline": {"paths": files}}], "template": template or [{"ytt": {}}]}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "data.packaging.carvel.dev/v1alpha1",
            "kind": "Package",
            "metadata": {"name": f"{name}.dev.{version}", "namespace": "demo"},
            "spec": {
                "refName": f"{name}.dev",
                "version": version,
                "template": {"spec": {**content, "deploy": [{"kapp": {}}]}},
            },
        }
        for version in ("1.0.0", "2.0.0")
    ]
    reference = {"refName": f"{name}.dev", "versionSelection": {"constraints": range_}}
    objects.append(
        {
            "apiVersion": "packaging.carvel.dev/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": name, "namespace": "demo", "annotations": more.pop("annotations", {})},
            "spec": {"packageRef": reference, "serviceAccountName": "sa", **more},
            "status": {"version": installed},
        }
    )
    return objects


def compare(folder: Path, capsys: Captured, objects: list[dict[str, Any]], *options: str) -> dict[str, Any]:
    """Run the command on files; return its document, with the exit code."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(run(["packages", "compare", "-f", str(path), "-o", "json", *options]))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**found, "code": ended.value.code}


NET = [published("net", version) for version in ("v1.0.0", "v1.1.0", "v2.0.0")]
APP = published("app", "v1.0.0", "Configuration", dependsOn=needs("net", "~1.0"))
LOCK = {
    "apiVersion": "pkg.crossplane.io/v1beta1",
    "kind": "Lock",
    "metadata": {"name": "lock"},
    "packages": [{"name": "net-locked", "source": f"{ACME}/net", "version": "v1.0.0", "dependencies": []}],
}
CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, ...]]]] = {
    "the installed version": (
        [*NET, install("net", ":v1.0.0", "v1.0.0")],
        [("Provider net", "v1.0.0", "v1.0.0", "equal", "")],
    ),
    "another tag than the installed one": (
        [*NET, install("net", ":v1.1.0", "v1.0.0")],
        [("Provider net", "v1.0.0", "v1.1.0", "other", "spec.package asks for v1.1.0")],
    ),
    "no tag: the highest": (
        [*NET, install("net", "", "v1.0.0")],
        [("Provider net", "v1.0.0", "v2.0.0", "other", "the highest that is possible")],
    ),
    "what a package needs is not there": (
        [*NET, APP, install("app", ":v1.0.0", "v1.0.0", "Configuration")],
        [
            ("Configuration app", "v1.0.0", "v1.0.0", "equal", ""),
            ("Provider acme-net", "", "v1.0.0", "missing", "Configuration app needs ~1.0"),
        ],
    ),
    "what others need decides": (
        [*NET, APP, install("app", ":v1.0.0", "v1.0.0", "Configuration"), install("net", "", "v1.1.0")],
        [
            ("Configuration app", "v1.0.0", "v1.0.0", "equal", ""),
            (
                "Provider net",
                "v1.1.0",
                "v1.0.0",
                "other",
                "the highest that is possible; Configuration app needs ~1.0",
            ),
        ],
    ),
    "a conflict": (
        [
            *NET,
            APP,
            install("app", ":v1.0.0", "v1.0.0", "Configuration"),
            install("net", ":v2.0.0", "v2.0.0"),
        ],
        [
            ("Configuration app", "v1.0.0", "v1.0.0", "equal", ""),
            ("Provider net", "v2.0.0", "", "refused", "needs"),
        ],
    ),
    "a spec that cannot be read": (
        [*NET, install("net", ":v1.0.0", "v1.0.0", revisionHistoryLimit="many")],
        [("Provider net", "v1.0.0", "", "refused", "spec.revisionHistoryLimit")],
    ),
    "a user has to activate": (
        [*NET, install("net", ":v1.0.0", "v1.0.0", revisionActivationPolicy="Manual")],
        [("Provider net", "v1.0.0", "", "undecided", "until a user activates")],
    ),
    "a tag that was moved": (
        [
            *NET[1:],
            {
                **NET[0],
                "metadata": {
                    **NET[0]["metadata"],
                    "annotations": {**NET[0]["metadata"]["annotations"], "pvbus.dev/digest": OTHER},
                },
            },
            install("net", ":v1.0.0", "v1.0.0"),
        ],
        [("Provider net", "v1.0.0", "v1.0.0", "other", "v1.0.0 names another content now")],
    ),
    "a version that only the Lock has": (
        [*NET, LOCK, {**install("net", ":v1.0.0"), "status": {"currentRevision": "net-locked"}}],
        [("Provider net", "v1.0.0", "v1.0.0", "equal", "")],
    ),
    "a platform that is not named": (
        [
            published("app", "v1.0.0", "Configuration", crossplane={"version": ">=v1.14.0"}),
            install("app", ":v1.0.0", "v1.0.0", "Configuration"),
        ],
        [("Configuration app", "v1.0.0", "", "refused", "PVBUS_PLATFORMS")],
    ),
    "Carvel: the installed version": (
        carvel("web", ">=1.0.0", "2.0.0"),
        [("PackageInstall demo/web", "2.0.0", "2.0.0", "equal", "")],
    ),
    "Carvel: a range without the installed version": (
        carvel("web", "1.0.0", "2.0.0", annotations={"packaging.carvel.dev/downgradable": ""}),
        [("PackageInstall demo/web", "2.0.0", "1.0.0", "other", "the highest that is possible of 1.0.0")],
    ),
    "Carvel: a range that has none": (
        carvel("web", "3.0.0", "2.0.0"),
        [("PackageInstall demo/web", "2.0.0", "", "refused", "3.0.0")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_install_has_a_verdict(case: str, tmp_path: Path, capsys: Captured) -> None:
    """Versions, verdict, and words of the reason; the exit code is 0 if all are equal."""
    objects, wanted = CASES[case]
    found = compare(tmp_path, capsys, objects)
    named = [
        (f"{each['kind']} {'/'.join(filter(None, (each['namespace'], each['name'])))}", each)
        for each in found["installs"]
    ]
    seen = [(n, e["installed"], e["decided"], e["verdict"]) for n, e in named]
    assert seen == [row[:4] for row in wanted]
    for (_, each), row in zip(named, wanted, strict=True):
        assert row[4] in each["why"], each["why"]
        assert bool(row[4]) == bool(each["why"])
    assert found["code"] == (0 if all(row[3] == "equal" for row in wanted) else 1)


IMAGE_CONFIG = {
    "apiVersion": "pkg.crossplane.io/v1beta1",
    "kind": "ImageConfig",
    "metadata": {"name": "ours"},
    "spec": {"matchImages": [{"prefix": "r.example.org/"}], "verification": {"provider": "Cosign"}},
}
REPOSITORY = {
    "apiVersion": "packaging.carvel.dev/v1alpha1",
    "kind": "PackageRepository",
    "metadata": {"name": "tools", "namespace": "demo"},
    "spec": {"fetch": {"http": {"url": "https://x.example.org/tools.tgz"}}},
}
APPS = [
    {
        "apiVersion": "kappctrl.k14s.io/v1alpha1",
        "kind": "App",
        "metadata": {"name": name, "namespace": "demo", "ownerReferences": owners},
    }
    for name, owners in (("own", []), ("web", [{"kind": "PackageInstall", "name": "web"}]))
]
GAPS: dict[str, tuple[list[dict[str, Any]], tuple[str, str]]] = {
    "a runtime": (
        [*NET, install("net", ":v1.0.0", "v1.0.0", runtimeConfigRef={"name": "irsa"})],
        ("Provider net", "runtimeConfigRef"),
    ),
    "images": ([IMAGE_CONFIG], ("ImageConfig ours", "ImageConfig")),
    "a repository": ([REPOSITORY], ("PackageRepository demo/tools", "fetch.http")),
    "apps, but for those of installs": (APPS, ("App demo/own", "App")),
    "another tool": (
        carvel("web", "1.0.0", "1.0.0", template=[{"sops": {}}]),
        ("PackageInstall demo/web", "template.sops"),
    ),
    "a program that is not there": (
        carvel("web", "1.0.0", "1.0.0", paths={"config/cm.yml": "#@ data.values.x\n"}),
        ("PackageInstall demo/web", "template.ytt"),
    ),
    "another cluster": (
        carvel("web", "1.0.0", "1.0.0", cluster={"kubeconfigSecretRef": {"name": "x"}}),
        ("PackageInstall demo/web", "spec.cluster"),
    ),
    "a login of its own": (
        carvel("web", "1.0.0", "1.0.0", annotations={"ext.packaging.carvel.dev/fetch-0-secret-name": "x"}),
        ("PackageInstall demo/web", "ext.packaging.carvel.dev/fetch-0-secret-name"),
    ),
}


@pytest.mark.parametrize("case", GAPS)
def test_what_only_the_others_do_is_named_with_its_field(case: str, tmp_path: Path, capsys: Captured) -> None:
    """It is a difference for the installer pvbus, and none as long as the others install."""
    objects, (name, field) = GAPS[case]
    found = compare(tmp_path, capsys, objects)
    assert [(each["object"], each["field"].rpartition("config/")[2]) for each in found["unsupported"]] == [
        (name, field)
    ]
    assert found["code"] == 1
    assert {each["verdict"] for each in found["installs"]} <= {"unsupported"}
    beside = compare(tmp_path, capsys, objects, "--installer", "others")
    assert (beside["unsupported"], beside["code"]) == ([], 0)


def test_a_default_runtime_is_no_difference(tmp_path: Path, capsys: Captured) -> None:
    """Crossplane's definitions name it where a user names none."""
    ours = install("net", ":v1.0.0", "v1.0.0", runtimeConfigRef={"name": "default"})
    assert compare(tmp_path, capsys, [*NET, ours])["code"] == 0


async def test_a_cluster_is_read_with_its_sources_and_nothing_is_written(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions come from the registry; the cluster has the resource versions of before."""
    async with fake_registry() as registry:
        image = xpkg_of(
            {
                "package.yaml": b"apiVersion: meta.pkg.crossplane.io/v1\nkind: Provider\n"
                b"metadata: {name: network}\n"
            }
        )
        digest = registry.add(image, "v1.0.0")
        installed = install("network", "", "v0.9.0")
        installed["spec"]["package"] = f"{registry.source()}:v1.0.0"
        revision = {
            "apiVersion": "pkg.crossplane.io/v1",
            "kind": "ProviderRevision",
            "metadata": {
                "name": f"network-{digest.rpartition(':')[2][:12]}",
                "ownerReferences": [
                    {
                        "apiVersion": "pkg.crossplane.io/v1",
                        "kind": "Provider",
                        "name": "network",
                        "uid": "u",
                        "controller": True,
                    }
                ],
            },
            "spec": {"desiredState": "Active", "image": f"{registry.source()}:v1.0.0", "revision": 1},
        }
        memory = MemoryCluster([installed, revision], now=lambda: "2026-01-01T00:00:00Z")

        async def connect(_: Path) -> MemoryCluster:
            return memory

        monkeypatch.setattr(HttpCluster, "connect", connect)
        (tmp_path / "kubeconfig").touch()
        arguments = ["packages", "compare", "--kubeconfig", str(tmp_path / "kubeconfig")]
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(run, arguments)
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["Provider", "network", registry.source(), "v1.0.0", "v1.0.0", "equal"]
    assert lines[-1] == "1 equal"
    assert memory.writes == []
