"""What the manifest of a package says of itself, for the object of its revision.

Labels and annotations come along, but for keys to which the package manager, its users or kubectl give a
meaning.
Source: Crossplane, internal/controller/pkg/revision.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pvbus.core.platform.establish.objects import Object

_RESERVED = frozenset({"pvbus.dev", "crossplane.io", "pkg.crossplane.io", "kubectl.kubernetes.io"})
"""Domains of keys that a package must not set: it could pause its revision, or speak as a user."""
_LISTS = {
    "CustomResourceDefinition": "customResourceDefinitions",
    "CompositeResourceDefinition": "infrastructureDefinitions",
    "Composition": "compositions",
}
"""Kinds that the revision of a Package lists in its spec."""
_PACKAGES = ("package", "provider", "configuration", "function")
_RULE_FIELDS = ("apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs")


def asked_rules(spec: Mapping[str, Any]) -> list[Object]:
    """Return the rules that a package asks for, in Crossplane's spelling or as `permissions`."""
    controller, permissions = _mapping(spec.get("controller")), _mapping(spec.get("permissions"))
    return [*(controller.get("permissionRequests") or ()), *(permissions.get("rules") or ())]


def status_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a revision's status that its package's manifest has values for."""
    spec = _mapping(manifest.get("spec"))
    rules = [rule for rule in map(_rule, asked_rules(spec)) if rule.get("verbs")]
    found = {"permissionRequests": rules, "capabilities": _texts(spec.get("capabilities"))}
    return {field: value for field, value in found.items() if value}


def lists_of(manifest: Mapping[str, Any], references: Iterable[Object]) -> dict[str, Any]:
    """Return what the spec of a Package's revision lists: what it brings, asks for and needs.

    references: to the objects that the package brings
    """
    found: dict[str, Any] = {}
    for each in references:
        if each["kind"] in _LISTS:
            found.setdefault(_LISTS[each["kind"]], []).append(dict(each))
    spec = _mapping(manifest.get("spec"))
    if rules := status_of(manifest).get("permissionRequests"):
        found["permissions"] = {"rules": rules}
    needs = [need for need in map(_need, spec.get("dependsOn") or ()) if need]
    version = _mapping(spec.get("crossplane")).get("version")
    if needs or version:
        found["dependsOn"] = [*needs, *([{"crossplane": version}] if version else [])]
    return found


def _need(given: Any) -> Object:
    """Return an item of `dependsOn` in the form of a Package's revision, {} if it has another one."""
    item = _mapping(given)
    package = next((item[field] for field in _PACKAGES if isinstance(item.get(field), str)), "")
    if package:
        return {"package": package, **({"version": item["version"]} if item.get("version") else {})}
    crd = _mapping(item.get("crd"))
    return {"crd": {"apiVersion": crd["apiVersion"], "kind": crd["kind"]}} if len(crd) == 2 else {}


def described(metadata: Mapping[str, Any], manifest: Mapping[str, Any]) -> Object:
    """Return the metadata of a revision with the labels and annotations of its package's manifest."""
    given, meta = _mapping(manifest.get("metadata")), dict(metadata)
    for field in ("labels", "annotations"):
        marks = {
            key: value
            for key, value in _mapping(given.get(field)).items()
            if isinstance(value, str) and key.partition("/")[0] not in _RESERVED
        }
        if marks:
            meta[field] = {**(meta.get(field) or {}), **marks}
    return meta


def _rule(given: Any) -> Object:
    """Return a rule with the fields that the API has."""
    fields = {field: _texts(_mapping(given).get(field)) for field in _RULE_FIELDS}
    return {field: texts for field, texts in fields.items() if texts}


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
