"""Rows that come are decoded once, and no more of them stay decoded than are recent."""

import msgspec
import pytest

from pvbus.core.kernel.codec import RECENT_ROWS, encode_row, recent_decoder
from pvbus.core.kernel.records import ObjectRow


def value(number: int) -> bytes:
    return encode_row(ObjectRow(uid=f"u{number}", resource_version="1")) or b""


def test_a_value_is_decoded_once_while_it_is_recent() -> None:
    decode, first = recent_decoder(ObjectRow), value(0)
    row = decode(first)
    for number in range(1, RECENT_ROWS):
        decode(value(number))
    assert decode(value(0)) is row
    assert decode.cache_info().currsize <= RECENT_ROWS


def test_another_value_of_a_key_is_another_row() -> None:
    decode = recent_decoder(ObjectRow)
    assert [decode(value(number)).uid for number in (1, 2, 1)] == ["u1", "u2", "u1"]


def test_what_is_no_row_raises_each_time() -> None:
    for _ in range(2):
        with pytest.raises(msgspec.MsgspecError):
            recent_decoder(ObjectRow)(b"{")
