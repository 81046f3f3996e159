"""Converts a package's files to items, and items back to files.

A file without a changed object keeps its bytes; so do comments and documents without an object in
changed files.

Files that `.krmignore` names are hidden from functions. Its patterns are those of a `.gitignore`: one counts
from the folder of its file on, the last one that matches decides, and what a matching folder holds is
ignored with it. Matching takes time in proportion to pattern and name.
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from pvbus.controlplane.packages.functions.item import Item
from pvbus.core.errors import PermanentError
from pvbus.core.variants.revisions.content import no_object
from pvbus.core.yaml.editor import YamlError, parse

KPTFILE = "Kptfile"
_SUFFIXES = (".yaml", ".yml", ".json")
_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")


class _Piece(NamedTuple):
    """A part of a file's text.

    text: the text itself
    id: the id of its item, None for comments only
    """

    text: str
    id: int | None


class Package(NamedTuple):
    """The items of a whole package with its sub-packages, and the layout of the files they come from."""

    items: tuple[Item, ...]
    layout: Mapping[str, tuple[_Piece, ...]]


def package_dirs(files: Iterable[str]) -> list[str]:
    """Return the directories with a Kptfile, '' for the root."""
    return sorted(posixpath.dirname(file) for file in files if posixpath.basename(file) == KPTFILE)


def within(directory: str, file: str) -> bool:
    return not directory or file.startswith(f"{directory}/")


def read(resources: Mapping[str, str]) -> Package:
    """Read the files that functions see: YAML, JSON, Kptfiles. Raises: PermanentError that names the file."""
    hidden = ignored(resources) - {KPTFILE}
    packages = package_dirs(file for file in resources if file not in hidden)
    ids = count()
    items: list[Item] = []
    layout: dict[str, tuple[_Piece, ...]] = {}
    for file in sorted(resources):
        if file in hidden:
            continue
        if file.endswith(_SUFFIXES) or posixpath.basename(file) == KPTFILE:
            package = max((each for each in packages if within(each, file)), key=len, default="")
            pieces: list[_Piece] = []
            index = 0
            for piece in _objects(file, resources[file]):
                if isinstance(piece, str):
                    pieces.append(_Piece(piece, None))
                    continue
                item = msgspec.structs.replace(piece, package=package, file=file, index=index, id=next(ids))
                index += 1
                check_krm(item)
                items.append(item)
                pieces.append(_Piece(item.text, item.id))
            layout[file] = tuple(pieces)
    return Package(tuple(items), layout)


def check_krm(item: Item) -> None:
    """Check apiVersion, kind and name, which every Kubernetes object has. Raises: PermanentError."""
    if posixpath.basename(item.file) in _KUSTOMIZATIONS:
        return
    missing = [
        name
        for name, present in (
            ("apiVersion", item.api_version),
            ("kind", item.kind),
            ("metadata.name", item.name),
        )
        if not present
    ]
    if missing:
        where = item.file or "an object that a function created"
        raise PermanentError(
            f"{where}: resource {max(item.index, 0)} has no `{'`, `'.join(missing)}`",
            reason="InvalidResource",
        )


def placed(item: Item, package: str) -> Item:
    """Assign a new object to a file in the package of its function, named like kpt does."""
    if item.file:
        file = item.file if item.package else posixpath.join(package, item.file)
        if posixpath.isabs(item.file) or posixpath.normpath(file).startswith(".."):
            raise PermanentError(f"{item}: `{item.file}` is outside of the package", reason="InvalidResource")
        return msgspec.structs.replace(item, package=item.package or package, file=file)
    name = f"{item.kind.lower()}_{item.name}.yaml"
    file = posixpath.join(package, item.namespace, name)
    return msgspec.structs.replace(item, package=package, file=file)


def write(resources: Mapping[str, str], package: Package, items: Sequence[Item]) -> dict[str, str]:
    """Return the files with these items instead of those that were read."""
    by_file: dict[str, list[Item]] = {}
    for item in items:
        by_file.setdefault(item.file, []).append(item)
    written = dict(resources)
    for file in {*package.layout, *by_file}:
        pieces = package.layout.get(file, ())
        text = _text(pieces, by_file.get(file, []))
        if file not in by_file and any(piece.id is not None for piece in pieces):
            del written[file]
        elif text != written.get(file):
            written[file] = text
    return written


def _objects(file: str, text: str) -> Iterable[Item | str]:
    try:
        documents = parse(text)
    except YamlError as exc:
        raise PermanentError(f"{file}: {exc}", reason="InvalidResource") from exc
    for number, document in enumerate(documents):
        if isinstance(document.value, dict):
            yield Item(text=document.text, value=document.value)
        elif document.value is None:  # only comments, or nothing: templates that are switched off leave these
            yield document.text
        else:
            words = no_object(number, document.text, document.value)
            raise PermanentError(f"{file}: {words}", reason="InvalidResource")


def _text(pieces: Sequence[_Piece], items: Sequence[Item]) -> str:
    known = {piece.id for piece in pieces if piece.id is not None}
    retained = {item.id: item for item in items if item.id in known}
    text = "".join(
        piece.text if piece.id is None else retained[piece.id].text
        for piece in pieces
        if piece.id is None or piece.id in retained
    )
    for item in sorted((item for item in items if item.id not in known), key=lambda item: item.index):
        body = item.text
        if text.strip():
            text = text if text.endswith("\n") else f"{text}\n"
            body = body if body.lstrip().startswith("---") else f"---\n{body}"
        text += body
    return text


IGNORE_FILE = ".krmignore"
PATTERNS_MAX = 1_000
"""Per file; every path is compared with each pattern, and more are a mistake."""


class _Rule(NamedTuple):
    """One pattern of an ignore file.

    parts: the pattern, split at its slashes
    anchored: whether it matches paths from the folder of its file only
    folders_only: whether it ends with a slash and so matches folders only
    ignores: False for a pattern that begins with `!`, which ends an earlier pattern's effect
    """

    parts: tuple[str, ...]
    anchored: bool
    folders_only: bool
    ignores: bool


def ignored(resources: Mapping[str, str]) -> frozenset[str]:
    """Return the files that functions do not see."""
    rules = {
        path.removesuffix(IGNORE_FILE): _rules(text)
        for path, text in resources.items()
        if path.rpartition("/")[2] == IGNORE_FILE
    }
    return frozenset(path for path in resources if _is_ignored(path, rules)) if rules else frozenset()


def _rules(text: str) -> list[_Rule]:
    found = []
    for line in text.splitlines()[:PATTERNS_MAX]:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        ignores = not pattern.startswith("!")
        pattern = pattern.removeprefix("!").removeprefix("\\")
        folders_only = pattern.endswith("/")
        parts = tuple(part for part in pattern.split("/") if part)
        if parts:
            found.append(_Rule(parts, "/" in pattern.rstrip("/"), folders_only, ignores))
    return found


def _is_ignored(path: str, rules: Mapping[str, Iterable[_Rule]]) -> bool:
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        ignores = False
        for folder, own in sorted(rules.items()):
            if not path.startswith(folder):
                continue
            inside = tuple(names[folder.count("/") : depth])
            for rule in own:
                if inside and (depth < len(names) or not rule.folders_only) and _matches(rule, inside):
                    ignores = rule.ignores
        if ignores:
            return True
    return False


def _matches(rule: _Rule, names: tuple[str, ...]) -> bool:
    if not rule.anchored:
        return _glob(rule.parts[0], names[-1])
    return path_matches(rule.parts, names)


def path_matches(
    parts: Sequence[str], names: Sequence[str], part_matches: Callable[[str, str], bool] | None = None
) -> bool:
    """Match a path with a pattern, part by part; `**` matches any number of names.

    part_matches: compares a part of the pattern with a name; None compares them as globs
    """
    matches = part_matches or _glob
    reached = {0}
    for part in parts:
        if part == "**":
            reached = set(range(min(reached), len(names) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(names) and matches(part, names[at])}
    return len(names) in reached


def _glob(pattern: str, name: str) -> bool:
    """Match one name: `*` any characters, `?` one. Backtracks to the last `*` only."""
    at = star = mark = 0
    has_star = False
    for_pattern = 0
    while at < len(name):
        if for_pattern < len(pattern) and pattern[for_pattern] == "*":
            has_star, star, mark = True, for_pattern, at
            for_pattern += 1
        elif for_pattern < len(pattern) and pattern[for_pattern] in ("?", name[at]):
            for_pattern += 1
            at += 1
        elif has_star:
            for_pattern = star + 1
            mark += 1
            at = mark
        else:
            return False
    return all(char == "*" for char in pattern[for_pattern:])
