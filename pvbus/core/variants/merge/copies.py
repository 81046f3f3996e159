"""What a copy of a package records of its upstream, so that a later merge finds its objects again.

Source: Porch v1.5.8, pkg/task/{clone,upgrade}.go; kpt v1.0.0-beta.62.1, internal/util/addmergecomment.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, reduce
from typing import Any

from pvbus.core.kernel.keys import STORE_RECORDS
from pvbus.core.variants.merge import packages
from pvbus.core.variants.merge.kptfile import FILE as KPTFILE
from pvbus.core.variants.merge.packages import PackageMerge, Texts
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document

CONTEXT_FILE = packages.GENERATED
UPSTREAM_IDENTIFIER = "internal.kpt.dev/upstream-identifier"

Edit = Callable[[Document], Document]
"""A change of a Kptfile."""

_ANNOTATIONS = ("metadata", "annotations")
_MERGE_COMMENT = "kpt-merge:"
_REMEMBERED_MAX = 256
_REMEMBERED_CHARACTERS_MAX = 10_000
"""Files that are remembered, 5 MB at most: a thousand variants merge the same revisions of an upstream."""
_METADATA_LINE = re.compile(r"(?m)^metadata:[ \t]*(?=\r?$)")


def upgraded(
    old: Texts, local: Texts, new: Texts, lock: Mapping[str, Any], strategy: str, *, deployment: bool
) -> PackageMerge:
    """Merge three packages, and record the new upstream in the result.

    Raises: MergeError, YamlError.

    old, new: the upstreams, as `upstream_texts` prepares them
    lock: the lock of the new upstream
    deployment: whether the package context stays the local one, whatever the strategy
    """
    olds, locals_, news = map(without_records, (old, local, new))
    merged = packages.merge(olds, locals_, news, strategy)
    texts = merged.texts
    if deployment:
        texts |= {path: text for path, text in local.items() if path.endswith(CONTEXT_FILE)}
    texts = edit_kptfile(texts, named(_name(local)), derived_from(lock))
    made_here = {
        path: text
        for path, text in texts.items()
        if text != new.get(path) and not path.endswith(CONTEXT_FILE)
    }
    return PackageMerge(texts | with_origins(made_here), merged.conflicts)


def rejoined(base: Texts, edited: Texts, later: Texts) -> PackageMerge:
    """Merge two revisions of one package that were made from a third one. Of what both changed, the later
    one counts; it is the upstream of the merge. Raises: MergeError, YamlError."""
    bases, edits, laters = map(without_records, (base, edited, later))
    merged = packages.merge(bases, edits, laters)
    upstream = _upstream_of(later)
    if upstream == _upstream_of(base):
        return merged
    texts = edit_kptfile(merged.texts, lambda kptfile: editor.assign(kptfile, (), kptfile.value | upstream))
    return PackageMerge(texts, merged.conflicts)


def _upstream_of(texts: Texts) -> dict[str, Any]:
    """Return what a package's Kptfile records of its upstream."""
    values = editor.values(texts[KPTFILE])
    value = values[0] if values and isinstance(values[0], dict) else {}
    return {key: value[key] for key in ("upstream", "upstreamLock") if key in value}


def upstream_texts(texts: Texts) -> dict[str, str]:
    """Return the texts of an upstream revision, in which a clone's objects can be found again."""
    return dict(texts) | with_origins({path: text for path, text in texts.items() if not _is_own(path)})


def _is_own(path: str) -> bool:
    """Tell the files that a clone has made anew: they are not upstream's objects."""
    return path.rpartition("/")[2] in (KPTFILE, CONTEXT_FILE)


def _name(texts: Texts) -> str:
    values = editor.values(texts[KPTFILE])
    return str(editor.get(values[0] if values else None, ("metadata", "name")) or "")


def with_origins(texts: Mapping[str, str]) -> dict[str, str]:
    """Record in every resource its upstream name, so that an upgrade finds it again.

    An existing record stays: it names the same object on both sides of a later merge. A file that is not
    YAML stays as it is; rendering reports it.
    """
    return {path: _origin_file(text) if is_yaml(path) else text for path, text in texts.items()}


