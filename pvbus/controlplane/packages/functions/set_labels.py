"""set-labels: set labels on objects, on their pod templates and on the selectors of those pods.

Source: branch set-labels/v0.2 of the krm-functions-catalog. Like there, selectors inside pod affinity
are not changed, although they are listed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.functions.item import (
    EACH,
    FieldPath,
    FunctionOutput,
    Item,
    Result,
    Value,
    config_fault,
    config_field,
    text_of,
    update_maps,
)


class _Kind(NamedTuple):
    """A kind that has a field path. group None: of any group."""

    group: str | None
    kind: str

    def matches(self, item: Item) -> bool:
        return item.kind == self.kind and self.group in (None, item.group)


class _Field(NamedTuple):
    """A map of labels in some kinds.

    kinds: the kinds that have the map
    path: the path of the map
    add: whether missing keys are created; False only overwrites present ones
    """

    kinds: tuple[_Kind, ...]
    path: FieldPath
    add: bool


_SERVICE = _Kind("", "Service")
_CONTROLLER = _Kind("", "ReplicationController")
_STATEFUL = _Kind("apps", "StatefulSet")
_JOB = _Kind("batch", "Job")
_CRON = (_Kind("batch", "CronJob"),)
_POLICY = (_Kind("networking.k8s.io", "NetworkPolicy"),)
_ROLLING = (_Kind(None, "Deployment"), _Kind(None, "ReplicaSet"), _Kind(None, "DaemonSet"), _STATEFUL)
_WORKLOADS = (_CONTROLLER, *_ROLLING, _JOB)
_SPREAD: FieldPath = (
    "spec",
    "template",
    "spec",
    "topologySpreadConstraints",
    EACH,
    "labelSelector",
    "matchLabels",
)

_FIELDS = (
    _Field((_SERVICE, _CONTROLLER), ("spec", "selector"), True),
    _Field(_ROLLING, ("spec", "selector", "matchLabels"), True),
    _Field((_JOB, _Kind("policy", "PodDisruptionBudget")), ("spec", "selector", "matchLabels"), False),
    _Field(_WORKLOADS, ("spec", "template", "metadata", "labels"), True),
    _Field(_WORKLOADS, _SPREAD, False),
    _Field(_CRON, ("spec", "jobTemplate", "metadata", "labels"), True),
    _Field(_CRON, ("spec", "jobTemplate", "spec", "template", "metadata", "labels"), True),
    _Field(_CRON, ("spec", "jobTemplate", "spec", "selector", "matchLabels"), False),
    _Field((_STATEFUL,), ("spec", "volumeClaimTemplates", EACH, "metadata", "labels"), True),
    _Field(_POLICY, ("spec", "podSelector", "matchLabels"), False),
    _Field(_POLICY, ("spec", "ingress", EACH, "from", EACH, "podSelector", "matchLabels"), False),
    _Field(_POLICY, ("spec", "egress", EACH, "to", EACH, "podSelector", "matchLabels"), False),
)
# If one of these is absent, nothing is created below it: that would invent a workload.
_NEVER_CREATED = frozenset({"spec", "template", "jobTemplate", EACH})


def set_labels(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured labels to every object except those for the package itself."""
    labels = _configured(config)
    if not labels:
        message = "the labels of the functionConfig are empty; nothing was changed"
        return FunctionOutput(items=tuple(items), results=(Result(message=message, severity="warning"),))
    changed = tuple(item if item.is_local_config else _labelled(item, labels) for item in items)
    return FunctionOutput(items=changed, results=(Result(message=f"set {len(labels)} label(s) in total"),))


def _configured(config: Value | None) -> dict[str, str]:
    labels = config_field(config, "labels", "SetLabels")
    if labels is not None and not isinstance(labels, dict):
        raise config_fault("the labels of the functionConfig are not a map")
    return {key: text_of(value) for key, value in sorted((labels or {}).items())}


def _labelled(item: Item, labels: Mapping[str, str]) -> Item:
    def add(present: dict[str, Any] | None) -> dict[str, Any] | None:
        return {**(present or {}), **labels}

    def overwrite(present: dict[str, Any] | None) -> dict[str, Any] | None:
        return present and {key: labels.get(key, value) for key, value in present.items()}

    value = update_maps(item.value, ("metadata", "labels"), add, kept_absent=frozenset())
    for field in _FIELDS:
        if any(kind.matches(item) for kind in field.kinds):
            value = update_maps(
                value, field.path, add if field.add else overwrite, kept_absent=_NEVER_CREATED
            )
    return item.with_value(value)
