"""Renders failed drafts again after the functions changed: by a setting, or with a new version of pvbus.

Nobody else would: to its variant a draft is complete, and only its pipeline failed. A file in the data folder
has the digest of the functions with which all failed drafts were tried.
"""

from contextlib import suppress
from pathlib import Path

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.content import RENDERED
from pvbus.controlplane.packages.resources import ResourcesKind
from pvbus.ports.cluster import Object

TRIED = "functions-tried"
_UNAVAILABLE = 503


async def render_failed_again(objects: Objects, resources: ResourcesKind, file: Path, functions: str) -> None:
    """Save each failed draft again, unless all were tried with these functions.

    file: the file with the digest of the functions of the last try
    functions: the digest of the functions that can run now
    """
    if _read(file) == functions:
        return
    failed = [obj for obj in objects.list(PACKAGE_REVISION) if _has_failed(obj)]
    outcomes = [await _is_tried(resources, obj) for obj in failed]
    if all(outcomes):
        with suppress(OSError):  # the next start tries again
            file.write_text(functions)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _has_failed(revision: Object) -> bool:
    conditions = (revision.get("status") or {}).get("conditions") or ()
    is_draft = revision["spec"].get("lifecycle") == layout.DRAFT
    return is_draft and any(
        each.get("type") == RENDERED and each.get("status") == "False" for each in conditions
    )


async def _is_tried(resources: ResourcesKind, revision: Object) -> bool:
    """Return whether a draft was rendered, or has a problem of its own that another start would not solve."""
    metadata = revision["metadata"]
    try:
        files = await resources.get(metadata.get("namespace", ""), metadata["name"])
        if files is not None:
            annotated = {**files["metadata"], "annotations": {layout.CAUSE: layout.FUNCTIONS_CHANGED}}
            await resources.update({**files, "metadata": annotated}, user="")
    except StatusError as exc:
        return exc.code != _UNAVAILABLE
    return True
