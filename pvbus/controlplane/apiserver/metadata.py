"""ObjectMeta: decoding, validation, and the fields that an update may change.

Every kind has the same metadata, so this module checks it, and not the kinds' schemas. It is independent of
storage: functions take and change the `metadata` dict of an object that is being written.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from pvbus.controlplane.apiserver.nodes import METADATA_SCHEMA, PROBLEMS_MAX, FieldError, forbidden, required
from pvbus.controlplane.apiserver.status import bad_request, invalid_value
from pvbus.core.api.names import (
    annotation_errors,
    annotations_too_long,
    key_error,
    label_error,
    label_errors,
    subdomain_error,
)

_JSON_TYPES = {"string": str, "integer": int, "object": dict, "array": list}
_TYPES: Mapping[str, type] = {
    name: _JSON_TYPES[field["type"]] for name, field in METADATA_SCHEMA["properties"].items()
}
_OWNER_FIELDS = {"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"}
_GO_TYPES = {str: "string", int: "int64", dict: "map[string]string", list: "slice", bool: "bool"}
_DROPPED = ("selfLink",)
_OMITTED_WHEN_EMPTY = ("labels", "annotations", "ownerReferences", "finalizers", "generateName", "namespace")


class MetadataTypeError(ValueError):
    """A field has a type that cannot be decoded at all (400, not 422)."""


def clean_metadata(metadata: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
    """Check types; drop nulls, empty collections, unknown fields, and fields that are not stored.

    Paths of unknown fields are appended to `unknown`. managedFields stay, also if empty. Raises
    MetadataTypeError.
    """
    result: dict[str, Any] = {}
    for field, value in metadata.items():
        wanted = _TYPES.get(field)
        if wanted is None:
            unknown.append(f"metadata.{field}")
        elif value is None or field in _DROPPED:
            continue
        elif type(value) is not wanted:
            raise _wrong_type(field, value, wanted)
        elif value or field not in _OMITTED_WHEN_EMPTY:
            result[field] = value
    for field in ("labels", "annotations"):
        for key, value in result.get(field, {}).items():
            if type(value) is not str:
                if value is None:
                    result[field] = {k: v or "" for k, v in result[field].items()}
                    continue
                raise _wrong_type(f"{field}.{key}", value, str)
    for finalizer in result.get("finalizers", ()):
        if type(finalizer) is not str:
            raise _wrong_type("finalizers", finalizer, str)
    if any(type(entry) is not dict for entry in result.get("managedFields", ())):
        raise _wrong_type("managedFields", "", dict)
    if "ownerReferences" in result:
        result["ownerReferences"] = [_owner(owner, unknown) for owner in result["ownerReferences"]]
    return result


def _owner(owner: Any, unknown: list[str]) -> dict[str, Any]:
    if type(owner) is not dict:
        raise _wrong_type("ownerReferences", owner, dict)
    unknown.extend(f"metadata.ownerReferences[].{field}" for field in owner if field not in _OWNER_FIELDS)
    for field in _OWNER_FIELDS & owner.keys():
        wanted = bool if field in ("controller", "blockOwnerDeletion") else str
        if owner[field] is not None and type(owner[field]) is not wanted:
            raise _wrong_type(f"ownerReferences.{field}", owner[field], wanted)
    return {key: value for key, value in owner.items() if key in _OWNER_FIELDS and value is not None}


def _wrong_type(field: str, value: Any, wanted: type) -> MetadataTypeError:
    seen = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}
    return MetadataTypeError(
        f"json: cannot unmarshal {seen.get(type(value), 'null')} into Go struct field "
        f"ObjectMeta.metadata.{field} of type {_GO_TYPES.get(wanted, 'string')}"
    )


def problems(
    metadata: Mapping[str, Any],
    *,
    namespaced: bool,
    named: bool = True,
    label_name: bool = False,
    path_name: bool = False,
    qualified_finalizers: bool = True,
) -> list[FieldError]:
    """Return the errors of complete metadata.

    namespaced: whether the kind has namespaces
    named: whether the object has its name; a hook may choose it later
    label_name: whether the name must be a DNS label
    path_name: whether the name may be any segment of a path
    qualified_finalizers: whether finalizers other than Kubernetes' own need a domain, as for kinds of the
        core group
    """
    found: list[FieldError] = []
    if not named:
        pass
    elif not metadata.get("name"):
        found.append(required("metadata.name", "name or generateName is required"))
    elif path_name:
        found += _path_name_problems("metadata.name", metadata["name"])
    else:
        found += _name_problems("metadata.name", metadata["name"], label=label_name)
    if namespaced and not metadata.get("namespace"):
        found.append(required("metadata.namespace"))
    elif not namespaced and metadata.get("namespace"):
        found.append(forbidden("metadata.namespace", "not allowed on this type"))
    elif namespaced:
        found += _name_problems("metadata.namespace", metadata["namespace"], label=True)
    errors = islice(label_errors(metadata.get("labels", {})), PROBLEMS_MAX + 1)
    found += [invalid_value("metadata.labels", wrong, text) for wrong, text in errors]
    found += _annotation_problems(metadata.get("annotations", {}))
    for owner in metadata.get("ownerReferences", ()):
        found += _owner_problems(owner)
    controllers = [owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller")]
    if len(controllers) > 1:
        found.append(
            invalid_value(
                "metadata.ownerReferences",
                "",
                'Only one reference can have Controller set to true. Found "true" in references for '
                f"{controllers[0].get('name')} and {controllers[1].get('name')}",
            )
        )
    for at, finalizer in enumerate(metadata.get("finalizers", ())):
        found += _finalizer_problems(f"metadata.finalizers[{at}]", finalizer, qualified=qualified_finalizers)
    return found


def _path_name_problems(path: str, name: str) -> list[FieldError]:
    """Source: Kubernetes 1.36, apimachinery/pkg/api/validate/content/path.go."""
    if name in (".", ".."):
        return [invalid_value(path, name, f"may not be '{name}'")]
    return [invalid_value(path, name, f"may not contain '{letter}'") for letter in "/%" if letter in name]


def _name_problems(path: str, name: str, *, label: bool) -> list[FieldError]:
    text = label_error(name) if label else subdomain_error(name)
    return [invalid_value(path, name, text)] if text else []


def _annotation_problems(annotations: Mapping[str, str]) -> list[FieldError]:
    errors = islice(annotation_errors(annotations), PROBLEMS_MAX + 1)
    found = [invalid_value("metadata.annotations", key, text) for key, text in errors]
    if text := annotations_too_long(annotations):
        found.append(FieldError("metadata.annotations", "FieldValueTooLong", f"Too long: {text}"))
    return found


def _owner_problems(owner: Mapping[str, Any]) -> list[FieldError]:
    names = {"apiVersion": "version"}
    return [
        invalid_value(f"metadata.ownerReferences.{names.get(field, field)}", "", "must not be empty")
        for field in ("apiVersion", "kind", "name", "uid")
        if not owner.get(field)
    ]


def _finalizer_problems(path: str, finalizer: str, *, qualified: bool) -> list[FieldError]:
    if text := key_error(finalizer):
        return [invalid_value(path, finalizer, text)]
    if qualified and "/" not in finalizer and finalizer not in ("orphan", "foregroundDeletion", "kubernetes"):
        text = "name is neither a standard finalizer name nor is it fully qualified"
        return [invalid_value(path, finalizer, text)]
    return []


_SERVER_FIELDS = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName")


def carry_over(new: dict[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Copy the fields that only the server sets to an updated object; return the writer's illegal changes.

    A writer may remove finalizers from a terminating object, but not add any.
    """
    found = []
    if new.get("uid") not in (None, "", old["uid"]):
        found.append(invalid_value("metadata.uid", new["uid"], "field is immutable"))
    found += [
        invalid_value(f"metadata.{field}", new.get(field, ""), "field is immutable")
        for field in ("name", "namespace")
        if new.get(field) != old.get(field)
    ]
    if "deletionTimestamp" in old:
        added = set(new.get("finalizers", ())) - set(old.get("finalizers", ()))
        if added:
            shown = ", ".join(sorted(added))
            found.append(
                forbidden(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, "
                    f'found new finalizers []string{{"{shown}"}}',
                )
            )
    new["uid"] = old["uid"]
    for field in (*_SERVER_FIELDS, "generation"):
        if field in old:
            new[field] = old[field]
        else:
            new.pop(field, None)
    return found


def check_place(metadata: Any, key: tuple[str, str], *, namespaced: bool) -> None:
    """Refuse (400) an object of another name or namespace than the path has.

    key: (namespace, name) of the path
    """
    if metadata is not None and type(metadata) is not dict:
        return  # decoding refuses it, and says so
    if not metadata or not metadata.get("name"):
        raise bad_request(
            f"the name of the object ({key[1]} based on URL) was undeterminable: name must be provided"
        )
    wanted = (("namespace", key[0]), ("name", key[1])) if namespaced else (("name", key[1]),)
    for field, value in wanted:
        given = metadata.get(field)
        if given and given != value:
            if field == "namespace":
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            raise bad_request(
                f"the {field} of the object ({given}) does not match the {field} on the URL ({value})"
            )
