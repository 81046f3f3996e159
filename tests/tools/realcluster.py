"""Starts a real Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager.

RBAC is on, and the API server logs each answer (`tests.tools.auditlog`). The controller manager runs what a
cluster without machines needs: garbage collection, namespaces and service accounts. Each control plane has a
folder and ports of its own, and is ended by the process ids of its programs, and by the kernel if this
process dies. `real_cluster_of` makes a pytest fixture of it.
"""

import base64
import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools import auditlog
from tests.tools.auditlog import AuditLog
from tests.tools.authority import Authority, Pair, make_key_pair
from tests.tools.clusterprograms import ClusterUnavailableError, Programs, find_or_build, version_of
from tests.tools.kafka import _detach
from tests.tools.ports import free_ports

START_SECONDS_MAX = 240.0
"""A server is ready after 5 s on a free machine; machines that run tests are rarely free."""

END_SECONDS_MAX = 20.0
ADMINS = "system:masters"
FRONT_PROXY = "front-proxy-client"
CONTROLLERS_RUN = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "clusterrole-aggregation-controller",
)
PORTS = 3
"""etcd for its clients and for its peers, and the API server."""


class ClusterFailedError(Exception):
    """The programs are there, and do not start: a failure of the tests, not a reason to skip them."""


class Program:
    """One process, with its output in a file."""

    def __init__(self, binary: Path, folder: Path, arguments: Sequence[str]) -> None:
        self.name = binary.name
        self._command = [str(binary), *arguments]
        self.log = folder / f"{binary.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, also again after `kill`. It ends with the thread that calls this."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_detach
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises ClusterFailedError if it does not run."""
        if self._process is None:
            raise ClusterFailedError(f"{self.name} does not run")
        return self._process.pid

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]

    def freeze(self) -> None:
        """Stop it as SIGSTOP does: its connections stay open, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS_MAX)
            self._process = None


