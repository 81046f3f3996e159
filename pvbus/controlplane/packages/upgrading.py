"""The upgrade task: merges a new upstream revision into the local package.

The merge itself is `pvbus.core.variants.merge.copies`; this module brings the files of three revisions into
it and out of it, byte for byte where they are no text. What only the pipeline has made is no local change,
see `pvbus.core.variants.merge.output`.

Source: Porch v1.5.8, pkg/task/upgrade.go and pkg/engine/validate.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.filesets import File, FileMode, Files, replaced, texts
from pvbus.controlplane.packages.render import Rendering
from pvbus.core.kernel.conflicts import Conflict
from pvbus.core.variants.merge import copies, packages
from pvbus.core.variants.merge.output import made_again, put_back
from pvbus.core.yaml.rawtext import bytes_of, text_of

REFERENCES = ("oldUpstreamRef", "newUpstreamRef", "localPackageRevisionRef")


class Names(NamedTuple):
    """The package revisions that an upgrade task names.

    old: the old upstream
    new: the new upstream
    local: the package revision to upgrade
    strategy: the strategy of the merge
    """

    old: str
    new: str
    local: str
    strategy: str

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> "Names":
        body = task.get("upgrade") or {}
        old, new, local = (str((body.get(field) or {}).get("name") or "") for field in REFERENCES)
        return cls(old, new, local, body.get("strategy") or packages.RESOURCE_MERGE)


_LINK = "\ud800"
"""Stands before the target of a link in the texts of a merge: half a surrogate pair, which no file can
have."""

OLD, NEW, LOCAL = "old upstream", "target upstream", "local"
"""What the sources of an upgrade are called in answers."""


def missing(role: str, namespace: str, name: str) -> str:
    return f'{role} package revision "{namespace}/{name}" not found'


def refusal(role: str, repository: str, name: str, *, is_published: bool, is_placeholder: bool) -> str | None:
    """Return why a revision cannot be this source of an upgrade, None where it can."""
    if not is_published:
        return f'all source PackageRevisions of upgrade task must be published, "{name}" is not'
    if is_placeholder and role != OLD:
        return f"{role} revision may not be the placeholder package revision {repository}/{name}"
    return None


class Upgraded(NamedTuple):
    """The files after an upgrade.

    files: the merged files, by path
    conflicts: the values that local and upstream both changed
    """

    files: dict[str, File]
    conflicts: tuple[Conflict, ...]


class Upstream(NamedTuple):
    """An upstream revision.

    files: its files
    texts: its text files by path, with the origin of each object recorded in them
    """

    files: Files
    texts: Mapping[str, str]


def with_origins(files: Files) -> dict[str, str]:
    """Return the texts of an upstream revision, in which a clone's objects can be found again."""
    return copies.upstream_texts(_merge_texts(files))


def upgraded(
    old: Upstream, local: Files, new: Upstream, lock: Mapping[str, Any], strategy: str, *, deployment: bool
) -> Upgraded:
    """Merge the files of three revisions, and record the new upstream. See `copies.upgraded`."""
    merged = copies.upgraded(old.texts, _merge_texts(local), new.texts, lock, strategy, deployment=deployment)
    sides = (old.files, local, new.files)
    files = {path: _file(path, text, sides, strategy) for path, text in merged.texts.items()}
    return Upgraded(files, tuple(map(_shown, merged.conflicts)))


def before_output(local: Files, conflicts: Sequence[Conflict]) -> dict[str, str] | None:
    """Return the local texts with upstream's former values in the places in conflict.

    Rendered, they show which local values only the pipeline has made. None if nothing differs.
    """
    before = texts(local)
    without = put_back(conflicts, before)
    return without if without != before else None


def without_output(local: Files, conflicts: Sequence[Conflict], rendered: Rendering) -> Files | None:
    """Return the local files to merge, with the values that only the pipeline has made as upstream had them.

    None if there is no such value.

    rendered: the texts of `before_output`
    """
    if rendered.note is None or rendered.note.state != "done":
        return None
    made = made_again(conflicts, rendered.texts)
    return replaced(local, put_back(made, texts(local))) if made else None


def _merge_texts(files: Files) -> dict[str, str]:
    """Return all files as texts to merge; a link becomes a text that no file can have."""
    return {
        path: _LINK + text_of(file.data) if (text := file.text) is None else text
        for path, file in files.items()
    }


def _file(path: str, text: str, sides: Sequence[Files], strategy: str) -> File:
    """Return a merged file; its mode is merged, too.

    sides: the files of the old upstream, the local revision and the new upstream
    """
    if text.startswith(_LINK):
        return File(bytes_of(text.removeprefix(_LINK)), FileMode.LINK)
    return File(bytes_of(text), _mode(path, sides, strategy))


def _mode(path: str, sides: Sequence[Files], strategy: str) -> int:
    old, local, new = (
        side[path].mode if path in side and side[path].mode != FileMode.LINK else None for side in sides
    )
    is_upstreams = local is None or local == old or strategy != packages.RESOURCE_MERGE
    return (new if new is not None and is_upstreams else local) or FileMode.BLOB


def with_modes(old: Files, local: Files, new: Files, merged: Files) -> dict[str, File]:
    """Bring upstream's changes of modes and links into files that a client has merged as texts: it sees none.

    merged: the files with the client's texts, and with the modes and links of the local ones
    """
    result = dict(merged)
    for path in old.keys() | new.keys():
        file, link = merged.get(path), _link(new, path)
        if file is not None and file.mode != FileMode.LINK:
            result[path] = file._replace(mode=_mode(path, (old, local, new), packages.RESOURCE_MERGE))
        elif _link(local, path) == _link(old, path) != link:
            result.pop(path, None)
            result |= {path: link} if link is not None else {}
    return result


def _link(files: Files, path: str) -> File | None:
    file = files.get(path)
    return file if file is not None and file.mode == FileMode.LINK else None


def _shown(conflict: Conflict) -> Conflict:
    """Return the conflict to report. One with a link has no values: the API cannot set them."""
    values = (conflict.old, conflict.local, conflict.new)
    if any(_has_link(value) for value in values):
        return Conflict(file=conflict.file, taken=conflict.taken)
    return conflict


def _has_link(value: Any) -> bool:
    files = value.values() if isinstance(value, dict) else (value,)
    return any(isinstance(text, str) and text.startswith(_LINK) for text in files)
