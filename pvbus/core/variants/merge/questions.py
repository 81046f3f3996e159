"""Merges the tasks of a Kptfile question by question.

They are one annotation, a JSON object: as one text, a question that was asked of a draft would be lost as
soon as the blueprint asks another one. What both sides changed of one question stays a conflict of the
annotation.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.conflicts import ABSENT
from pvbus.core.kernel.keys import TASKS
from pvbus.core.variants.merge import fields
from pvbus.core.yaml.editor import same

Parts = Mapping[str, Any]

_json = msgspec.json.Encoder(order="sorted")


class Sides(NamedTuple):
    """The merged parts of three Kptfiles."""

    old: Parts
    local: Parts
    new: Parts


def with_questions(sides: Sides) -> Sides:
    """Return the sides with an annotation of tasks that the merge of whole texts takes as it should be.

    Sides that are equal, or that cannot be read, stay: then the texts are compared.
    """
    texts = Sides(*map(_text, sides))
    if not isinstance(texts.local, str) or texts.new in (texts.local, texts.old) or texts.local == texts.old:
        return sides
    objects = [_object(text) for text in texts]
    if any(each is None for each in objects):
        return sides
    old, local, new = objects
    merged = fields.merge(old, local, new)
    if not merged.value or merged.value is ABSENT:
        return sides
    present = ((texts.local, local), (texts.new, new))
    known = (text for text, value in present if same(merged.value, value))  # in the words of its author
    text = next(known, None) or _json.encode(merged.value).decode()
    base = sides.old if merged.conflicts else _with(sides.old, texts.local)
    return sides._replace(old=base, new=_with(sides.new, text))


def _annotations(parts: Parts) -> Mapping[str, Any]:
    metadata = parts.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _text(parts: Parts) -> Any:
    return _annotations(parts).get(TASKS)


def _object(text: Any) -> dict[str, Any] | None:
    """Return the questions of an annotation, {} without one, None for one that is no JSON object."""
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if isinstance(text, str) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _with(parts: Parts, text: Any) -> Parts:
    annotations = {**_annotations(parts), TASKS: text}
    return {**parts, "metadata": {**(parts.get("metadata") or {}), "annotations": annotations}}
