"""Credential plugins of a kubeconfig: what they are given, and what is said when they do not work."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.kubernetes import plugin as adapter
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.errors import TransientError, UsageError
from tests.unit.adapters.http_servers import issue, write_kubeconfig

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
SERVER = "https://api.example.org:6443"


def write_plugin(folder: Path, script: str) -> dict[str, Any]:
    path = folder / "get-token"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"apiVersion": V1, "command": "./get-token", "interactiveMode": "Never"}


def answer(status: dict[str, object], api: str = V1) -> str:
    text = msgspec.json.encode({"apiVersion": api, "kind": "ExecCredential", "status": status}).decode()
    return f"printf '%s' '{text}'"


async def headers(folder: Path, plugin: dict[str, Any], **cluster: Any) -> dict[str, str]:
    """Return the headers of a request. The plugin does not run before it."""
    connection = await Connection.load(write_kubeconfig(folder, SERVER, {"exec": plugin}, **cluster))
    try:
        return (await connection.access()).headers
    finally:
        await connection.close()


@pytest.mark.parametrize("api", [V1, V1BETA1])
async def test_a_token_of_a_plugin(tmp_path: Path, api: str) -> None:
    """The command may be relative to the kubeconfig. Fields may be null, as some tools write them."""
    script = answer({"token": "good", "expirationTimestamp": "2999-01-01T00:00:00Z"}, api)
    plugin = {**write_plugin(tmp_path, script), "apiVersion": api, "args": None, "env": None}
    assert await headers(tmp_path, plugin) == {"Authorization": "Bearer good"}


FAILURES = [
    ("echo 'sign in first' >&2; exit 7", "ended with exit code 7: sign in first; run it by hand"),
    ("exit 1", "ended with exit code 1: it printed no reason; run it by hand"),
    ("kill -9 $$", "was ended by signal 9: it printed no reason"),
    ("echo hello", r"printed no usable ExecCredential \(JSON is malformed"),
    ("true", r"printed no usable ExecCredential \(Input data was truncated\)"),
    ("echo '[]'", r"printed no usable ExecCredential \(Expected `object`, got `array`\)"),
    (answer({"token": "x"}, V1BETA1), f"its apiVersion is {V1BETA1}, not {V1}"),
    (answer({}), "it has neither a token nor a client certificate"),
    (answer({"clientCertificateData": "x"}), "it has a client certificate without its key"),
    (answer({"token": "a\nb"}), "its token has characters that no token has"),
    (answer({"token": "x", "expirationTimestamp": "soon"}), r"expirationTimestamp`\)"),
    (answer({"clientCertificateData": "x", "clientKeyData": "y"}), "certificate of the credential plugin"),
    ("head -c 2000000 /dev/zero", r"printed no usable ExecCredential \("),
    ("sleep 60 & echo $! > child; wait", "gave no answer within 0.5 s and was stopped; run it by hand"),
    ("sleep 60 & echo $! > child; exit 0", "gave no answer within 0.5 s"),
]


@pytest.mark.parametrize(("script", "said"), FAILURES)
async def test_a_plugin_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    """The message names the command and what to do. The service goes on; the plugin's children do not."""
    monkeypatch.setattr(adapter, "PLUGIN_SECONDS", 0.5 if "sleep" in script else 20.0)
    plugin = write_plugin(tmp_path, f"cd {tmp_path}\n{script}")
    with pytest.raises(TransientError, match=said) as caught:
        await headers(tmp_path, plugin)
    if "certificate of" not in said:
        assert str(caught.value).startswith('credential plugin "./get-token" ')
    if (tmp_path / "child").exists():
        child = int((tmp_path / "child").read_text())
        deadline = time.monotonic() + 5
        while is_running(child):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


def is_running(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


async def test_the_output_of_a_plugin_is_not_quoted(tmp_path: Path) -> None:
    """It may be a token with something wrong around it."""
    with pytest.raises(TransientError) as caught:
        await headers(tmp_path, write_plugin(tmp_path, "echo 'token: VERY-SECRET'"))
    assert "VERY-SECRET" not in str(caught.value)


UNUSABLE = [
    ({"command": "no-plugin", "installHint": "get it\nfrom x"}, r'"no-plugin" is not .*\(get it from x\)'),
    ({"command": "./missing"}, r'"./missing" is not installed where this process runs'),
    ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1 is not supported, only .*v1beta1"),
    ({"args": [5]}, "Expected `str`, got `int`"),
    ({"command": None}, "Expected `str`, got `null`"),
]


@pytest.mark.parametrize(("fields", "said"), UNUSABLE)
async def test_a_plugin_that_cannot_work_is_a_mistake_of_usage(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    plugin = {**write_plugin(tmp_path, "true"), **fields}
    with pytest.raises(UsageError, match=f"^no usable kubeconfig at {tmp_path}/kubeconfig: .*{said}"):
        await headers(tmp_path, plugin)


async def test_a_plugin_that_needs_a_terminal(tmp_path: Path) -> None:
    plugin = {**write_plugin(tmp_path, answer({"token": "x"})), "interactiveMode": "Always"}
    with pytest.raises(TransientError, match=r"needs a terminal .*this process has none"):
        await headers(tmp_path, plugin)


async def test_what_a_plugin_is_given(tmp_path: Path) -> None:
    """Its variables, its arguments, no input, and the cluster if it asks for it."""
    plugin = write_plugin(
        tmp_path,
        f"""cd {tmp_path}; cat; echo "$KUBERNETES_EXEC_INFO" > info; echo "$NAME $1 $HOME" > given
        {answer({"token": "x"})}""",
    )
    plugin |= {
        "args": ["first"],
        "env": [{"name": "NAME", "value": "value"}],
        "interactiveMode": "IfAvailable",
    }
    ca = issue("ca").certificate_pem.encode()
    (tmp_path / "ca.crt").write_bytes(ca)
    cluster = {
        "certificate_authority": "ca.crt",
        "tls_server_name": "other",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
    }
    await headers(tmp_path, plugin, **cluster)
    assert (tmp_path / "given").read_text().split() == ["value", "first", os.environ["HOME"]]
    info = {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert msgspec.json.decode((tmp_path / "info").read_bytes()) == info
    await headers(tmp_path, {**plugin, "provideClusterInfo": True}, **cluster)
    given = msgspec.json.decode((tmp_path / "info").read_bytes())["spec"]["cluster"]
    assert msgspec.convert(given.pop("certificate-authority-data"), bytes) == ca
    assert given == {"server": SERVER, "tls-server-name": "other", "config": {"audience": "a"}}
