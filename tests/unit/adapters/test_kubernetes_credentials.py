"""Credentials are renewed while a service runs: token files, plugins, certificates. Against real servers."""

import asyncio
import os
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes import tls as tls_module
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.credentials import (
    BACKOFF_SECONDS,
    REJECTED_SECONDS,
    REREAD_SECONDS,
    Credential,
    Issued,
    RenewedCredentials,
    TokenFile,
)
from pvbus.adapters.kubernetes.library import incluster_config
from pvbus.adapters.kubernetes.tls import LOOK_SECONDS, TlsContext, TlsFiles
from pvbus.core.errors import RejectedError, TransientError
from tests.unit.adapters.http_servers import (
    SITES,
    Guard,
    Pair,
    connected,
    issue,
    no_sites,
    server_context,
    serving,
    status,
    write_kubeconfig,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------- token files


async def test_a_replaced_token_file_is_read_before_the_next_request(tmp_path: Path) -> None:
    """The server never sees the old token after the change."""
    guard, token = Guard("one", "two"), tmp_path / "token"
    token.write_text("one\n")
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"tokenFile": "token"})) as c:
        await c.list(SITES)
        (tmp_path / "new").write_text("two\n")
        (tmp_path / "new").replace(token)
        await c.list(SITES)
    assert guard.seen == ["one", "two"]


async def test_a_token_file_comes_before_a_token(tmp_path: Path) -> None:
    """As for kubectl: the token beside it is the last one that was read."""
    guard, token = Guard("file"), tmp_path / "token"
    token.write_text("file")
    user = {"tokenFile": str(token), "token": "static"}
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, user)) as cluster:
        await cluster.list(SITES)


