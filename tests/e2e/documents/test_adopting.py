"""The documents of adoption work as they are written, on an API server with what the others left there.

The stand-ins for Crossplane and kapp-controller are what these leave: installs, revisions, objects, and a
Deployment that installs nothing. A block that runs services runs in the background until the document says
that they are ended.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cli.command import REPOSITORY, environment, running
from tests.e2e.documents.test_commands import blocks
from tests.e2e.packaging.platform import kubectl_or_skip
from tests.tools import registry
from tests.tools.images import Pusher, xpkg_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.kubectl, pytest.mark.timeout(600)]

SECONDS_MAX = 400
CRDS = REPOSITORY / "schemas" / "crds" / "packaging"
RUN = re.compile(r"^pvbus run .*$", re.M)
ENDS = "End pvbus with Ctrl-C"
END = 'kill -TERM "$server"; wait "$server"\n'
FAST = {"PVBUS_OBSERVE_SECONDS": "1"}
Object = dict[str, Any]


def script(document: str) -> str:
    """Return one shell script: services run in the background, and end where their reader ends them."""
    text, rest = f"set -eux\nexport PATH={Path('bin').absolute()}:$PATH\n", document
    for block in blocks(document):
        before, _, rest = rest.partition(block)
        ended = ENDS in before or "End it with Ctrl-C" in before
        text += (END if ended else "") + RUN.sub(r"{ exec \g<0>; } >> server.log 2>&1 & server=$!", block)
    return text


class Machine:
    """A folder with the documents' commands, and an API server that `kubectl` finds."""

    def __init__(self, folder: Path, kubectl: Path) -> None:
        self.folder, self.kubectl_program = folder, kubectl
        programs = folder / "bin"
        programs.mkdir()
        (programs / "pvbus").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m pvbus.cli "$@"\n')
        (programs / "pvbus").chmod(0o755)
        path = f"{programs}:{kubectl.parent}:{os.environ['PATH']}"
        self.variables = environment(PYTHONUNBUFFERED="1", PATH=path, HOME=str(folder), **FAST)
        del self.variables["KUBECONFIG"]

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(self.kubectl_program), *arguments],
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def create(self, *objects: Object) -> None:
        """Create objects; a status is written as its controller does."""
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))
        for each in objects:
            if "status" in each:
                name = each["metadata"]["name"]
                where = ("-n", each["metadata"]["namespace"]) if "namespace" in each["metadata"] else ()
                group = each["apiVersion"].rpartition("/")[0]
                patch = json.dumps({"status": each["status"]})
                kind = f"{each['kind'].lower()}s.{group}"
                options = ("--subresource=status", "--type=merge", "-p", patch)
                self.kubectl("patch", kind, name, *where, *options)

    def get(self, *arguments: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def run(self, document: str) -> str:
        """Run a document, and return what it printed."""
        log = self.folder / "commands.log"
        text = script((REPOSITORY / "docs" / document).read_text())
        with log.open("w") as stream:
            process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self.folder,
                env=self.variables,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_MAX)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        server = self.folder / "server.log"
        more = server.read_text()[-4000:] if server.exists() else ""
        assert process.wait(30) == 0, f"{log.read_text()}\n{more}"
        return log.read_text()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.chdir(tmp_path)
    found = Machine(tmp_path, kubectl_or_skip())
    with running("apiserver", "--data", "data", cwd=tmp_path) as server:
        server.wait_for("kubeconfig")
        (tmp_path / ".kube").symlink_to(tmp_path / "kube")
        (tmp_path / "kube").mkdir()
        (tmp_path / "kube" / "config").write_text((tmp_path / "data" / "kubeconfig").read_text())
        found.kubectl("apply", "--server-side", *(x for crd in CRDS.iterdir() for x in ("-f", str(crd))))
        yield found


def deployment(name: str, namespace: str) -> tuple[Object, Object]:
    labels = {"app": name}
    pod = {"containers": [{"name": name, "image": "example.org/x"}]}
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    )


# ---------------------------------------------------------------- Crossplane


def xpkg(kind: str, name: str, *needs: Object) -> dict[str, bytes]:
    meta = {
        "apiVersion": "meta.pkg.crossplane.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"dependsOn": list(needs)},
    }
    return {"package.yaml": yaml.safe_dump(meta).encode()}


