"""Certificates: keys, an authority's signature, and how long they are good for."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Certificate, Certify

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""Crossplane's own authority has one of RSA."""
VALID_DAYS = 3650
VALID_BEFORE_DAYS = 1  # a clock that is set back by hours finds them valid while what has them runs


def issue(request: Certify) -> Certificate:
    """Return a new key with its certificate. Raises PermanentError if the authority cannot be read."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    name = _name(request.names[0])
    if request.authority is None:
        own = (
            builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(sign_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return Certificate(own.public_bytes(Encoding.PEM).decode(), private)
    issuer, issuer_key = _authority(request.authority)
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if request.is_client else ExtendedKeyUsageOID.SERVER_AUTH
    certificate = (
        builder(name, issuer.subject, key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in request.names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return Certificate(certificate.public_bytes(Encoding.PEM).decode(), private)


def _authority(pem: Certificate) -> tuple[x509.Certificate, _Key]:
    try:
        issuer = x509.load_pem_x509_certificate(pem.certificate.encode())
        key = load_pem_private_key(pem.key.encode(), None)
    except (ValueError, TypeError) as exc:
        raise PermanentError("the authority is no certificate with its key", reason="InvalidSecret") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise PermanentError(
            "the authority has neither a key of RSA nor one of a curve", reason="InvalidSecret"
        )
    return issuer, key


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    """Return what is in every certificate of pvbus."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=VALID_BEFORE_DAYS))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