async def test_the_token_of_a_pod_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service account's token is replaced within the hour."""
    for name, text in (("token", "one"), ("ca.crt", issue("ca").certificate_pem)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    connection = await Connection.load(None)
    assert (await connection.access()).headers == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("second")
    assert (await connection.access()).headers == {"Authorization": "Bearer second"}


def rewrite(path: Path, text: str) -> None:
    """Write as much as there was, and leave the time of the last change as it was."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


async def test_a_change_that_leaves_no_trace_is_seen_within_a_minute(tmp_path: Path) -> None:
    """A file system may keep seconds only."""
    clock, path = Clock(), tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path, monotonic=clock)
    assert (await token.current()).authorization == "Bearer one"
    rewrite(path, "two")
    clock.now += REREAD_SECONDS - 1
    assert (await token.current()).authorization == "Bearer one"
    clock.now += 1
    assert (await token.current()).authorization == "Bearer two"


async def test_a_401_reads_the_token_file_at_once(tmp_path: Path) -> None:
    """The request is sent again with the new token; the caller sees no error."""
    guard, token = Guard("one"), tmp_path / "token"
    token.write_text("one")
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"tokenFile": "token"})) as c:
        await c.list(SITES)
        rewrite(token, "two")
        guard.tokens = {"two"}
        await c.list(SITES)
        assert guard.seen == ["one", "one", "two"]
        guard.tokens = set()
        with pytest.raises(TransientError, match="401 Unauthorized"):
            await c.list(SITES)
        assert guard.seen[3:] == ["two"], "the same token is not sent twice"


@pytest.mark.parametrize("text", [None, "", "two\nlines", "not\x07printable"])
async def test_a_token_file_that_is_being_replaced_leaves_the_last_token(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path)
    await token.current()
    path.unlink() if text is None else path.write_text(text)
    assert (await token.current()).authorization == "Bearer one"
    with pytest.raises(TransientError, match=f"^{path}: the token file cannot be read .*check the path"):
        await TokenFile(path).current()


# ---------------------------------------------------------------- renewal


class Issuer:
    """Issues credentials that are valid for a time, or fails. running: let it answer."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self.clock = clock
        self.seconds = seconds
        self.error = ""
        self.runs = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.credentials = RenewedCredentials(self.issue, clock=clock, jitter=lambda least, most: least)

    async def issue(self) -> Issued:
        self.runs += 1
        number = self.runs
        await self.answering.wait()
        if self.error:
            raise TransientError(self.error)
        end = None if self.seconds is None else self.clock() + self.seconds
        return Issued(Credential(f"Bearer {number}"), end)

    async def now(self) -> str:
        return (await self.credentials.current()).authorization.removeprefix("Bearer ")


@pytest.mark.parametrize(("seconds", "at"), [(900.0, 840.0), (3600.0, 3540.0), (10.0, 8.0), (0.5, 1.0)])
async def test_when_a_credential_is_renewed(seconds: float, at: float) -> None:
    """A minute ahead; of a short life a fifth ahead, and at most each second."""
    issuer = Issuer(Clock(), seconds)
    assert await issuer.now() == "1"
    issuer.clock.now += at - 0.1
    if at < seconds:
        assert await issuer.now() == "1"
        assert issuer.runs == 1
    issuer.clock.now += 0.2
    issuer.answering.clear()
    if at < seconds:
        assert await issuer.now() == "1", "the last one is valid: nobody waits"
    issuer.answering.set()
    if issuer.credentials._renewal is not None:
        await issuer.credentials._renewal
    assert await issuer.now() == "2"
    assert issuer.runs == 2


async def test_an_expired_credential_is_never_sent() -> None:
    issuer = Issuer(Clock(), 900)
    await issuer.now()
    issuer.clock.now += 901
    issuer.answering.clear()
    waiting = [asyncio.create_task(issuer.now()) for _ in range(100)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    issuer.answering.set()
    assert set(await asyncio.gather(*waiting[1:])) == {"2"}, "one that gives up leaves it to the others"
    assert issuer.runs == 2


async def test_a_failed_renewal_waits_and_recovers() -> None:
    """Requests fail at once in between, and those before the expiry go on."""
    issuer = Issuer(Clock(), 900)
    await issuer.now()
    issuer.error = "no network"
    issuer.clock.now += 850
    for _ in range(5):
        assert await issuer.now() == "1"
        await asyncio.sleep(0)
    assert issuer.runs == 2
    issuer.clock.now += 51
    for _ in range(100):
        with pytest.raises(TransientError, match=r"^no network$"):
            await issuer.now()
    assert issuer.runs == 3
    issuer.error = ""
    issuer.clock.now += BACKOFF_SECONDS[0]
    assert await issuer.now() == "4"


async def test_an_issued_credential_that_has_expired_is_an_error() -> None:
    issuer = Issuer(Clock(), -5)
    with pytest.raises(TransientError, match="expired 5 s ago; check the clock of this machine"):
        await issuer.now()


async def test_a_401_renews_once_per_while() -> None:
    """A new credential may be rejected like the old one: the plugin must not run for each request."""
    issuer = Issuer(Clock(), None)
    first = await issuer.credentials.current()
    assert issuer.credentials.reject(first)
    assert issuer.credentials.reject(first), "a second request with the old one waits for the new one"
    second = await issuer.credentials.current()
    assert issuer.runs == 2
    assert not issuer.credentials.reject(second)
    issuer.clock.now += REJECTED_SECONDS
    assert issuer.credentials.reject(second)


# ---------------------------------------------------------------- plugins

V1 = "client.authentication.k8s.io/v1"


def write_plugin(folder: Path, script: str) -> dict[str, object]:
    """Write a plugin that counts its runs in `runs`, and return its entry of a kubeconfig."""
    path = folder / "get-token"
    path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{script}\n")
    path.chmod(0o755)
    return {"apiVersion": V1, "command": "./get-token", "interactiveMode": "Never"}


def issuing(token: str) -> str:
    """Return the line of a script that issues a token, which may be a variable."""
    status = """{"token": "%s"}"""
    return f"""printf '{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {status}}}' "{token}" """


def runs(folder: Path) -> int:
    return (folder / "runs").read_text().count("run")


NUMBERED = "token=$(wc -l < runs | tr -d ' ')\n" + issuing("$token")


async def test_a_hundred_requests_that_get_401_run_the_plugin_once(tmp_path: Path) -> None:
    """The plugin's first token was revoked; each request is sent again with the second one."""
    guard = Guard("1")
    plugin = write_plugin(tmp_path, f"cd {tmp_path}\n{NUMBERED}")
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"exec": plugin})) as cluster:
        await cluster.list(SITES)
        guard.tokens = {"2"}
        await asyncio.gather(*(cluster.list(SITES) for _ in range(100)))
        assert runs(tmp_path) == 2
        assert guard.seen.count("2") == 100
        guard.tokens = set()
        results = await asyncio.gather(*(cluster.list(SITES) for _ in range(100)), return_exceptions=True)
    assert runs(tmp_path) == 2, "a new token just came, and does not help"
    assert {type(result) for result in results} == {RejectedError}


async def test_a_401_of_a_watch_renews_as_well(tmp_path: Path) -> None:
    guard = Guard("2")
    plugin = write_plugin(tmp_path, f"cd {tmp_path}\n{NUMBERED}")
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"exec": plugin})) as cluster:
        with pytest.raises(
            TransientError, match="not one of an API server"
        ):  # a list, where a watch should be
            async for _ in cluster.watch(SITES, "1"):
                pass
    assert guard.seen == ["1", "2"]


async def test_services_start_while_the_plugin_fails_and_recover(tmp_path: Path) -> None:
    """The kubeconfig is right; the login has ended. A new login is enough."""
    guard = Guard("good")
    script = f"test -e {tmp_path}/login || {{ echo 'session ended' >&2; exit 3; }}\n{issuing('good')}"
    plugin = write_plugin(tmp_path, script)
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"exec": plugin})) as cluster:
        with pytest.raises(TransientError, match="exit code 3: session ended"):
            await cluster.list(SITES)
        (tmp_path / "login").touch()
        async with asyncio.timeout(20):
            while True:
                try:
                    await cluster.list(SITES)
                    break
                except TransientError:
                    await asyncio.sleep(0.1)
    assert runs(tmp_path) == 2


