"""`pvbus packages tree` and `delete`: what they print, what they delete, and mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from tests.e2e.cli.command import REPOSITORY
from tests.unit.core.platform.packaging.carvelworld import OWNER, REMOVAL

Captured = pytest.CaptureFixture[str]
EXAMPLE = str(REPOSITORY / "examples" / "dependencies" / "carvel.yaml")


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(run(["packages", *arguments]))
    return int(ended.value.code or 0)


def _package(name: str, *needs: str) -> dict[str, Any]:
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": f"{name}.test.dev.1.0.0", "namespace": "kapp-controller-packaging-global"},
        "spec": {
            "refName": f"{name}.test.dev",
            "version": "1.0.0",
            "dependencies": [{"package": {"refName": f"{each}.test.dev"}} for each in needs],
        },
    }


def _install(name: str, owner: str = "", removal: str = "", managed: str = "Auto") -> dict[str, Any]:
    annotations = {OWNER: f"PackageInstall/{owner}"} if owner else {}
    annotations |= {REMOVAL: removal} if removal else {}
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": name, "namespace": "demo", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"packageRef": {"refName": f"{name}.test.dev"}, "dependencies": {"managedBy": managed}},
        "status": {"version": "1.0.0"},
    }


PACKAGES = [_package("shop", "db", "cache"), _package("blog", "db"), _package("db"), _package("cache")]
INSTALLS = [_install("shop"), _install("blog"), _install("db", "shop"), _install("cache", "shop")]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all([*PACKAGES, *INSTALLS]), encoding="utf-8")
    return str(path)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A cluster with shop and blog, which share db; return the arguments that name it."""
    memory = MemoryCluster([*PACKAGES, *INSTALLS], now=lambda: "2026-01-01T00:00:00Z")

    async def connect(_: Path) -> MemoryCluster:
        return memory

    monkeypatch.setattr(HttpCluster, "connect", connect)
    config = tmp_path / "kubeconfig"
    config.touch()
    return ["--kubeconfig", str(config)]


def test_a_tree_shows_what_is_needed_and_what_is_missing(capsys: Captured) -> None:
    """Of the proposal's example: what is created, the alternative, and an unknown optional one."""
    assert code("tree", "-f", EXAMPLE) == 0
    assert capsys.readouterr().out.splitlines() == [
        "demo/pkg-demo  pkg.test.carvel.dev 1.0.0",
        "  - + demo/pkg2.test.carvel.dev.1.2.0  pkg2.test.carvel.dev 1.2.0  OwnedPackageInstall (>=1.0.0)",
        "    - + demo/certs.test.carvel.dev.2.1.0  certs.test.carvel.dev 2.1.0  OwnedPackageInstall "
        "(>=2.0.0 <3.0.0)",
        "  - + demo/pkg3.test.carvel.dev.0.1.0  pkg3.test.carvel.dev 0.1.0  OwnedPackageInstall (0.1.0)",
        "  - pkg4.test.carvel.dev 0.2.0  UnknownPackage: optional: no package pkg4.test.carvel.dev is known",
    ]


def test_a_tree_of_one_install_as_json(capsys: Captured, file: str) -> None:
    """The install and all that it needs, with whom each was created for."""
    assert code("tree", "demo/shop", "-f", file, "--output", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["createdFor"]) for each in found] == [
        ("shop", []),
        ("db", ["demo/shop", "demo/blog"]),
        ("cache", ["demo/shop"]),
    ]
    assert found[0]["dependencies"][0]["condition"] == "OwnedPackageInstall"


def test_a_tree_of_what_lacks_something_fails(capsys: Captured, tmp_path: Path) -> None:
    """The exit code is 1, and the tree says what is missing; an unknown name is an error of its own."""
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all([_package("shop", "db"), _install("shop")]), encoding="utf-8")
    assert code("tree", "-f", str(path)) == 1
    out = capsys.readouterr().out
    assert "refused" in out
    assert "db.test.dev  UnknownPackage: no package is known for db.test.dev" in out
    assert code("tree", "demo/other", "-f", str(path)) == 1
    assert "there is no PackageInstall demo/other" in capsys.readouterr().err
    assert code("tree", "pkgi", "other", "-n", "demo", "-f", str(path)) == 1
    assert "there is no PackageInstall demo/other" in capsys.readouterr().err
    assert code("tree", "-n", "elsewhere", "-f", str(path)) == 0
    assert "there are no PackageInstalls" in capsys.readouterr().err


def test_a_preview_of_files_lists_what_goes_and_what_stays(capsys: Captured, file: str) -> None:
    """cache goes with shop, and db, which blog needs, stays."""
    assert code("delete", "demo/shop", "--dependencies", "-f", file) == 0
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["goes", "demo/shop", "shop.test.dev", "1.0.0", "you delete it"],
        ["goes", "demo/cache", "cache.test.dev", "1.0.0", "it was created for demo/shop"],
        ["stays", "demo/db", "db.test.dev", "1.0.0", "demo/blog needs it, and owns it then"],
    ]


