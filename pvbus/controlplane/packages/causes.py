"""The readable lines of a draft's commit message: the change, and the variant it is for."""

from collections.abc import Mapping
from typing import Any

from pvbus.controlplane.packages.gitrepo import Files
from pvbus.controlplane.packages.revisions import Revision

NAMED_MAX = 5


def of_creation(
    task: Mapping[str, Any], source: Revision | None, metadata: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name the task and its source. source: the cloned or copied revision, None for a new package."""
    kind = task.get("type", "")
    if kind == "clone":
        name = (((task.get("clone") or {}).get("upstreamRef") or {}).get("upstreamRef") or {}).get("name", "")
        line = f"Clone of {name}{_at(source)}"
    elif kind == "edit":
        line = f"Edit of {((task.get('edit') or {}).get('sourceRef') or {}).get('name', '')}{_at(source)}"
    else:
        line = "New package"
    return (line, *_owners(metadata))


def of_update(before: Files, after: Files, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the changed files."""
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    named = ", ".join(_line(path) for path in changed[:NAMED_MAX])
    more = f" (and {len(changed) - NAMED_MAX} more)" if len(changed) > NAMED_MAX else ""
    return (f"Change of {named or 'no file'}{more}", *_owners(metadata))


def _at(source: Revision | None) -> str:
    if source is None:
        return ""
    number = f"revision {source.revision}, " if source.revision > 0 else ""
    return f" ({number}commit {source.commit[:12]})"


def _owners(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    namespace = metadata.get("namespace", "")
    return tuple(
        f"For {_line(str(owner.get('kind', '')))} {namespace}/{_line(str(owner.get('name', '')))}"
        for owner in metadata.get("ownerReferences") or []
        if owner.get("controller")
    )


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
