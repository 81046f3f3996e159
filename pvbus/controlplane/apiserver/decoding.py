"""Reads the object of a write: its type, its metadata, defaults, and no unknown fields.

What cannot be read is refused (400) before anything of it is checked. Unknown fields are refused, reported or
ignored, as the request wants.
"""

from pvbus.controlplane.apiserver import metadata as meta
from pvbus.controlplane.apiserver import status, strategies
from pvbus.controlplane.apiserver.nodes import PROBLEMS_MAX, SHOWN_MAX
from pvbus.controlplane.apiserver.registry import Endpoint
from pvbus.controlplane.apiserver.requests import Options
from pvbus.core.api.spellings import unknown_field
from pvbus.ports.cluster import Object


def decode_object(endpoint: Endpoint, obj: Object, options: Options) -> Object:
    """Return an object of this kind with clean metadata, defaults, and no unknown fields."""
    _check_type(endpoint, obj)
    unknown: list[str] = []
    obj = strategies.without_null_texts(obj) if not endpoint.served.custom else obj
    given = obj.get("metadata")
    if given is None:
        given = {}
    if type(given) is not dict:
        raise status.bad_request(f"{_cannot(endpoint)}: metadata must be an object")
    try:
        metadata = meta.clean_metadata(given, unknown)
    except meta.MetadataTypeError as exc:
        raise status.bad_request(f"{_cannot(endpoint)}: {exc}") from exc
    if not endpoint.served.namespaced:
        metadata.pop("namespace", None)  # like kube-apiserver, which takes it for a slip
    obj = {**obj, "apiVersion": endpoint.api_version, "kind": endpoint.served.kind, "metadata": metadata}
    schema = endpoint.schema
    if schema is not None and not schema.is_clean(obj):
        # kube-apiserver leaves the nulls of an apply to a custom kind, and refuses them then.
        obj = schema.defaulted(obj, nulls=options.applies and endpoint.served.custom)
        obj, pruned = schema.pruned(obj)
        unknown += [path for path in pruned if not path.startswith("metadata.")]
        if not endpoint.served.custom:
            _check_types(endpoint, obj)
    if unknown:
        report_unknown(endpoint, [unknown_field(endpoint.served.kind, path) for path in unknown], options)
    return obj


def _check_type(endpoint: Endpoint, obj: Object) -> None:
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if not kind:
        raise status.bad_request("Object 'Kind' is missing in the body of the request")
    if not api_version:
        raise status.bad_request("Object 'apiVersion' is missing in the body of the request")
    if api_version != endpoint.api_version:
        raise status.bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({endpoint.api_version})"
        )
    if kind != endpoint.served.kind:
        if endpoint.served.custom:
            metadata = obj.get("metadata")
            name = metadata.get("name") if type(metadata) is dict else ""
            problem = status.invalid_value("kind", str(kind), f"must be {endpoint.served.kind}")
            raise status.invalid(endpoint.subject(str(name or ""))._replace(kind=str(kind)), [problem])
        raise status.bad_request(f"the kind in the data ({kind}) does not match {endpoint.served.kind}")


def _check_types(endpoint: Endpoint, obj: Object) -> None:
    """Refuse a built-in object with a field of the wrong type (400), before any code reads its fields.

    Type errors of a custom kind are reported with the other errors of its schema (422).
    """
    assert endpoint.schema is not None
    found = [e for e in endpoint.schema.validate(obj) if e.reason == "FieldValueTypeInvalid"]
    if found:
        raise status.bad_request(f"{_cannot(endpoint)}: json: {found[0]}")


def report_unknown(endpoint: Endpoint, problems: list[str], options: Options) -> None:
    """Refuse, warn of, or ignore unknown and duplicate fields, as the options require."""
    if len(problems) > PROBLEMS_MAX:
        problems = [*problems[:PROBLEMS_MAX], f"and {len(problems) - PROBLEMS_MAX} more"]
    problems = [problem[:SHOWN_MAX] for problem in problems]
    if options.validation == "Strict":
        raise status.bad_request(f"{_cannot(endpoint)}: strict decoding error: {', '.join(problems)}")
    if options.validation == "Warn":
        options.warnings.extend(problems)


def _cannot(endpoint: Endpoint) -> str:
    kind = endpoint.served.kind
    return f'{kind} in version "{endpoint.version.name}" cannot be handled as a {kind}'


def set_namespace(endpoint: Endpoint, metadata: Object, namespace: str | None) -> None:
    """Set the namespace from the path. Raises 400 if the object has a different one."""
    if not endpoint.served.namespaced:
        return
    given = metadata.get("namespace")
    if namespace is None:
        raise status.bad_request("an empty namespace may not be set during creation")
    if given and given != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = namespace
