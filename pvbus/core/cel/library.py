"""Signatures of CEL's standard library: functions, their overloads in cel-go's order, type names.

The order matters: if an argument's type is an unbound variable, the first overload binds it.
"""

from typing import NamedTuple

from pvbus.core.cel import types as t
from pvbus.core.cel.conversions import DURATION_PARTS, TIME_PARTS
from pvbus.core.cel.types import Type
from pvbus.core.cel.wrappers import WRAPPER_TYPES

A, B = t.variable("A"), t.variable("B")
LIST, MAP = t.list_of(A), t.map_of(A, B)


class Overload(NamedTuple):
    """One signature. params: a member's receiver is the first."""

    params: tuple[Type, ...]
    result: Type
    member: bool = False


def _both(result: Type, *params: Type) -> list[Overload]:
    return [Overload(params, result), Overload(params, result, member=True)]


def _same(*kinds: Type) -> list[Overload]:
    return [Overload((kind, kind), kind) for kind in kinds]


def _conversion(result: Type, *sources: Type) -> list[Overload]:
    return [Overload((source,), result) for source in sources]


_ORDERED = [
    Overload((kind, kind), t.BOOL)
    for kind in (t.BOOL, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BYTES, t.TIMESTAMP, t.DURATION)
]
_OF_STRINGS = [Overload((t.STRING, t.STRING), t.BOOL, member=True)]
_TIME = {
    name: [
        *([Overload((t.TIMESTAMP,), t.INT, True), Overload((t.TIMESTAMP, t.STRING), t.INT, True)]),
        *([Overload((t.DURATION,), t.INT, True)] if name in DURATION_PARTS else []),
    ]
    for name in TIME_PARTS
}

FUNCTIONS: dict[str, list[Overload]] = {
    "_?_:_": [Overload((t.BOOL, A, A), A)],
    "!_": [Overload((t.BOOL,), t.BOOL)],
    "-_": [Overload((t.DOUBLE,), t.DOUBLE), Overload((t.INT,), t.INT)],
    "_==_": [Overload((A, A), t.BOOL)],
    "_!=_": [Overload((A, A), t.BOOL)],
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _ORDERED),
    "_+_": [
        *_same(t.BYTES, t.DOUBLE, t.DURATION),
        Overload((t.DURATION, t.TIMESTAMP), t.TIMESTAMP),
        Overload((t.TIMESTAMP, t.DURATION), t.TIMESTAMP),
        *_same(t.INT, LIST, t.STRING, t.UINT),
    ],
    "_-_": [
        *_same(t.DOUBLE, t.DURATION, t.INT),
        Overload((t.TIMESTAMP, t.DURATION), t.TIMESTAMP),
        Overload((t.TIMESTAMP, t.TIMESTAMP), t.DURATION),
        *_same(t.UINT),
    ],
    "_*_": _same(t.DOUBLE, t.INT, t.UINT),
    "_/_": _same(t.DOUBLE, t.INT, t.UINT),
    "_%_": _same(t.INT, t.UINT),
    "_[_]": [Overload((LIST, t.INT), A), Overload((MAP, A), B)],
    "@in": [Overload((A, LIST), t.BOOL), Overload((A, MAP), t.BOOL)],
    "size": [o for kind in (t.BYTES, LIST, MAP, t.STRING) for o in _both(t.INT, kind)],
    "type": [Overload((A,), t.type_of(A))],
    "dyn": [Overload((A,), t.DYN)],
    "bool": _conversion(t.BOOL, t.BOOL, t.STRING),
    "bytes": _conversion(t.BYTES, t.BYTES, t.STRING),
    "double": _conversion(t.DOUBLE, t.DOUBLE, t.INT, t.STRING, t.UINT),
    "duration": _conversion(t.DURATION, t.DURATION, t.INT, t.STRING),
    "int": _conversion(t.INT, t.INT, t.DOUBLE, t.DURATION, t.STRING, t.TIMESTAMP, t.UINT),
    "string": _conversion(
        t.STRING, t.STRING, t.BOOL, t.BYTES, t.DOUBLE, t.DURATION, t.INT, t.TIMESTAMP, t.UINT
    ),
    "timestamp": _conversion(t.TIMESTAMP, t.TIMESTAMP, t.INT, t.STRING),
    "uint": _conversion(t.UINT, t.UINT, t.DOUBLE, t.INT, t.STRING),
    **dict.fromkeys(("contains", "endsWith", "startsWith"), _OF_STRINGS),
    "matches": _both(t.BOOL, t.STRING, t.STRING),
    **_TIME,
    **{
        name: [Overload((kind,), t.wrapper_of(kind)), Overload((), t.wrapper_of(kind))]
        for name, kind in WRAPPER_TYPES.items()
    },
}  # fmt: skip

# Conversions are bound per overload, so only the types that the checker left are accepted at run time.
CONVERSIONS = frozenset(["bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"])

TYPES: dict[str, Type] = {
    **{kind.kind: kind for kind in (t.BOOL, t.BYTES, t.DOUBLE, t.INT, t.STRING, t.UINT, t.TYPE)},
    "null_type": t.NULL,
    "list": LIST,
    "map": MAP,
    "google.protobuf.Timestamp": t.TIMESTAMP,
    "google.protobuf.Duration": t.DURATION,
}
