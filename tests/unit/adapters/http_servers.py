"""Small HTTP servers on 127.0.0.1, kubeconfigs for them, and certificates."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.ports.cluster import Resource

SITES = Resource("example.org", "v1", "Site", "sites", True)
PATH = "GET /apis/example.org/v1/sites"
NO_SITES = b'{"kind":"SiteList","metadata":{"resourceVersion":"1"}}'

ELSEWHERE = [
    "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:169.254.169.254]/",
    "http://2852039166/",  # decimal
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://[fd00:ec2::254]/",
    "http://0.0.0.0:1/",
    "http://[::]:1/",
]
"""Metadata of a cloud, and no server, in several spellings: no request may go there."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Handler, tls: ssl.SSLContext | None = None, *, port: int = 0
) -> AsyncIterator[str]:
    """Serve every path by one handler, and yield the server's URL."""
    server = web.Server(handler)  # type: ignore[arg-type]  # what it is called with is a Request
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"{'http' if tls is None else 'https'}://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[HttpCluster]:
    """Connect as the services do."""
    cluster = await HttpCluster.connect(kubeconfig)
    try:
        yield cluster
    finally:
        await cluster.close()


def write_kubeconfig(
    folder: Path, server: str, user: Mapping[str, Any] | None = None, **cluster: Any
) -> Path:
    """cluster: more fields of the cluster, with `_` for `-`."""
    fields = {"server": server, **{name.replace("_", "-"): value for name, value in cluster.items()}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "contexts": [{"name": "this", "context": {"cluster": "this", "user": "this"}}],
        "clusters": [{"name": "this", "cluster": fields}],
        "users": [{"name": "this", "user": user or {}}],
    }
    path = folder / "kubeconfig"
    path.write_bytes(msgspec.yaml.encode(document))
    return path


def status(code: int, reason: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(body, status=code, headers=headers)


def no_sites() -> web.Response:
    return web.Response(body=NO_SITES, content_type="application/json")


class Guard:
    """An API server that accepts some tokens. seen: the token of each request."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.seen: list[str] = []

    async def __call__(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.append(token)
        if token not in self.tokens:
            return status(401, "Unauthorized")
        return no_sites()


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        form = serialization.PrivateFormat.PKCS8
        none = serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, form, none).decode()

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        paths[0].write_text(self.certificate_pem)
        paths[1].write_text(self.key_pem)
        return paths


def issue(name: str, ca: Pair | None = None, *, days: int = 1) -> Pair:
    """Issue a certificate: a CA's own, or one for 127.0.0.1 (or for a name with a dot).

    days: until it expires; below zero, it has.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(subject_name=subject, public_key=key.public_key())
        .issuer_name(ca.certificate.subject if ca else subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
    )
    if ca is not None:
        address: x509.GeneralName = x509.DNSName(name)
        if "." not in name:
            address = x509.IPAddress(ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return Pair(builder.sign(ca.key if ca else key, hashes.SHA256()), key)


def server_context(folder: Path, pair: Pair, clients: Pair | None = None) -> ssl.SSLContext:
    """Return a server's TLS context. clients: the CA whose client certificates it requires."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair.write(folder, "server"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.certificate_pem)
    return context
