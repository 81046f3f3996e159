"""Groups the writes of a plan: to which variant and set each belongs, and which of them are equal.

Two writes are equal if they do the same for the same reason to objects of one set, apart from the names of
the variant, its package and its target, which a pattern replaces by an ellipsis.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pvbus.adapters.memory.writes import Write
from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.objects import mapping
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.run import Preview

Document = dict[str, Any]
PLACEHOLDER = "…"
FINE_GROUPS_MAX = 8
"""Above it, groups that change the same fields become one: each variant may have its own value."""
PACKAGES = ("PackageRevision", "PackageRevisionResources")
_WORD = re.compile(r"[\w-]+")


class Selection(NamedTuple):
    """The part of a plan to show.

    set_key: `namespace/name` of the set, "" for any
    namespace: the namespace, "" for any
    selector: of the variants' labels, None for any
    text: the options as they were typed, for messages
    """

    set_key: str = ""
    namespace: str = ""
    selector: Requirements | None = None
    text: str = ""

    def has(self, variant: Document, key: str) -> bool:
        return (
            (not self.set_key or variant["set"] == self.set_key)
            and (not self.namespace or key.startswith(f"{self.namespace}/"))
            and (self.selector is None or matches(self.selector, variant["labels"]))
        )


class Group(NamedTuple):
    """Equal writes.

    actions: the writes, by namespace and name; the first is the example
    is_same: whether all have the same values, apart from names
    """

    actions: Sequence[Document]
    is_same: bool

    @property
    def example(self) -> Document:
        return self.actions[0]


# ------------------------------------------------------------ to whom a write belongs


def belongings(result: Preview) -> tuple[dict[str, Document], dict[str, str]]:
    """Return each variant before or after (its set, labels, package and target), and the variant of each
    package revision; all names are `namespace/name`."""
    targets = {f"{c.skey.partition('/')[0]}/{c.name}": c.okey for c in result.children}
    variants: dict[str, Document] = {}
    owners: dict[str, str] = {}
    for key, obj in _all_objects(result):
        if obj["kind"] == "PackageVariant":
            variants[key] = {
                "set": set_key_of(obj),
                "labels": _labels_of(obj),
                "package": str(mapping(mapping(obj.get("spec")).get("downstream")).get("package") or ""),
                "target": ObjectKey.parse(okey).name if (okey := targets.get(key)) else "",
            }
        elif obj["kind"] == "PackageRevision":
            for owner in _owners_of(obj):
                if owner.get("kind") == "PackageVariant":
                    owners[key] = f"{key.partition('/')[0]}/{owner.get('name')}"
    return variants, owners


def _all_objects(result: Preview) -> Iterator[tuple[str, Object]]:
    """Yield every object that was written, and then every one as it is afterwards, by `namespace/name`."""
    for write in result.writes:
        for obj in (write.before, write.object):
            if obj is not None:
                yield f"{write.namespace}/{write.name}", obj
    for obj in result.objects:
        yield f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}", obj


def set_key_of(obj: Object) -> str:
    """Return `namespace/name` of the set that owns a variant, "" for none."""
    for owner in _owners_of(obj):
        if owner.get("kind") == "PackageVariantSet":
            return f"{obj['metadata'].get('namespace', '')}/{owner.get('name')}"
    return ""


def _owners_of(obj: Object) -> list[Mapping[str, Any]]:
    """Return the owners of an object, which may be a refused one."""
    owners = obj["metadata"].get("ownerReferences")
    return [owner for owner in owners if isinstance(owner, dict)] if isinstance(owners, list | tuple) else []


def _labels_of(obj: Object) -> dict[str, str]:
    """Return a variant's labels, and below them those that it gives to its packages."""
    return {**mapping(mapping(obj.get("spec")).get("labels")), **mapping(obj["metadata"].get("labels"))}


def variant_of(write: Write, variants: Mapping[str, str]) -> str:
    """Return `namespace/name` of a write's variant, "" if it belongs to none.

    variants: those of the package revisions
    """
    key = f"{write.namespace}/{write.name}"
    if write.kind == "PackageVariant":
        return key
    return variants.get(key, "") if write.kind in PACKAGES else ""


# ------------------------------------------------------------ a part of a plan