# ---------------------------------------------------------------- certificates


async def test_a_plugin_may_issue_a_client_certificate(tmp_path: Path) -> None:
    """A second one after the first is rejected, on a new connection."""
    ca = issue("ca")
    for number in (1, 2):
        pair = issue(f"client{number}", ca)
        fields = {"clientCertificateData": pair.certificate_pem, "clientKeyData": pair.key_pem}
        text = ", ".join(f'"{name}": "{pem}"' for name, pem in fields.items()).replace("\n", "\\n")
        (tmp_path / f"status{number}").write_text(
            f'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{{text}}}}}'
        )
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        seen.append(dict(part[0] for part in subject)["commonName"])
        return status(401, "Unauthorized") if len(seen) == 2 else no_sites()

    plugin = write_plugin(tmp_path, f"cd {tmp_path}; cat status$(wc -l < runs | tr -d ' ')")
    tls = server_context(tmp_path, issue("server", ca), clients=ca)
    (tmp_path / "ca.crt").write_text(ca.certificate_pem)
    async with serving(handle, tls) as url:
        path = write_kubeconfig(tmp_path, url, {"exec": plugin}, certificate_authority="ca.crt")
        async with connected(path) as cluster:
            await cluster.list(SITES)
            await cluster.list(SITES)
    assert seen == ["client1", "client1", "client2"]


def test_replaced_files_are_seen_within_a_second(tmp_path: Path) -> None:
    """They are not looked at before each request."""
    ca, clock = tmp_path / "ca.crt", Clock()
    ca.write_text(issue("ca").certificate_pem)
    context = TlsContext(TlsFiles(str(ca)), clock)
    before = context.current()
    ca.write_text(issue("another").certificate_pem)
    clock.now += LOOK_SECONDS / 2
    assert context.current() is before
    clock.now += LOOK_SECONDS / 2
    after = context.current()
    assert after is not before
    clock.now += LOOK_SECONDS
    assert context.current() is after


async def test_an_exchanged_authority_and_client_certificate_need_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's CA is replaced, and the files with it; until they match, the last ones stay in use."""
    monkeypatch.setattr(tls_module, "LOOK_SECONDS", 0.0)
    first, second = issue("ca"), issue("ca")
    ca, certificate, key = (tmp_path / name for name in ("ca.crt", "client.crt", "client.key"))

    def write(authority: Pair) -> None:
        ca.write_text(authority.certificate_pem)
        client = issue("client", authority)
        certificate.write_text(client.certificate_pem)
        key.write_text(client.key_pem)

    async def handle(_: web.Request) -> web.Response:
        return no_sites()

    write(first)
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    path = tmp_path / "kubeconfig"
    async with serving(handle, server_context(tmp_path, issue("server", first), clients=first)) as url:
        write_kubeconfig(tmp_path, url, user, certificate_authority="ca.crt")
        async with connected(path) as early:
            await early.list(SITES)
            certificate.write_text(issue("client", first).certificate_pem)  # its key is not there yet
            await early.list(SITES)
    write(first)
    async with connected(path) as cluster:
        tls = server_context(tmp_path, issue("server", second), clients=second)
        async with serving(handle, tls, port=int(url.rpartition(":")[2])):
            with pytest.raises(TransientError, match="certificate verify failed"):
                await cluster.list(SITES)
            write(second)
            await cluster.list(SITES)


# ---------------------------------------------------------------- tokens of a kubeconfig


async def test_a_token_of_a_rewritten_kubeconfig_is_read_after_a_401(tmp_path: Path) -> None:
    """Once: the requests after it have the new token at once."""
    guard = Guard("one")
    async with serving(guard) as url:
        path = write_kubeconfig(tmp_path, url, {"token": "one"})
        async with connected(path) as cluster:
            await cluster.list(SITES)
            write_kubeconfig(tmp_path, url, {"token": "second"})
            await cluster.list(SITES)
            guard.tokens = {"second"}
            await cluster.list(SITES)
            await cluster.list(SITES)
    assert guard.seen == ["one", "one", "one", "second", "second"]


async def test_a_kubeconfig_that_is_as_it_was_is_not_read_again(tmp_path: Path) -> None:
    """A 401 is one request then, and nobody asks twice."""
    guard = Guard()
    async with serving(guard) as url, connected(write_kubeconfig(tmp_path, url, {"token": "one"})) as cluster:
        with pytest.raises(TransientError, match="401"):
            await cluster.list(SITES)
    assert guard.seen == ["one"]


async def test_a_kubeconfig_that_is_half_written_is_read_again_when_it_is_whole(tmp_path: Path) -> None:
    guard = Guard("second")
    async with serving(guard) as url:
        path = write_kubeconfig(tmp_path, url, {"token": "one"})
        async with connected(path) as cluster:
            path.write_text("users: [")
            with pytest.raises(TransientError, match="cannot be read again"):
                await cluster.list(SITES)
            write_kubeconfig(tmp_path, url, {"token": "second"})
            await cluster.list(SITES)
    assert guard.seen == ["one", "second"]
