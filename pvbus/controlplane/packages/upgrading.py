"""The upgrade task: merges a new upstream revision into the local package.

The merge itself is `pvbus.core.merge.copies`; this module brings the files of three revisions into it and
out of it, byte for byte where they are no text. What only the pipeline has made is no local change, see
`pvbus.core.merge.output`.

Source: Porch v1.5.8, pkg/task/upgrade.go and pkg/engine/validate.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.packages.gitrepo import File, Files, replaced, texts
from pvbus.controlplane.packages.render import Rendering
from pvbus.core.merge import copies, packages
from pvbus.core.merge.conflicts import Conflict
from pvbus.core.merge.output import made_again, put_back

REFERENCES = ("oldUpstreamRef", "newUpstreamRef", "localPackageRevisionRef")


class Names(NamedTuple):
    """The package revisions that an upgrade task names."""

    old: str
    new: str
    local: str
    strategy: str

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> "Names":
        body = task.get("upgrade") or {}
        old, new, local = (str((body.get(field) or {}).get("name") or "") for field in REFERENCES)
        return cls(old, new, local, body.get("strategy") or packages.RESOURCE_MERGE)


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
    files: dict[str, File]
    conflicts: tuple[Conflict, ...]


class Upstream(NamedTuple):
    """An upstream revision. texts: its regular files, with the origin of each object recorded in them."""

    files: Files
    texts: Mapping[str, str]


def with_origins(files: Files) -> dict[str, str]:
    """Return the texts of an upstream revision, in which a clone's objects can be found again."""
    return copies.upstream_texts(texts_of(files))


def upgraded(
    old: Upstream, local: Files, new: Upstream, lock: Mapping[str, Any], strategy: str, *, deployment: bool
) -> Upgraded:
    """Merge the files of three revisions, and record the new upstream. See `copies.upgraded`."""
    merged = copies.upgraded(old.texts, texts_of(local), new.texts, lock, strategy, deployment=deployment)
    files = {path: _file(path, text, local, new.files) for path, text in merged.texts.items()}
    links = _links(old.files, local, new.files, strategy)
    return Upgraded({**files, **links}, merged.conflicts)


def before_output(local: Files, conflicts: Sequence[Conflict]) -> dict[str, str] | None:
    """Return the local texts with upstream's former values in the places in conflict, None if nothing
    differs: rendered, they show which local values only the pipeline has made."""
    before = texts(local)
    without = put_back(conflicts, before)
    return without if without != before else None


def without_output(local: Files, conflicts: Sequence[Conflict], rendered: Rendering) -> Files | None:
    """Return the local files to merge instead, in which what only the pipeline has made is as upstream had
    it; None if there is no such value. rendered: the texts of `before_output`."""
    if rendered.note is None or rendered.note.state != "done":
        return None
    made = made_again(conflicts, rendered.texts)
    return replaced(local, put_back(made, texts(local))) if made else None


def texts_of(files: Files) -> dict[str, str]:
    """Return all regular files as text, so that their bytes can be had back."""
    return {
        path: file.data.decode(errors="surrogateescape")
        for path, file in files.items()
        if file.text is not None
    }


def _file(path: str, text: str, local: Files, new: Files) -> File:
    """Return a file with the mode that it has locally, else upstream."""
    known = [side[path].mode for side in (local, new) if path in side and side[path].text is not None]
    data = text.encode(errors="surrogateescape")
    return File(data, known[0]) if known else File(data)


def _links(old: Files, local: Files, new: Files, strategy: str) -> dict[str, File]:
    """Take symbolic links as whole files are taken."""
    olds, locals_, news = (
        {path: file for path, file in side.items() if file.text is None} for side in (old, local, new)
    )
    if strategy != packages.RESOURCE_MERGE:
        return news
    taken = {
        path: news.get(path) if locals_.get(path) == olds.get(path) else locals_.get(path)
        for path in locals_.keys() | news.keys()
    }
    return {path: file for path, file in taken.items() if file is not None}
