"""A certificate authority for tests, and the certificates of servers and users that it signs."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 30


class Pair(NamedTuple):
    """The files of a certificate (or public key) and of its private key, as PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, whose files it writes into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = folder / f"{name}.crt"
        self.certificate.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Issue a certificate for a server at these hosts, and for the user NAME of these groups."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(subject, self._name, key).add_extension(
            x509.ExtendedKeyUsage(uses), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        pair = _files(self._folder, name)
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        _write_key(pair.key, key)
        return pair


def make_key_pair(folder: Path, name: str) -> Pair:
    """Return the files of a public key and of its private key, without a certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = _files(folder, name)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    pair.certificate.write_bytes(public)
    _write_key(pair.key, key)
    return pair


def _files(folder: Path, name: str) -> Pair:
    plain = name.replace(":", "-")
    return Pair(folder / f"{plain}.pem", folder / f"{plain}.key")


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    file.touch(mode=0o600)
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
