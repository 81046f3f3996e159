"""pvbus' services on a real API server, and fleets for them, each in a namespace of its own."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pvbus.cli.supervisor import States
from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.state import ProcessState
from tests.e2e.cli.command import Running, running
from tests.tools.pace import patience
from tests.tools.packages import published
from tests.tools.ports import free_ports
from tests.tools.realcluster import RealCluster

SECONDS_MAX = patience(90.0)
"""An idle machine needs a tenth of it; the others that run tests on this one take their share."""

USER = "pvbus"
HORIZON_SECONDS = 6.0  # longer than removals wait: who is settled by it has none to do

Object = dict[str, Any]
_state = msgspec.json.Decoder(ProcessState)


def eventually(condition: Callable[[], bool], problem: Callable[[], object] = lambda: "") -> None:
    """Wait until the state of the world is as wanted. problem: what is the case instead."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, problem() or "the state did not come about in time"
        time.sleep(0.1)


class Kubectl:
    """kubectl as the administrator of a cluster."""

    def __init__(self, binary: Path, cluster: RealCluster, home: Path) -> None:
        self.binary = binary
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(cluster.kubeconfig),
        }

    def __call__(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run a command that must succeed; return what it prints."""
        done = subprocess.run(
            [str(self.binary), *map(str, arguments)],
            input=stdin,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}: {done.stderr}{done.stdout}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def apply(self, objects: Sequence[Object]) -> None:
        self("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))


class Services:
    """The five services in one process, as `pvbus run` starts them, with a bus in a file."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self._folder = folder
        self._kubeconfig = cluster.kubeconfig_of(USER)
        self._audit = cluster.audit
        (self._port,) = free_ports(1)
        self._stack = ExitStack()
        self._process: Running | None = None

    def start(self) -> None:
        """Start them, and wait until they have done all there is to do."""
        self._process = self._stack.enter_context(
            running(
                *("run", *SERVICES, "--kubeconfig", self._kubeconfig),
                *("--bus", f"sqlite:{self._folder / 'bus.db'}", "--health-port", str(self._port)),
                cwd=self._folder,
            )
        )
        self.settle()

    def settle(self) -> None:
        eventually(lambda: self.states().is_settled(horizon_seconds=HORIZON_SECONDS), lambda: self.output)

    def states(self) -> States:
        assert self._process is not None
        assert self._process.process.poll() is None, self.output
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/state", timeout=3.0) as answer:
                return States((_state.decode(answer.read()),))
        except (urllib.error.URLError, OSError):
            return States((), ("services",))

    @property
    def output(self) -> str:
        assert self._process is not None
        return self._process.output

    def stop(self) -> None:
        """End them as Ctrl-C does."""
        assert self._process is not None
        assert self._process.end() == 0, self.output
        self._stack.close()

    def kill(self) -> None:
        self._stack.close()


class Fleet:
    """Some clusters, and a set over them, in a namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str, clusters: int) -> None:
        self._kubectl = kubectl
        self.namespace = namespace
        self.clusters = tuple(f"site-{number:02}" for number in range(1, clusters + 1))

    def apply(self) -> None:
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self._kubectl.apply([head])
        self._kubectl.apply([*self._objects()])

    def delete(self) -> None:
        """Delete the namespace, and wait until it is gone."""
        self._kubectl("delete", "namespace", self.namespace, f"--timeout={SECONDS_MAX:.0f}s")

    def _objects(self) -> Iterator[Object]:
        for name in ("blueprints", "edge"):
            spec = {"type": "git", "git": {"repo": f"/nowhere/{name}.git", "branch": "main"}}
            yield self._object("config.porch.kpt.dev/v1alpha1", "Repository", name, spec)
        yield published(self.namespace, "blueprints", "web", 1)
        for name in self.clusters:
            made = self._object("fleet.example.dev/v1", "Cluster", name, {"nodes": 3})
            made["metadata"]["labels"] = {"stage": "production", "tier": "standard"}
            yield made
        yield self._object("config.porch.kpt.dev/v1alpha2", "PackageVariantSet", "web", SET)

    def _object(self, version: str, kind: str, name: str, spec: Object) -> Object:
        metadata = {"namespace": self.namespace, "name": name}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    @staticmethod
    def variant_of(cluster: str) -> str:
        return f"web-edge-{cluster}-web"

    def kubectl(self, *arguments: str) -> str:
        return self._kubectl(*arguments, "--namespace", self.namespace)

    def get(self, resource: str, name: str) -> Object:
        found: Object = self._kubectl.json("get", resource, name, "--namespace", self.namespace)
        return found

    def variants(self) -> dict[str, Object]:
        """Return the PackageVariants by name."""
        listed = self._kubectl.json("get", "packagevariants", "--namespace", self.namespace)
        return {each["metadata"]["name"]: each for each in listed["items"]}

    def names(self) -> list[str]:
        listed = self.kubectl("get", "packagevariants", "-o", "name")
        return sorted(re.findall(r"/(\S+)", listed))

    def condition(self, name: str) -> Object:
        """Return a condition of the set, {} if it has none of that type."""
        conditions = self.get("packagevariantset", "web").get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == name), {})

    def is_applied(self, count: int) -> bool:
        """Return whether there are so many variants, and the set says that these are all."""
        return len(self.names()) == count and self.condition("TargetsApplied").get("status") == "True"

    def tier_of(self, variant: str) -> str:
        context = self.get("packagevariant", variant)["spec"]["packageContext"]["data"]
        return str(context["tier"])


SET: Object = {
    "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
    "targets": [
        {
            "objectSelector": {
                "apiVersion": "fleet.example.dev/v1",
                "kind": "Cluster",
                "matchLabels": {"stage": "production"},
            },
            "template": {
                "downstream": {"repo": "edge", "packageExpr": "target.name + '-web'"},
                "packageContext": {"dataExprs": [{"key": "tier", "valueExpr": "target.labels['tier']"}]},
                "injectors": [{"group": "fleet.example.dev", "kind": "Cluster", "nameExpr": "target.name"}],
            },
        }
    ],
}
