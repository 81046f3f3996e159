"""Reads request bodies: JSON, YAML and the few protobuf messages, within limits.

A body is untrusted. Its nesting is limited, because all code after this module walks objects by recursion.
The expanded size of YAML aliases is limited. Numbers and texts that JSON cannot hold are refused. Every
refusal is a StatusError (400 or 415), and takes time linear in the body.
"""

import json
import mmap
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import protobuf, status
from pvbus.controlplane.apiserver.entries import decode, encode
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.workers import Workers
from pvbus.core.yaml.reader import Document, Limits, YamlError, document

BODY_BYTES_MAX = 3 * 1024 * 1024
"""kube-apiserver's own limit for a request body."""

PACKAGE_BODY_BYTES_MAX = 6 * 1024 * 1024
"""Porch's limit: a PackageRevisionResources carries a whole package."""

DEPTH_MAX = 128
"""Levels of objects and lists in a body. The deepest definitions in use have about 60; validation needs
up to 4 frames per level, and Python has 1,000 of them in all."""

LARGE_BYTES = 64 * 1024
"""YAML of more is read in another process: this much takes some 20 ms, in which nobody else is answered."""

_YAML_LIMITS = Limits(PACKAGE_BODY_BYTES_MAX, DEPTH_MAX, nodes_max=500_000)
"""Nodes: twice those of the largest body, if a key and a value have a dozen characters."""

_YAML_MEDIA = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")


LARGE_VALUES = 5000
"""A write of an object with more is computed in another process: each takes some 10 microseconds."""


ROOM_BYTES = 4 << 20
ROOM_FACTOR = 8
"""What must be free to work on a body, and how often the body itself: as bytes, values, JSON and an entry."""


def check_room(size: int) -> None:
    """Raise OSError (ENOMEM) if there is no memory to work on a body of so many bytes.

    The JSON encoder ends the process with a signal when its buffer cannot grow (msgspec 0.22). Pages that
    are asked for and never touched cost microseconds.
    """
    mmap.mmap(-1, ROOM_BYTES + ROOM_FACTOR * size).close()


class Read(NamedTuple):
    """A YAML body as another process read it: its value as JSON, and its duplicate fields."""

    encoded: bytes
    doubled: tuple[str, ...]


Body = bytes | Read


def is_large(content: Body) -> bool:
    """Return whether a body, or a stored object, has so many values that others would wait for it.

    Commas tell their number: long texts, as files have them, cost little.
    """
    encoded = content.encoded if isinstance(content, Read) else content
    return len(encoded) > LARGE_BYTES and encoded.count(b",") > LARGE_VALUES


async def with_large_read(content: bytes, media: str, workers: Workers) -> Body:
    """Return a body; one of YAML that is large, or may expand, is read where the event loop does not wait.

    Raises StatusError (400, and those of `workers`).
    """
    if media not in _YAML_MEDIA or not (len(content) > LARGE_BYTES or _may_expand(content)):
        return content
    try:
        return Read(*await workers.run("read_yaml", content, _YAML_LIMITS))
    except ValueError as exc:
        raise _invalid_yaml(exc) from exc


_ANCHORS = re.compile(rb"&([A-Za-z0-9_-]+)")
_ALIASES = re.compile(rb"\*([A-Za-z0-9_-]+)")