def crossplane_installed(machine: Machine, host: str, pusher: Pusher) -> list[str]:
    """Install app and acme-net as Crossplane does; return the names of their revisions."""
    needs = {"provider": f"{host}/net", "version": ">=v1.0.0"}
    digests = {"app": pusher.push("app", "v1.0.0", xpkg_of(xpkg("Configuration", "app", needs)))}
    digests["acme-net"] = pusher.push("net", "v1.0.0", xpkg_of(xpkg("Provider", "net")))
    newer = xpkg_of({"package.yaml": xpkg("Provider", "net")["package.yaml"] + b"# newer\n"})
    pusher.push("net", "v1.1.0", newer)
    newer_needs = {"provider": f"{host}/net", "version": ">=v1.1.0"}
    pusher.push("app", "v1.1.0", xpkg_of(xpkg("Configuration", "app", newer_needs)))
    names = []
    for kind, name, image in (("Configuration", "app", "app"), ("Provider", "acme-net", "net")):
        package, revision = f"{host}/{image}:v1.0.0", f"{name}-{digests[name].rpartition(':')[2][:12]}"
        names.append(revision)
        api = "pkg.crossplane.io/v1"
        conditions = [
            {"type": each, "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for each in ("Installed", "Healthy")
        ]
        status = {
            "conditions": conditions,
            "currentRevision": revision,
            "currentIdentifier": package,
        }
        meta = {"name": name}
        spec = {"package": package}
        machine.create({"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec, "status": status})
        owner = machine.get(f"{kind.lower()}s", name)
        reference = {"apiVersion": api, "kind": kind, "name": name, "uid": owner["metadata"]["uid"]}
        references = [{**reference, "controller": True, "blockOwnerDeletion": True}]
        machine.create(
            {
                "apiVersion": api,
                "kind": f"{kind}Revision",
                "metadata": {
                    "name": revision,
                    "labels": {"pkg.crossplane.io/package": name},
                    "ownerReferences": references,
                },
                "spec": {"desiredState": "Active", "image": package, "revision": 3},
            }
        )
    return names


def test_the_way_from_crossplane_and_back_runs(machine: Machine, tmp_path: Path) -> None:
    """Revisions keep their names, a dependency follows a range, and Crossplane gets all of it back."""
    program = registry.found_or_skipped()
    (tmp_path / "registry").mkdir()
    machine.create(*deployment("crossplane", "crossplane-system"))
    with registry.running(program, tmp_path / "registry") as images:
        host = images.url.partition("://")[2]
        names = crossplane_installed(machine, host, Pusher(images.url))
        output = machine.run("adopting-crossplane.md")
    assert "2 equal" in output
    assert f"{names[1]} Active" in output
    assert "provider.pkg.crossplane.io/acme-net patched" in output
    for kind, name in (("configuration", "app"), ("provider", "acme-net")):
        live = machine.get(kind, name)
        assert live["spec"]["skipDependencyResolution"] is False
        assert live["status"]["currentRevision"] not in names
    assert machine.get("provider", "acme-net")["spec"]["package"] == f"{host}/net:v1.1.0"
    former = machine.get("providerrevision", names[1])
    assert former["spec"]["desiredState"] == "Inactive"


# ---------------------------------------------------------------- kapp-controller


APISERVICES = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: apiservices.apiregistration.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: apiregistration.k8s.io
  names: {kind: APIService, listKind: APIServiceList, plural: apiservices, singular: apiservice}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
SERVICE = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": "v1alpha1.data.packaging.carvel.dev"},
    "spec": {"group": "data.packaging.carvel.dev", "version": "v1alpha1"},
}
CONTENT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {size: '1'}\n"
LABEL = "1700000000000000000"


def kapp_installed(machine: Machine) -> None:
    """Install web 1.0.0 as kapp-controller does."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "sa", "namespace": "demo"}
    inline = {"fetch": [{"inline": {"paths": {"cm.yml": CONTENT}}}]}
    steps = {**inline, "template": [{"ytt": {}}], "deploy": [{"kapp": {}}]}
    condition = {"type": "ReconcileSucceeded", "status": "True"}
    conditions = [condition]
    machine.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
    machine.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa", "namespace": "demo"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "sa", "namespace": "demo"},
            "subjects": [subject],
            "roleRef": role,
        },
        {
            "apiVersion": "data.packaging.carvel.dev/v1alpha1",
            "kind": "Package",
            "metadata": {"name": "web.dev.1.0.0", "namespace": "demo"},
            "spec": {"refName": "web.dev", "version": "1.0.0", "template": {"spec": steps}},
        },
        {
            "apiVersion": "packaging.carvel.dev/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": "web", "namespace": "demo"},
            "spec": {
                "serviceAccountName": "sa",
                "packageRef": {"refName": "web.dev", "versionSelection": {"constraints": ">=1.0.0"}},
            },
            "status": {"version": "1.0.0", "observedGeneration": 1, "conditions": conditions},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "web.app", "namespace": "demo", "labels": {"kapp.k14s.io/is-app": ""}},
            "data": {"spec": json.dumps({"labelKey": "kapp.k14s.io/app", "labelValue": LABEL})},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "web", "namespace": "demo", "labels": {"kapp.k14s.io/app": LABEL}},
            "data": {"size": "1"},
        },
    )


def test_the_way_from_kapp_controller_and_back_runs(machine: Machine) -> None:
    """Objects keep kapp's labels, and no finalizer of ours is left."""
    machine.create(*deployment("kapp-controller", "kapp-controller"))
    machine.kubectl("apply", "-f", "-", stdin=APISERVICES)
    machine.kubectl("wait", "crd/apiservices.apiregistration.k8s.io", "--for=condition=Established")
    machine.create(SERVICE)
    kapp_installed(machine)
    output = machine.run("adopting-carvel.md")
    assert output.count("1 equal") == 2
    assert f"kapp.k14s.io/app={LABEL}" in output
    live = machine.get("configmap", "web", "-n", "demo")
    assert live["metadata"]["annotations"]["pvbus.dev/installed-by"] == "demo/web"
    install = machine.get("packageinstall", "web", "-n", "demo")
    assert "finalizers" not in install["metadata"]
    assert "pvbus.dev/objects" not in install["metadata"].get("annotations", {})
