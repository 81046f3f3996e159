"""`pvbus up --processes` gives each process the account of its service; the kubeconfig stays the user's."""

import re
from pathlib import Path

import pytest
import yaml

from pvbus.core.kernel.topics import SERVICES
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import CLUSTERS, write_manifests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACCOUNT = "system:serviceaccount:pvbus-system:pvbus-"


def test_each_process_has_the_account_of_its_service(tmp_path: Path) -> None:
    """The log names inject for the drafts and refuses nobody. A restart with an older version's folder works,
    and the address of the user's kubeconfig is still the administrator's."""
    write_manifests(tmp_path)
    with running("up", "manifests", "--processes", "1", "--log-level", "info", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        found = set(re.findall(r"(\w+)/1: metrics and health: (http://\S+)/metrics", up.output))
        assert {name for name, _ in found} == set(SERVICES)
        assert up.end() == 0, up.output
    lines = [line for line in up.output.splitlines() if "package written" in line]
    authors = {name for line in lines for name in re.findall(rf"{ACCOUNT}(\w+)", line)}
    assert (len(lines) >= CLUSTERS, authors) == (True, {"inject"}), up.output
    assert "a right is missing" not in up.output
    assert "package not written" not in up.output
    (tmp_path / ".pvbus" / "services.kubeconfig").unlink()
    done = pvbus("up", "manifests", "--once", cwd=tmp_path)
    assert (done.code, "all ready" in done.out) == (0, True), done
    (user,) = yaml.safe_load((tmp_path / ".pvbus" / "kubeconfig").read_text())["users"]
    assert user["user"]["token"] == (tmp_path / ".pvbus" / "apiserver" / "token").read_text()
