"""What a request asks for: its path, its options, the shape of the answer it accepts, its body."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

import yaml

from pvbus.embedded.apiserver import protobuf, status
from pvbus.embedded.apiserver.entries import decode, encode
from pvbus.embedded.apiserver.hooks import StatusError
from pvbus.embedded.apiserver.structural import FieldError

BODY_BYTES_MAX = 3 * 1024 * 1024
"""kube-apiserver's own limit of a request body."""

PACKAGE_BODY_BYTES_MAX = 6 * 1024 * 1024
"""Porch's limit: a PackageRevisionResources carries a whole package."""

Shape = Literal["", "Table", "PartialObjectMetadata"]
Validation = Literal["Strict", "Warn", "Ignore"]


class Target(NamedTuple):
    """A path below /api or /apis. namespace None: not given in the path; name "": the collection."""

    group: str
    version: str
    plural: str
    namespace: str | None
    name: str
    subresource: str


class Options(NamedTuple):
    """How a write is to be done. warnings is filled on the way and sent as headers."""

    user: str
    warnings: list[str]
    dry_run: bool = False
    validation: Validation = "Warn"


class DeleteOptions(NamedTuple):
    uid: str = ""
    resource_version: str = ""
    propagation: str = "Background"
    dry_run: bool = False


def parse_path(path: str) -> Target | None:
    """Return what a path points to, None when it is not the path of a resource."""
    parts = path.split("/")
    if parts[-1] == "":
        parts.pop()
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if len(parts) > 3 and parts[1] == "api":
        group, version, rest = "", parts[2], parts[3:]
    elif len(parts) > 4 and parts[1] == "apis":
        group, version, rest = parts[2], parts[3], parts[4:]
    else:
        return None
    namespace = None
    if (
        rest[0] == "namespaces"
        and len(rest) > 2
        and not (group == "" and len(rest) == 3 and rest[2] in ("status", "finalize"))
    ):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or "" in rest:
        return None
    return Target(
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
    )


def parse_query(text: str) -> Mapping[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


def number(name: str, text: str) -> int:
    """Return a number of a query. Raises StatusError (400)."""
    if len(text) > 18 or not (text.isascii() and text.isdigit()):
        raise status.bad_request(f'Invalid value: "{text}": {name} must be a number')
    return int(text)


def is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1", "t")


def write_options(query: Mapping[str, str], user: str) -> Options:
    """Return the options of a write. Raises StatusError for values that do not exist."""
    if not query:
        return Options(user, [])
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise status.invalid(
            status.Subject("meta.k8s.io", "", "CreateOptions"),
            [_unsupported("fieldValidation", validation, ("Ignore", "Strict", "Warn"))],
        )
    return Options(user, [], _dry_run(query.get("dryRun")), validation)  # type: ignore[arg-type]


def _dry_run(value: Any) -> bool:
    values = [value] if isinstance(value, str) else list(value or ())
    for one in values:
        if one not in ("", "All"):
            subject = status.Subject("meta.k8s.io", "", "CreateOptions")
            raise status.invalid(subject, [_unsupported("dryRun", one, ("All",))])
    return "All" in values


def _unsupported(path: str, value: str, supported: tuple[str, ...]) -> FieldError:
    listed = ", ".join(f'"{one}"' for one in supported)
    return FieldError(
        path, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}'
    )


def delete_options(query: Mapping[str, str], content: Any) -> DeleteOptions:
    """Merge the query with a DeleteOptions body ({} when there was none)."""
    preconditions = content.get("preconditions") or {}
    propagation = content.get("propagationPolicy") or query.get("propagationPolicy") or ""
    orphan = content.get("orphanDependents")
    if orphan is None and "orphanDependents" in query:
        orphan = is_true(query, "orphanDependents")
    if not propagation:
        propagation = "Orphan" if orphan else "Background"
    if propagation not in ("Background", "Foreground", "Orphan"):
        raise status.invalid(
            status.Subject("meta.k8s.io", "", "DeleteOptions"),
            [_unsupported("propagationPolicy", propagation, ("Foreground", "Background", "Orphan"))],
        )
    return DeleteOptions(
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=propagation,
        dry_run=_dry_run(content.get("dryRun")) or _dry_run(query.get("dryRun")),
    )


class Wanted(NamedTuple):
    """The shape of the answer, and whether a list of it was meant."""

    shape: Shape
    yaml: bool = False


@lru_cache(256)
def wanted(accept: str) -> Wanted:
    """Choose the first shape of an Accept header that this server has. Raises StatusError (406)."""
    for term in accept.split(",") if accept else ("*/*",):
        media, *parameters = (part.strip() for part in term.split(";"))
        if media not in ("application/json", "application/*", "*/*", "application/yaml"):
            continue
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        shape = values.get("as", "").removesuffix("List")
        if shape == "":
            return Wanted("", media == "application/yaml")
        if shape in ("Table", "PartialObjectMetadata") and values.get("v", "v1") == "v1":
            return Wanted(shape)  # type: ignore[arg-type]
    raise StatusError(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml",
    )


class _Doubled(dict[str, Any]):
    """A mapping that had fields twice; `again` names them."""

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


class _Loader(yaml.CSafeLoader):
    """JSON's types only: a date stays text, keys are texts, and none is taken silently twice."""


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    return _mapping_of((key.value, loader.construct_object(value, deep=True)) for key, value in node.value)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in rules if not tag.endswith((":timestamp", ":merge"))]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def read_object(content: bytes, media: str, *, duplicates: bool) -> tuple[dict[str, Any], list[str]]:
    """Decode a body that must be an object, and the paths of fields that it has twice.

    duplicates False: the caller does not want to know, which is faster.
    """
    if media in ("application/json", ""):
        value, doubled = _read_json(content, duplicates)
    elif media in ("application/yaml", "application/x-yaml", "text/yaml"):
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


def _read_protobuf(content: bytes) -> dict[str, Any]:
    try:
        return protobuf.decode(content)
    except ValueError as exc:
        raise status.unsupported_media_type(
            f"protobuf bodies are not supported by this server ({exc}): send JSON or YAML, with kubectl from "
            "a file (kubectl create --dry-run=client -o yaml ... | kubectl create -f -)"
        ) from exc


def _read_json(content: bytes, duplicates: bool) -> tuple[Any, list[str]]:
    try:
        value = decode(content)
        # Encoding again gives the same bytes only if nothing was there twice; that is much cheaper
        # than a parser that watches for it, and clients that are programs send compact JSON.
        if not duplicates or encode(value) == content:
            return value, []
        return value, list(_doubled_paths(json.loads(content, object_pairs_hook=_mapping_of)))
    except (ValueError, RecursionError) as exc:
        raise status.bad_request(f"the body of the request is not valid JSON: {exc}") from exc


def read_json(content: bytes) -> Any:
    """Decode any JSON value, a patch for instance. Raises StatusError (400)."""
    return _read_json(content, False)[0]


def _read_yaml(content: bytes) -> Any:
    loader = _Loader(content)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise status.bad_request(f"the body of the request is not valid YAML: {exc}") from exc
    finally:
        loader.dispose()
