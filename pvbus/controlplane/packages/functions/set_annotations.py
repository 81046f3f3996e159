"""set-annotations: set annotations on objects and on their pod templates.

Source: functions/go/set-annotations v0.1.4 of the krm-functions-catalog. Unlike the other functions, it
also changes the objects that are for the package itself, the Kptfile included. Each function is a module.
"""

from collections.abc import Mapping, Sequence

from pvbus.controlplane.packages.functions.fieldspecs import FieldSpec, additional_fields
from pvbus.controlplane.packages.functions.item import (
    FieldPath,
    FunctionOutput,
    Item,
    Value,
    config_fault,
    config_field,
    text_of,
    update_maps,
)

_OBJECT: FieldPath = ("metadata", "annotations")
_POD: FieldPath = ("spec", "template", *_OBJECT)
_FIELDS = (
    FieldSpec(_OBJECT, create=True),
    FieldSpec(_POD, "ReplicationController", "core", "v1", create=True),
    *(
        FieldSpec(_POD, kind, create=True)
        for kind in ("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet")
    ),
    FieldSpec(_POD, "Job", "batch", create=True),
    FieldSpec(("spec", "jobTemplate", *_OBJECT), "CronJob", "batch", create=True),
    FieldSpec(("spec", "jobTemplate", *_POD), "CronJob", "batch", create=True),
)


def set_annotations(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured annotations, sorted by key, into every object."""
    annotations, extra = _configured(config)
    fields = (*_FIELDS, *extra)
    return FunctionOutput(items=tuple(_annotated(item, annotations, fields) for item in items))


def _configured(config: Value | None) -> tuple[dict[str, str], list[FieldSpec]]:
    annotations = config_field(config, "annotations", "SetAnnotations", "SetAnnotationConfig")
    extra = additional_fields(config, "additionalAnnotationFields", "fieldSpecs")
    if not annotations or not isinstance(annotations, dict):
        raise config_fault("the functionConfig has no annotations")
    return {key: text_of(annotations[key]) for key in sorted(annotations)}, extra


def _annotated(item: Item, annotations: Mapping[str, str], fields: Sequence[FieldSpec]) -> Item:
    value = item.value
    for field in fields:
        if field.matches(item):
            kept_absent = frozenset[str]() if field.create else frozenset(field.path)
            value = update_maps(
                value, field.path, lambda present: {**(present or {}), **annotations}, kept_absent=kept_absent
            )
    return item.with_value(value)
