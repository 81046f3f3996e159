"""CustomResourceDefinitions: their defaults, validation and status.

A definition is served as soon as it is stored with Established=True, which requires that its names are free.
On its deletion its objects are deleted first; then the finalizer is removed.
"""

import time
from typing import Any

from pvbus.controlplane.apiserver.crdvalidation import shape_problem, validate_crd
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import FieldError
from pvbus.controlplane.apiserver.registry import Registry, is_established
from pvbus.controlplane.apiserver.status import bad_request, invalid_value
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Object

DEFINITIONS_MAX = 2000
"""Every one is part of discovery and of the OpenAPI document, which each new client reads. Clusters with
all providers of Crossplane have 1,500."""

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class Definitions:
    """The strategy of CustomResourceDefinitions."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.strategy = Strategy(
            self._prepare,
            self._check,
            finalizer=CLEANUP_FINALIZER,
            counts_generation=True,
            unconditional_update=False,
        )

    def _prepare(self, new: Object, old: Object | None) -> Object:
        if problem := shape_problem(new):
            kind = "CustomResourceDefinition"
            raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: json: {problem}')
        if validate_crd(new):
            return new  # `_check` reports the errors
        prepared = {**new, "spec": _completed(new["spec"])}
        conflict = self._registry.name_conflict(prepared)
        before = (old or {}).get("status") or {}
        names = prepared["spec"]["names"]
        stored = [version["name"] for version in prepared["spec"]["versions"] if version.get("storage")]
        known = before.get("storedVersions") or []
        prepared["status"] = {
            "conditions": _conditions(before.get("conditions") or [], conflict, new["metadata"]),
            "acceptedNames": (before.get("acceptedNames") or {"plural": "", "kind": ""})
            if conflict
            else names,
            "storedVersions": [*known, *(name for name in stored if name not in known)],
        }
        return prepared

    def _check(self, new: Object, old: Object | None) -> list[FieldError]:
        if old is None and self._registry.custom_count >= DEFINITIONS_MAX:
            raise StatusError(
                403,
                "Forbidden",
                f"there are {DEFINITIONS_MAX} CustomResourceDefinitions already: delete unused ones",
            )
        found = [FieldError(*error) for error in validate_crd(new)]
        if old is not None and not found:
            paths = [("group",), ("names", "plural")]
            if is_established(old):
                paths += [("scope",), ("names", "kind")]
            for path in paths:
                wanted, given = _at(old["spec"], path), _at(new["spec"], path)
                if wanted != given:
                    found.append(invalid_value(f"spec.{'.'.join(path)}", given, "field is immutable"))
        return found


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part)
    return value


def _completed(spec: Object) -> Object:
    names = {"singular": spec["names"]["kind"].lower(), "listKind": f"{spec['names']['kind']}List"}
    names |= {field: value for field, value in spec["names"].items() if value}
    return {"conversion": {"strategy": "None"}, **spec, "names": names}


def _conditions(before: list[Object], conflict: str, metadata: Object) -> list[Object]:
    if conflict:
        wanted = [
            ("NamesAccepted", "False", "PluralConflict", conflict),
            ("Established", "False", "NotAccepted", "not all names are accepted"),
        ]
    else:
        wanted = [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        ]
    if "deletionTimestamp" in metadata:
        text = "CustomResource deletion is in progress"
        wanted.append(("Terminating", "True", "InstanceDeletionInProgress", text))
    seen = {condition["type"]: condition for condition in before}
    return [
        {
            "type": type_,
            "status": state,
            "lastTransitionTime": seen[type_]["lastTransitionTime"]
            if type_ in seen and seen[type_]["status"] == state
            else timestamp(time.time()),
            "reason": reason,
            "message": message,
        }
        for type_, state, reason, message in wanted
    ]
