"""`pvbus user`: people with tokens and rights of their own, from the command to the commit in git."""

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from pvbus.controlplane.apiserver.rbac.users import digest_of
from tests.e2e.cli.command import Done, git, pvbus, running
from tests.e2e.cli.small_fleet import CLUSTERS, write_manifests

TOGETHER = 6


def _user(folder: Path, *arguments: str, code: int = 0) -> Done:
    done = pvbus("user", *arguments, cwd=folder)
    assert done.code == code, done
    return done


@pytest.mark.slow
def test_an_approver_approves_and_git_knows_who_it_was(tmp_path: Path) -> None:
    """A viewer may neither propose nor approve, a proposer not approve; the author is who did it."""
    write_manifests(tmp_path)
    with running("up", "manifests", "--log-level", "info", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        for role in ("viewer", "proposer", "approver"):
            _user(tmp_path, "add", f"{role}-ann", "--role", role, "--kubeconfig", f"{role}.kubeconfig")

        def does(command: str, role: str, *arguments: str, code: int = 0) -> Done:
            kubeconfig = ("--kubeconfig", f"{role}.kubeconfig")
            done = pvbus(command, "--set", "default/web", *kubeconfig, *arguments, cwd=tmp_path)
            assert done.code == code, done
            return done

        refused = does("propose", "viewer", code=1)
        assert 'User "viewer-ann" cannot update resource "packagerevisions"' in refused.out + refused.err
        assert f"proposed {CLUSTERS} of {CLUSTERS} drafts" in does("propose", "proposer").out
        refused = does("approve", "proposer", "--yes", code=1)
        words = 'User "proposer-ann" cannot update resource "packagerevisions/approval"'
        assert words in refused.out + refused.err
        assert f"approved {CLUSTERS} of {CLUSTERS} proposals" in does("approve", "approver", "--yes").out
        lines = [line for line in up.output.splitlines() if "package written" in line]
        assert sum("Published" in line and "approver-ann" in line for line in lines) == CLUSTERS, lines
        assert sum("Proposed" in line and "proposer-ann" in line for line in lines) >= CLUSTERS
    log = git(tmp_path / "repositories" / "edge-asia.git", "log", "main", "--format=%an <%ae> %s")
    approvals = [line for line in log.splitlines() if line.startswith("approver-ann <approver-ann>")]
    assert len(approvals) == CLUSTERS, log


def _started_once(folder: Path) -> None:
    with running("apiserver", cwd=folder) as server:
        server.wait_for("export KUBECONFIG")
        assert server.end() == 0


def test_users_are_made_and_changed_while_nothing_runs(tmp_path: Path) -> None:
    """Only digests are stored; files are for their owner alone; a mistake is said and changes nothing."""
    assert "there is no data folder" in _user(tmp_path, "add", "ann", code=2).err
    _started_once(tmp_path)
    assert "there are no users" in _user(tmp_path, "list").out
    made = _user(tmp_path, "add", "ann", "--role", "editor", "--namespace", "a", "--namespace", "b")
    token = made.out.strip()
    file = tmp_path / ".pvbus" / "apiserver" / "users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_text()
    assert token not in content
    assert digest_of(token) in content
    _user(tmp_path, "add", "bob", "--group", "auditors")
    rows = _user(tmp_path, "list").out.splitlines()
    assert rows[1].split() == ["ann", "editor", "in", "a,", "b", "-"]
    assert rows[2].split() == ["bob", "no", "role", "auditors"]
    before = file.read_text()
    for arguments, words in (
        (("add", "ann"), "there is a user ann already"),
        (("remove", "amn"), "there is no user amn; there are: ann, bob"),
        (("token", "amn"), "there is no user amn"),
        (("change", "amn", "--role", "viewer"), "there is no user amn"),
        (("add", "system:masters"), "is for Kubernetes' own"),
        (("add", "x", "--group", "system:masters"), "is for Kubernetes' own"),
        (("add", "pvbus-admin"), "choose another name"),
        (("add", "a b"), "cannot be the name of a user"),
        (("add", "x", "--namespace", "a"), "give --role, too"),
        (("add", "x", "--role", "viewer", "--namespace", "A"), "cannot be the name of a namespace"),
        (("add", "x", "--role", "wizard"), "is not one of"),
    ):
        assert words in _user(tmp_path, *arguments, code=2).err
    assert file.read_text() == before
    _user(tmp_path, "change", "ann", "--role", "viewer")
    found = json.loads(_user(tmp_path, "list", "-o", "json").out)[0]
    assert found == {"name": "ann", "roles": [{"role": "viewer", "namespaces": []}], "groups": []}
    assert digest_of(token) in file.read_text()
    assert digest_of(_user(tmp_path, "token", "ann").out.strip()) in file.read_text()
    assert digest_of(token) not in file.read_text()
    _user(tmp_path, "remove", "ann")
    assert "ann" not in file.read_text()


def test_a_kubeconfig_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    """A new token replaces the user's own kubeconfig; any other file is left as it is."""
    _started_once(tmp_path)
    target = tmp_path / "ann.kubeconfig"
    _user(tmp_path, "add", "ann", "--role", "viewer", "--namespace", "team-a", "--kubeconfig", str(target))
    first = yaml.safe_load(target.read_text())
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert first["contexts"][0]["context"]["namespace"] == "team-a"
    _user(tmp_path, "token", "ann", "--kubeconfig", str(target))
    assert yaml.safe_load(target.read_text())["users"] != first["users"]
    own = tmp_path / ".pvbus" / "kubeconfig"
    for other, content in ((own, own.read_text()), (tmp_path / "notes", "a: [")):
        other.write_text(content)
        refused = _user(tmp_path, "add", "bob", "--kubeconfig", str(other), code=2)
        assert "choose another name" in refused.err
        assert other.read_text() == content
    assert "bob" not in _user(tmp_path, "list").out


def test_users_made_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    """Commands wait for each other: none overwrites what another one wrote."""
    _started_once(tmp_path)
    names = [f"u{number}" for number in range(TOGETHER)]
    commands = [running("user", "add", name, cwd=tmp_path) for name in names]
    for command in [each.__enter__() for each in commands]:
        assert command.process.wait(60) == 0, command.output
    for each in commands:
        each.__exit__(None, None, None)
    assert [row.split()[0] for row in _user(tmp_path, "list").out.splitlines()[1:]] == names


@pytest.mark.kubectl
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on PATH")
def test_kubectl_asks_what_a_user_may_do(tmp_path: Path) -> None:
    """`auth can-i`, its list, `auth whoami` and `--as` agree with what is answered."""

    def kubectl(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            ["kubectl", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done
        return done.stdout + done.stderr

    ann, admin = ("--kubeconfig", "ann.kubeconfig"), ("--kubeconfig", ".pvbus/kubeconfig")
    with running("apiserver", cwd=tmp_path) as server:
        server.wait_for("export KUBECONFIG")
        _user(tmp_path, "add", "ann", "--role", "approver", "--kubeconfig", "ann.kubeconfig")
        approval = ("packagerevisions.porch.kpt.dev", "--subresource", "approval")
        assert kubectl(*ann, "auth", "can-i", "update", *approval).strip() == "yes"
        assert (
            kubectl(*ann, "auth", "can-i", "create", "packagerevisions.porch.kpt.dev", code=1).strip() == "no"
        )
        listed = kubectl(*ann, "auth", "can-i", "--list")
        assert "packagerevisions.porch.kpt.dev/approval" in listed
        assert "secrets" not in listed
        whoami = kubectl(*ann, "auth", "whoami")
        assert whoami.splitlines()[1].split() == ["Username", "ann"]
        assert kubectl(*admin, "auth", "can-i", "*", "*").strip() == "yes"
        assert 'User "ann" cannot list' in kubectl(*admin, "--as", "ann", "get", "secrets", code=1)
        assert "cannot impersonate" in kubectl(*ann, "--as", "bob", "get", "configmaps", code=1)
        kubectl(*admin, "create", "rolebinding", "bob", "--clusterrole", "view", "--user", "bob")
        assert kubectl(*admin, "--as", "bob", "auth", "can-i", "get", "configmaps").strip() == "yes"
        assert "view" in kubectl(*admin, "get", "clusterroles")
        assert "pvbus-observes-all" in kubectl(*admin, "describe", "clusterrole", "pvbus-observes-all")
