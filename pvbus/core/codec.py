"""Encoding of rows: built once, shared by all shells."""

import contextlib

import msgspec

_encoder = msgspec.json.Encoder()


def encode_row(row: msgspec.Struct | None) -> bytes | None:
    """Return a row's JSON; None (a tombstone) stays None."""
    return None if row is None else _encoder.encode(row)


def prepare_types() -> None:
    """Make msgspec study every Struct that is defined by now.

    Otherwise it does so at a type's first use, and lets other threads run meanwhile; one that uses the
    type then meets it half studied, and the process dies (msgspec 0.22). Caller: whoever starts threads
    that decode, once before.
    """
    known = [msgspec.Struct]
    for struct in known:
        known += struct.__subclasses__()
        with contextlib.suppress(TypeError, NameError):  # it is never decoded, only made
            msgspec.json.Decoder(struct)
