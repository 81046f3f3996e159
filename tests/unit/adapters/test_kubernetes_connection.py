"""Where an API server is and how to authenticate to it: what a kubeconfig gives, and what is said without."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.errors import UsageError

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


async def header(path: Path) -> str:
    return (await (await Connection.load(path)).access()).headers.get("Authorization", "")


async def test_a_token_comes_before_a_plugin(tmp_path: Path) -> None:
    """As for kubectl, which does not run the plugin then."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
    user = {"token": "static", "exec": plugin}
    assert await header(kubeconfig(tmp_path, cluster={"server": SERVER}, user=user)) == "Bearer static"


async def test_a_provider_of_old_kubeconfigs(tmp_path: Path) -> None:
    """A stored token serves as it is; for one that needs a renewal, what to use is named."""
    provider: dict[str, Any] = {"name": "oidc", "config": {"id-token": "stored"}}
    path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={"auth-provider": provider})
    assert await header(path) == "Bearer stored"
    for name in ("gcp", "azure", "oidc"):
        path = kubeconfig(tmp_path, cluster={"server": SERVER}, user={"auth-provider": {"name": name}})
        with pytest.raises(UsageError, match=f'auth-provider "{name}" is not supported: use a credential'):
            await Connection.load(path)


@pytest.mark.parametrize("text", ["", "[]", "hello", "a: [", "kind: Config", "clusters: 5", "contexts: [5]"])
async def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"(?s)^no usable kubeconfig at {path}: .*PVBUS_KUBECONFIG"):
        await Connection.load(path)


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
