"""Checks objects against Kubernetes' OpenAPI types, as kubernetes-asyncio's models have them.

A field that no type has, a missing required one and a value of a wrong type are problems, as an API server
would say with strict validation. What admission and defaulting do is left to a real server.
"""

import re
from collections.abc import Iterator
from typing import Any

from kubernetes_asyncio.client import models

_SCALARS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "datetime": str,
    "date": str,
}


def problems_of(obj: dict[str, Any]) -> list[str]:
    """Return a line per problem of an object. Raises LookupError for a kind that has no type."""
    model = _model_of(obj["apiVersion"], obj["kind"])
    return list(_problems(obj, model, obj["kind"]))


def _model_of(api_version: str, kind: str) -> str:
    version = api_version.rpartition("/")[2]
    name = version[:1].upper() + version[1:] + kind
    if not hasattr(models, name):
        raise LookupError(f"{api_version} {kind} has no model")
    return name


def _problems(value: Any, type_: str, path: str) -> Iterator[str]:
    if found := re.fullmatch(r"list\[(.+)\]", type_):
        yield from _items(value, found[1], path)
    elif found := re.fullmatch(r"dict\((\w+), (.+)\)", type_):
        if not isinstance(value, dict):
            yield f"{path} is no mapping"
        else:
            for key, each in value.items():
                yield from _problems(each, found[2], f"{path}.{key}")
    elif type_ in _SCALARS:
        if not isinstance(value, _SCALARS[type_]) or (isinstance(value, bool) and type_ != "bool"):
            yield f"{path} is no {type_}: {value!r}"
    elif type_ != "object":
        yield from _fields(value, getattr(models, type_), path)


def _items(value: Any, type_: str, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path} is no list"
        return
    for index, each in enumerate(value):
        yield from _problems(each, type_, f"{path}[{index}]")


def _fields(value: Any, model: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is no object"
        return
    types = {model.attribute_map[name]: type_ for name, type_ in model.openapi_types.items()}
    for name, each in value.items():
        if name in types:
            yield from _problems(each, types[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}: {model.__name__} has no such field"
    try:
        model(**{name: value.get(field) for name, field in model.attribute_map.items()})
    except ValueError as error:  # a required field is missing
        yield f"{path}: {error}"
