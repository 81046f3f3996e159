"""Credentials: what is read here is what kubernetes-asyncio reads; it is asked where more is to be known."""

import base64
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes_asyncio.config import kube_config

from pvbus.adapters.kubernetes import credentials
from pvbus.adapters.kubernetes.connection import Connection, _of_library
from pvbus.adapters.kubernetes.credentials import of_file, of_pod
from pvbus.errors import UsageError
from tests.tools.certificate import make_certificate

SERVER = "https://api.example.org:6443/"


def kubeconfig(
    folder: Path, *, cluster: dict[str, Any], user: dict[str, Any], context: dict[str, Any] | None = None
) -> Path:
    """Write one with two contexts: `this`, which is the current one, and `other`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "contexts": [
            {"name": "other", "context": {"cluster": "other", "user": "other"}},
            {"name": "this", "context": {"cluster": "this", "user": "this", **(context or {})}},
        ],
        "clusters": [
            {"name": "this", "cluster": cluster},
            {"name": "other", "cluster": {"server": "https://other.example.org"}},
        ],
        "users": [{"name": "this", "user": user}, {"name": "other", "user": {"token": "other"}}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(msgspec.yaml.encode(document))
    return path


async def told(connection: Connection) -> tuple[str, dict[str, str], Any]:
    """Return everything of a connection that a request shows."""
    context = connection.ssl
    assert isinstance(context, ssl.SSLContext | bool)
    if isinstance(context, bool):
        return connection.url, await connection.headers(), context
    return (
        connection.url,
        await connection.headers(),
        (context.check_hostname, context.verify_mode, context.get_ca_certs()),
    )


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"server": SERVER}, {"token": "secret"}),
        ({"server": SERVER, "certificate-authority": "ca.pem"}, {"token": "secret"}),
        ({"server": SERVER, "certificate-authority-data": "THE DATA"}, {"token": "secret"}),
        ({"server": SERVER, "certificate-authority-data": "THE DATA", "certificate-authority": "none"}, {}),
        ({"server": SERVER, "insecure-skip-tls-verify": True}, {}),
        ({"server": SERVER}, {"client-certificate": "keystore.pem", "client-key": "keystore.pem"}),
        ({"server": "http://127.0.0.1:8001"}, {"token": "secret"}),
    ],
)
async def test_what_is_read_here_is_what_the_library_reads(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    """Address, header and TLS are the same, whoever reads the file."""
    _, authority = make_certificate(tmp_path)
    if "certificate-authority-data" in cluster:
        data = base64.b64encode(authority.read_bytes()).decode()
        cluster = {**cluster, "certificate-authority-data": data}
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    found = of_file(path)
    assert found is not None
    assert await told(Connection(found)) == await told(Connection(await _of_library(path, None)))


async def test_another_context_than_the_current_one_can_be_chosen(tmp_path: Path) -> None:
    """`--context` takes cluster and user of that context."""
    path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={})
    connection = await Connection.load(path, "other")
    assert connection.url == "https://other.example.org"
    assert await connection.headers() == {"Authorization": "Bearer other"}


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"tls-server-name": "api"}, {}),
        ({"proxy-url": "http://proxy:3128"}, {}),
        ({"certificate-authority-data": "?"}, {}),
        ({}, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"tokenFile": "token"}),
        ({}, {"username": "me", "password": "secret"}),
        ({}, {"client-certificate-data": "QQ==", "client-key-data": "QQ=="}),
    ],
)
def test_what_is_not_understood_whole_is_left_to_the_library(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    """Nothing of an entry is overlooked: a field that is not known here makes it the library's."""
    assert of_file(kubeconfig(tmp_path, cluster={"server": SERVER, **cluster}, user=user)) is None


@pytest.mark.parametrize("content", ["", "[]", "a: [", "contexts: []", "current-context: this\ncontexts: 1"])
def test_what_is_no_kubeconfig_is_left_to_the_library(tmp_path: Path, content: str) -> None:
    """It knows how to say what is wrong."""
    path = tmp_path / "kubeconfig"
    path.write_text(content, encoding="utf-8")
    assert of_file(path) is None


