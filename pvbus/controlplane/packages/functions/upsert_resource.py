"""upsert-resource: replace an object by the functionConfig, or add it.

Source: functions/go/upsert-resource v0.2.0 of the krm-functions-catalog. Every object with the same group,
kind, name and namespace is replaced; of its annotations none is kept.
"""

from collections.abc import Sequence

from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value, config_fault, text_of
from pvbus.core.yaml.editor import get
from pvbus.core.yaml.writer import dump

TARGET_PATH = "config.kubernetes.io/target-path"
_FUNCTION = ("config.kubernetes.io/function", "config.k8s.io/function")
_LOCATION = (
    "internal.config.kubernetes.io/path",
    "internal.config.kubernetes.io/index",
    "config.kubernetes.io/path",
    "config.kubernetes.io/index",
)
_ANNOTATIONS = ("metadata", "annotations")


def upsert_resource(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Replace or add the configured object, or each object of a configured List."""
    changed = list(items)
    for value in _configured(config):
        wanted = Item(text="", value=value, file=text_of(get(value, (*_ANNOTATIONS, TARGET_PATH))))
        cleaned = _cleaned(value)
        places = [number for number, item in enumerate(changed) if _is_same(item, wanted)]
        for number in places:
            changed[number] = changed[number].with_value(cleaned)
        if not places:
            changed.append(Item(text=dump(cleaned), value=cleaned, file=wanted.file))
    return FunctionOutput(items=tuple(changed))


def _configured(config: Value | None) -> list[Value]:
    if not config:
        raise config_fault(
            "the functionConfig is absent, but must be the object to upsert, or a List of them"
        )
    if config.get("kind") != "List":
        return [config]
    listed = config.get("items") or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise config_fault("`items` of the functionConfig is not a list of objects")
    return listed


def _is_same(item: Item, wanted: Item) -> bool:
    return (
        (item.group, item.kind, item.name, item.namespace)
        == (wanted.group, wanted.kind, wanted.name, wanted.namespace)
        and wanted.file in ("", item.path)
        and not any(item.annotations.get(each) for each in _FUNCTION)
    )


def _cleaned(value: Value) -> Value:
    """Return the object without the annotations that are for the function only."""
    annotations = get(value, _ANNOTATIONS)
    if not isinstance(annotations, dict):
        return value
    dropped = {*_FUNCTION, *_LOCATION, TARGET_PATH, "internal.config.kubernetes.io/seqindent"}
    retained = {key: text for key, text in annotations.items() if key not in dropped}
    metadata = {key: field for key, field in value["metadata"].items() if key != "annotations"}
    return {**value, "metadata": {**metadata, "annotations": retained} if retained else metadata}
