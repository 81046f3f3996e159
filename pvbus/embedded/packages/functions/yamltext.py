"""Texts of one YAML document: their values, their nodes, and other values edited into them."""

from typing import Any

import yaml

from pvbus.core.yamledit import Document, append, assign, delete, get, insert, parse, same
from pvbus.core.yamlwrite import Style, block

Path = tuple[str | int, ...]
"""Keys of maps and indices of lists, from the root of a document."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> Any:
    """Return the value of a text of one document. Raises: yamledit.YamlError."""
    documents = parse(text)
    return documents[0].value if documents else None


def dump(value: Any) -> str:
    """Return a value as block YAML, keys in their order, lists in their parent's column."""
    return "\n".join(block(value, "", Style())) + "\n"


def compose(text: str) -> yaml.Node | None:
    """Return the node graph of a text that `load` accepts; marks count characters of the text.

    The nodes' implicit tags are YAML 1.1's and mean nothing here.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return node


def with_value(text: str, old: Any, new: Any) -> str:
    """Return the text, whose value is `old`, with the value `new`: it changes only where they differ.

    Elements of a list are paired from both ends, so that one that came or went does not touch the others.
    """
    return _merged(Document(text, old), (), new).text


def _merged(document: Document, path: Path, new: Any) -> Document:
    old = get(document.value, path)
    if old and new and isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in old if key not in new]:
            document = delete(document, (*path, key))
        for key, value in new.items():
            if key in old:
                document = _merged(document, (*path, key), value)
            else:
                document = assign(document, (*path, key), value)
        return document
    if old and new and isinstance(old, list) and isinstance(new, list):
        return _merged_list(document, path, old, new)
    return document if same(old, new) else assign(document, path, new)


def _merged_list(document: Document, path: Path, old: list[Any], new: list[Any]) -> Document:
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if not same(old[i], new[i])), shorter)
    tail = next((i for i in range(shorter - head) if not same(old[-1 - i], new[-1 - i])), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    paired = min(old_end, new_end)
    for index in range(head, paired):
        document = _merged(document, (*path, index), new[index])
    for index in range(old_end - 1, paired - 1, -1):
        document = delete(document, (*path, index))
    for index in range(paired, new_end):
        if index == len(get(document.value, path)):
            document = append(document, path, new[index])
        else:
            document = insert(document, path, index, new[index])
    return document
