"""Encoding of rows: built once, shared by all shells."""

import msgspec

_encoder = msgspec.json.Encoder()


def encode_row(row: msgspec.Struct | None) -> bytes | None:
    """Return a row's JSON; None (a tombstone) stays None."""
    return None if row is None else _encoder.encode(row)
