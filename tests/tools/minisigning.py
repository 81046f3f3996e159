"""Signs as `minisign -S` does, with another implementation of Ed25519 than the one under test."""

import base64
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def _number(key: Ed25519PrivateKey) -> bytes:
    """Return the number of a key, which minisign chooses at random."""
    return hashlib.sha256(key.public_key().public_bytes_raw()).digest()[:8]


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def minisign_text(key: Ed25519PrivateKey) -> str:
    """Return a public key as in a file of minisign."""
    return _text(b"Ed" + _number(key) + key.public_key().public_bytes_raw())


def minisignature(key: Ed25519PrivateKey, comment: str, message: bytes) -> str:
    """Return the signature of a message with a trusted comment."""
    value = key.sign(hashlib.blake2b(message).digest())
    whole = key.sign(value + comment.encode())
    head = _text(b"ED" + _number(key) + value)
    return f"untrusted comment: a key\n{head}\ntrusted comment: {comment}\n{_text(whole)}\n"
