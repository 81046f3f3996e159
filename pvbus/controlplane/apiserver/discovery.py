"""Discovery documents: groups, versions and resources, in the old and the aggregated form."""

from collections.abc import Iterable, Sequence
from typing import Any

from pvbus.controlplane.apiserver.kinds import ServedKind, ServedVersion, version_rank
from pvbus.core.api.variants import PORCH_GROUP

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""Content type of the aggregated documents, in requests and responses."""

_SUBRESOURCE_VERBS = ("get", "patch", "update")
KUBERNETES_VERSION = "1.36.0"
"""The Kubernetes release whose behaviour this server follows; kubectl compares its own with it."""


def wants_aggregated(accept: str) -> bool:
    """Return whether an Accept header prefers the aggregated form."""
    for choice in accept.split(","):
        parameters = {part.strip() for part in choice.split(";")}
        if {"application/json", "g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"} <= parameters:
            return True
    return False


def version_document(product_version: str) -> dict[str, str]:
    """Return /version."""
    major, minor, _ = KUBERNETES_VERSION.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{KUBERNETES_VERSION}+pvbus-{product_version}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "cpython",
        "platform": "any",
    }


def core_document(address: str) -> dict[str, Any]:
    """Return /api.

    address: host and port of this server
    """
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_versions(kinds: Iterable[ServedKind]) -> dict[str, list[str]]:
    """Return the served versions of each group, the preferred one first.

    kubectl takes a name that several groups have, such as `packagerevisions`, from the first of them. The
    groups of our own are before those of definitions, as those of aggregated servers are.
    """
    versions: dict[str, set[str]] = {}
    for kind in kinds:
        names = {version.name for version in kind.versions if version.served}
        if names:
            versions.setdefault(kind.group, set()).update(names)
    ordered = sorted(versions.items(), key=lambda each: (each[0] != PORCH_GROUP, each[0]))
    return {group: sorted(names, key=version_rank) for group, names in ordered}


def group_list(kinds: Sequence[ServedKind]) -> dict[str, Any]:
    """Return /apis."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in group_versions(kinds).items() if name],
    }


def group_document(kinds: Sequence[ServedKind], group: str) -> dict[str, Any] | None:
    """Return /apis/GROUP, None if there is no such group."""
    versions = group_versions(kinds).get(group)
    if not group or not versions:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}


def _group(name: str, versions: Sequence[str]) -> dict[str, Any]:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resource_list(kinds: Sequence[ServedKind], group: str, version: str) -> dict[str, Any] | None:
    """Return /api/v1 or /apis/GROUP/VERSION, None if it is not served."""
    served = _served(kinds, group, version)
    if not served:
        return None
    resources = []
    for kind, at in served:
        resources.append(_resource(kind))
        resources += [
            {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(_SUBRESOURCE_VERBS),
            }
            for name in sorted(at.subresources)
        ]
    group_version = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }


def _served(kinds: Iterable[ServedKind], group: str, version: str) -> list[tuple[ServedKind, ServedVersion]]:
    found = [(kind, kind.version(version)) for kind in kinds if kind.group == group]
    return sorted(((kind, at) for kind, at in found if at is not None), key=lambda pair: pair[0].plural)


def _resource(kind: ServedKind) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    return resource | _other_names(kind)


def _other_names(kind: ServedKind) -> dict[str, list[str]]:
    names = {"shortNames": kind.short_names, "categories": kind.categories}
    return {field: list(given) for field, given in names.items() if given}


def aggregated(kinds: Sequence[ServedKind], *, core: bool) -> dict[str, Any]:
    """Return everything under /api (core) or under /apis in one document."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            _aggregated_group(kinds, group, versions)
            for group, versions in group_versions(kinds).items()
            if core == (group == "")
        ],
    }


def _aggregated_group(kinds: Sequence[ServedKind], group: str, versions: Sequence[str]) -> dict[str, Any]:
    return {
        "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
        "versions": [
            {
                "version": version,
                "freshness": "Current",
                "resources": [
                    _aggregated_resource(kind, at, version) for kind, at in _served(kinds, group, version)
                ],
            }
            for version in versions
        ],
    }


def _aggregated_resource(kind: ServedKind, at: ServedVersion, version: str) -> dict[str, Any]:
    response = {"group": kind.group, "version": version, "kind": kind.kind}
    resource: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": response,
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    resource |= _other_names(kind)
    if at.subresources:
        resource["subresources"] = [
            {"subresource": name, "responseKind": response, "verbs": list(_SUBRESOURCE_VERBS)}
            for name in sorted(at.subresources)
        ]
    return resource
