"""A package store behind a real kube-apiserver, with one repository and two people who use kubectl."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.tools.packagestore import Replica
from tests.tools.realcluster import RealCluster

GROUP = "porch.kpt.dev"
EDITOR, APPROVER = "ann", "bob"
RULES: dict[str, list[dict[str, Any]]] = {
    EDITOR: [
        {"apiGroups": [GROUP], "resources": ["packagerevisions", "packagerevisionresources"], "verbs": ["*"]},
        {"apiGroups": [GROUP], "resources": ["packagerevisions/approval"], "verbs": ["get"]},
    ],
    APPROVER: [
        {"apiGroups": [GROUP], "resources": ["packagerevisions"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": [GROUP],
            "resources": ["packagerevisions/approval"],
            "verbs": ["get", "update", "patch"],
        },
    ],
}
RBAC = "rbac.authorization.k8s.io"
SECONDS_MAX = 90


class TwoUsersWorld:
    """A cluster with the package store and one repository. kubectl runs as the user that is named."""

    def __init__(self, cluster: RealCluster, replica: Replica, binary: Path, folder: Path) -> None:
        self.cluster = cluster
        self.replica = replica
        self.folder = folder
        self.git = folder / "blue.git"
        self._binary = binary
        self._configs = {"": cluster.kubeconfig}
        for user, rules in RULES.items():
            self._configs[user] = cluster.kubeconfig_of(user)
            self.apply(
                _rbac("Role", user) | {"rules": rules},
                {
                    **_rbac("RoleBinding", user),
                    "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": user},
                    "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
                },
            )
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", self.git], check=True)
        spec = {"type": "git", "git": {"repo": str(self.git), "branch": "main", "createBranch": True}}
        self.apply(self.object("config.porch.kpt.dev/v1alpha1", "Repository", "blue", spec))

    def object(self, version: str, kind: str, name: str, spec: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "default"}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    def run(self, user: str, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._binary, "--namespace=default", *arguments],
            input=stdin,
            env=self.environment(user),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def environment(self, user: str) -> dict[str, str]:
        path = os.environ["PATH"]
        return {"PATH": path, "HOME": str(self.folder), "KUBECONFIG": str(self._configs[user])}

    def command(self, *arguments: str) -> list[str]:
        return [str(self._binary), "--namespace=default", *arguments]

    def kubectl(self, user: str, *arguments: str, stdin: str = "") -> str:
        done = self.run(user, *arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr}{self.replica.output[-2000:]}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("", *arguments, "-o", "json"))

    def apply(self, *objects: Any) -> None:
        self.kubectl("", "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def draft(self, user: str, package: str) -> str:
        """Create a draft of a new package, and return its name."""
        spec = {
            "repository": "blue",
            "packageName": package,
            "workspaceName": "v1",
            "lifecycle": "Draft",
            "tasks": [{"type": "init", "init": {"description": "made by a test"}}],
        }
        made = self.object(f"{GROUP}/v1alpha1", "PackageRevision", "", spec)
        del made["metadata"]["name"]
        self.kubectl(user, "create", "-f", "-", stdin=yaml.safe_dump(made))
        return f"blue.{package}.v1"

    def publish(self, package: str) -> None:
        """Publish the first revision of a new package."""
        name = self.draft(EDITOR, package)
        self.propose(EDITOR, name)
        approved = self.approve(APPROVER, name)
        assert approved.returncode == 0, approved.stderr

    def files(self, name: str) -> dict[str, str]:
        return dict(self.json("get", "packagerevisionresources", name)["spec"]["resources"])

    def save(self, user: str, name: str, text: str) -> None:
        """Write the file `note.txt` of a draft as a user does."""
        files = json.loads(self.kubectl(user, "get", "packagerevisionresources", name, "-o", "json"))
        files["spec"]["resources"]["note.txt"] = text
        self.kubectl(user, "replace", "-f", "-", stdin=json.dumps(files))

    def propose(self, user: str, name: str) -> None:
        self.kubectl(user, "patch", "packagerevision", name, *lifecycle("Proposed"))

    def approve(self, user: str, name: str) -> "subprocess.CompletedProcess[str]":
        return self.run(
            user, "patch", "packagerevision", name, "--subresource=approval", *lifecycle("Published")
        )

    def authors(self, ref: str = "main", remote: Path | None = None) -> list[str]:
        log = ["git", "-C", str(remote or self.git), "log", "--format=%an", ref]
        return subprocess.run(log, check=True, capture_output=True, text=True).stdout.split("\n")


def _rbac(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name}}


def lifecycle(value: str) -> tuple[str, str, str]:
    return "--type=merge", "-p", json.dumps({"spec": {"lifecycle": value}})
