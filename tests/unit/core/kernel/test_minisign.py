"""Signatures of minisign: what the program wrote is accepted, and nothing else is."""

import pytest

from pvbus.core.kernel.minisign import is_minisigned, may_be_of, parse_minisign_key, parse_minisignature
from pvbus.core.kernel.sshsig import SignatureError

KEY = parse_minisign_key("RWQ25E/sSLfvClvySY9On3Ksikc2qiBWF4x1uEKAd1qYzAxFxxiMr86t")
VALUE = "RUQ25E/sSLfvCsV5D69blDgQB4m+l8RJ0RhyrVeqesoG+RzO+I9/2tblQCcdW3u8mhkTRCMWKXtunHRJ0XKcQzG4bm0/Afe3rgk="
WHOLE = "vKhs9lEefqryPUK8MnCV/TbeerkhD9qTA1Is8XP36VVDKCT+cSPxUnVTSdx1vbZwkotM13Bv7ZNxHbMCPlHSAw=="
PLAIN = "RWQ25E/sSLfvCrhPTv8vrtAH0T/FlnkRuidXlwTmyJs7f1d+lyJSC4qn73zD4wAhDkpmaiarlSFioZhlhFPaw4HVMJmvtWjqGww="
PLAIN_WHOLE = "O5htq5vSEnqILLUshTT+i3ASBcE64k9XyHqHNWTLVIpGuGsWhVaU4fUAXVYa8XFTFmPUaxujF54RaRMLtYBCBg=="
FOR_GIT = "arD6tvdmq1Mt0Fc4aVBYDA7TKrjvRpnlxBhfxXwoCaR9o39l65gKhnVzAbMubIZ8yQXBfL32eS0wsKnyShLuDg=="
"""What minisign 0.11 wrote: of the message `a plan`, with two comments, and in its older form (-l)."""


def text(value: str = VALUE, comment: str = "trusted comment: pvbus-plan", whole: str = WHOLE) -> str:
    return f"untrusted comment: signature from minisign secret key\n{value}\n{comment}\n{whole}\n"


@pytest.mark.parametrize(
    ("signature", "message", "is_accepted"),
    [
        (text(), b"a plan", True),
        (text(PLAIN, whole=PLAIN_WHOLE), b"a plan", True),
        (text(), b"a plan.", False),
        (text(comment="trusted comment: for git", whole=FOR_GIT), b"a plan", False),
        (text(whole=FOR_GIT), b"a plan", False),
        (text(comment="trusted comment: pvbus-plan "), b"a plan", False),
        (text(PLAIN), b"a plan", False),
    ],
    ids=["hashed", "plain", "message", "purpose", "comment of another", "longer comment", "mixed"],
)
def test_what_minisign_signs_for_this_purpose_is_accepted(
    signature: str, message: bytes, is_accepted: bool
) -> None:
    parsed = parse_minisignature(signature)
    assert may_be_of(parsed, KEY)
    assert is_minisigned(parsed, KEY, b"pvbus-plan", message) == is_accepted


def test_another_key_with_the_same_number_is_refused() -> None:
    """The number is chosen by whoever makes the key."""
    other = KEY[:10] + bytes(reversed(KEY[10:]))
    assert may_be_of(parse_minisignature(text()), other)
    assert not is_minisigned(parse_minisignature(text()), other, b"pvbus-plan", b"a plan")
    assert not is_minisigned(
        parse_minisignature(text()), KEY[:2] + bytes(8) + KEY[10:], b"pvbus-plan", b"a plan"
    )


@pytest.mark.parametrize(
    "damaged",
    ["", "none", text()[:-20], text(VALUE[:-8]), text(comment="comment: x"), text("!"), "x" * 9000],
)
def test_another_text_is_refused(damaged: str) -> None:
    """With an error of ours, never with another one."""
    with pytest.raises(SignatureError):
        parse_minisignature(damaged)
    with pytest.raises(SignatureError):
        parse_minisign_key(damaged)
