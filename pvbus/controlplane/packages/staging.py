"""Changes of refs that are pushed together: collected, pushed, and rebuilt if the remote has moved."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pvbus.controlplane.packages.gitcommand import Failure, GitError, RefUpdate
from pvbus.controlplane.packages.gitrepo import BareMirror

# A change of refs, built on the present refs; it may be built again.
Build = Callable[["Staging"], object]


class Staging:
    """The refs after a push of the updates collected here."""

    def __init__(self, refs: Mapping[str, str]) -> None:
        self._refs = refs
        self._new: dict[str, str | None] = {}

    def get(self, ref: str) -> str | None:
        return self._new[ref] if ref in self._new else self._refs.get(ref)

    def set(self, ref: str, oid: str | None) -> None:
        self._new[ref] = oid

    def names(self, folder: str) -> Iterator[str]:
        """Yield the refs directly in a folder. folder: with a final slash."""
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
"""The first attempt and three more: against faster pushes of other clients, the caller gets an error."""


def commit_all(mirror: BareMirror, builds: Sequence[Build]) -> list[object]:
    """Build changes one after the other on the mirror's refs and push them together.

    Return, in order, the result of each build or its exception. If the remote has moved, it is fetched
    and everything is rebuilt. If the remote refuses the push, each change is pushed alone, so that one
    bad change does not fail the others.
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
            return outcomes  # the response was lost, not the push
        if error.failure is not Failure.MOVED:
            break
    if len(builds) == 1 or error.failure is Failure.UNREACHABLE:
        return [outcome if isinstance(outcome, Exception) else error for outcome in outcomes]
    return [commit_all(mirror, [build])[0] for build in builds]


def _built(build: Build, staging: Staging) -> object:
    before = staging.snapshot()
    try:
        return build(staging)
    except Exception as exc:  # the build's caller gets it; the rest of the batch continues
        staging.restore(before)
        return exc
