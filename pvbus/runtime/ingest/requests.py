"""Records of `pvbus.watches`, checked before ingest acts on them.

Any writer of the topic chooses the content of a request. A request is accepted only if its key follows from
its content, so that none has the key, or the partition, of another one. Apart from `worker`: this
is where trust ends, and nothing else stands here.
"""

import msgspec

from pvbus.core.kernel.keys import CHECK_PREFIX, check_key, watch_key
from pvbus.core.kernel.records import CheckRequest, WatchRequest

NAMES_MAX = 10_000  # more names of ordinary length do not fit into a record
NONCE_CHARACTERS_MAX = 64

_watch = msgspec.json.Decoder(WatchRequest)
_check = msgspec.json.Decoder(CheckRequest)


def watch_request(key: str, value: bytes) -> WatchRequest:
    """Decode a watch request. Raises MsgspecError or ValueError if it is invalid."""
    request = _watch.decode(value)
    _check_kind(request)
    if watch_key(request) != key:
        raise ValueError(f"the key {key!r} is not the one of its request, {watch_key(request)[:600]!r}")
    return request


def check_request(key: str, value: bytes) -> CheckRequest:
    """Decode a check request. Raises MsgspecError or ValueError if it is invalid."""
    request = _check.decode(value)
    _check_kind(request)
    skey = key.removeprefix(CHECK_PREFIX).partition("|")[2]
    if check_key(request.group, request.kind, skey) != key:
        raise ValueError(f"the key {key!r} is not the one of a check of {request.group}/{request.kind}")
    if not 0 < len(request.nonce) <= NONCE_CHARACTERS_MAX:
        raise ValueError(
            f"a nonce has 1 to {NONCE_CHARACTERS_MAX} characters; this one: {len(request.nonce)}"
        )
    if len(request.names) > NAMES_MAX:
        raise ValueError(f"a check request has at most {NAMES_MAX} names; this one has {len(request.names)}")
    for text in request.names:
        if not text.partition("/")[2]:
            raise ValueError(f"names are <namespace>/<name>, not {text[:600]!r}")
    return request


def _check_kind(request: WatchRequest | CheckRequest) -> None:
    if not request.kind or "|" in f"{request.group}{request.kind}":
        raise ValueError(f"no kind is called {f'{request.group}/{request.kind}'[:600]!r}")
