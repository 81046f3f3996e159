"""Signatures of SSH keys: those of ssh-keygen are accepted, and nothing else is."""

import subprocess
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.kernel.sshsig import SignatureError, is_signed, parse_key, parse_signature, verify
from tests.tools.sshsigning import public_text, ssh_signature

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
ORDER = 2**252 + 27742317777372353535851937790883648493


def test_what_ssh_keygen_signs_is_accepted(tmp_path: Path) -> None:
    """With its own key and hash, for the namespace that it was signed for, and no other message."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    command = ["ssh-keygen", "-Y", "sign", "-n", "pvbus-plan", "-f", str(path)]
    done = subprocess.run(command, input=b"a plan", capture_output=True, check=True)
    signature = parse_signature(done.stdout.decode())
    assert signature.key == parse_key(path.with_suffix(".pub").read_text())
    assert is_signed(signature, b"pvbus-plan", b"a plan")
    assert not is_signed(signature, b"pvbus-plan", b"a plan.")
    assert not is_signed(signature, b"git", b"a plan")


@pytest.mark.parametrize(
    ("key", "message", "signature"),
    [
        (
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_vectors_of_the_standard(key: str, message: str, signature: str) -> None:
    """Those of RFC 8032, section 7.1, and none that differs in a bit."""
    parts = [bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)]
    assert verify(*parts)
    for number in (0, 2):
        changed = list(parts)
        changed[number] = bytes([parts[number][0] ^ 1]) + parts[number][1:]
        assert not verify(*changed)


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 63), st.integers(0, 8))
def test_it_agrees_with_another_implementation(message: bytes, index: int, flip: int) -> None:
    """On signatures, and on those of which a byte was changed."""
    signature = bytearray(KEY.sign(message))
    signature[index] ^= (1 << flip) & 0xFF
    try:
        Ed25519PublicKey.from_public_bytes(PUBLIC).verify(bytes(signature), message)
        accepted = True
    except InvalidSignature:
        accepted = False
    assert verify(PUBLIC, message, bytes(signature)) == accepted


def test_a_signature_has_one_form() -> None:
    """A scalar beyond the order of the group would be a second signature of the same message."""
    signature = KEY.sign(b"m")
    other = int.from_bytes(signature[32:], "little") + ORDER
    assert verify(PUBLIC, b"m", signature)
    assert not verify(PUBLIC, b"m", signature[:32] + other.to_bytes(32, "little"))
    assert not verify(b"\xff" * 32, b"m", signature)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "-----BEGIN SSH SIGNATURE-----\n!\n-----END SSH SIGNATURE-----",
        ssh_signature(KEY, b"n", b"m")[:-90],
    ],
)
def test_another_text_is_refused(text: str) -> None:
    """With an error of ours, never with another one."""
    with pytest.raises(SignatureError):
        parse_signature(text)
    with pytest.raises(SignatureError):
        parse_key(text)
    assert parse_key(public_text(KEY)) == PUBLIC
