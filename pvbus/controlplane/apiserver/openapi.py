"""OpenAPI documents, which `kubectl explain`, `apply` and `create` read.

There is one version 3 document per group and version, with an index that has a hash of each content, and one
version 2 document for older clients. An `OpenApi` belongs to one set of served kinds; create another one when
that set changes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from pvbus.controlplane.apiserver.discovery import KUBERNETES_VERSION, group_versions
from pvbus.controlplane.apiserver.kinds import ServedKind, ServedVersion
from pvbus.controlplane.apiserver.nodes import METADATA_SCHEMA
from pvbus.controlplane.apiserver.patch import PATCHES, STRATEGIC_PATCH

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_COMPONENTS = "#/components/schemas/"
_PACKAGES = {
    "": "io.k8s.api.core",
    "events.k8s.io": "io.k8s.api.events",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
_METADATA_WORDS = {
    "name": "Name of the object, unique for its kind in its namespace.",
    "generateName": "Prefix of a name that the server completes.",
    "namespace": "Namespace of the object; empty for kinds without.",
    "uid": "Tells this object from others of the same name at other times.",
    "resourceVersion": "Changes with each write. Send it to write only what you have read.",
    "generation": "Counts the changes of what is wanted.",
    "selfLink": "No longer used.",
    "creationTimestamp": "When it was created.",
    "deletionTimestamp": "When its deletion was asked for; it goes with its last finalizer.",
    "deletionGracePeriodSeconds": "Seconds from that request until it may go.",
    "labels": "Keys and values to select by.",
    "annotations": "Keys and values for tools.",
    "finalizers": "Who must be done before the object goes.",
    "ownerReferences": "Objects that this one goes with.",
    "managedFields": "Which tool set which fields.",
}
_VERSION = f"v{KUBERNETES_VERSION}"


class OpenApi:
    """The documents for these kinds, each created at its first request."""

    def __init__(self, kinds: Sequence[ServedKind]) -> None:
        self._kinds = tuple(kinds)
        self._paths = {
            (f"apis/{group}/{version}" if group else f"api/{version}"): (group, version)
            for group, versions in group_versions(kinds).items()
            for version in versions
        }
        self._documents: dict[str, bytes] = {}

    @cached_property
    def index(self) -> bytes:
        """Return /openapi/v3: the URL of each document."""
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_hash(self.document(path) or b'')}"}
            for path in self._paths
        }
        return msgspec.json.encode({"paths": paths})

    def document(self, path: str) -> bytes | None:
        """Return the document of `api/v1` or `apis/GROUP/VERSION`, None if it is not served."""
        if path not in self._paths:
            return None
        if path not in self._documents:
            self._documents[path] = msgspec.json.encode(self._document(path))
        return self._documents[path]

    @cached_property
    def swagger(self) -> bytes:
        """Return /openapi/v2 (JSON)."""
        definitions = dict(_META_SCHEMAS)
        paths: dict[str, Any] = {}
        for path in self._paths:
            document = self._document(path)
            definitions |= document["components"]["schemas"]
            paths |= {url: _swagger_item(item) for url, item in document["paths"].items()}
        whole = {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": _VERSION},
            "paths": paths,
            "definitions": definitions,
        }
        return msgspec.json.encode(whole).replace(_COMPONENTS.encode(), b"#/definitions/")

    @cached_property
    def swagger_protobuf(self) -> bytes:
        """Return /openapi/v2 in protobuf: an empty document.

        kubectl requests it if a manifest's kind is in no version 3 document, and reports an error response as
        its own failure; with an empty document it reports that there is no such kind.
        """
        info = b"".join(_text(number, text) for number, text in ((1, "Kubernetes"), (2, _VERSION)))
        return _text(1, "2.0") + bytes([2 << 3 | 2, len(info)]) + info

    def _document(self, path: str) -> dict[str, Any]:
        group, version = self._paths[path]
        schemas: dict[str, Any] = dict(_META_SCHEMAS)
        paths: dict[str, Any] = {}
        for kind in self._kinds:
            at = kind.version(version)
            if kind.group == group and at is not None:
                schemas |= _kind_schemas(kind, at)
                paths |= _kind_paths(kind, at)
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": _VERSION},
            "paths": paths,
            "components": {"schemas": schemas},
        }


def _text(field: int, text: str) -> bytes:
    """Encode a short text as a protobuf field."""
    return bytes([field << 3 | 2, len(text)]) + text.encode()


def _hash(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()[:32].upper()


# --- schemas ---


def _component(kind: ServedKind, version: str) -> str:
    package = _PACKAGES.get(kind.group) or ".".join(reversed(kind.group.split(".")))
    return f"{package}.{version}.{kind.kind}"


def _ref(name: str, description: str = "") -> dict[str, Any]:
    """Return a reference to another schema; its own description must stand beside the reference."""
    reference = {"$ref": f"{_COMPONENTS}{name}"}
    return {"description": description, "allOf": [reference]} if description else reference


def _gvk(kind: ServedKind, version: str, name: str = "") -> dict[str, str]:
    return {"group": kind.group, "version": version, "kind": name or kind.kind}


def _kind_schemas(kind: ServedKind, at: ServedVersion) -> dict[str, Any]:
    name = _component(kind, at.name)
    schema: dict[str, Any] = dict(
        at.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    )
    words = "Name, labels and what else every object has."
    schema["properties"] = {
        **_TYPE_PROPERTIES,
        **(schema.get("properties") or {}),
        "metadata": _ref(f"{_META}.ObjectMeta", words),
    }
    schema["x-kubernetes-group-version-kind"] = [_gvk(kind, at.name)]
    listed = {
        "type": "object",
        "description": f"{kind.list_kind} is a list of {kind.kind}.",
        "required": ["items"],
        "properties": {
            **_TYPE_PROPERTIES,
            "metadata": _ref(f"{_META}.ListMeta", "Where the list was read and whether there is more."),
            "items": {"type": "array", "items": _ref(name), "description": "The objects."},
        },
        "x-kubernetes-group-version-kind": [_gvk(kind, at.name, kind.list_kind)],
    }
    return {name: schema, f"{name.removesuffix(kind.kind)}{kind.list_kind}": listed}


_TYPE_PROPERTIES: Mapping[str, Any] = {
    "apiVersion": {"type": "string", "description": "Group and version that this object is written in."},
    "kind": {"type": "string", "description": "What this object is."},
}


def _meta_schemas() -> dict[str, Any]:
    fields = {
        name: {**schema, "description": _METADATA_WORDS[name]}
        for name, schema in METADATA_SCHEMA["properties"].items()
    }
    owner = dict(METADATA_SCHEMA["properties"]["ownerReferences"]["items"])
    owner["description"] = "OwnerReference names an object that this one goes with."
    owner["x-kubernetes-map-type"] = "atomic"
    fields["ownerReferences"]["items"] = _ref(f"{_META}.OwnerReference")
    fields["ownerReferences"] |= {
        "x-kubernetes-patch-merge-key": "uid",
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["uid"],
    }
    fields["finalizers"] |= {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-list-type": "set"}
    texts = ("resourceVersion", "continue")
    return {
        f"{_META}.ObjectMeta": {
            "type": "object",
            "description": "ObjectMeta is what every stored object has.",
            "properties": fields,
        },
        f"{_META}.OwnerReference": owner,
        f"{_META}.ListMeta": {
            "type": "object",
            "description": "ListMeta tells where a list was read and whether there is more.",
            "properties": {
                **{name: {"type": "string"} for name in texts},
                "remainingItemCount": {"type": "integer", "format": "int64"},
            },
        },
    }


_META_SCHEMAS = _meta_schemas()


# --- paths ---


def _query(name: str, type_: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": True}}


_READ = (_query("pretty"),)
_LIST = (
    *(_query(name) for name in ("labelSelector", "fieldSelector", "resourceVersion", "continue")),
    _query("limit", "integer"),
    _query("timeoutSeconds", "integer"),
    _query("watch", "boolean"),
    _query("allowWatchBookmarks", "boolean"),
)
_WRITE = tuple(_query(name) for name in ("dryRun", "fieldManager", "fieldValidation"))
_DELETE = (_query("dryRun"), _query("propagationPolicy"), _query("gracePeriodSeconds", "integer"))


def _kind_paths(kind: ServedKind, at: ServedVersion) -> dict[str, Any]:
    root = f"/apis/{kind.group}/{at.name}" if kind.group else f"/api/{at.name}"
    base = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    path_names = [name for name in ("namespace",) if kind.namespaced]
    paths = {
        base: _item(kind, at, path_names, {"get": "list", "post": "create", "delete": "deletecollection"}),
        f"{base}/{{name}}": _item(
            kind,
            at,
            [*path_names, "name"],
            {"get": "get", "put": "update", "patch": "patch", "delete": "delete"},
        ),
    }
    if kind.namespaced:
        paths[f"{root}/{kind.plural}"] = _item(kind, at, [], {"get": "list"})
    for name in sorted(at.subresources):
        methods = {"get": "get", "put": "update", "patch": "patch"}
        paths[f"{base}/{{name}}/{name}"] = _item(kind, at, [*path_names, "name"], methods)
    return paths


def _item(
    kind: ServedKind, at: ServedVersion, path_names: Sequence[str], methods: Mapping[str, str]
) -> dict[str, Any]:
    item: dict[str, Any] = {
        method: _operation(kind, at, verb) for method, verb in methods.items() if verb in kind.verbs
    }
    item["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}
        for name in path_names
    ]
    return item


def _operation(kind: ServedKind, at: ServedVersion, verb: str) -> dict[str, Any]:
    by_verb = {"get": _READ, "list": _LIST, "delete": _DELETE, "deletecollection": (*_LIST, *_DELETE)}
    parameters = [*by_verb.get(verb, _WRITE)]
    body: dict[str, Any] = {}
    if verb == "patch":
        types = PATCHES if kind.custom else (*PATCHES, STRATEGIC_PATCH)
        parameters.append(_query("force", "boolean"))
        body = {type_: {"schema": {"type": "object"}} for type_ in types}
    elif verb in ("create", "update"):
        body = {"*/*": {"schema": _ref(_component(kind, at.name))}}
    content = {"application/json": {"schema": _ref(_component(kind, at.name))}}
    operation = {
        "description": f"{verb} {kind.plural}",
        "tags": [f"{kind.group}_{at.name}".lstrip("_")],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": _gvk(kind, at.name),
    }
    if body:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _swagger_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a path item of a version 3 document to version 2."""
    result: dict[str, Any] = {}
    for name, value in item.items():
        if name == "parameters":
            result[name] = [_swagger_parameter(parameter) for parameter in value]
            continue
        operation = {key: part for key, part in value.items() if key not in ("requestBody", "responses")}
        operation["parameters"] = [_swagger_parameter(parameter) for parameter in value["parameters"]]
        if body := value.get("requestBody"):
            operation["consumes"] = list(body["content"])
            operation["parameters"].append(
                {"name": "body", "in": "body", "required": True, "schema": {"type": "object"}}
            )
        operation["responses"] = {"200": {"description": "OK"}}
        result[name] = operation
    return result


def _swagger_parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in parameter.items() if name != "schema"}
    return {**plain, **parameter["schema"]}
