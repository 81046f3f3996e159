"""Merges the fields of one object three ways.

Mappings are merged key by key; scalars, and lists without merge keys, as one value: upstream's where
upstream changed it, else the local one. Lists with merge keys are merged element by element; where both
sides changed the key of one, both elements stay, and a warning says so.

The outcome is a list of edits of the local value, so that its text need not be rewritten.

Source: kyaml v0.20.1, kyaml/yaml/merge3/visitor.go and kyaml/yaml/walk. Departures: a mapping or list
that one side deleted does not come back empty, an element that is deleted locally stays deleted when
upstream changes it, a `null` that both sides have stays, and one that was there before is no deletion by the
side that still has it.
"""

from collections.abc import Hashable, Mapping
from functools import reduce
from typing import Any, Literal, NamedTuple

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge.schemas import Keyed, Schema, below
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document, Path, same


class Edit(NamedTuple):
    """A change of the local value.

    path: where the change applies
    value: the new value; ABSENT deletes what is there
    appends: whether the value is added to the list at the path
    """

    path: Path
    value: Any
    appends: bool = False


class Merged(NamedTuple):
    """The merged value, the edits that turn the local value into it, and the conflicts."""

    value: Any
    edits: tuple[Edit, ...]
    conflicts: tuple[Conflict, ...]


def merge(old: Any, local: Any, new: Any, schema: Schema | None = None) -> Merged:
    """Merge three values. Each of them may be ABSENT, but not all."""
    merging = _Merging()
    value = merging.node(old, local, new, schema or {}, (), "")
    return Merged(value, tuple(merging.edits), tuple(merging.conflicts))


def edited(document: Document, edits: tuple[Edit, ...]) -> Document:
    """Apply edits to the text of a document, in their order. Raises: YamlError."""
    return editor.edited(document, lambda first: reduce(_with_edit, edits, first))


def _with_edit(document: Document, edit: Edit) -> Document:
    path, value, appends = edit
    if appends:
        return editor.append(document, path, value)
    if value is ABSENT:
        return editor.delete(document, path)
    return editor.assign(document, path, value)


_Elements = Mapping[Hashable, Any]
"""The elements of a list by their merge keys."""


