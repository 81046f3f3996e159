"""Tells which conflicts of a merge are open: the package still holds what the merge took."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pvbus.core.merge.conflicts import ABSENT, Conflict, shown
from pvbus.core.merge.objects import words_of
from pvbus.core.merge.packages import Texts
from pvbus.core.merge.taking import value_of
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document

_COUNTED = re.compile(r"and \d+ more")

_canonical = msgspec.json.Encoder(order="sorted")


def unresolved(conflicts: Iterable[Conflict], texts: Texts) -> tuple[Conflict, ...]:
    """Return the conflicts whose value is still the taken one. A person resolves one by changing it."""
    return tuple(conflict for conflict in conflicts if _is_open(conflict, texts))


def _is_open(conflict: Conflict, texts: Texts) -> bool:
    taken = conflict.local if conflict.taken == "local" else conflict.new
    if conflict.object:
        return _is_open_in(conflict, taken, texts)
    if conflict.old is ABSENT and conflict.local is ABSENT and conflict.new is ABSENT:  # of a sub-package
        is_there = any(path.startswith(f"{conflict.file}/") for path in texts)
        return is_there or _COUNTED.fullmatch(conflict.file) is not None
    return _is_same(texts.get(conflict.file, ABSENT), taken)


def carried(conflicts: Iterable[Conflict], texts: Texts) -> Iterator[Conflict]:
    """Yield open conflicts as they are after a later merge, which may have taken a newer upstream value."""
    for conflict in conflicts:
        is_value = conflict.field and conflict.taken == "upstream"
        try:
            new = value_of(conflict, texts.get(conflict.file)) if is_value else conflict.new
        except editor.YamlError:
            new = conflict.new
        yield msgspec.structs.replace(conflict, new=new)


def _is_open_in(conflict: Conflict, taken: Any, texts: Texts) -> bool:
    try:
        found = _object_of(conflict, texts)
        if not conflict.field:  # rendering may change an object, so only its presence counts
            return (found is None) == (taken is ABSENT)
        return found is not None and _is_same(value_of(conflict, texts.get(conflict.file)), taken)
    except editor.YamlError:  # no one can tell
        return True


def _object_of(conflict: Conflict, texts: Texts) -> Document | None:
    documents = editor.parse(texts.get(conflict.file, ""))
    return next((d for d in documents if d.value and words_of(d.value) == conflict.object), None)


def _is_same(present: Any, taken: Any) -> bool:
    """Compare a value with one that was in the annotation, which may be cut."""
    if present is ABSENT or taken is ABSENT:
        return present is taken
    return _canonical.encode(shown(present)) == _canonical.encode(shown(taken))