async def test_credentials_of_a_plugin_come_through_the_library(tmp_path: Path) -> None:
    """A kubeconfig with `exec` works as one with a token."""
    api = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": api, "kind": "ExecCredential", "status": {"token": "from a plugin"}}
    plugin = {"apiVersion": api, "command": "echo", "args": [msgspec.json.encode(answer).decode()]}
    path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={"exec": plugin})
    connection = await Connection.load(path)
    assert connection.url == SERVER.rstrip("/")
    assert await connection.headers() == {"Authorization": "Bearer from a plugin"}


@pytest.mark.parametrize("given", [None, "gone", "broken.pem"])
async def test_an_unusable_kubeconfig_is_told_with_its_name(tmp_path: Path, given: str | None) -> None:
    """Missing files are a mistake of usage, whether the kubeconfig or what it names."""
    (tmp_path / "broken.pem").write_text("no certificate", encoding="ascii")
    path = tmp_path / "missing"
    if given is not None:
        path = kubeconfig(tmp_path, cluster={"server": SERVER, "certificate-authority": given}, user={})
    words = "there is no" if given is None else "no usable"
    with pytest.raises(UsageError, match=f"^{words} kubeconfig at {path}: .*PVBUS_KUBECONFIG"):
        await Connection.load(path)


async def test_several_kubeconfigs_are_not_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG may be a list, as for kubectl; nothing there at all is told with the place."""
    path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={"token": "secret"})
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    several = f"{tmp_path / 'none'}:{path}"
    monkeypatch.setenv("KUBECONFIG", several)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", several)  # read when it was imported
    assert (await Connection.load(None)).url == SERVER.rstrip("/")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=f"^there is no kubeconfig at {tmp_path / 'none'}: "):
        await Connection.load(None)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The files that a pod finds of its account."""
    folder = tmp_path / "account"
    folder.mkdir()
    _, authority = make_certificate(tmp_path)
    authority.rename(folder / "ca.crt")
    (folder / "token").write_text("first\n", encoding="ascii")
    return folder


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_a_pod_uses_its_account(account: Path) -> None:
    """Address from its environment, token and authority from its files."""
    connection = Connection(of_pod(POD, account))
    assert connection.url == "https://10.0.0.1:443"
    assert await connection.headers() == {"Authorization": "Bearer first"}
    assert isinstance(connection.ssl, ssl.SSLContext)
    assert len(connection.ssl.get_ca_certs()) == 1
    assert of_pod(POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account).url == "https://[fd00::1]:443"


async def test_a_pod_takes_up_a_new_token_and_keeps_the_old_one_while_there_is_none(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet replaces tokens under a running process."""
    found = of_pod(POD, account)
    (account / "token").write_text("second", encoding="ascii")
    assert await found.authorization() == "Bearer first", "the file is not read for each request"
    monkeypatch.setattr(credentials, "TOKEN_SECONDS", -1.0)
    assert await found.authorization() == "Bearer second"
    (account / "token").unlink()
    assert await found.authorization() == "Bearer second"


@pytest.mark.parametrize("broken", ["token", "ca.crt", ""])
def test_an_incomplete_account_is_told(account: Path, broken: str) -> None:
    """An empty file, a missing one, or no port: the process cannot begin."""
    environment = dict(POD)
    if broken:
        (account / broken).write_text("", encoding="ascii")
    else:
        del environment["KUBERNETES_SERVICE_PORT"]
    with pytest.raises(UsageError, match="no usable account of this pod"):
        of_pod(environment, account)
    (account / "token").unlink()
    with pytest.raises(UsageError, match="no usable account of this pod"):
        of_pod(POD, account)


def test_a_service_starts_without_the_library() -> None:
    """To import it takes as long as half of everything else that a service imports."""
    code = "import sys, services.render.__main__; print('kubernetes_asyncio' in sys.modules)"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, check=True, text=True, env=dict(os.environ))
    assert told.stdout.strip() == "False"
