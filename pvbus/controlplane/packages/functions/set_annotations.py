"""set-annotations: set annotations on objects and on their pod templates.

Source: functions/go/set-annotations v0.1.4 of the krm-functions-catalog. Unlike the other functions, it
also changes the objects that are for the package itself, the Kptfile included.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.functions.item import (
    EACH,
    FieldPath,
    FunctionOutput,
    Item,
    Value,
    config_fault,
    config_field,
    text_of,
    update_maps,
)
from pvbus.core.yaml.editor import get


class _Field(NamedTuple):
    """A map of annotations. Empty group, version or kind: any; group `core` is the empty API group."""

    path: FieldPath
    kind: str = ""
    group: str = ""
    version: str = ""
    create: bool = True

    def matches(self, item: Item) -> bool:
        group = "" if self.group == "core" else self.group
        return (
            self.kind in ("", item.kind)
            and (not self.group or group == item.group)
            and self.version in ("", item.version)
        )


_OBJECT: FieldPath = ("metadata", "annotations")
_POD: FieldPath = ("spec", "template", *_OBJECT)
_FIELDS = (
    _Field(_OBJECT),
    _Field(_POD, kind="ReplicationController", group="core", version="v1"),
    _Field(_POD, kind="Deployment"),
    _Field(_POD, kind="ReplicaSet"),
    _Field(_POD, kind="DaemonSet"),
    _Field(_POD, kind="StatefulSet"),
    _Field(_POD, kind="Job", group="batch"),
    _Field(("spec", "jobTemplate", *_OBJECT), kind="CronJob", group="batch"),
    _Field(("spec", "jobTemplate", *_POD), kind="CronJob", group="batch"),
)


def set_annotations(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured annotations, sorted by key, into every object."""
    annotations, extra = _configured(config)
    fields = (*_FIELDS, *extra)
    return FunctionOutput(items=tuple(_annotated(item, annotations, fields) for item in items))


def _configured(config: Value | None) -> tuple[dict[str, str], list[_Field]]:
    annotations = config_field(config, "annotations", "SetAnnotations", "SetAnnotationConfig")
    extra: list[_Field] = []
    if config and config["kind"] != "ConfigMap":
        if config.get("fieldSpecs") and config.get("additionalAnnotationFields"):
            raise config_fault("`fieldSpecs` and `additionalAnnotationFields` cannot be used together")
        specs = config.get("additionalAnnotationFields") or config.get("fieldSpecs") or []
        if not isinstance(specs, list):
            raise config_fault("`additionalAnnotationFields` is not a list")
        extra = [_field(spec) for spec in specs]
    if not annotations or not isinstance(annotations, dict):
        raise config_fault("the functionConfig has no annotations")
    return {key: text_of(annotations[key]) for key in sorted(annotations)}, extra


def _field(spec: Any) -> _Field:
    path = get(spec, ("path",))
    if not isinstance(path, str) or not path.strip("/"):
        raise config_fault("an entry of `additionalAnnotationFields` has no path")
    parts: list[str] = []
    for part in path.strip("/").split("/"):
        parts += [part.removesuffix("[]"), EACH] if part.endswith("[]") else [part]
    return _Field(
        tuple(parts),
        kind=text_of(spec.get("kind")),
        group=text_of(spec.get("group")),
        version=text_of(spec.get("version")),
        create=spec.get("create") is True,
    )


def _annotated(item: Item, annotations: Mapping[str, str], fields: Sequence[_Field]) -> Item:
    value = item.value
    for field in fields:
        if field.matches(item):
            kept_absent = frozenset[str]() if field.create else frozenset(field.path)
            value = update_maps(
                value, field.path, lambda present: {**(present or {}), **annotations}, kept_absent=kept_absent
            )
    return item.with_value(value)
