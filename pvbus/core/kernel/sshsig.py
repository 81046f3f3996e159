"""Verifies signatures of `ssh-keygen -Y sign` with Ed25519 keys.

Pure: the services decide on it like on any other input. Verifying handles nothing secret, so it needs no
constant time. Only Ed25519 is accepted; other keys are refused in words.

Source: PROTOCOL.sshsig of OpenSSH 9.6; RFC 8032, section 5.1.
"""

import binascii
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
TYPE = b"ssh-ed25519"
SIGNATURE_CHARACTERS_MAX = 4096
_MAGIC = b"SSHSIG"
_HASHES = {b"sha256": hashlib.sha256, b"sha512": hashlib.sha512}

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
_Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates: X, Y, Z, T with x = X/Z, y = Y/Z, x*y = T/Z."""


class SignatureError(ValueError):
    """A signature, or a key, is not one that is accepted."""


class Signature(NamedTuple):
    """A decoded signature.

    key: the public key, 32 bytes
    namespace: what it is for
    hash_name: the hash of the message
    value: 64 bytes
    """

    key: bytes
    namespace: bytes
    hash_name: bytes
    value: bytes


def parse_signature(armored: str) -> Signature:
    """Decode what `ssh-keygen -Y sign` prints. Raises SignatureError."""
    text = armored.strip()
    if len(text) > SIGNATURE_CHARACTERS_MAX or not (text.startswith(BEGIN) and text.endswith(END)):
        raise SignatureError("it is no SSH signature")
    blob = decode_base64("".join(text[len(BEGIN) : -len(END)].split()))
    if blob[:6] != _MAGIC or blob[6:10] != b"\0\0\0\1":
        raise SignatureError("it is no SSH signature of version 1")
    try:
        key, namespace, _, hash_name, signature = _strings(blob[10:])
        kind, value = _strings(signature)
    except ValueError as exc:
        raise SignatureError("the SSH signature is damaged") from exc
    if kind != TYPE or len(value) != 64 or hash_name not in _HASHES:
        raise SignatureError("only signatures of Ed25519 keys are accepted")
    return Signature(_key(key), namespace, hash_name, value)


def parse_key(text: str) -> bytes:
    """Return the 32 bytes of a public key, written `ssh-ed25519 AAAA...`. Raises SignatureError."""
    kind, _, data = text.strip().partition(" ")
    if kind.encode() != TYPE:
        raise SignatureError("only Ed25519 keys are accepted: ssh-ed25519 AAAA...")
    return _key(decode_base64(data.split(" ")[0]))


def is_signed(signature: Signature, namespace: bytes, message: bytes) -> bool:
    """Return whether a signature is of this message, for this purpose, by the key that it names."""
    if signature.namespace != namespace:
        return False
    digest = _HASHES[signature.hash_name](message).digest()
    parts = (namespace, b"", signature.hash_name, digest)
    return verify(signature.key, _MAGIC + b"".join(map(_string, parts)), signature.value)


def _key(blob: bytes) -> bytes:
    try:
        kind, key = _strings(blob)
    except ValueError as exc:
        raise SignatureError("the public key is damaged") from exc
    if kind != TYPE or len(key) != 32:
        raise SignatureError("only Ed25519 keys are accepted")
    return key


def decode_base64(text: str) -> bytes:
    """Return what base64 stands for. Raises SignatureError."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as exc:
        raise SignatureError("it is no base64") from exc


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _strings(blob: bytes) -> Iterator[bytes]:
    """Yield the strings of a blob. Raises ValueError if one is cut off."""
    while blob:
        size = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + size:
            raise ValueError("cut off")
        yield blob[4 : 4 + size]
        blob = blob[4 + size :]


# ------------------------------------------------------------ Ed25519


@lru_cache(maxsize=4096)
def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a signature is of this message and key. Takes some milliseconds."""
    public, commitment = _point(key), _point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if public is None or commitment is None or scalar >= _L:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % _L
    return _is_equal(_times(scalar, _BASE), _add(commitment, _times(challenge, public)))


def _point(data: bytes) -> _Point | None:
    """Decode a point, None if it is none or not in its one canonical form."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else _P - x
    return x, y, 1, x * y % _P


def _add(one: _Point, other: _Point) -> _Point:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: _Point) -> _Point:
    result: _Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point, scalar = _add(point, point), scalar >> 1
    return result


def _is_equal(one: _Point, other: _Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (
        one[1] * other[2] - other[1] * one[2]
    ) % _P == 0


def _base() -> _Point:
    point = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE = _base()
