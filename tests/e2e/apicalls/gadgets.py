"""A kind with every way in which fields merge, for random calls."""

from collections.abc import Mapping
from typing import Any

_PORT = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "protocol": {"type": "string", "default": "TCP"},
        "port": {"type": "integer"},
    },
}
_CONDITION = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        "type": {"type": "string"},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "message": {"type": "string"},
    },
}
_SPEC = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 9},
        "title": {"type": "string", "maxLength": 12},
        "level": {"type": "string", "enum": ["low", "high"]},
        "shape": {"type": "string", "default": "round"},
        "limit": {"x-kubernetes-int-or-string": True},
        "on": {"type": "boolean"},
        "note": {"type": "string", "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "args": {"type": "array", "items": {"type": "string"}},
        "ports": {
            "type": "array",
            "items": _PORT,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "protocol"],
        },
        "options": {"type": "object", "additionalProperties": {"type": "string"}},
        "pair": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"left": {"type": "string"}, "right": {"type": "string"}},
        },
        "deep": {
            "type": "object",
            "properties": {
                "inner": {
                    "type": "object",
                    "properties": {"one": {"type": "integer"}, "two": {"type": "integer"}},
                }
            },
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        "phase": {"type": "string"},
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    },
}
_SCHEMA = {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}
_VERSION = {"served": True, "schema": {"openAPIV3Schema": _SCHEMA}, "subresources": {"status": {}}}

GADGETS: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [
            {**_VERSION, "name": "v1", "storage": True},
            {**_VERSION, "name": "v1beta1", "storage": False},
        ],
    },
}
