"""The lists that are merged element by element, and the keys by which elements are matched.

These are the lists of built-in kinds whose schema says `patchStrategy: merge`, and those of the Kptfile. All
other lists, including those of custom resources, are merged as one value.

Source: k8s.io/api v0.34.1, core/v1/types.go; kpt v1.0.0-beta.62.1, pkg/kptfile/kptfileutil/util.go.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

Identify = Callable[[Sequence[Any]], "list[Hashable] | None"]
"""Returns the merge key of each element, in order; None if an element has none."""

Schema = Mapping[str, "Schema | Keyed"]
"""The known lists in the fields of a mapping; `ANY` stands for fields that are not named."""

ANY = "*"


class Keyed(NamedTuple):
    """A list that is merged element by element."""

    identify: Identify
    element: Schema = MappingProxyType({})


def by(*fields: str, **defaults: str) -> Identify:
    """Match elements by fields; those with a default may lack it."""

    def identify(elements: Sequence[Any]) -> list[Hashable] | None:
        found: list[Hashable] = []
        for element in elements:
            if not isinstance(element, dict):
                return None
            values = [element.get(field, defaults.get(field)) for field in fields]
            if any(value is None or isinstance(value, dict | list) for value in values):
                return None
            found.append(tuple(zip(fields, values, strict=True)))
        return found

    return identify


def _by_value(elements: Sequence[Any]) -> list[Hashable] | None:
    if any(isinstance(element, dict | list) for element in elements):
        return None
    return [(("", element),) for element in elements]


def _by_name_or_image(elements: Sequence[Any]) -> list[Hashable] | None:
    """Match functions by name, else by image without its tag, else by exec.

    kpt matches no unnamed function as soon as one has a name, and so loses or duplicates some. A
    PackageVariant adds named functions to packages whose own functions have no names.
    """
    found: list[Hashable] = []
    for element in elements:
        if not isinstance(element, dict):
            return None
        if element.get("name"):
            found.append((("name", str(element["name"])),))
        elif element.get("image"):
            found.append((("image", str(element["image"]).partition("@")[0].partition(":")[0]),))
        elif element.get("exec"):
            found.append((("exec", str(element["exec"])),))
        else:
            return None
    return found


_CONTAINERS = Keyed(
    by("name"),
    {
        "env": Keyed(by("name")),
        "ports": Keyed(by("containerPort", "protocol", protocol="TCP")),
        "volumeMounts": Keyed(by("mountPath")),
        "volumeDevices": Keyed(by("devicePath")),
    },
)
_POD: Schema = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "ephemeralContainers": _CONTAINERS,
    "volumes": Keyed(by("name")),
    "imagePullSecrets": Keyed(by("name")),
    "schedulingGates": Keyed(by("name")),
    "resourceClaims": Keyed(by("name")),
    "hostAliases": Keyed(by("ip")),
    "topologySpreadConstraints": Keyed(by("topologyKey", "whenUnsatisfiable")),
}
_METADATA: Schema = {"ownerReferences": Keyed(by("uid")), "finalizers": Keyed(_by_value)}
_OBJECT: Schema = {"metadata": _METADATA, "status": {"conditions": Keyed(by("type"))}}
_TEMPLATE: Schema = {"template": {"metadata": _METADATA, "spec": _POD}}
_WORKLOAD: Schema = {**_OBJECT, "spec": _TEMPLATE}

_BY_KIND: Mapping[tuple[str, str], Schema] = {
    ("", "Pod"): {**_OBJECT, "spec": _POD},
    ("", "PodTemplate"): {**_OBJECT, **_TEMPLATE},
    ("", "ReplicationController"): _WORKLOAD,
    ("", "Service"): {**_OBJECT, "spec": {"ports": Keyed(by("port", "protocol", protocol="TCP"))}},
    ("", "ServiceAccount"): {
        **_OBJECT,
        "secrets": Keyed(by("name")),
        "imagePullSecrets": Keyed(by("name")),
    },
    ("apps", "DaemonSet"): _WORKLOAD,
    ("apps", "Deployment"): _WORKLOAD,
    ("apps", "ReplicaSet"): _WORKLOAD,
    ("apps", "StatefulSet"): _WORKLOAD,
    ("batch", "Job"): _WORKLOAD,
    ("batch", "CronJob"): {**_OBJECT, "spec": {"jobTemplate": {"spec": _TEMPLATE}}},
}
_BUILT_IN_GROUPS = frozenset({"", "apps", "autoscaling", "batch", "extensions", "policy"})

_FUNCTIONS = Keyed(_by_name_or_image)
_NAMED: Schema = {ANY: Keyed(by("name"))}
KPTFILE: Schema = {
    "info": {"readinessGates": Keyed(by("conditionType"))},
    "pipeline": {"mutators": _FUNCTIONS, "validators": _FUNCTIONS},
    "inventory": _NAMED,
    "status": {"conditions": Keyed(by("type")), **_NAMED},
}
"""Gates and conditions are matched by their type; kpt merges these lists whole, and loses local entries."""


def schema_of(group: str, kind: str) -> Schema:
    """Return the schema of the lists of a kind."""
    if group in _BUILT_IN_GROUPS or group.endswith(".k8s.io"):
        return _BY_KIND.get((group, kind), _OBJECT)
    return {}


def below(schema: "Schema | Keyed", key: Any) -> "Schema | Keyed":
    """Return the schema of a field of a mapping."""
    if isinstance(schema, Keyed):
        return {}
    return schema.get(key, schema.get(ANY, {})) if isinstance(key, str) else {}
