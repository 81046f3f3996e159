"""Kind-specific behaviour of writes.

A strategy completes an object (`prepare`) and checks rules that its schema cannot express (`check`). Both get
the previous object, None on create, and neither changes its arguments. An object that breaks no rule may be
of no use: `advice` has warnings about it.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.nodes import FieldError, forbidden
from pvbus.controlplane.apiserver.registry import EVENT, NAMESPACE
from pvbus.controlplane.apiserver.status import invalid_value
from pvbus.core.api.variants import CONFIG_GROUP, PackageVariantSet
from pvbus.core.variants.template import unknown_fields
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
    """The behaviour of one kind in writes.

    prepare: completes an object; gets the new one and the previous one, None on create
    check: returns the rules that a completed object breaks; gets the same two
    advice: returns warnings about an object that breaks no rule
    owned: returns the object whose fields an update owns; gets the completed object and the client's
    finalizer: added to an object when its deletion begins, removed by the server's own cleaner; "" for none
    counts_generation: whether changes count in metadata.generation
    unconditional_update: whether an update may come without a resourceVersion
    label_name: whether the name must be a DNS label
    path_name: whether the name may be any segment of a path; without both it is a subdomain
    creates_by_update: whether a PUT of an object that is not there creates it
    """

    prepare: Callable[[Object, Object | None], Object] = lambda new, old: new
    check: Callable[[Object, Object | None], list[FieldError]] = lambda new, old: []
    advice: Callable[[Object], list[str]] = lambda new: []
    owned: Callable[[Object, Object], Object] = lambda new, given: new
    finalizer: str = ""
    counts_generation: bool = False
    unconditional_update: bool = True
    label_name: bool = False
    path_name: bool = False
    creates_by_update: bool = False


def _prepare_namespace(new: Object, old: Object | None) -> Object:
    metadata = dict(new["metadata"])
    if name := metadata.get("name"):  # without one it is refused
        metadata["labels"] = {**metadata.get("labels", {}), NAMESPACE_LABEL: name}
    prepared = {**new, "metadata": metadata}
    prepared["spec"] = old["spec"] if old else {"finalizers": ["kubernetes"]}
    if old is None:
        prepared["status"] = {"phase": "Active"}
    return prepared


def _owned_of_namespace(new: Object, given: Object) -> Object:
    """Return a namespace without the spec that it has retained: who leaves it out gives up its fields."""
    found = {field: value for field, value in new.items() if field != "spec"}
    return {**found, "spec": given["spec"]} if "spec" in given else found


def _prepare_config_map(new: Object, old: Object | None) -> Object:
    return _without_empty(new, ("data", "binaryData"))


_TEXTS = ("data", "binaryData", "stringData")


def without_null_texts(obj: Object) -> Object:
    """Turn nulls in the maps of texts of a built-in object into empty texts, as Go's decoder does."""
    found = {
        field: {key: "" if text is None else text for key, text in texts.items()}
        for field in _TEXTS
        if type(texts := obj.get(field)) is dict and None in texts.values()
    }
    return {**obj, **found} if found else obj


def _without_empty(new: Object, fields: tuple[str, ...]) -> Object:
    """Drop maps that are empty, which kube-apiserver does not store."""
    if all(new.get(field, True) for field in fields):
        return new
    return {key: value for key, value in new.items() if key not in fields or value}


_EVENT: Object = {
    "involvedObject": {},
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}


def _prepare_event(new: Object, old: Object | None) -> Object:
    """Add the fields that every event has."""
    return {**_EVENT, **new}


def _prepare_secret(new: Object, old: Object | None) -> Object:
    prepared = {"type": "Opaque", **new}
    texts = prepared.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        prepared["data"] = {**(prepared.get("data") or {}), **encoded}
    return _without_empty(prepared, ("data",))


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


def _check_selector(new: Object, old: Object | None) -> list[FieldError]:
    """Have the Pods of a Deployment be those that it selects, for ever the same."""
    spec = new.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    found = []
    if not wanted and not selector.get("matchExpressions"):
        found.append(invalid_value("spec.selector", selector, "empty selector is invalid for deployment"))
    elif not wanted.items() <= labels.items():
        why = "`selector` does not match template `labels`"
        found.append(invalid_value("spec.template.metadata.labels", labels, why))
    if old is not None and (old.get("spec") or {}).get("selector") != spec.get("selector"):
        found.append(invalid_value("spec.selector", selector, "field is immutable"))
    return found


STORED_AS_WRITTEN = Strategy()
ADVICE_BYTES_MAX: Final = 8 * 1024
"""The size of a set's expressions that are compiled for warnings: at most 60 ms, in which nobody is
answered."""


def _advice_on_set(new: Object) -> list[str]:
    """Name the fields in expressions that no object can have: such a set stalls."""
    try:
        spec = msgspec.convert(new, PackageVariantSet).spec
    except msgspec.ValidationError:  # of a definition that is not ours
        return []
    return [f"{path}: {text}" for path, text in unknown_fields(spec, bytes_max=ADVICE_BYTES_MAX)]


CUSTOM = Strategy(owned=lambda new, given: given, counts_generation=True, unconditional_update=False)
CUSTOM_OF: Mapping[Kind, Strategy] = {
    Kind(CONFIG_GROUP, "PackageVariantSet"): CUSTOM._replace(advice=_advice_on_set)
}
HOOKED = Strategy(unconditional_update=False)

BUILTIN: Mapping[Kind, Strategy] = {
    NAMESPACE: Strategy(_prepare_namespace, owned=_owned_of_namespace, label_name=True),
    SECRET: Strategy(_prepare_secret, _check_secret),
    CONFIG_MAP: Strategy(_prepare_config_map, _check_config_map),
    EVENT: Strategy(_prepare_event, creates_by_update=True),
    Kind("apps", "Deployment"): Strategy(check=_check_selector, counts_generation=True),
    Kind("batch", "Job"): Strategy(counts_generation=True),
    Kind("", "Service"): Strategy(label_name=True),
}


def bump_generation(new: dict[str, Any], old: Object, *, has_status: bool) -> None:
    """Raise the generation if a field other than metadata (and a status subresource) changed."""
    ignored = ("metadata", "status") if has_status else ("metadata",)
    changed = any(
        field not in ignored and new.get(field) != old.get(field) for field in new.keys() | old.keys()
    )
    if changed:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
