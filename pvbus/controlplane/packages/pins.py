"""What the stored objects remember of a Repository's branch; of use before the first look only."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.ports.cluster import Object


class Pins(NamedTuple):
    """had_branch: an empty remote has lost it, rather than never had it; commits: directory -> the
    commit its placeholder was last shown at."""

    had_branch: bool
    commits: dict[str, str]


def pins_of(settings: RepositorySettings, repository: Object | None, revisions: Iterable[Object]) -> Pins:
    """revisions: the stored PackageRevisions of the Repository."""
    had_branch = bool(((repository or {}).get("status") or {}).get("gitCommitHash"))
    commits = {}
    for obj in revisions:
        lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
        if obj["spec"].get("revision") == layout.PLACEHOLDER_REVISION and lock.get("ref") == settings.branch:
            directory = layout.join(settings.directory, obj["spec"]["packageName"])
            commits[directory] = str(lock.get("commit", ""))
    return Pins(had_branch, commits)