def _origin_file(text: str) -> str:
    return (_remembered if len(text) <= _REMEMBERED_CHARACTERS_MAX else _with_origins)(text)


def _with_origins(text: str) -> str:
    try:
        documents = editor.parse(text)
    except editor.YamlError:
        return text
    return editor.join(tuple(_with_origin(document) for document in documents))


_remembered = lru_cache(_REMEMBERED_MAX)(_with_origins)


def _with_origin(document: Document) -> Document:
    value = document.value
    name = editor.get(value, ("metadata", "name"))
    if not (isinstance(value, dict) and value.get("apiVersion") and value.get("kind") and name):
        return document
    namespace = editor.get(value, ("metadata", "namespace")) or ""
    group = str(value["apiVersion"]).rpartition("/")[0]
    identifier = f"{group}|{value['kind']}|{namespace or 'default'}|{name}"
    if editor.get(value, ("metadata", "annotations", UPSTREAM_IDENTIFIER)) is None:
        document = editor.assign(document, ("metadata", "annotations", UPSTREAM_IDENTIFIER), identifier)
    if _MERGE_COMMENT in document.text:
        return document
    comment = f"metadata: # {_MERGE_COMMENT} {namespace}/{name}"
    text = _METADATA_LINE.sub(lambda _: comment, document.text, count=1)
    return document._replace(text=text)


def is_yaml(path: str) -> bool:
    return path.endswith((".yaml", ".yml")) or path.rpartition("/")[2] == KPTFILE


def edit_kptfile(texts: Mapping[str, str], *edits: Edit) -> dict[str, str]:
    """Apply edits to the package's Kptfile. Raises: YamlError."""
    try:
        documents = editor.parse(texts[KPTFILE])
    except editor.YamlError as exc:
        raise editor.YamlError(f"{KPTFILE}: {exc}") from exc
    if not documents or not isinstance(documents[0].value, dict):
        raise editor.YamlError(f"{KPTFILE} contains no object")
    first = editor.edited(documents[0], lambda kptfile: reduce(lambda made, edit: edit(made), edits, kptfile))
    return {**texts, KPTFILE: editor.join((first, *documents[1:]))}


def without_annotations(kptfile: Document, keys: Collection[str]) -> Document:
    """Remove annotations; what they alone had filled goes, too, as if they had never been written."""
    annotations = editor.get(kptfile.value, _ANNOTATIONS)
    if not isinstance(annotations, dict) or not annotations.keys() & set(keys):
        return kptfile
    for key in keys:
        kptfile = editor.delete(kptfile, (*_ANNOTATIONS, key))
    for path in (_ANNOTATIONS, _ANNOTATIONS[:1]):
        if editor.get(kptfile.value, path) == {}:
            kptfile = editor.delete(kptfile, path)
    return kptfile


def without_records(texts: Texts) -> Texts:
    """Return a package's texts without the history of its tasks and its signatures. Raises: YamlError.

    Both are of one package revision: the package store keeps those of the revision that they are saved to.
    """
    if not any(record in texts.get(KPTFILE, "") for record in STORE_RECORDS):
        return texts
    return edit_kptfile(texts, lambda kptfile: without_annotations(kptfile, STORE_RECORDS))


def named(name: str) -> Edit:
    return lambda kptfile: editor.assign(kptfile, ("metadata", "name"), name)


def derived_from(lock: Mapping[str, Any]) -> Edit:
    """Record the upstream. lock: `{type: git, git: {repo, directory, ref, commit}}`."""
    git = dict(lock["git"])
    upstream = {"type": "git", "git": {key: git[key] for key in ("repo", "directory", "ref")}}

    def edit(kptfile: Document) -> Document:
        strategy = editor.get(kptfile.value, ("upstream", "updateStrategy"))
        wanted = {
            "upstream": upstream | ({"updateStrategy": strategy} if strategy else {}),
            "upstreamLock": {"type": "git", "git": git},
        }
        return editor.assign(kptfile, (), {**kptfile.value, **wanted})

    return edit
