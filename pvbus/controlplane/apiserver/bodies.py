"""Reads request bodies: JSON, YAML and the few protobuf messages, within limits.

A body is untrusted. Its nesting is limited, because all code after this module walks objects by recursion.
The expanded size of YAML aliases is limited. Numbers and texts that JSON cannot hold are refused. Every
refusal is a StatusError (400 or 415), and takes time linear in the body.
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from pvbus.controlplane.apiserver import protobuf, status
from pvbus.controlplane.apiserver.entries import decode, encode
from pvbus.controlplane.apiserver.hooks import StatusError

BODY_BYTES_MAX = 3 * 1024 * 1024
"""kube-apiserver's own limit for a request body."""

PACKAGE_BODY_BYTES_MAX = 6 * 1024 * 1024
"""Porch's limit: a PackageRevisionResources carries a whole package."""

DEPTH_MAX = 128
"""Levels of objects and lists in a body. The deepest definitions in use have about 60; validation needs
up to 4 frames per level, and Python has 1,000 of them in all."""

_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
"""The range that JSON encoders here and in clients handle without loss."""

_YAML_MEDIA = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")


def read_object(content: bytes, media: str, *, duplicates: bool) -> tuple[dict[str, Any], list[str]]:
    """Decode a body that must be an object; return it with the paths of its duplicate fields.

    duplicates: whether to look for duplicate fields; False is faster.
    """
    if media in ("application/json", ""):
        value, doubled = _read_json(content, duplicates)
    elif media in _YAML_MEDIA:
        value = _read_yaml(content)
        doubled = list(_doubled_paths(value)) if duplicates else []
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


def read_config(content: bytes, *, strict: bool) -> dict[str, Any]:
    """Decode the YAML or JSON object of a server-side apply. Raises StatusError (400).

    strict: refuse duplicate fields.
    """
    value = _read_yaml(content)
    if strict and (doubled := list(_doubled_paths(value))):
        listed = ", ".join(f'key "{path}" already set in map' for path in doubled)
        raise status.bad_request(f"error strict decoding YAML: {listed}")
    if not isinstance(value, dict):
        raise status.bad_request("error decoding YAML: the body of the request is not an object")
    return value


def refuse_nul(value: Any, content: bytes, media: str) -> None:
    """Refuse (400) a body with a NUL in a key or a text, which no name, path or git ref may contain.

    content: the bytes that `value` was decoded from, which usually show at once that there is no NUL. The
    texts of spec.resources are the contents of files, which may hold any character.
    """
    if media not in _YAML_MEDIA and b"\\u0000" not in content:
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


class _Loader(yaml.CSafeLoader):
    """Only JSON's types: a date stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in rules if not tag.endswith((":timestamp", ":merge"))]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _read_yaml(content: bytes) -> Any:
    """Decode one YAML document. Raises StatusError (400)."""
    loader = _Loader(content)
    try:
        return _Tree(loader).read()
    except (yaml.YAMLError, ValueError) as exc:
        raise status.bad_request(f"the body of the request is not valid YAML: {exc}") from exc
    finally:
        loader.dispose()


_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null"))


class _Tree:
    """Builds the value of a document from the parser's events.

    The loader's own composer recurses in C without a limit, so a deep document crashes the process.
    """

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._size = 0
        """The size of the values so far, aliases expanded: about the bytes of the value as JSON."""

    def read(self) -> Any:
        loader = self._loader
        loader.get_event()
        if loader.check_event(yaml.StreamEndEvent):
            return None
        loader.get_event()
        value = self._value()
        loader.get_event()
        if not loader.check_event(yaml.StreamEndEvent):
            raise ValueError("expected a single document in the stream")
        return value

    def _value(self) -> Any:
        """Read one value with all values inside; `open_` holds the collections that have not ended."""
        open_: list[tuple[yaml.CollectionStartEvent, list[Any], int]] = []
        while True:
            event = self._loader.get_event()
            size = self._size
            self._size += 2
            if isinstance(event, yaml.CollectionStartEvent):
                kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
                if event.tag not in (None, "!", f"{_TAG}{kind}"):
                    raise ValueError(f"the tag {event.tag} is not supported")
                if len(open_) >= DEPTH_MAX:
                    raise _too_deep()
                open_.append((event, [], size))
                continue
            if isinstance(event, yaml.AliasEvent):
                value = self._aliased(event.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                value = self._scalar(event)
            else:
                event, items, size = open_.pop()
                value = (
                    items
                    if isinstance(event, yaml.SequenceStartEvent)
                    else _mapping_of(zip(items[::2], items[1::2], strict=True))
                )
            if event.anchor and not isinstance(event, yaml.AliasEvent):
                self._anchors[event.anchor] = (value, self._size - size)
            if not open_:
                return value
            siblings = open_[-1][1]
            if isinstance(open_[-1][0], yaml.MappingStartEvent) and len(siblings) % 2 == 0:
                value = _yaml_key(event, value)
            siblings.append(value)

    def _aliased(self, anchor: str | None) -> Any:
        if anchor is None or anchor not in self._anchors:
            raise ValueError(f"found undefined alias {anchor!r}")
        value, size = self._anchors[anchor]
        self._size += size
        if self._size > PACKAGE_BODY_BYTES_MAX:
            raise ValueError(f"its aliases expand to more than {PACKAGE_BODY_BYTES_MAX} bytes")
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        self._size += len(event.value)
        tag = event.tag
        if tag is None or tag == "!":
            resolve: Any = self._loader.resolve  # it has no types
            tag = resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag not in _SCALARS:
            raise ValueError(f"the tag {tag} is not supported")
        node = yaml.ScalarNode(tag, event.value)
        value = self._loader.yaml_constructors[tag](self._loader, node)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{event.value} is not a number of JSON")
        if isinstance(value, int) and not _INTEGER_MIN <= value <= _INTEGER_MAX:
            raise ValueError(f"the number {event.value[:40]} is out of range")
        return value


def _yaml_key(event: yaml.Event, value: Any) -> str:
    """Return a key as it is written: as keys, `1` and `true` are texts."""
    if isinstance(event, yaml.ScalarEvent):
        return str(event.value)
    if not isinstance(value, str):
        raise ValueError("a key must be a text, not a list or an object")
    return value