def _may_expand(content: bytes) -> bool:
    """Return whether YAML may have aliases: a few lines of them stand for 100,000 values."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16, which hides them
        return True
    if b"&" not in content or b"*" not in content:
        return False
    return not set(_ANCHORS.findall(content)).isdisjoint(_ALIASES.findall(content))


def _invalid_yaml(error: ValueError) -> StatusError:
    return status.bad_request(f"the body of the request is not valid YAML: {error}")


def read_object(content: Body, media: str, *, duplicates: bool) -> tuple[dict[str, Any], list[str]]:
    """Decode a body that must be an object; return it with the paths of its duplicate fields.

    duplicates: whether to look for duplicate fields; False is faster.
    """
    if isinstance(content, Read) or media in _YAML_MEDIA:
        read = _read_yaml(content)
        value, doubled = read.value, list(read.doubled) if duplicates else []
    elif media in ("application/json", ""):
        value, doubled = _read_json(content, duplicates)
    elif media == "application/vnd.kubernetes.protobuf":
        value, doubled = _read_protobuf(content), []
    else:
        raise status.unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json, application/yaml"
        )
    if not isinstance(value, dict):
        raise status.bad_request("the body of the request is not an object")
    return value, doubled


def read_json(content: bytes) -> Any:
    """Decode any JSON value, for example a patch. Raises StatusError (400)."""
    return _read_json(content, False)[0]


def read_config(content: Body, *, strict: bool) -> dict[str, Any]:
    """Decode the YAML or JSON object of a server-side apply. Raises StatusError (400).

    strict: refuse duplicate fields.
    """
    value, _, doubled = _read_yaml(content)
    if strict and doubled:
        listed = ", ".join(f'key "{path}" already set in map' for path in doubled)
        raise status.bad_request(f"error strict decoding YAML: {listed}")
    if not isinstance(value, dict):
        raise status.bad_request("error decoding YAML: the body of the request is not an object")
    return value


def refuse_nul(value: Any, content: Body, media: str) -> None:
    """Refuse (400) a body with a NUL in a key or a text, which no name, path or git ref may contain.

    content: the bytes that `value` was decoded from, which usually show at once that there is no NUL. The
    texts of spec.resources are the contents of files, which may hold any character.
    """
    if isinstance(content, bytes) and media not in _YAML_MEDIA and b"\\u0000" not in content:
        return
    for path, text in _texts(value, ""):
        if "\0" in text and not path.startswith("spec.resources["):
            raise status.bad_request(f"{path}: Invalid value: {json.dumps(text)}: must not contain NUL")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every text; a key is a text at the path of its object."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            in_files = path == "spec.resources"
            yield from _texts(item, f"{path}[{key}]" if in_files else f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _texts(item, f"{path}[{at}]")


def is_deep(value: Any) -> bool:
    """Return whether a value has more than `DEPTH_MAX` levels of objects and lists."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEPTH_MAX):
        level = [
            child
            for item in level
            for child in (item if isinstance(item, list) else item.values())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _too_deep() -> StatusError:
    return status.bad_request(f"the body of the request is more than {DEPTH_MAX} levels deep")


# --- duplicate keys ---


class _Doubled(dict[str, Any]):
    """A mapping with duplicate fields in the body; `again` lists them."""

    again: list[str]


def _mapping_of(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    again = []
    for key, value in items:
        if key in result:
            again.append(key)
        result[key] = value
    if again:
        result = _Doubled(result)
        result.again = again
    return result


def _doubled_paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        if isinstance(value, _Doubled):
            yield from (f"{prefix}{name}" for name in value.again)
        for key, item in value.items():
            yield from _doubled_paths(item, f"{prefix}{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _doubled_paths(item, f"{path}[{at}]")


# --- formats ---


def _read_json(content: bytes, duplicates: bool) -> tuple[Any, list[str]]:
    try:
        value = decode(content)
        # Few brackets cannot nest deeply, and counting them is much cheaper than walking the value.
        if content.count(b"{") + content.count(b"[") > DEPTH_MAX and is_deep(value):
            raise _too_deep()
        # Encoding the value again gives the same bytes only if there are no duplicates. That is much
        # cheaper than a parser that checks for them, and programs send compact JSON.
        if not duplicates or encode(value) == content:
            return value, []
        return value, list(_doubled_paths(json.loads(content, object_pairs_hook=_mapping_of)))
    except RecursionError as exc:
        raise _too_deep() from exc
    except ValueError as exc:
        raise status.bad_request(f"the body of the request is not valid JSON: {exc}") from exc


def _read_protobuf(content: bytes) -> dict[str, Any]:
    try:
        return protobuf.decode(content)
    except protobuf.UnknownKindError as exc:
        raise status.unsupported_media_type(
            f"protobuf bodies are not supported by this server ({exc}): send JSON or YAML, with kubectl from "
            "a file (kubectl create --dry-run=client -o yaml ... | kubectl create -f -)"
        ) from exc
    except ValueError as exc:
        raise status.bad_request(f"the body of the request is not valid protobuf: {exc}") from exc


def _read_yaml(content: Body) -> Document:
    """Decode one YAML document. Raises StatusError (400)."""
    if isinstance(content, Read):
        return Document(decode(content.encoded), 1, content.doubled)
    try:
        return document(content, _YAML_LIMITS)
    except YamlError as exc:
        raise _invalid_yaml(exc) from exc
