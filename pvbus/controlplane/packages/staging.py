"""Changes of refs that are pushed together: collected, pushed, and built anew when the remote moved."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pvbus.controlplane.packages.gitcommand import Failure, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import BareMirror

# A change of refs, built on what the refs are at that moment; it may be built again.
Build = Callable[["Staging"], object]


class Staging:
    """Refs as they will be once the updates collected here are pushed."""

    def __init__(self, refs: Mapping[str, str]) -> None:
        self._refs = refs
        self._new: dict[str, str | None] = {}

    def get(self, ref: str) -> str | None:
        return self._new[ref] if ref in self._new else self._refs.get(ref)

    def set(self, ref: str, oid: str | None) -> None:
        self._new[ref] = oid

    def names(self, folder: str) -> Iterator[str]:
        """Yield the refs directly in a folder of refs, which ends in a slash."""
        for ref in {**self._refs, **self._new}:
            if ref.startswith(folder) and "/" not in ref[len(folder) :] and self.get(ref) is not None:
                yield ref

    def updates(self) -> list[RefUpdate]:
        return [
            RefUpdate(ref, self._refs.get(ref), new)
            for ref, new in self._new.items()
            if self._refs.get(ref) != new
        ]

    def snapshot(self) -> dict[str, str | None]:
        return dict(self._new)

    def restore(self, snapshot: dict[str, str | None]) -> None:
        self._new = snapshot


ATTEMPTS_MAX = 4
"""The first and three more: somebody who pushes faster than this wins, and the caller is told."""


def commit_all(mirror: BareMirror, builds: Sequence[Build]) -> list[object]:
    """Build changes one after the other on the mirror's refs and push them together.

    Returns, in order, what each build returned or the exception it failed with. When the remote has
    moved, it is fetched and everything is built anew. When the remote refuses the whole, each change
    is tried alone, so that one bad change does not fail the others.
    """
    error = GitError(Failure.MOVED, "not pushed")
    outcomes: list[object] = []
    for _ in range(ATTEMPTS_MAX):
        staging = Staging(mirror.refs)
        outcomes = [_built(build, staging) for build in builds]
        updates = staging.updates()
        if not updates:
            return outcomes
        try:
            mirror.push(updates)
            return outcomes
        except GitError as exc:
            error = exc
        try:
            mirror.fetch()
        except GitError as exc:
            return [exc if not isinstance(outcome, Exception) else outcome for outcome in outcomes]
        if all(mirror.refs.get(update.ref) == update.new for update in updates):
            return outcomes  # the answer was lost, not the push
        if error.failure is not Failure.MOVED:
            break
    if len(builds) == 1 or error.failure is Failure.UNREACHABLE:
        return [outcome if isinstance(outcome, Exception) else error for outcome in outcomes]
    return [commit_all(mirror, [build])[0] for build in builds]


def _built(build: Build, staging: Staging) -> object:
    before = staging.snapshot()
    try:
        return build(staging)
    except Exception as exc:  # whoever asked for this build gets it; the others of the batch go on
        staging.restore(before)
        return exc
