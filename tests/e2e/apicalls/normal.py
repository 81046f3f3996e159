"""Makes the answers of two servers comparable: what each chooses itself becomes a word.

Causes of an error are compared as a set: kube-apiserver validates some objects several times, and reports a
cause each time.
"""

import json
import re
from typing import Any

from tests.e2e.apicalls.calls import Answer, Server

Json = Any

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_GENERATED = re.compile(r"\b(made-\d+-)[bcdfghjklmnpqrstvwxz2456789]{5}\b")
_NUMBER = re.compile(r"\b\d{2,}\b")
_OWN = {
    "resourceVersion": "<rv>",
    "creationTimestamp": "<time>",
    "deletionTimestamp": "<time>",
    "continue": "<continue>",
}


def normal(server: Server, answer: Answer) -> Answer:
    """Return an answer in which uids, versions, times and generated names are words."""
    return Answer(answer.code, _normal(_names(server), answer.body, ""))


def _names(server: Server) -> list[tuple[str, str]]:
    return [(name, f"<made:{at}>") for at, name in enumerate(server.made)]


def _normal(names: list[tuple[str, str]], value: Json, field: str) -> Json:
    if isinstance(value, dict):
        result = {key: _normal(names, child, key) for key, child in value.items()}
        if result.get("kind") == "Status":
            result["message"] = _message(result)
        return {_text(names, key): child for key, child in result.items()}
    if isinstance(value, list):
        items = [_normal(names, child, "") for child in value]
        if field == "managedFields":
            return sorted(items, key=_manager)
        if field == "causes":
            return [json.loads(text) for text in sorted({json.dumps(item, sort_keys=True) for item in items})]
        return items
    if isinstance(value, str):
        if field in _OWN and value:
            return _OWN[field]
        return _text(names, value)
    return value


def _message(status: Json) -> str:
    """Return the message of a Status; of several causes, which come in any order, only the beginning."""
    text = _NUMBER.sub("<n>", str(status.get("message", "")))
    causes = (status.get("details") or {}).get("causes") or ()
    return text.partition(": [")[0].partition("conflicts: ")[0] if len(causes) > 1 else text


def _manager(entry: Json) -> tuple[str, ...]:
    return tuple(str(entry.get(field)) for field in ("manager", "operation", "subresource", "apiVersion"))


def _text(names: list[tuple[str, str]], text: str) -> str:
    for name, symbol in names:
        text = text.replace(name, symbol)
    return _TIME.sub("<time>", _UUID.sub("<uid>", _GENERATED.sub(r"\1<generated>", text)))


def differences(one: Json, other: Json, path: str = "") -> list[str]:
    """Return the paths at which two normal values differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted(one.keys() | other.keys()):
            if one.get(key, _ABSENT) != other.get(key, _ABSENT):
                found += differences(one.get(key, _ABSENT), other.get(key, _ABSENT), f"{path}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            text
            for at, (left, right) in enumerate(zip(one, other, strict=True))
            for text in (differences(left, right, f"{path}[{at}]") if left != right else ())
        ]
    return [] if one == other and type(one) is type(other) else [f"{path or '.'}: {one!r} / {other!r}"]


_ABSENT = "(absent)"
