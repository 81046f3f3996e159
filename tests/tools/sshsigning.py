"""Signs as `ssh-keygen -Y sign` does, with another implementation of Ed25519 than the one under test."""

import base64
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _public(key: Ed25519PrivateKey) -> bytes:
    return _string(b"ssh-ed25519") + _string(key.public_key().public_bytes_raw())


def public_text(key: Ed25519PrivateKey) -> str:
    """Return a public key as in a file of ssh-keygen."""
    return f"ssh-ed25519 {base64.b64encode(_public(key)).decode()}"


def ssh_signature(key: Ed25519PrivateKey, namespace: bytes, message: bytes) -> str:
    """Return the armored signature of a message."""
    parts = (namespace, b"", b"sha512", hashlib.sha512(message).digest())
    value = key.sign(b"SSHSIG" + b"".join(map(_string, parts)))
    signature = _string(_string(b"ssh-ed25519") + _string(value))
    strings = (_string(_public(key)), _string(namespace), _string(b""), _string(b"sha512"), signature)
    blob = b"SSHSIG" + (1).to_bytes(4, "big") + b"".join(strings)
    text = base64.encodebytes(blob).decode().strip()
    return f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----"
