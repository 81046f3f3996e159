"""Self-signed certificates, made for a test: of servers on 127.0.0.1, and of their clients."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return a key store with a certificate for 127.0.0.1 and its key, and the certificate alone."""
    certificate, key = _made(password=None)
    authority, keystore = folder / "ca.pem", folder / "keystore.pem"
    authority.write_bytes(certificate)
    keystore.write_bytes(key + certificate)
    return keystore, authority


def make_pair(folder: Path, password: bytes | None = None) -> tuple[Path, Path]:
    """Return a certificate and its key, as a file each. password: of the key."""
    files = folder / "certificate.pem", folder / "key.pem"
    for file, content in zip(files, _made(password), strict=True):
        file.write_bytes(content)
    return files


def _made(password: bytes | None) -> tuple[bytes, bytes]:
    """Return certificate and key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody of a test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
    )
