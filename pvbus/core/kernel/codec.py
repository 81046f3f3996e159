"""The base of all rows, and their encoding: built once, shared by all shells."""

import contextlib
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

RECENT_ROWS = 64
"""Rows of a type that stay decoded after they came: the decision on a record follows soon, with few others in
between. Each takes some kilobytes, so tables with all rows decoded would be three times as large; with fewer,
the rows of one step would displace each other."""

_encoder = msgspec.json.Encoder()
_recent: dict[type[msgspec.Struct], Any] = {}
_AnyRow = TypeVar("_AnyRow", bound=msgspec.Struct)


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Options shared by all rows. gc=False: frozen plain data has no cycles to collect."""


def encode_row(row: msgspec.Struct | None) -> bytes | None:
    """Return a row's JSON; None (a tombstone) stays None."""
    return None if row is None else _encoder.encode(row)


def recent_decoder(type_: type[_AnyRow]) -> "_lru_cache_wrapper[_AnyRow]":
    """Return the decoder of a frozen row which decodes a value once while it is recent.

    A controller that has rows as their JSON decodes one as it comes, to check and to index it, and again to
    decide on it. A value that is not of the type raises as often as it is decoded. All who decode a type
    share one decoder, and must not change what a row has.
    """
    if type_ not in _recent:
        _recent[type_] = lru_cache(maxsize=RECENT_ROWS)(msgspec.json.Decoder(type_).decode)
    decoder: _lru_cache_wrapper[_AnyRow] = _recent[type_]
    return decoder


def share_texts(row: _AnyRow, *fields: str) -> _AnyRow:
    """Let the texts of these fields be those of equal ones elsewhere; return the row, which stays equal.

    A decoder makes each text anew: of 10,000 rows of a set 10,000 copies of its uid, 85 bytes each. A text
    that only one row has takes more when it is shared.
    """
    for field in fields:
        force_setattr(row, field, intern(getattr(row, field)))
    return row


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
