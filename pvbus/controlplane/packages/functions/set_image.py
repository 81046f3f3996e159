"""set-image: set name, tag or digest of the containers' images that have a name.

Source: functions/go/set-image of the krm-functions-catalog as of v0.1.4, with kustomize api v0.20.1
filters/imagetag. Versions before it do not see initContainers. As there, the name is an expression.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pvbus.controlplane.packages.functions.fieldspecs import FieldSpec, additional_fields, parse_path
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Result,
    Value,
    config_fault,
    config_field,
    text_of,
)
from pvbus.controlplane.packages.functions.selecting import Expression, expression
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get

_TAG_AND_DIGEST = "(:[a-zA-Z0-9_.{}-]*)?(@sha256:[a-zA-Z0-9_.{}-]*)?"
_LISTS = ("containers", "initContainers")
_FIELDS = (
    *(FieldSpec(parse_path(f"spec/{each}[]/image"), "Pod", version="v1") for each in _LISTS),
    *(
        FieldSpec(parse_path(f"spec/template/spec/{each}[]/image"), kind, "apps", "v1")
        for kind in ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")
        for each in _LISTS
    ),
)


class _Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The name to look for, and what to write instead."""

    name: str = ""
    new_name: str = ""
    new_tag: str = ""
    digest: str = ""

    def written_over(self, present: str) -> str:
        name, tag, digest = split_reference(present)
        if self.new_tag or self.digest:
            tag, digest = self.new_tag, self.digest
        return (self.new_name or name) + (tag and f":{tag}") + (digest and f"@{digest}")


def set_image(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Write the configured image over each one with its name."""
    image = _configured(config)
    pattern = expression(f"^{image.name}{_TAG_AND_DIGEST}$", "`name`")
    fields = (*_FIELDS, *additional_fields(config, "additionalImageFields"))
    changed: list[Item] = []
    count = 0
    for item in items:
        texts = _images(item, fields, pattern)
        changed.append(item.with_texts({path: image.written_over(text) for path, text in texts.items()}))
        count += len(texts)
    summary = Result(message=f"summary: updated a total of {count} image(s)")
    return FunctionOutput(items=tuple(changed), results=(summary,))


def split_reference(image: str) -> tuple[str, str, str]:
    """Return name, tag and digest of `host:port/name:tag@digest`."""
    slash = max(image.find("/"), 0)
    rest, _, digest = image[slash:].partition("@")
    name, _, tag = rest.partition(":")
    return image[:slash] + name, tag, digest


def _configured(config: Value | None) -> _Image:
    given = config_field(config, "image", "SetImage") or {}
    if not isinstance(given, dict):
        raise config_fault("the image of the functionConfig is not a map")
    known = ("name", "newName", "newTag", "digest")
    if config and config["kind"] == "ConfigMap" and (wrong := sorted(given.keys() - set(known))):
        raise config_fault(f"ConfigMap has wrong field name {wrong[0]}, expected one of {', '.join(known)}")
    image = msgspec.convert({key: text_of(given.get(key)) for key in known}, _Image)
    if not image.name:
        raise config_fault("invalid FunctionConfig: must specify `name`")
    if not (image.new_name or image.new_tag or image.digest):
        raise config_fault("invalid FunctionConfig: must specify one of `newName`, `newTag`, or `digest`")
    return image


def _images(item: Item, fields: Sequence[FieldSpec], pattern: Expression) -> dict[Path, str]:
    """Return the images with the name, by path. Raises: PermanentError if one is not a string."""
    found: dict[Path, str] = {}
    for field in fields:
        if field.matches(item) and item.kind != "CustomResourceDefinition":
            for path in field.find(item.value):
                present: Any = get(item.value, path)
                if isinstance(present, dict | list):
                    what = "map" if isinstance(present, dict) else "list"
                    raise PermanentError(
                        f"{item}: `{'/'.join(map(str, path))}` is a {what}, but must be a string",
                        reason="InvalidResource",
                    )
                if pattern.search(text_of(present)):
                    found[path] = text_of(present)
    return found
