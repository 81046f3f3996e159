"""Clones by address on a real API server, whose roles decide who names addresses, Secrets and paths."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.cluster.test_run_cluster import kubectl as kubectl
from tests.integration.packages.support import KPTFILE, bare, push_files
from tests.tools.certificate import make_certificate
from tests.tools.gitserver import git_server
from tests.tools.packagestore import Replica, install, wait_until_available
from tests.tools.realcluster import RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS
from tests.tools.serviceprocess import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400, func_only=True)]

PORCH, CONFIG, RBAC = "porch.kpt.dev", "config.porch.kpt.dev", "rbac.authorization.k8s.io"
PASSWORD = "marked-password-of-the-secret"
DRAFTS = {"apiGroups": [PORCH], "resources": ["packagerevisions"], "verbs": ["get", "create", "patch"]}
ADDRESSES = {"apiGroups": [PORCH], "resources": ["packagerevisions"], "verbs": ["clone-address"]}
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
RULES = {"editor": [DRAFTS], "cloner": [DRAFTS, ADDRESSES], "reader": [DRAFTS, ADDRESSES, SECRETS]}
MAY_NOT = (
    'packagerevisions.porch.kpt.dev is forbidden: User "editor" cannot clone-address resource '
    '"packagerevisions" in API group "porch.kpt.dev" in the namespace "default": a package is cloned by its '
    "address only from a Repository of the namespace, or with this verb: register a Repository"
)


class Site(NamedTuple):
    cluster: RealCluster
    kubectl: Path
    folder: Path

    def clone(self, user: str, package: str, **location: Any) -> str:
        """Ask for a clone with kubectl; return what it says."""
        wanted = {"ref": "main", "directory": "app", **location}
        spec = {
            "repository": "edge",
            "packageName": package,
            "workspaceName": "v1",
            "tasks": [{"type": "clone", "clone": {"upstreamRef": {"type": "git", "git": wanted}}}],
        }
        draft = {"apiVersion": f"{PORCH}/v1alpha1", "kind": "PackageRevision", "spec": spec}
        done = subprocess.run(
            [self.kubectl, "--namespace=default", "create", "-f", "-"],
            input=json.dumps({**draft, "metadata": {"generateName": "x-"}}),
            env={"KUBECONFIG": str(self.cluster.kubeconfig_of(user)), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done.stdout + done.stderr

    def post(self, path: str, obj: Any) -> None:
        code, answer = self.cluster.ask("POST", path, obj)
        assert code == 201, answer

    def register(self, name: str, remote: Path) -> None:
        spec = {"type": "git", "git": {"repo": str(remote), "branch": "main", "createBranch": True}}
        obj = {"apiVersion": f"{CONFIG}/v1alpha1", "kind": "Repository", "metadata": {"name": name}}
        self.post(f"/apis/{CONFIG}/v1alpha1/namespaces/default/repositories", {**obj, "spec": spec})

    def ready(self, name: str) -> str:
        """Return status and message of a Repository's condition Ready."""
        path = f"/apis/{CONFIG}/v1alpha1/namespaces/default/repositories/{name}"
        conditions = (self.cluster.ask("GET", path)[1].get("status") or {}).get("conditions") or [{}]
        return f"{conditions[0].get('status')}: {conditions[0].get('message')}"


@pytest.fixture
def site(kubectl: Path, tmp_path: Path) -> Iterator[Site]:
    for cluster in real_cluster_of(DEFINITIONS):
        allowed = {"PVBUS_PACKAGES_LOCAL": f"{tmp_path / 'allowed'},{tmp_path / 'store'}"}
        replica = Replica(cluster, tmp_path / "store", allowed)
        install(cluster, replica.port)
        made = Site(cluster, kubectl, tmp_path)
        for user, rules in RULES.items():
            role = {"metadata": {"name": user}, "rules": rules}
            made.post(f"/apis/{RBAC}/v1/namespaces/default/roles", role)
            subjects = [{"apiGroup": RBAC, "kind": "User", "name": user}]
            binding = {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": user}, "subjects": subjects}
            made.post(
                f"/apis/{RBAC}/v1/namespaces/default/rolebindings", {"metadata": {"name": user}, **binding}
            )
        try:
            replica.start()
            wait_until_available(cluster)
            yield made
        finally:
            replica.kill()


def test_roles_of_the_cluster_decide_who_names_addresses_and_secrets(site: Site) -> None:
    """An editor clones what is registered; the verb opens addresses, not paths outside of the setting, nor a
    Secret that its user may not get; not even an administrator's Repository is read outside of it."""
    for name in ("allowed/edge.git", "allowed/blue.git", "allowed/own.git", "git/hidden.git"):
        push_files(bare(site.folder / name), {"app/Kptfile": KPTFILE.format(name="app")})
    allowed, hidden = site.folder / "allowed", site.folder / "git" / "hidden.git"
    (allowed / "link.git").symlink_to(hidden)
    for name, remote in (("edge", allowed / "edge.git"), ("blue", allowed / "blue.git"), ("hidden", hidden)):
        site.register(name, remote)
    until(lambda: site.ready("edge").startswith("True"), lambda: site.ready("edge"))
    until(lambda: site.ready("blue").startswith("True"), lambda: site.ready("blue"))
    refused = "False: spec.git.repo: is a path of the server's machine that may not be read"
    until(lambda: site.ready("hidden").startswith(refused), lambda: site.ready("hidden"))

    assert "created" in site.clone("editor", "known", repo=str(allowed / "blue.git"))
    assert MAY_NOT in site.clone("editor", "no", repo=str(allowed / "own.git"))
    assert MAY_NOT in site.clone("editor", "no", repo="https://169.254.169.254/x.git")
    assert "created" in site.clone("cloner", "own", repo=str(allowed / "own.git"))
    (copy,) = (site.folder / "store").glob("**/default/blue/mirror.git")
    for path in (hidden, allowed / "link.git", copy, f"file://{hidden}"):
        assert "may not be read" in site.clone("cloner", "no", repo=str(path)), path

    keystore, authority = make_certificate(site.folder)
    secret = {"username": "joe", "password": PASSWORD, "ca.crt": authority.read_text()}
    site.post("/api/v1/namespaces/default/secrets", {"metadata": {"name": "login"}, "stringData": secret})
    with git_server(site.folder / "git", keystore=keystore) as server:
        server.password = PASSWORD
        login = {"repo": server.url("hidden.git"), "secretRef": {"name": "login"}}
        assert MAY_NOT in site.clone("editor", "no", **login)
        said = site.clone("cloner", "no", **login)
        assert 'secrets "login" is forbidden: User "cloner" cannot get resource "secrets"' in said
        assert server.asked == []
        assert "created" in site.clone("reader", "mine", **login)
        assert any(server.logins)
