"""The server's own certificate authority and certificate, created at the first start and reused.

Keys are readable by their owner only. If a file is missing, unreadable or about to expire, all are created
again: clients get the authority from the kubeconfig, which is written at each start.
"""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pvbus.adapters.certificates import builder, usage
from pvbus.adapters.files import write_private

RENEW_DAYS = 60
"""A start renews certificates that expire within this time: a server rarely runs longer without a restart."""


class Certificates(NamedTuple):
    """The certificates of a server.

    authority: PEM of the authority, for clients
    context: the TLS context of the server
    """

    authority: bytes
    context: ssl.SSLContext


def ensure(folder: Path, *others: str) -> Certificates:
    """Return the certificates in a folder, and create them if necessary.

    others: DNS names and addresses that the server's certificate must cover, besides loopback; "" is none.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, certificate, key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
    names = [_general_name(each) for each in ("localhost", "127.0.0.1", "::1", *others) if each]
    if not _is_usable(authority, certificate, key, names):
        _make(authority, certificate, key, names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    return Certificates(authority.read_bytes(), context)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_usable(authority: Path, certificate: Path, key: Path, names: Sequence[x509.GeneralName]) -> bool:
    try:
        loaded = [x509.load_pem_x509_certificate(path.read_bytes()) for path in (authority, certificate)]
        loaded[1].verify_directly_issued_by(loaded[0])
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        good_for = loaded[1].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, ssl.SSLError, InvalidSignature, x509.ExtensionNotFound):
        return False
    if not set(names) <= set(good_for):
        return False
    now = datetime.now(UTC)
    limit = now + timedelta(days=RENEW_DAYS)  # after the clock was set back, they may not be valid yet
    return all(one.not_valid_after_utc > limit and one.not_valid_before_utc <= now for one in loaded)


def _make(authority: Path, certificate: Path, key: Path, names: Sequence[x509.GeneralName]) -> None:
    """Create an authority, sign one certificate with it, and discard its key, so that it signs no other."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pvbus embedded API server CA")])
    ca = (
        builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(sign_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    server_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pvbus embedded API server")])
    server = (
        builder(name, ca_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    private = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(authority, ca.public_bytes(Encoding.PEM))
    write_private(certificate, server.public_bytes(Encoding.PEM))
    write_private(key, private)