class _Merging:
    """One merge.

    Each method merges one value, returns the result and records the edits that make it of the local value.
    A side that lacks the value has ABSENT. `path` is the place of the local value, None inside a value that
    the local side lacks, as that one is set as a whole; `label` is the same place in words.

    Invariant: every edit is valid after those before it. So a mapping gets its additions before it loses a
    key, as it must never be empty; elements are edited at their local positions before others are appended,
    and deleted from the last to the first. A value that is set or deleted as a whole replaces the edits that
    were recorded inside it.
    """

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.conflicts: list[Conflict] = []

    def node(
        self, old: Any, local: Any, new: Any, schema: Schema | Keyed, path: Path | None, label: str
    ) -> Any:
        if local is None or new is None:
            merging = self._whole if old is None or local is new else self._clear
            return merging(old, local, new, path, label)
        old = ABSENT if old is None else old
        mark = len(self.edits)
        sides = (old, local, new)
        if all(side is ABSENT or isinstance(side, dict) for side in sides):
            result = self._mapping(old, local, new, schema, path, label)
        elif isinstance(schema, Keyed) and (found := tables(schema, sides)) is not None:
            result = self._elements(sides, found, schema.element, path, label)
        else:
            return self._whole(old, local, new, path, label)
        if path is not None and (result is ABSENT or local is ABSENT) and result is not local:
            self.edits[mark:] = [Edit(path, result)]
        return result

    def _clear(self, old: Any, local: Any, new: Any, path: Path | None, label: str) -> Any:
        if local not in (None, ABSENT) and not same(local, old):
            self._conflict(label, old, local, new)
        if path is not None and local is not ABSENT:
            self.edits.append(Edit(path, ABSENT))
        return ABSENT

    def _whole(self, old: Any, local: Any, new: Any, path: Path | None, label: str) -> Any:
        if same(new, old) or same(new, local):
            return local
        if not same(local, old):
            self._conflict(label, old, local, new)
        if path is not None:
            self.edits.append(Edit(path, new))
        return new

    def _mapping(
        self, old: Any, local: Any, new: Any, schema: Schema | Keyed, path: Path | None, label: str
    ) -> Any:
        if new is ABSENT and (old is ABSENT or local is ABSENT):  # only local has it, or no side any more
            return local
        olds, locals_, news = (_table(side) for side in (old, local, new))
        inner = path if local is not ABSENT else None
        mark = len(self.edits)
        merged = {}
        for key in _keys(olds, locals_, news):
            value = self.node(
                olds.get(key, ABSENT),
                locals_.get(key, ABSENT),
                news.get(key, ABSENT),
                below(schema, key),
                None if inner is None else (*inner, key),
                field_name(label, key),
            )
            if value is not ABSENT:
                merged[key] = value
        if inner is not None:  # additions come first, so that the mapping is never empty
            self.edits[mark:] = sorted(self.edits[mark:], key=lambda edit: _deletes_below(edit, inner))
        if not merged and old is not ABSENT and ABSENT in (local, new):
            return ABSENT
        return merged

    def _elements(
        self,
        sides: tuple[Any, Any, Any],
        tables: list[dict[Hashable, Any]],
        schema: Schema,
        path: Path | None,
        label: str,
    ) -> Any:
        old, local, new = sides
        olds, locals_, news = tables
        if new is ABSENT:
            if old is ABSENT:
                return local
            if local is not ABSENT and not same(local, old):
                self._conflict(label, old, local, new)
            return ABSENT
        inner = path if local is not ABSENT else None
        merged: list[Any] = []
        dropped: list[int] = []
        for number, (key, element) in enumerate(locals_.items()):
            name = f"{label}[{element_name(key)}]"
            if key in news:
                at = None if inner is None else (*inner, number)
                merged.append(self.node(olds.get(key, ABSENT), element, news[key], schema, at, name))
            elif key in olds:
                dropped.append(number)
                if not same(element, olds[key]):
                    self._conflict(name, olds[key], element, ABSENT)
            else:
                merged.append(element)
        for key, element in news.items():
            if key in locals_:
                continue
            if key not in olds:
                merged.append(element)
                if inner is not None:
                    self.edits.append(Edit(inner, element, appends=True))
            elif not same(element, olds[key]):
                self._conflict(f"{label}[{element_name(key)}]", olds[key], ABSENT, element, "local")
        self._warn_of_pairs(olds, locals_, news, label)
        if inner is not None:
            self.edits += [Edit((*inner, number), ABSENT) for number in reversed(dropped)]
        if not merged and old is not ABSENT and local is ABSENT:
            return ABSENT
        return merged

    def _warn_of_pairs(self, olds: _Elements, locals_: _Elements, news: _Elements, label: str) -> None:
        """Warn of each element whose key both sides have changed: the result has both elements.

        That of a side is the added one that is most like the old one, the first of equals.
        """
        locally = [key for key in locals_ if key not in olds and key not in news]
        upstream = [key for key in news if key not in olds and key not in locals_]
        for key, old in olds.items():
            if key in locals_ or key in news or not locally or not upstream:
                continue
            here = max(locally, key=lambda added: _likeness(old, locals_[added]))
            there = max(upstream, key=lambda added: _likeness(old, news[added]))
            locally.remove(here)
            upstream.remove(there)
            field, beside = (f"{label}[{element_name(added)}]" for added in (here, there))
            self.conflicts.append(
                Conflict(
                    field=field, beside=beside, old=old, local=locals_[here], new=news[there], taken="both"
                )
            )

    def _conflict(
        self, label: str, old: Any, local: Any, new: Any, taken: Literal["upstream", "local"] = "upstream"
    ) -> None:
        self.conflicts.append(Conflict(field=label, old=old, local=local, new=new, taken=taken))


def tables(schema: Keyed, sides: tuple[Any, ...]) -> list[dict[Hashable, Any]] | None:
    """Return the elements of each side by their merge keys; None if a key is missing or not unique."""
    found = []
    for side in sides:
        if side is not ABSENT and not isinstance(side, list):
            return None
        elements = [] if side is ABSENT else side
        keys = schema.identify(elements)
        if keys is None or len(set(keys)) != len(elements):
            return None
        found.append(dict(zip(keys, elements, strict=True)))
    return found


def _likeness(old: Any, element: Any) -> int:
    """Return how many fields of two elements are the same."""
    if not isinstance(old, dict) or not isinstance(element, dict):
        return 0
    return sum(field in element and same(value, element[field]) for field, value in old.items())


def _table(side: Any) -> Mapping[Any, Any]:
    return {} if side is ABSENT else side


def _keys(old: Mapping[Any, Any], local: Mapping[Any, Any], new: Mapping[Any, Any]) -> list[Any]:
    """Return the local keys in their order, then the other ones, sorted."""
    return [*local, *sorted((old.keys() | new.keys()) - local.keys(), key=str)]


def _deletes_below(edit: Edit, path: Path) -> bool:
    return edit.value is ABSENT and len(edit.path) == len(path) + 1


def field_name(label: str, key: Any) -> str:
    text = str(key)
    if not text or any(char in ".[]" for char in text):
        return f'{label}["{text}"]'
    return f"{label}.{text}" if label else text


def element_name(key: Any) -> str:
    return ",".join(f"{field}={value}" if field else str(value) for field, value in key)
