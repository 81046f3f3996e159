"""The upgrade task: merges a new upstream revision into the local package.

The merge itself is `pvbus.core.merge`; this module brings the files of three revisions into it and out of
it, byte for byte where they are no text.

Source: Porch v1.5.8, pkg/task/upgrade.go and pkg/engine/validate.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.packages import content
from pvbus.controlplane.packages.gitrepo import File, Files
from pvbus.controlplane.packages.layout import KPTFILE
from pvbus.core.merge import packages
from pvbus.core.merge.conflicts import ABSENT, Conflict
from pvbus.core.yaml import editor

CONFLICTS_BYTES_MAX = 64 * 1024
"""Of the annotation: all annotations of an object together may have 256 KiB."""

VALUE_CHARACTERS_MAX = 1000
"""Of one value in the annotation; a longer one is still in git, in the revision that it is of."""

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
    plain = texts_of(files)
    return plain | content.with_origins({path: text for path, text in plain.items() if not _is_own(path)})


def upgraded(
    old: Upstream, local: Files, new: Upstream, lock: Mapping[str, Any], strategy: str, *, deployment: bool
) -> Upgraded:
    """Merge the files of three revisions, and record the new upstream.

    lock: of the new upstream. deployment: the package context is the local one, whatever the strategy.
    Raises: MergeError, YamlError.
    """
    plain = texts_of(local)
    merged = packages.merge(old.texts, plain, new.texts, strategy)
    texts = merged.texts
    if deployment:
        texts |= {path: text for path, text in plain.items() if path.endswith(content.CONTEXT_FILE)}
    texts = content.edit_kptfile(texts, content.named(_name(plain)), content.derived_from(lock))
    made_here = {
        path: text
        for path, text in texts.items()
        if text != new.texts.get(path) and not path.endswith(content.CONTEXT_FILE)
    }
    texts |= content.with_origins(made_here)
    files = {path: _file(path, text, local, new.files) for path, text in texts.items()}
    links = _links(old.files, local, new.files, strategy)
    return Upgraded({**files, **links}, merged.conflicts)


def _is_own(path: str) -> bool:
    """Tell the files that a clone has made anew: they are not upstream's objects."""
    return path.rpartition("/")[2] in (KPTFILE, content.CONTEXT_FILE)


def _name(kptfile: Mapping[str, str]) -> str:
    values = editor.values(kptfile[KPTFILE])
    return str(editor.get(values[0] if values else None, ("metadata", "name")) or "")


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


def annotation(conflicts: Sequence[Conflict]) -> str:
    """Return the conflicts as the annotation's text; those beyond its limit are counted."""
    listed: list[Any] = []
    left = CONFLICTS_BYTES_MAX
    for conflict in conflicts:
        entry = msgspec.structs.replace(
            conflict, **{side: shown(getattr(conflict, side)) for side in ("old", "local", "new")}
        )
        left -= len(msgspec.json.encode(entry)) + 1
        if left < 0:
            listed.append({"file": f"and {len(conflicts) - len(listed)} more"})
            break
        listed.append(entry)
    return msgspec.json.encode(listed).decode()


def shown(value: Any) -> Any:
    """Return a value as JSON can hold it, as text where it is long."""
    if value is ABSENT:
        return value
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):  # a key that is a list, or a file that is no text
        value = text = str(value).encode(errors="replace").decode()
    if len(text) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{value if isinstance(value, str) else text}"[:VALUE_CHARACTERS_MAX] + "..."
