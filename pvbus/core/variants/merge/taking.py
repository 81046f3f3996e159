"""Puts one side's value of a conflict into the merge's result, or finds it in that side's files.

A conflict names its place for people, for example `spec.template.spec.containers[name=web].image`: the name
is followed through the file, with the keys by which the merge has matched the elements of lists.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge import MergeError
from pvbus.core.variants.merge.fields import element_name, field_name, tables
from pvbus.core.variants.merge.kptfile import FILE as KPTFILE_NAME
from pvbus.core.variants.merge.objects import appended, identity_of, words_of
from pvbus.core.variants.merge.packages import Texts, files_below, with_files_below
from pvbus.core.variants.merge.schemas import KPTFILE, Keyed, Schema, below, schema_of
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document, Path

_FIELDS = re.compile(r"""\.?(?P<plain>[^.\[\]"]+)|\["(?P<quoted>[^"]*)"\]""")
_ELEMENT = re.compile(r'(?P<fields>.*?)\[(?!")[^\[\]]*\]')


def chosen(conflicts: Sequence[Conflict], field: str, where: str = "") -> Conflict:
    """Return the conflict that a person names. where: its file or object.

    Raises MergeError if there is none or more than one.
    """
    named = [
        one
        for one in conflicts
        if field in (one.field or one.object or one.file, not one.field and one.folder)
    ]
    found = [one for one in named if not where or where in (one.file, one.object)]
    if len(found) == 1:
        return found[0]
    if len({(one.file, one.object) for one in found}) == 1:
        raise MergeError(f'"{field}" has {len(found)} local values in conflict: set one of them in the draft')
    if found:
        places = "; ".join(f"{one.file} ({one.object})" for one in found)
        raise MergeError(
            f'"{field}" is in conflict in {len(found)} places, name the file or object: {places}'
        )
    if not conflicts:
        raise MergeError(f'"{field}" is not in conflict: the draft has no conflicts')
    valid = "; ".join(f"{one.field or one.object or one.file} in {one.file}" for one in conflicts)
    raise MergeError(f'"{field}"{f" in {where}" if where else ""} is not in conflict; there are: {valid}')


def value_of(conflict: Conflict, texts: Texts) -> Any:
    """Return the value at a conflict's place in a side's files, ABSENT if it has none. Raises: YamlError."""
    if conflict.folder:
        return files_below(texts, conflict.folder)
    text = texts.get(conflict.file)
    if text is None or not conflict.object:
        return ABSENT if text is None else text
    document = next(iter(_matching(conflict, editor.parse(text)).values()), None)
    if document is None or not conflict.field:
        return ABSENT if document is None else document.value
    path, rest = _followed(document.value, conflict.field, _schema(conflict, document))
    return ABSENT if rest else editor.get(document.value, path)


def beside(warning: Conflict) -> Conflict:
    """Return a warning with the place of upstream's element, which stays beside the local one."""
    return msgspec.structs.replace(warning, field=warning.beside)


def with_value(conflict: Conflict, texts: Texts, value: Any) -> dict[str, str]:
    """Return files with a value at a conflict's place; ABSENT removes it. Raises: MergeError, YamlError."""
    if conflict.folder:
        return with_files_below(texts, conflict.folder, value)
    text = _file_with_value(conflict, texts.get(conflict.file), value)
    others = {path: other for path, other in texts.items() if path != conflict.file or text is not None}
    return others if text is None else {**others, conflict.file: text}


def _file_with_value(conflict: Conflict, text: str | None, value: Any) -> str | None:
    if not conflict.object:
        return None if value is ABSENT else str(value)
    documents = list(editor.parse(text or ""))
    number = next(iter(_matching(conflict, documents)), None)
    if conflict.field:
        if number is None:
            raise MergeError(f"{conflict.file} has no {conflict.object} any more: edit the draft itself")
        documents[number] = _with_field(documents[number], conflict, value)
    elif number is None:
        return text if value is ABSENT else appended(text or "", _text(value))
    elif value is ABSENT:
        del documents[number]
        return editor.join(tuple(documents)) if any(d.value is not None for d in documents) else None
    else:
        documents[number] = editor.assign(documents[number], (), value)
    return editor.join(tuple(documents))


def _text(value: Any) -> str:
    return editor.assign(Document("", None), (), value).text


def _matching(conflict: Conflict, documents: Sequence[Document]) -> dict[int, Document]:
    """Return the documents that a conflict may be about, by number; a Kptfile may have another name."""
    objects = {number: one for number, one in enumerate(documents) if isinstance(one.value, dict)}
    if _is_kptfile(conflict):
        return objects
    return {number: one for number, one in objects.items() if words_of(one.value) == conflict.object}


def _is_kptfile(conflict: Conflict) -> bool:
    return conflict.file.rpartition("/")[2] == KPTFILE_NAME


def _schema(conflict: Conflict, document: Document) -> Schema:
    identity = identity_of(document)
    return KPTFILE if _is_kptfile(conflict) else schema_of(identity.group, identity.kind)


def _with_field(document: Document, conflict: Conflict, value: Any) -> Document:
    path, rest = _followed(document.value, conflict.field, _schema(conflict, document))
    if value is ABSENT:
        return document if rest else editor.delete(document, path)
    element = _ELEMENT.fullmatch(rest)
    missing = _fields(element["fields"] if element else rest)
    if missing is None:
        raise MergeError(f"{conflict.field} has no place in {conflict.file} any more: edit the draft itself")
    if element:
        return editor.append(document, (*path, *missing), value)
    return editor.assign(document, (*path, *missing), value)


def _followed(value: Any, name: str, schema: Schema | Keyed, here: str = "") -> tuple[Path, str]:
    """Follow a name through a value, as far as that goes. Return the path, and the rest of the name."""
    for step, item, label, inner in _children(value, schema, here):
        if name == label:
            return (step,), ""
        if name.startswith((f"{label}.", f"{label}[")):
            path, rest = _followed(item, name, inner, label)
            return (step, *path), rest
    return (), name[len(here) :]


def _children(
    value: Any, schema: Schema | Keyed, here: str
) -> Iterator[tuple[str | int, Any, str, Schema | Keyed]]:
    """Yield step, value, name and schema of each field or element."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item, field_name(here, key), below(schema, key)
    elif isinstance(schema, Keyed) and (found := tables(schema, (value,))) is not None:
        for number, (key, item) in enumerate(found[0].items()):
            yield number, item, f"{here}[{element_name(key)}]", schema.element


def _fields(rest: str) -> Path | None:
    """Return the fields that the rest of a name consists of, None if it has more than fields."""
    matches = list(_FIELDS.finditer(rest))
    if "".join(match[0] for match in matches) != rest:
        return None
    return tuple(match["plain"] or match["quoted"] or "" for match in matches)
