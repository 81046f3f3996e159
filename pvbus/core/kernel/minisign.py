"""Verifies signatures of `minisign -S` with a trusted comment that names their purpose.

Pure, as `pvbus.core.kernel.sshsig`, which has the arithmetic. minisign knows no purposes: the trusted
comment, which is signed together with the signature, stands for one. A signature of the same bytes for
anything else has another comment. A key's number is only a hint which key to try, as anybody can choose it.

Source: https://jedisct1.github.io/minisign/, "Signature format"; minisign 0.11.
"""

import hashlib
from typing import NamedTuple

from pvbus.core.kernel.sshsig import SIGNATURE_CHARACTERS_MAX, SignatureError, decode_base64, verify

BEGIN = "untrusted comment:"
KEY_BYTES = 42
_TRUSTED = "trusted comment: "
_KEY_TYPE, _PLAIN, _HASHED = b"Ed", b"Ed", b"ED"
_VALUE_BYTES = 64


class Minisignature(NamedTuple):
    """A decoded signature.

    number: of the key, 8 bytes
    is_hashed: whether the BLAKE2b hash of the message is signed, and not the message
    value: the signature of the message, 64 bytes
    comment: the trusted comment
    whole: the signature of value and comment, 64 bytes
    """

    number: bytes
    is_hashed: bool
    value: bytes
    comment: str
    whole: bytes


def parse_minisignature(text: str) -> Minisignature:
    """Decode the four lines that minisign writes. Raises SignatureError."""
    lines = text.strip().splitlines()
    if len(text) > SIGNATURE_CHARACTERS_MAX or len(lines) != 4 or not lines[0].startswith(BEGIN):
        raise SignatureError("it is no signature of minisign")
    if not lines[2].startswith(_TRUSTED):
        raise SignatureError("the signature of minisign has no trusted comment")
    blob, whole = decode_base64(lines[1]), decode_base64(lines[3])
    kind, number, value = blob[:2], blob[2:10], blob[10:]
    if kind not in (_PLAIN, _HASHED) or len(value) != _VALUE_BYTES or len(whole) != _VALUE_BYTES:
        raise SignatureError("the signature of minisign is damaged")
    return Minisignature(number, kind == _HASHED, value, lines[2].removeprefix(_TRUSTED), whole)


def parse_minisign_key(text: str) -> bytes:
    """Return the 42 bytes of a public key: its type, its number, and the key. Raises SignatureError."""
    blob = decode_base64(text.split()[0] if text.strip() else "")
    if len(blob) != KEY_BYTES or not blob.startswith(_KEY_TYPE):
        raise SignatureError("it is no public key of minisign: RW...")
    return blob


def may_be_of(signature: Minisignature, key: bytes) -> bool:
    """Return whether a signature names the number of this key."""
    return len(key) == KEY_BYTES and key[2:10] == signature.number


def is_minisigned(signature: Minisignature, key: bytes, purpose: bytes, message: bytes) -> bool:
    """Return whether a signature is of this message, for this purpose, by this key."""
    comment = signature.comment.encode()
    if comment != purpose or not may_be_of(signature, key):
        return False
    public = key[10:]
    signed = hashlib.blake2b(message).digest() if signature.is_hashed else message
    return verify(public, signed, signature.value) and verify(
        public, signature.value + comment, signature.whole
    )
