"""Certificates and tokens that do not count any more, or not here: what is said, and how often is asked."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import TransientError
from tests.unit.adapters.http_servers import (
    SITES,
    Guard,
    connected,
    issue,
    no_sites,
    server_context,
    serving,
    write_kubeconfig,
)


async def handle(_: web.Request) -> web.Response:
    return no_sites()


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        ("expired", "ours", "certificate has expired"),
        ("of another CA", "ours", "unable to get local issuer certificate|self-signed certificate"),
        ("ours", "of another CA", "not accept the client certificate|no TLS connection"),
        ("ours", "expired", "not accept the client certificate|no TLS connection"),
        ("ours", "none", "not accept the client certificate|no TLS connection"),
        ("ours", "ours", ""),
    ],
)
async def test_a_certificate_that_does_not_count_is_said(
    tmp_path: Path, server: str, client: str, words: str
) -> None:
    """The refusal names the server, the state of the connection is the same, and no key is in the message."""
    ca, other = issue("ca"), issue("other")
    (tmp_path / "ca.crt").write_text(ca.certificate_pem)
    pairs = {"ours": (ca, 1), "expired": (ca, -1), "of another CA": (other, 1)}
    signer, days = pairs[server]
    tls = server_context(tmp_path, issue("server", signer, days=days), clients=ca)
    user: dict[str, Any] = {}
    if client != "none":
        signer, days = pairs[client]
        certificate, key = issue("client", signer, days=days).write(tmp_path, "client")
        user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with serving(handle, tls) as url:
        path = write_kubeconfig(tmp_path, url, user, certificate_authority="ca.crt")
        async with connected(path) as cluster:
            if not words:
                assert not (await cluster.list(SITES)).items
                return
            with pytest.raises(TransientError, match=words) as caught:
                await cluster.list(SITES)
            assert url in str(caught.value) or url in cluster.reach.server
            assert not cluster.reach.has_answered
            assert cluster.reach.error
            assert "PRIVATE KEY" not in str(caught.value)


async def test_an_expired_token_is_sent_once_and_is_not_in_the_message(tmp_path: Path) -> None:
    guard = Guard("new")
    async with serving(guard) as url:
        (tmp_path / "token").write_text("expired-secret")
        user = {"tokenFile": str(tmp_path / "token")}
        async with connected(write_kubeconfig(tmp_path, url, user)) as cluster:
            with pytest.raises(TransientError, match="401 Unauthorized") as caught:
                await cluster.list(SITES)
            assert len(guard.seen) <= 2, "once, and once more with the token that was read again"
            assert "expired-secret" not in f"{caught.value}{cluster.reach.error}"
            assert not cluster.reach.has_answered
            (tmp_path / "token").write_text("new")
            await cluster.list(SITES)
            assert cluster.reach.has_answered


async def test_another_user_is_not_taken_for_that_of_the_certificate(tmp_path: Path) -> None:
    """An API server believes a client certificate before a token: a connection of another user sends none."""
    ca = issue("ca")
    (tmp_path / "ca.crt").write_text(ca.certificate_pem)
    certificate, key = issue("client", ca, days=1).write(tmp_path, "client")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with serving(handle, server_context(tmp_path, issue("server", ca, days=1), clients=ca)) as url:
        path = write_kubeconfig(tmp_path, url, user, certificate_authority="ca.crt")
        async with connected(path) as cluster:
            await cluster.list(SITES)
        other = await HttpCluster.connect_as("token-of-somebody", path)
        with pytest.raises(TransientError, match=r"not accept the client certificate|no TLS connection"):
            await other.list(SITES)
        await other.close()
