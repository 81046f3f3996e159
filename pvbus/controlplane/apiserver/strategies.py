"""Kind-specific behaviour of writes.

A strategy completes an object (`prepare`) and checks rules that its schema cannot express (`check`). Both get
the previous object, None on create, and neither changes its arguments.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.nodes import FieldError, forbidden
from pvbus.controlplane.apiserver.registry import NAMESPACE
from pvbus.controlplane.apiserver.status import invalid_value
from pvbus.ports.cluster import Kind, Object

CONFIG_MAP = Kind("", "ConfigMap")
SECRET = Kind("", "Secret")
NAMESPACE_LABEL = "kubernetes.io/metadata.name"

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")
_DATA_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
    "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


class Strategy(NamedTuple):
    """finalizer: added to an object when its deletion begins, removed by the server's own cleaner."""

    prepare: Callable[[Object, Object | None], Object] = lambda new, old: new
    check: Callable[[Object, Object | None], list[FieldError]] = lambda new, old: []
    finalizer: str = ""
    counts_generation: bool = False
    unconditional_update: bool = True
    label_name: bool = False


def _prepare_namespace(new: Object, old: Object | None) -> Object:
    metadata = dict(new["metadata"])
    metadata["labels"] = {**metadata.get("labels", {}), NAMESPACE_LABEL: metadata["name"]}
    prepared = {**new, "metadata": metadata}
    prepared["spec"] = old["spec"] if old else {"finalizers": ["kubernetes"]}
    if old is None:
        prepared["status"] = {"phase": "Active"}
    return prepared


def _prepare_secret(new: Object, old: Object | None) -> Object:
    prepared = {"type": "Opaque", **new}
    texts = prepared.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        prepared["data"] = {**(prepared.get("data") or {}), **encoded}
    return prepared


def _check_secret(new: Object, old: Object | None) -> list[FieldError]:
    for key, value in (new.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError) as exc:
            raise status.bad_request(
                f'Secret in version "v1" cannot be handled as a Secret: data.{key}: illegal base64 data'
            ) from exc
    found = _check_data(new, old, ("data",))
    if old is not None and new.get("type") != old.get("type"):
        found.append(invalid_value("type", new.get("type", ""), "field is immutable"))
    return found


def _check_config_map(new: Object, old: Object | None) -> list[FieldError]:
    found = _check_data(new, old, ("data", "binaryData"))
    for key in sorted((new.get("data") or {}).keys() & (new.get("binaryData") or {}).keys()):
        found.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
    return found


def _check_data(new: Object, old: Object | None, fields: tuple[str, ...]) -> list[FieldError]:
    found = [
        invalid_value(f"{field}[{key}]", key, _DATA_KEY_RULE)
        for field in fields
        for key in new.get(field) or ()
        if len(key) > 253 or not _DATA_KEY.match(key)
    ]
    if old is not None and old.get("immutable"):
        if not new.get("immutable"):
            found.append(forbidden("immutable", "field is immutable when `immutable` is set"))
        found += [
            forbidden(field, "field is immutable when `immutable` is set")
            for field in fields
            if new.get(field) != old.get(field)
        ]
    return found


STORED_AS_WRITTEN = Strategy()
CUSTOM = Strategy(counts_generation=True, unconditional_update=False)
HOOKED = Strategy(unconditional_update=False)

BUILTIN: Mapping[Kind, Strategy] = {
    NAMESPACE: Strategy(_prepare_namespace, label_name=True),
    SECRET: Strategy(_prepare_secret, _check_secret),
    CONFIG_MAP: Strategy(check=_check_config_map),
}


def bump_generation(new: dict[str, Any], old: Object, *, has_status: bool) -> None:
    """Raise the generation if a field other than metadata (and a status subresource) changed."""
    ignored = ("metadata", "status") if has_status else ("metadata",)
    changed = any(
        field not in ignored and new.get(field) != old.get(field) for field in new.keys() | old.keys()
    )
    if changed:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