def narrowed(document: Document, selection: Selection) -> Document:
    """Return the part of a plan that belongs to some variants: their writes, problems and packages.

    Problems of the whole plan stay, and those of a set that is named.
    """
    chosen = {key for key, variant in document["variants"].items() if selection.has(variant, key)}
    actions = [action for action in document["actions"] if action.get("variant") in chosen]
    packages = {f"{action['namespace']}/{action['name']}" for action in actions}
    sets = {document["variants"][key]["set"] for key in chosen} | {selection.set_key}

    def has_object(key: str) -> bool:
        kind, _, name = key.partition("/")
        return name in {"PackageVariant": chosen, "PackageVariantSet": sets}.get(kind, packages)

    return {
        **document,
        "actions": actions,
        "variants": {key: document["variants"][key] for key in chosen},
        "conditions": {key: each for key, each in document["conditions"].items() if has_object(key)},
        "packages": {key: files for key, files in document["packages"].items() if key in packages},
        "held": [held for held in document["held"] if f"{held['namespace']}/{held['name']}" in chosen],
        **(
            {"diffs": {key: diff for key, diff in document["diffs"].items() if key in packages}}
            if "diffs" in document
            else {}
        ),
    }


# ------------------------------------------------------------ equal writes


def groups_of(document: Document) -> list[Group]:
    """Return the writes in groups, in the order of the work: pending ones, then by set, kind and verb.

    With more than FINE_GROUPS_MAX groups, those that change the same fields of one kind become one.
    """
    variants = document.get("variants", {})
    fine = _grouped(document["actions"], lambda action: _fine_key(action, variants))
    if len(fine) <= FINE_GROUPS_MAX:
        return [Group(actions, is_same=True) for actions in fine]
    coarse = _grouped(document["actions"], lambda action: _coarse_key(action, variants))
    whole = {id(actions[0]): len(actions) for actions in fine}
    return [Group(actions, whole.get(id(actions[0])) == len(actions)) for actions in coarse]


def _grouped(
    actions: Sequence[Document], key_of: Callable[[Document], tuple[Any, ...]]
) -> list[list[Document]]:
    found: dict[tuple[Any, ...], list[Document]] = {}
    ordered = sorted(actions, key=lambda a: (not a.get("pending"), a["namespace"], a["name"]))
    for action in ordered:
        found.setdefault(key_of(action), []).append(action)
    return [found[key] for key in sorted(found, key=_order)]


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the order of a group: what is pending, then removals, then by set, kind and the rest."""
    is_pending, verb, kind, set_key, *_ = key
    return (not is_pending, verb != "delete", set_key, kind in PACKAGES, kind, *map(repr, key))


def _coarse_key(action: Document, variants: Mapping[str, Document]) -> tuple[Any, ...]:
    words = name_words(action, variants)
    return (
        bool(action.get("pending")),
        action["verb"],
        action["kind"],
        variants.get(action.get("variant", ""), {}).get("set", ""),
        action.get("by", ""),
        pattern(action["reason"], words),
        tuple(change["path"] for change in action.get("differences", ())),
        bool(action.get("conflicts")),
    )


def _fine_key(action: Document, variants: Mapping[str, Document]) -> tuple[Any, ...]:
    words = name_words(action, variants)
    changes = tuple(
        tuple(pattern(json.dumps(change[side], ensure_ascii=False), words) for side in ("before", "after"))
        for change in action.get("differences", ())
    )
    files = tuple(action.get("files", ()))
    return *_coarse_key(action, variants), changes, files, repr(action.get("conflicts", ""))


def name_words(action: Document, variants: Mapping[str, Document]) -> frozenset[str]:
    """Return the words of the names that only this variant has."""
    key = action.get("variant", "")
    variant = variants.get(key, {})
    names = [key.partition("/")[2], variant.get("package", ""), variant.get("target", "")]
    if action["kind"] not in PACKAGES:  # a revision's name has the words of its repository and workspace
        names.append(action["name"])
    return frozenset(chain.from_iterable(map(_WORD.findall, names)))


def pattern(text: str, words: frozenset[str]) -> str:
    """Return a text with these words replaced by PLACEHOLDER."""
    return _WORD.sub(lambda match: PLACEHOLDER if match[0] in words else match[0], text)


def repeated(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Return texts of `Kind/namespace/name: ...` once each, the first in full, with how many are alike."""
    found: dict[str, tuple[str, int]] = {}
    for text in texts:
        name, colon, rest = text.partition(": ")
        kind, _, own = name.partition("/")
        words = frozenset(_WORD.findall(own)) if colon else frozenset()
        first, count = found.get(key := f"{kind}: {pattern(rest, words)}", (text, 0))
        found[key] = (first, count + 1)
    return list(found.values())