def test_the_install_alone_is_deleted_without_a_question(capsys: Captured, cluster: list[str]) -> None:
    """What was created for it stays, by the policy, and the list says so."""
    assert code("delete", "demo/shop", *cluster) == 0
    out = capsys.readouterr().out
    assert "nobody needs it any more; it stays as yours" in out
    assert "deleted: demo/shop" in out
    assert code("tree", "demo/shop", *cluster) == 1
    assert code("tree", "demo/cache", *cluster) == 0


def test_more_than_the_install_needs_yes(capsys: Captured, cluster: list[str]) -> None:
    """Without it nothing is deleted; with it dependants go first, and dependencies last."""
    assert code("delete", "demo/db", "--dependants", *cluster) == 1
    captured = capsys.readouterr()
    assert "nothing was deleted: add --yes" in captured.err
    assert (
        code("delete", "demo/db", "--dependants", "--dependencies", "--yes", "--output", "json", *cluster)
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["deleted"] == ["demo/blog", "demo/shop", "demo/cache", "demo/db"]
    assert [each["cause"] for each in found["goes"]] == ["dependant", "dependant", "dependency", "asked"]
    assert code("tree", *cluster) == 0


def test_what_fails_without_it_is_named(capsys: Captured, tmp_path: Path) -> None:
    """An install that brings its own dependencies fails; if another gets it again, that one serves both."""
    path = tmp_path / "objects.yaml"
    objects = [*PACKAGES, _install("db"), _install("blog", managed="User")]
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    assert code("delete", "demo/db", "-f", str(path), "-o", "json") == 0
    (blog,) = json.loads(capsys.readouterr().out)["stays"]
    assert blog["fails"]
    assert "it needs demo/db, and fails without" in blog["why"]
    objects += [_install("shop"), _install("cache")]
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    assert code("delete", "demo/db", "-f", str(path), "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)["stays"]
    assert [(each["install"], each["fails"], each["why"]) for each in found] == [
        (f"demo/{name}", False, "it needs demo/db, and gets demo/db.test.dev.1.0.0")
        for name in ("blog", "shop")
    ]


def test_the_policy_is_part_of_the_preview(capsys: Captured, tmp_path: Path) -> None:
    """What pvbus deletes itself, as the install says so, is listed, and makes the question."""
    path = tmp_path / "objects.yaml"
    objects = [
        *PACKAGES,
        _install("shop", removal="delete"),
        _install("db", "shop"),
        _install("cache", "shop"),
    ]
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    assert code("delete", "demo/shop", "-f", str(path), "-o", "json") == 0
    goes = {each["install"]: each["cause"] for each in json.loads(capsys.readouterr().out)["goes"]}
    assert goes == {"demo/shop": "asked", "demo/db": "policy", "demo/cache": "policy"}


UNREAD = {**_install("i8"), "spec": {"packageRef": {"refName": "db.test.dev", "versionSelection": 8}}}


@pytest.fixture
def unread(tmp_path: Path) -> str:
    path = tmp_path / "unread.yaml"
    odd = {**_package("odd"), "spec": {"refName": "odd.test.dev", "version": 3}}
    path.write_text(yaml.safe_dump_all([*PACKAGES, *INSTALLS, UNREAD, odd]), encoding="utf-8")
    return str(path)


def test_a_tree_shows_what_can_be_read_beside_what_cannot(capsys: Captured, unread: str) -> None:
    """The field that is wrong stands at the install, a Package is named beside the tree."""
    assert code("tree", "-f", unread) == 1
    captured = capsys.readouterr()
    assert "demo/shop  shop.test.dev 1.0.0" in captured.out
    (line,) = [each for each in captured.out.splitlines() if "demo/i8" in each]
    assert "broken: the install cannot be read: spec.packageRef.versionSelection: must be a mapping" in line
    assert "Package kapp-controller-packaging-global/odd.test.dev.1.0.0 cannot be read: spec.version" in (
        captured.err
    )
    assert code("tree", "demo/i8", "-f", unread, "-o", "json") == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["reason"], shown["exists"]) == ("broken", "InvalidInstall", True)
    assert code("tree", "demo/shop", "-f", unread) == 0


def test_a_deletion_beside_what_cannot_be_read_is_of_one_install(capsys: Captured, unread: str) -> None:
    """What an unreadable install needs is not known: what it may need does not go with others."""
    assert code("delete", "demo/blog", "-f", unread) == 0
    assert "demo/i8" in capsys.readouterr().out
    for option in ("--dependencies", "--dependants"):
        assert code("delete", "demo/shop", option, "-f", unread) == 1
        assert "demo/i8 cannot be read, so what it needs is not known" in capsys.readouterr().err
    assert code("delete", "demo/i8", "-f", unread) == 0
    assert "you delete it; it cannot be read" in capsys.readouterr().out
