"""What the tests of a real API server need is found, or one line says what to install."""

import json
from pathlib import Path

import pytest

from tests.tools import clusterprograms, gomodules
from tests.tools.auditlog import AuditLog
from tests.tools.clusterprograms import APISERVER, CONTROLLERS, ETCD, ETCD_VERSION, VERSION
from tests.tools.clusterprograms import ClusterUnavailableError as Unavailable
from tests.tools.realcluster import real_cluster_of


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
    assert clusterprograms.to_build() == []
    with pytest.raises(Unavailable, match=r"^etcd .* install Go 1\.26 .* KUBEBUILDER_ASSETS") as error:
        clusterprograms.find_or_build()
    assert "\n" not in str(error.value)


def test_what_was_built_once_is_taken(bare: Path) -> None:
    """With the whole cache there, nothing is missing and nothing is built."""
    versions = {ETCD: ETCD_VERSION, APISERVER: VERSION, CONTROLLERS: VERSION}
    built = [pretend(gomodules.cached(name, version)) for name, version in versions.items()]
    assert list(clusterprograms.find_or_build()) == built
    assert clusterprograms.to_build() == []


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
    assert clusterprograms.to_build() == [ETCD, APISERVER, CONTROLLERS]
    with pytest.raises(Unavailable, match=r"^etcd .* could not be built .*: dial tcp: no such host$"):
        clusterprograms.find_or_build()
    assert not gomodules.cached(ETCD, ETCD_VERSION).exists()


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_tests_without_programs(
    bare: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[Exception]
) -> None:
    """They are skipped, with the line that says what to install; in continuous integration they fail."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="install Go"):
        next(real_cluster_of())


def test_an_audit_log_is_read_from_a_place_to_its_last_complete_line(tmp_path: Path) -> None:
    """A write is one by its verb, accepted or not; who reads is none; half an event is not read yet."""
    file = tmp_path / "audit.log"
    log = AuditLog(file)
    file.write_text(event("create", "pvbus", 201))
    since = log.end()
    more = [event("update", "pvbus", 409), event("list", "pvbus", 200), event("delete", "somebody", 200)]
    with file.open("a") as stream:
        stream.write("".join(more) + '{"verb": "upd')
    assert [each.verb for each in log.events(since)] == ["update", "list", "delete"]
    (write,) = log.writes("pvbus", since)
    assert (write.resource, write.is_accepted) == ("packagevariants/status", False)
    assert [each.is_accepted for each in log.writes("pvbus")] == [True, False]


def event(verb: str, user: str, code: int) -> str:
    reference = {"resource": "packagevariants", "subresource": "status", "namespace": "a", "name": "b"}
    content = {
        "verb": verb,
        "stage": "ResponseComplete",
        "user": {"username": user},
        "objectRef": reference,
        "responseStatus": {"code": code},
    }
    return json.dumps(content) + "\n"
