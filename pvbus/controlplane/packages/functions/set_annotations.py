"""set-annotations: set annotations on objects and on their pod templates.

Source: functions/go/set-annotations v0.1.4 of the krm-functions-catalog. Unlike the other functions, it
also changes the objects that are for the package itself, the Kptfile included.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.functions.fields import EACH, FieldPath, update_maps
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value, lookup, text_of
from pvbus.core.errors import PermanentError


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
_CONFIG_KINDS = ("SetAnnotations", "SetAnnotationConfig")


def set_annotations(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured annotations, sorted by key, into every object."""
    annotations, extra = _configured(config)
    fields = (*_FIELDS, *extra)
    return FunctionOutput(items=tuple(_annotated(item, annotations, fields) for item in items))


def _configured(config: Value | None) -> tuple[dict[str, str], list[_Field]]:
    config = config or {}
    kind = (config.get("apiVersion"), config.get("kind"))
    extra: list[_Field] = []
    if kind == ("v1", "ConfigMap"):
        annotations = config.get("data")
    elif kind[0] == "fn.kpt.dev/v1alpha1" and kind[1] in _CONFIG_KINDS:
        annotations = config.get("annotations")
        if config.get("fieldSpecs") and config.get("additionalAnnotationFields"):
            raise _fault("`fieldSpecs` and `additionalAnnotationFields` cannot be used together")
        specs = config.get("additionalAnnotationFields") or config.get("fieldSpecs") or []
        if not isinstance(specs, list):
            raise _fault("`additionalAnnotationFields` is not a list")
        extra = [_field(spec) for spec in specs]
    else:
        raise _fault(f"functionConfig is {kind[1] or 'absent'}, expected `SetAnnotations` or `ConfigMap`")
    if not annotations or not isinstance(annotations, dict):
        raise _fault("the functionConfig has no annotations")
    return {key: text_of(annotations[key]) for key in sorted(annotations)}, extra


def _field(spec: Any) -> _Field:
    path = lookup(spec, ("path",))
    if not isinstance(path, str) or not path.strip("/"):
        raise _fault("an entry of `additionalAnnotationFields` has no path")
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


def _fault(message: str) -> PermanentError:
    return PermanentError(message, reason="InvalidFunctionConfig")
