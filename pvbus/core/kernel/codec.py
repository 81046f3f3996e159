"""Encoding of rows: built once, shared by all shells."""

import contextlib

import msgspec

_encoder = msgspec.json.Encoder()


def encode_row(row: msgspec.Struct | None) -> bytes | None:
    """Return a row's JSON; None (a tombstone) stays None."""
    return None if row is None else _encoder.encode(row)


def prepare_types() -> None:
    """Make msgspec inspect every Struct defined so far.

    Otherwise it does so at a type's first use, while other threads run; if one of them uses the
    half-inspected type, the process crashes (msgspec 0.22). Caller: once, before it starts threads that
    decode.
    """
    known = [msgspec.Struct]
    for struct in known:
        known += struct.__subclasses__()
        with contextlib.suppress(TypeError, NameError):  # it is only encoded, never decoded
            msgspec.json.Decoder(struct)