class RealCluster:
    """A control plane in a folder. `kubeconfig` is that of an administrator."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.folder = folder
        self.version = version_of(programs.apiserver)
        etcd_port, peer_port, self.port = free_ports(PORTS)
        self.url = f"https://127.0.0.1:{self.port}"
        self.users = Authority(folder, "cluster-ca")
        self.front_proxies = Authority(folder, "front-proxy-ca")
        """Signs the certificates by which aggregated API servers know this API server."""
        self.front_proxy = self.front_proxies.issue(FRONT_PROXY)
        self._admin = self.users.issue("kubernetes-admin", [ADMINS])
        self.kubeconfig = self._write_kubeconfig("kubernetes-admin", self._admin)
        manager = self.kubeconfig_of("system:kube-controller-manager", ADMINS)
        serving = self.users.issue("kube-apiserver", hosts=["127.0.0.1", "localhost"])
        accounts = make_key_pair(folder, "service-accounts")
        (folder / "audit-policy.yaml").write_text(auditlog.POLICY, encoding="utf-8")
        self.audit = AuditLog(folder / "audit.log")
        self.etcd_url = etcd_url = f"http://127.0.0.1:{etcd_port}"
        self.etcd = Program(
            programs.etcd, folder, _etcd_arguments(folder, etcd_url, f"http://127.0.0.1:{peer_port}")
        )
        self.apiserver = Program(
            programs.apiserver, folder, self._apiserver_arguments(etcd_url, serving, accounts)
        )
        self.controllers = Program(
            programs.controllers, folder, self._controllers_arguments(manager, accounts)
        )

    def _apiserver_arguments(self, etcd_url: str, serving: Pair, accounts: Pair) -> list[str]:
        return [
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.users.certificate}",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            f"--requestheader-client-ca-file={self.front_proxies.certificate}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-uid-headers=X-Remote-Uid",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.front_proxy.certificate}",
            f"--proxy-client-key-file={self.front_proxy.key}",
            f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit.file}",
        ]

    def _controllers_arguments(self, kubeconfig: Path, accounts: Pair) -> list[str]:
        return [
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(CONTROLLERS_RUN)}",
            f"--service-account-private-key-file={accounts.key}",
            f"--root-ca-file={self.users.certificate}",
            "--leader-elect=false",
            "--secure-port=0",
        ]

    # ------------------------------------------------------------ users

    def kubeconfig_of(self, user: str, *groups: str) -> Path:
        """Write a kubeconfig for a user, known by a client certificate, and return its path.

        RBAC decides what the user may do; the group `ADMINS` may do everything.
        """
        return self._write_kubeconfig(user, self.users.issue(user, groups))

    def kubeconfig_of_account(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with a token of a service account, and return its path. Raises OSError."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        code, answer = self.ask("POST", path, body)
        if code != 201:
            raise OSError(f"no token for {namespace}/{name}: {answer}")
        return self._write_account(f"{namespace}-{name}", {"token": answer["status"]["token"]})

    def _write_kubeconfig(self, user: str, pair: Pair) -> Path:
        account = {
            "client-certificate-data": _base64(pair.certificate),
            "client-key-data": _base64(pair.key),
        }
        return self._write_account(user, account)

    def _write_account(self, user: str, account: Mapping[str, str]) -> Path:
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.users.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": user, "user": dict(account)}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        file = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        return file

    # ------------------------------------------------------------ requests

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of the administrator."""
        context = ssl.create_default_context(cafile=str(self.users.certificate))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        return context

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Send a request as the administrator. Return the code and the answer. Raises OSError."""
        context = self.client_context()
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(content) if is_json else content.decode()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        """Return whether the server has made what every cluster has, and authorizes by it."""
        with contextlib.suppress(OSError):
            if self.ask("GET", "/readyz")[0] == 200:
                return self.ask("GET", "/api/v1/namespaces/default")[0] == 200
        return False

    # ------------------------------------------------------------ processes

    @property
    def _programs(self) -> tuple[Program, ...]:
        return (self.controllers, self.apiserver, self.etcd)

    def start(self, definitions: Iterable[Path] = ()) -> bool:
        """Start everything; return False if a server ended instead (its port may have been taken).

        definitions: files of CustomResourceDefinitions. They are there before the controllers, as the garbage
        collector looks for new kinds only each 30 s.
        """
        self.etcd.start()
        self.apiserver.start()
        if not self.wait_until_ready():
            return False
        for file in definitions:
            self.define(yaml.safe_load(file.read_text(encoding="utf-8")))
        self.controllers.start()
        return True

    def wait_until_ready(self) -> bool:
        """Wait until the API server is ready; False if it or etcd ended instead."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if not (self.apiserver.is_running and self.etcd.is_running):
                return False
            if time.monotonic() > deadline:
                raise ClusterFailedError(f"kube-apiserver is not ready: {self.apiserver.tail()}")
            time.sleep(0.1)
        return True

    def define(self, definition: Mapping[str, Any]) -> None:
        """Create a CustomResourceDefinition, and wait until the server serves it."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        code, answer = self.ask("POST", path, definition)
        if code != 201:
            raise ClusterFailedError(f"the API server refuses a definition: {answer}")
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_established(self.ask("GET", f"{path}/{definition['metadata']['name']}")[1]):
            if time.monotonic() > deadline:
                raise ClusterFailedError(f"the API server does not serve {definition['metadata']['name']}")
            time.sleep(0.05)

    def ended_program(self) -> str | None:
        """Return the name of a program that ended by itself, None if all run."""
        return next((each.name for each in self._programs if not each.is_running), None)

    def logs(self) -> list[Path]:
        """Return what the programs have written: their logs, and the answers of the API server."""
        return [each.log for each in self._programs if each.log.exists()] + [self.audit.file]

    def tails(self) -> str:
        """Return the end of each program's log."""
        return "\n".join(f"{each.name}: {each.tail()}" for each in self._programs if each.log.exists())

    def kill(self) -> None:
        for program in self._programs:
            program.kill()


def is_established(definition: Mapping[str, Any]) -> bool:
    """Return whether a CustomResourceDefinition is accepted and served."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    good = {each["type"] for each in conditions if each["status"] == "True"}
    return {"NamesAccepted", "Established"} <= good


def _etcd_arguments(folder: Path, clients: str, peers: str) -> list[str]:
    return [
        "--name=default",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--watch-progress-notify-interval=5s",  # as kubeadm sets it: bookmarks of quiet kinds
        "--unsafe-no-fsync",
    ]


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


@contextlib.contextmanager
def running(definitions: Iterable[Path] = ()) -> Iterator[RealCluster]:
    """Run a control plane. Raises ClusterUnavailableError, ClusterFailedError.

    definitions: files of CustomResourceDefinitions.
    """
    programs = find_or_build()
    files = tuple(definitions)
    with tempfile.TemporaryDirectory(prefix="pvbus-cluster-", ignore_cleanup_errors=True) as folder:
        cluster = _start(programs, Path(folder), files)
        try:
            yield cluster
        finally:
            cluster.kill()


def _start(programs: Programs, folder: Path, definitions: Sequence[Path]) -> RealCluster:
    for attempt in range(3):  # between choosing a port and listening, somebody else may take it
        location = folder / str(attempt)
        location.mkdir()
        cluster = RealCluster(programs, location)
        try:
            if cluster.start(definitions):
                return cluster
        except BaseException:
            cluster.kill()
            raise
        cluster.kill()
    raise ClusterFailedError(f"no control plane could be started: {cluster.tails()}")


def real_cluster_of(definitions: Iterable[Path] = ()) -> Iterator[RealCluster]:
    """Run a control plane for a pytest fixture. Where none can be had, skip its tests; under CI fail them."""
    try:
        with running(definitions) as cluster:
            yield cluster
    except ClusterUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
