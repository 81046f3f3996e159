"""The state of a Repository's branch in the stored objects, for use before the first fetch only."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.ports.cluster import Object


class Pins(NamedTuple):
    """The stored state. had_branch: True if an empty remote has lost its branch; commits: directory -> the
    last commit of its placeholder."""

    had_branch: bool
    commits: dict[str, str]


def pins_of(settings: RepositorySettings, repository: Object | None, revisions: Iterable[Object]) -> Pins:
    """Read the stored state. revisions: the stored PackageRevisions of the Repository."""
    had_branch = bool(((repository or {}).get("status") or {}).get("gitCommitHash"))
    commits = {}
    for obj in revisions:
        lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
        if obj["spec"].get("revision") == layout.PLACEHOLDER_REVISION and lock.get("ref") == settings.branch:
            directory = layout.join(settings.directory, obj["spec"]["packageName"])
            commits[directory] = str(lock.get("commit", ""))
    return Pins(had_branch, commits)
