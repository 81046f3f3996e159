"""Sources of packages against the registry of the Distribution project: logins, tokens, pages, restarts."""

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.sources import PackageSources
from pvbus.core.errors import PermanentError, TransientError
from tests.tools.images import META, PACKAGE, Pusher, basic, index_of, pull_secret, xpkg_of
from tests.tools.registry import PASSWORD, USER, Running, found_or_skipped, running
from tests.unit.adapters.http_servers import serving

pytestmark = pytest.mark.timeout(900)  # the registry may have to be built
LIMITS = SourceLimits(seconds_max=30.0, attempts=1)


@asynccontextmanager
async def sources(tmp_path: Path, secret: dict[str, Any] | None = None) -> AsyncIterator[PackageSources]:
    async def read(key: str) -> dict[str, Any] | None:
        return secret

    made = PackageSources(tmp_path / "cache", secrets=read, limits=LIMITS)
    try:
        yield made
    finally:
        await made.close()


async def test_what_was_pushed_is_observed_and_pulled(tmp_path: Path) -> None:
    with running(found_or_skipped(), tmp_path) as registry:
        pusher = Pusher(registry.url)
        first = pusher.push("team/network", "v1.0.0", xpkg_of())
        for number in range(1, 130):
            pusher.push("team/network", f"v1.0.{number}", xpkg_of()._replace(blobs={}))
        source = f"{registry.address}/team/network"
        async with sources(tmp_path) as made:
            seen = await made.observe(source, ("v1.0.0", "v7"), ())
            assert len(seen.tags) == 130
            assert seen.digests == {"v1.0.0": first}
            assert (await made.pull(source, first, ())).files == PACKAGE
            await moved_tag(made, pusher, source, first)
            await missing(made, registry)
            await chosen_of_an_index(made, pusher, source)
            await restarted(made, registry, source, first)


async def moved_tag(made: PackageSources, pusher: Pusher, source: str, first: str) -> None:
    second = pusher.push("team/network", "v1.0.0", xpkg_of({"package.yaml": META}))
    assert first != second
    assert (await made.observe(source, ("v1.0.0",), ())).digests == {"v1.0.0": second}
    assert (await made.pull(source, second, ())).files == {"package.yaml": META}


async def missing(made: PackageSources, registry: Running) -> None:
    with pytest.raises(PermanentError, match="NAME_UNKNOWN") as caught:
        await made.observe(f"{registry.address}/team/nothing", (), ())
    assert caught.value.reason == "NotFound"
    with pytest.raises(PermanentError, match="MANIFEST_UNKNOWN"):
        await made.pull(f"{registry.address}/team/network", "sha256:" + "0" * 64, ())


async def chosen_of_an_index(made: PackageSources, pusher: Pusher, source: str) -> None:
    other = xpkg_of({"package.yaml": META + b"# arm\n"})
    pusher.push("team/network", "arm", other)
    index = index_of([(other, "linux/arm64"), (xpkg_of(), "linux/amd64")])
    digest = pusher.push("team/network", "v2.0.0", index)
    assert (await made.observe(source, ("v2.0.0",), ())).digests == {"v2.0.0": digest}
    assert (await made.pull(source, digest, ())).files == PACKAGE


async def restarted(made: PackageSources, registry: Running, source: str, digest: str) -> None:
    registry.stop()
    with pytest.raises(TransientError, match="no answer"):
        await made.observe(source, (), ())
    assert (await made.pull(source, digest, ())).files == PACKAGE  # of the cache
    registry.start()
    assert "v1.0.7" in (await made.observe(source, (), ())).tags


async def test_a_registry_with_a_password_wants_that_of_the_secret(tmp_path: Path) -> None:
    with running(found_or_skipped(), tmp_path, auth="basic") as registry:
        digest = Pusher(registry.url, basic(USER, PASSWORD)).push("team/network", "v1", xpkg_of())
        source = f"{registry.address}/team/network"
        for password, reason in (("wrong-password", "Unauthorized"), (PASSWORD, "")):
            secret = pull_secret(registry.address, USER, password)
            async with sources(tmp_path, secret) as made:
                if not reason:
                    assert (await made.pull(source, digest, ("demo/pull",))).files == PACKAGE
                    continue
                for keys in ((), ("demo/pull",)):
                    with pytest.raises(PermanentError) as caught:
                        await made.pull(source, digest, keys)
                    assert caught.value.reason == reason


class TokenServer:
    """Issues tokens to joe, as Distribution's token specification says, and signs them with its own key."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.bundle = folder / "tokens.pem"
        self.bundle.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self.scopes: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != basic(USER, PASSWORD):
            return web.Response(status=401)
        self.scopes.append(request.query["scope"])
        return web.json_response({"token": self.token(request.query["scope"])})

    def token(self, scope: str) -> str:
        kind, name, actions = scope.split(":")
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        now = int(time.time())
        payload = {
            "iss": "tokens", "sub": USER, "aud": "registry", "exp": now + 300, "nbf": now - 10, "iat": now,
            "jti": "1", "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }  # fmt: skip
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (header, payload))
        return f"{text}.{_encoded(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def test_a_registry_with_tokens_gets_one_for_the_login_of_the_secret(tmp_path: Path) -> None:
    tokens = TokenServer(tmp_path)
    async with serving(tokens) as url:
        auth = (
            f"auth: {{token: {{realm: {url}/token, service: registry, issuer: tokens, "
            f"rootcertbundle: {tokens.bundle}}}}}\n"
        )
        with running(found_or_skipped(), tmp_path, auth=auth) as registry:
            pusher = Pusher(registry.url, f"Bearer {tokens.token('repository:team/network:pull,push')}")
            digest = pusher.push("team/network", "v1", xpkg_of())
            source = f"{registry.address}/team/network"
            async with sources(tmp_path, pull_secret(registry.address, USER, PASSWORD)) as made:
                assert (await made.observe(source, ("v1",), ("demo/pull",))).digests == {"v1": digest}
                assert (await made.pull(source, digest, ("demo/pull",))).files == PACKAGE
            assert set(tokens.scopes) == {"repository:team/network:pull"}
            async with sources(tmp_path / "2", pull_secret(registry.address, USER, "wrong")) as made:
                with pytest.raises(PermanentError) as caught:
                    await made.pull(source, digest, ("demo/pull",))
                assert caught.value.reason == "Unauthorized"
