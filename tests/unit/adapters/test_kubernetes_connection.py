"""Where an API server is and how to authenticate to it: what a kubeconfig gives, and what is said without."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubernetes_asyncio.config import ConfigException

from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.errors import TransientError, UsageError

SERVER = "https://api.example.org:6443/"


def kubeconfig(folder: Path, *, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "contexts": [{"name": "this", "context": {"cluster": "this", "user": "this"}}],
        "clusters": [{"name": "this", "cluster": cluster}],
        "users": [{"name": "this", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(msgspec.yaml.encode(document))
    return path


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
    assert (await Connection.load(None)).url == SERVER.rstrip("/")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=f"^there is no kubeconfig at {tmp_path / 'none'}: "):
        await Connection.load(None)


async def test_an_account_of_a_pod_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod, without a kubeconfig, its own account is taken."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(UsageError, match=r"^no usable account of this pod: .*PVBUS_KUBECONFIG"):
        await Connection.load(None)


async def test_credentials_that_cannot_be_renewed_are_tried_again(tmp_path: Path) -> None:
    """A plugin that fails once must not end a service."""
    path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={"token": "secret"})
    connection = await Connection.load(path)

    async def failing(_: object) -> None:
        raise ConfigException("the plugin ended with 1")

    connection._configuration.refresh_api_key_hook = failing
    with pytest.raises(TransientError, match=r"^the credentials for https://api.example.org:6443 cannot"):
        await connection.headers()
