"""set-namespace: set the namespace of the package's objects.

Source: functions/go/set-namespace v0.4.1 of the krm-functions-catalog. Later versions replace one original
namespace: they are different functions under the same name.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Result,
    Value,
    lookup,
    replaced,
    text_of,
)
from pvbus.controlplane.packages.functions.scopes import NAMESPACED
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.errors import PermanentError

DEPENDS_ON = "config.kubernetes.io/depends-on"
PACKAGE_CONTEXT = "kptfile.kpt.dev"
_NAMESPACE: Path = ("metadata", "namespace")
_WEBHOOK: Path = ("spec", "conversion", "webhook", "clientConfig", "service", "namespace")
_DEPENDS_ON_NAMESPACED = re.compile(r"([^/]*)/namespaces/([^/]+)/([^/]+)/([^/]+)")


def set_namespace(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured namespace to every field that names a namespace of the package."""
    namespace = _configured(config)
    old: set[str] = set()
    count = 0
    changed: list[Item] = []
    for item in items:
        value = item.value
        for path in () if item.is_local_config else tuple(_paths(item)):
            before = text_of(lookup(value, path))
            if before != namespace:
                old.add(before)
                count += 1
                value = replaced(value, path, namespace)
        changed.append(item.with_value(value))
    changed = _with_dependencies(changed, old, namespace)
    return FunctionOutput(items=tuple(changed), results=_results(changed, old, namespace, count))


def _configured(config: Value | None) -> str:
    config = config or {}
    kind = (config.get("apiVersion"), config.get("kind"))
    if kind == ("v1", "ConfigMap"):
        namespace = text_of(lookup(config, ("data", "namespace")))
        of_package = lookup(config, ("metadata", "name")) == PACKAGE_CONTEXT
        if not namespace and of_package:
            namespace = text_of(lookup(config, ("data", "name")))
        missing = "`data.name`" if of_package else "`data.namespace`"
    elif kind == ("fn.kpt.dev/v1alpha1", "SetNamespace"):
        namespace, missing = text_of(config.get("namespace")), "`namespace`"
    else:
        raise PermanentError(
            f"functionConfig is {kind[1] or 'absent'}, expected `SetNamespace` or `ConfigMap`",
            reason="InvalidFunctionConfig",
        )
    if not namespace:
        raise PermanentError(f"{missing} of the functionConfig is empty", reason="InvalidFunctionConfig")
    return namespace


def _paths(item: Item) -> Iterator[Path]:
    """Yield the paths where an object names its own namespace or that of a service."""
    kind = (item.api_version, item.kind)
    if kind == ("v1", "Namespace"):
        yield ("metadata", "name")
    elif kind == ("apiextensions.k8s.io/v1", "CustomResourceDefinition"):
        yield _WEBHOOK
    elif kind == ("apiregistration.k8s.io/v1", "APIService"):
        yield ("spec", "service", "namespace")
    if item.kind in ("RoleBinding", "ClusterRoleBinding"):
        subjects: Any = item.value.get("subjects")
        for index, subject in enumerate(subjects if isinstance(subjects, list) else ()):
            if isinstance(subject, dict) and "namespace" in subject:
                yield ("subjects", index, "namespace")
    if (item.group, item.kind) in NAMESPACED or lookup(item.value, _NAMESPACE) is not None:
        yield _NAMESPACE


def _with_dependencies(items: Sequence[Item], old: set[str], namespace: str) -> list[Item]:
    """Update the namespace in depends-on annotations that name an object of this package."""
    present = {(item.group, item.kind, item.name) for item in items}
    moved: list[Item] = []
    for item in items:
        match = _DEPENDS_ON_NAMESPACED.fullmatch(item.annotations.get(DEPENDS_ON, ""))
        if match and not item.is_local_config:
            group, former, kind, name = match.groups()
            if former in old and (group, kind, name) in present:
                text = f"{group}/namespaces/{namespace}/{kind}/{name}"
                item = item.with_value(replaced(item.value, ("metadata", "annotations", DEPENDS_ON), text))
        moved.append(item)
    return moved


def _results(items: Sequence[Item], old: set[str], namespace: str, count: int) -> tuple[Result, ...]:
    """Return the results; objects that became duplicates give an error result, but no failure."""
    seen: set[tuple[str, str, str, str]] = set()
    results: list[Result] = []
    for item in items:
        identity = (item.api_version, item.kind, item.namespace, item.name)
        if identity in seen and not item.is_local_config:
            results.append(Result(message=f"duplicate object after the change: {item}", severity="error"))
        seen.add(identity)
    if count:
        names = ",".join(f'"{name}"' for name in sorted(old))
        message = f'namespace {names} updated to "{namespace}", {count} value(s) changed'
    else:
        message = f'all namespaces are already "{namespace}". no value changed'
    return (*results, Result(message=message))
