"""The finder of the control plane's programs says in one line what is missing."""

from pathlib import Path

import pytest

from tests.tools import clusterprograms, gomodules
from tests.tools.clusterprograms import APISERVER, CONTROLLERS, ETCD, ETCD_VERSION, VERSION
from tests.tools.clusterprograms import ClusterUnavailableError as Unavailable


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, no Go, and a folder for programs."""
    monkeypatch.setenv("PVBUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(gomodules, "GO_FOLDER", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def pretend(program: Path, says: str = "") -> Path:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_without_go_one_line_says_what_to_install(bare: Path) -> None:
    """It names Go, and the variable for those who have the programs."""
    assert clusterprograms.missing() == [ETCD, APISERVER, CONTROLLERS]
    with pytest.raises(Unavailable, match=r"^etcd .* install Go 1\.26 .* KUBEBUILDER_ASSETS") as error:
        clusterprograms.find_or_build()
    assert "\n" not in str(error.value)


def test_what_was_built_once_is_taken(bare: Path) -> None:
    """With the whole cache there, nothing is missing and nothing is built."""
    versions = {ETCD: ETCD_VERSION, APISERVER: VERSION, CONTROLLERS: VERSION}
    built = [pretend(gomodules.cached(name, version)) for name, version in versions.items()]
    assert list(clusterprograms.find_or_build()) == built
    assert clusterprograms.missing() == []


def test_given_programs_come_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBEBUILDER_ASSETS wins; a controller manager that it lacks is that of its server's version."""
    assets = bare / "assets"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    etcd = pretend(assets / ETCD)
    with pytest.raises(Unavailable, match=r"KUBEBUILDER_ASSETS names .* has no kube-apiserver"):
        clusterprograms.find_or_build()
    server = pretend(assets / APISERVER, "Kubernetes v1.33.2")
    with pytest.raises(Unavailable, match=r"^kube-controller-manager 1\.33\.2 "):
        clusterprograms.find_or_build()
    manager = pretend(gomodules.cached(CONTROLLERS, "1.33.2"))
    assert clusterprograms.find_or_build() == (etcd, server, manager)
    own = pretend(assets / CONTROLLERS)
    assert clusterprograms.find_or_build() == (etcd, server, own)


def test_a_failed_build_is_one_line(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line says why, and names Go's version and the proxy as what to look at."""
    folder = bare / "go"
    folder.mkdir()
    (folder / "go").write_text("#!/bin/sh\necho first >&2; echo 'dial tcp: no such host' >&2; exit 1\n")
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    with pytest.raises(Unavailable, match=r"^etcd .* could not be built .*: dial tcp: no such host$"):
        clusterprograms.find_or_build()
    assert not gomodules.cached(ETCD, ETCD_VERSION).exists()
