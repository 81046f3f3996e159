"""Merges packages three ways: old upstream, local, new upstream.

A package is a mapping of paths to texts. The default strategy is kpt's `resource-merge`: the root, and each
folder with a Kptfile in it, is merged by itself, parents first; YAML files are merged object by object, the
Kptfile by its parts, and other files are taken as a whole.

If both sides changed one value, the result has upstream's, as in kpt, and a `Conflict` holds all three. A
sub-package, a file or an object that kpt leaves local, because one side changed it and the other deleted it,
is reported in the same way.

Source: kpt v1.0.0-beta.62.1, internal/util/update and its merge3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge import MergeError, kptfile, objects
from pvbus.core.variants.merge.objects import FileMerge, NotObjectsError

RESOURCE_MERGE = "resource-merge"
GENERATED = "package-context.yaml"
"""Written by the package store beside each Kptfile; no person changes it."""

Texts = Mapping[str, str]


class PackageMerge(NamedTuple):
    texts: dict[str, str]
    conflicts: tuple[Conflict, ...] = ()


def merge(old: Texts, local: Texts, new: Texts, strategy: str = RESOURCE_MERGE) -> PackageMerge:
    """Merge by a strategy of kpt. Raises: MergeError for packages that it cannot merge."""
    merging = STRATEGIES.get(strategy)
    if merging is None:
        raise MergeError(f"strategy {strategy!r} is none of {', '.join(STRATEGIES)}")
    return merging(old, local, new)


def _resource_merge(old: Texts, local: Texts, new: Texts) -> PackageMerge:
    """Merge package by package, parents first, each with the files that belong to no package below it.

    Parents come first because a sub-package that was deleted locally decides for all packages below it: they
    stay deleted, and what upstream changed in any of them belongs to its conflict.
    """
    result: dict[str, str] = {}
    conflicts: list[Conflict] = []
    sides = (old, local, new)
    folders = _folders(*sides)
    owned = [_by_folder(side, folders) for side in sides]
    deleted: list[str] = []
    for folder in folders:
        if any(folder.startswith(f"{parent}/") for parent in deleted):
            continue
        merged = _package(folder, sides, *(files[folder] for files in owned))
        if folder and _is_package(old, folder) and not _is_package(local, folder):
            deleted.append(folder)
        result.update(merged.texts)
        conflicts += merged.conflicts
    return PackageMerge(result, tuple(conflicts))


def _package(folder: str, sides: Sequence[Texts], old: Texts, local: Texts, new: Texts) -> PackageMerge:
    """Merge the files of one package, without those of nested packages. sides: the three root packages."""
    if not folder:
        return _files(folder, old, local, new)
    match tuple(_is_package(side, folder) for side in sides):
        case (False, True, True):
            if local == new:
                return PackageMerge(dict(local))
            raise MergeError(f"{folder}: the sub-package was added both locally and upstream")
        case (False, False, True):
            return PackageMerge(dict(new))
        case (True, True, False):
            if not changed_files(old, local):
                return PackageMerge({})
            return PackageMerge(dict(local), (_of_folder(folder, sides),))
        case (True, False, True):
            conflict = _of_folder(folder, sides)
            return PackageMerge({}, (conflict,) if changed_files(conflict.old, conflict.new) else ())
        case (True, True, True):
            return _files(folder, old, local, new)
    return PackageMerge(dict(local))


def _of_folder(folder: str, sides: Sequence[Texts]) -> Conflict:
    old, local, new = (files_below(side, folder) for side in sides)
    return Conflict(file=f"{folder}/", old=old, local=local, new=new, taken="local")


def _files(folder: str, old: Texts, local: Texts, new: Texts) -> PackageMerge:
    result: dict[str, str] = {}
    conflicts: list[Conflict] = []
    for path in _paths_of(local, new):
        merged = _file(path, old.get(path), local.get(path), new.get(path), is_root=not folder)
        if merged.text is not None:
            result[path] = merged.text
        conflicts += merged.conflicts
    return PackageMerge(result, tuple(conflicts))


def _file(path: str, old: str | None, local: str | None, new: str | None, *, is_root: bool) -> FileMerge:
    if _name(path) == kptfile.FILE and local is not None and new is not None:
        return kptfile.merge(path, old, local, new, with_upstream=not is_root)
    if path.endswith((".yaml", ".yml")):
        try:
            return objects.merge(path, old, local, new)
        except NotObjectsError:
            pass
    return whole_file(path, old, local, new)


def whole_file(path: str, old: str | None, local: str | None, new: str | None) -> FileMerge:
    """Take a file as a whole: the local one if it was changed or added locally, else upstream's."""
    if local == old:
        return FileMerge(new)
    if old == new or local == new:
        return FileMerge(local)
    if local is None:
        return FileMerge(None, (_of_file(path, old, local, new),))
    return FileMerge(local, (_of_file(path, old, local, new),))


