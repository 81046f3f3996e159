"""YAML text for plain values, as block or flow, in a given style.

Strings are written so that readers of YAML 1.1 and of 1.2 agree that they are strings: `yes`,
`0o17`, `12:30:00` and dates get quotes, whichever version the reader follows.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from pvbus.core.yaml.scalars import has_other_value

_INDICATORS = frozenset("-?:,[]{}#&*!|>'\"%@`=<")
_UNPRINTABLE = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_FLOW_SPECIAL = re.compile(r"[,\[\]{}]")


class Style(NamedTuple):
    """How a document is indented. wide: the dash of a sequence is indented below its key."""

    step: int = 2
    wide: bool = False


def dump(value: Any) -> str:
    """Return a value as block YAML, keys in their order, lists in their parent's column."""
    return "\n".join(block(value, "", Style())) + "\n"


def block(value: Any, pad: str, style: Style) -> list[str]:
    """Return the lines of a value, each beginning with `pad`; empty lines stay empty."""
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(scalar(key), item, pad, style)]
    if isinstance(value, list) and value:
        return [line for item in value for line in _item(item, pad, style)]
    return [pad + flow(value)]


def _entry(key: str, value: Any, pad: str, style: Style) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield f"{pad}{key}:"
        yield from block(value, pad + " " * style.step, style)
    elif isinstance(value, list) and value:
        yield f"{pad}{key}:"
        yield from block(value, pad + " " * style.step if style.wide else pad, style)
    else:
        yield from _leaf(f"{pad}{key}: ", value, pad + " " * style.step)


def _item(value: Any, pad: str, style: Style) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        inner = block(value, pad + "  ", style)
        yield f"{pad}- {inner[0][len(pad) + 2 :]}"
        yield from inner[1:]
    else:
        yield from _leaf(f"{pad}- ", value, pad + "  ")


def _leaf(head: str, value: Any, pad: str) -> list[str]:
    if isinstance(value, str) and _literal(value):
        lines = value.removesuffix("\n").split("\n")
        chomp = "" if value.endswith("\n") else "-"
        return [f"{head}|{chomp}", *(pad + line if line else "" for line in lines)]
    return [head + flow(value)]


def is_multiline(value: Any) -> bool:
    """Tell whether a value is written on several lines."""
    return bool(value) if isinstance(value, dict | list) else isinstance(value, str) and _literal(value)


def _literal(text: str) -> bool:
    """Tell whether a text can and should be a literal block."""
    if "\n" not in text or text.endswith("\n\n") or _UNPRINTABLE.search(text):
        return False
    first = text.split("\n", 1)[0]
    return bool(first) and not first[0].isspace() and not re.search(r"[ \t]$", text, re.MULTILINE)


def flow(value: Any, *, nested: bool = False) -> str:
    """Return a value on one line. nested: inside a flow collection, where commas end a scalar."""
    if isinstance(value, dict):
        inner = (f"{scalar(k, nested=True)}: {flow(v, nested=True)}" for k, v in value.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item, nested=True) for item in value) + "]"
    return scalar(value, nested=nested)


def scalar(value: Any, *, quote: str = "", nested: bool = False) -> str:
    """Return a scalar on one line. quote: the quotes that were there before, ' or "."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if not isinstance(value, str):
        return str(value)
    if quote == "'" and "\n" not in value and not _UNPRINTABLE.search(value):
        return "'" + value.replace("'", "''") + "'"
    if quote not in ("'", '"') and _plain(value) and not (nested and _FLOW_SPECIAL.search(value)):
        return value
    return as_json(value)


def as_json(value: Any, **options: Any) -> str:
    """Return JSON, which is YAML too: characters that YAML does not allow in a text are escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    # YAML 1.1 takes a number without a point, or an exponent without a sign, for a string.
    return text if not e or "." in mantissa else f"{mantissa}.0e{exponent}"


def _plain(text: str) -> bool:
    if not text or text[0] in _INDICATORS or text != text.strip() or _UNPRINTABLE.search(text):
        return False
    if "\n" in text or "\t" in text or ": " in text or " #" in text or text.endswith(":"):
        return False
    return not (text.startswith("...") or is_ambiguous(text))


def is_ambiguous(text: str) -> bool:
    """Tell whether some YAML reader reads this plain text as anything but a string."""
    if has_other_value(text):
        return True
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers  # those of YAML 1.1: base 60, dates
    return any(pattern.match(text) for _, pattern in resolvers.get(text[:1], []))