def _of_file(path: str, old: str | None, local: str | None, new: str | None) -> Conflict:
    olds, locals_, news = (ABSENT if text is None else text for text in (old, local, new))
    return Conflict(file=path, old=olds, local=locals_, new=news, taken="local")


# ---------------------------------------------------------------- the other strategies


def _fast_forward(old: Texts, local: Texts, new: Texts) -> PackageMerge:
    if changed := changed_files(old, local):
        raise MergeError(
            f"local package files have been modified: {', '.join(changed)}; use a different update strategy"
        )
    return PackageMerge(dict(new))


def _replaced(_old: Texts, _local: Texts, new: Texts) -> PackageMerge:
    return PackageMerge(dict(new))


def _copied(old: Texts, local: Texts, new: Texts) -> PackageMerge:
    """Overwrite local files with upstream's, and remove those that upstream has deleted."""
    return PackageMerge({**{path: text for path, text in local.items() if path not in old}, **new})


STRATEGIES: Mapping[str, Callable[[Texts, Texts, Texts], PackageMerge]] = {
    RESOURCE_MERGE: _resource_merge,
    "fast-forward": _fast_forward,
    "force-delete-replace": _replaced,
    "copy-merge": _copied,
}


# ---------------------------------------------------------------- packages in a table of files


def changed_files(old: Texts, local: Texts) -> list[str]:
    """Return the files in which a local package differs from the one that it was copied from."""
    paths = [path for path in _paths_of(old, local) if _name(path) != GENERATED]
    return sorted(path for path in paths if not _is_same(path, old.get(path), local.get(path)))


def _is_same(path: str, old: str | None, local: str | None) -> bool:
    if old is None or local is None or old == local:
        return old == local
    if _name(path) == kptfile.FILE:
        return kptfile.is_same(old, local)
    return path.endswith((".yaml", ".yml")) and objects.is_same(old, local)


def _folders(*sides: Texts) -> list[str]:
    """Return the folders that are packages, parents first; the root is "" and always there.

    A folder that is a package on one side and a plain folder on another belongs to the package around it.
    """
    found = {path.rpartition("/")[0] for side in sides for path in side if _name(path) == kptfile.FILE}
    plain = {
        folder
        for folder in found
        for side in sides
        if not _is_package(side, folder) and any(path.startswith(f"{folder}/") for path in side)
    }
    return sorted((found - plain) | {""})


def _by_folder(side: Texts, folders: Iterable[str]) -> dict[str, dict[str, str]]:
    owned: dict[str, dict[str, str]] = {folder: {} for folder in folders}
    for path, text in side.items():
        folder = path.rpartition("/")[0]
        while folder not in owned:
            folder = folder.rpartition("/")[0]
        owned[folder][path] = text
    return owned


def files_below(texts: Texts, folder: str) -> Any:
    """Return the files of a sub-package and of those nested in it, by their paths in it; ABSENT if there is
    no such sub-package."""
    if not _is_package(texts, folder):
        return ABSENT
    start = f"{folder}/"
    return {path.removeprefix(start): texts[path] for path in sorted(texts) if path.startswith(start)}


def with_files_below(texts: Texts, folder: str, files: Any) -> dict[str, str]:
    """Return a package with the files of a sub-package; ABSENT removes it, without those nested in it."""
    if files is ABSENT:
        owned = _by_folder(texts, _folders(texts))
        return {path: text for path, text in texts.items() if path not in owned.get(folder, ())}
    return {**texts, **{f"{folder}/{path}": text for path, text in files.items()}}


def _is_package(files: Texts, folder: str) -> bool:
    return f"{folder}/{kptfile.FILE}" in files


def _paths_of(first: Texts, second: Texts) -> list[str]:
    return [*first, *(path for path in second if path not in first)]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
