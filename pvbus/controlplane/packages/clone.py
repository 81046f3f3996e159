"""The local clone of one Repository's remote: a bare mirror, and the catalog of the package revisions in it.

Work on the remote (`sync`, `commit`) is one at a time: the task of `repository` does all of it. Reading is
done beside it, for requests. What happens when, and what objects show of it, is decided elsewhere.

A mirror has nothing that the remote has not, so one that is damaged is fetched again. git and libgit2 compare
each object that they read with its hash, so damage is never served; a mirror is checked as a whole only when
reading it has failed.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import pygit2

from pvbus.controlplane.packages import answers, operations
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.catalog import Catalog
from pvbus.controlplane.packages.filesets import File
from pvbus.controlplane.packages.gitcommand import Credentials, Git, GitError
from pvbus.controlplane.packages.gitrepo import DAMAGE, Author, BareMirror
from pvbus.controlplane.packages.operations import Build, commit_all
from pvbus.controlplane.packages.revisions import Revision, RevisionKey, name_of
from pvbus.controlplane.packages.settings import Pins, RepositorySettings
from pvbus.telemetry.structured import structlog

MIRROR = "mirror.git"
CATALOG = "catalog"

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class RepositoryClone:
    """The clone of one Repository. Call all methods on the event loop's thread.

    leftovers: the directories that deleted packages left on the branch
    skipped: folder or ref -> why no PackageRevision can be of it
    """

    def __init__(
        self,
        settings: RepositorySettings,
        folder: Path,
        executor: Executor,
        contents: SizedCache[str, Mapping[str, File]],
        on_damage: Callable[[], None],
    ) -> None:
        """Read nothing yet.

        contents: tree -> files, shared by all clones
        on_damage: called when a request cannot be served, as the mirror may be damaged: `sync` mends it
        """
        self.leftovers: list[str] = []
        self.skipped: Mapping[str, str] = {}
        self._settings = settings
        self._folder = folder
        self._executor = executor
        self._contents = contents
        self._on_damage = on_damage
        self._git: Git | None = None
        self._credentials: Credentials | None = None
        self._mirror: BareMirror | None = None
        self._catalog: Catalog | None = None
        self._work: asyncio.Future[Any] | None = None
        self._is_suspect = False
        self._fingerprint: int | None = None

    @property
    def is_read(self) -> bool:
        """Whether there is a catalog: the remote was read once."""
        return self._catalog is not None

    @property
    def catalog(self) -> Catalog:
        assert self._catalog is not None, "wait for ready() first"
        return self._catalog

    @property
    def mirror(self) -> BareMirror:
        assert self._mirror is not None, "wait for ready() first"
        return self._mirror

    async def in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    # Requests.

    def branch(self, user: str) -> operations.Branch:
        return operations.Branch(
            self.mirror, self.catalog.branch_ref, Author(*self._settings.author_of(user))
        )

    async def is_leftover(self, directory: str) -> bool:
        """Return whether a directory has only the folder that a deleted package left on the branch."""
        present = self.catalog.by_directory.get(directory, {}).values()
        if not present or not all(item.is_placeholder for item in present):
            return False
        return bool(await self.in_thread(self.catalog.leftovers, directory))

    async def files(self, revision: Revision) -> Mapping[str, File]:
        """Read the content of a revision. The mapping is shared: do not change it.

        Raises: StatusError for content beyond the limits of a package.
        """
        if (files := self._contents.find(revision.tree)) is not None:
            return files
        try:
            return await self.in_thread(self._read_files, revision.tree)
        except ContentError as exc:
            name = name_of(revision, self._settings.facts)
            raise answers.invalid(name, "spec.resources", str(exc)) from exc
        except DAMAGE as exc:
            self._is_suspect = True
            self._on_damage()
            raise answers.unavailable(
                f'the mirror of repository "{self._settings.facts.name}" cannot be read ({exc}): it is '
                "checked, and fetched again if it is damaged; try again in a moment"
            ) from exc

    def _read_files(self, tree: str) -> Mapping[str, File]:
        return self._contents.get(tree, lambda: self.mirror.files(tree))

    async def write(self, name: str, files: Mapping[str, File]) -> str:
        """Write the files of a revision into the mirror, for a later change; return their tree.

        Raises: StatusError.
        """
        try:
            return await self.in_thread(self.mirror.write_package, files)
        except ContentError as exc:
            raise answers.invalid(name, "spec.resources", str(exc)) from exc
        except (OSError, pygit2.GitError) as exc:
            raise answers.not_written(self._folder, exc) from exc

    # The remote.

    async def save(self) -> None:
        """Write the catalog, so that the next start need not read everything."""
        if self._catalog is not None:
            await self.in_thread(self._catalog.save)

    def interrupt(self) -> None:
        """End the git process that runs now, if one does."""
        if self._git is not None:
            self._git.interrupt()

    async def await_idle(self) -> None:
        """Wait until the work on the remote that was begun has ended."""
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    async def _exclusive(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run work on the remote in a thread, which goes on if the caller is cancelled."""
        work = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        self._work = work
        return await asyncio.shield(work)

    @property
    def has_lost_branch(self) -> bool:
        """Whether the remote had the branch and has it no more."""
        return bool(self.catalog.head) and self.catalog.branch_ref not in self.mirror.refs

    async def commit(self, builds: Sequence[Build]) -> tuple[list[object], set[RevisionKey]]:
        """Push changes together; return the outcome of each, and the revisions that are others now."""
        return await self._exclusive(self._commit, builds)

    def _commit(self, builds: Sequence[Build]) -> tuple[list[object], set[RevisionKey]]:
        outcomes = commit_all(self.mirror, builds)
        if self.has_lost_branch:
            return outcomes, set()
        changed = self.catalog.apply(self.mirror.refs)
        if any(self.catalog.find(*key) is None for key in changed):
            self.leftovers = self.catalog.leftovers()
        return outcomes, changed

    async def has_moved(self, path: Path) -> bool:
        """Return whether the refs of a remote on this machine are others than when they were last read."""
        return await self.in_thread(_ref_fingerprint, path) != self._fingerprint

    def forget_refs(self) -> None:
        """Let `has_moved` be true until the remote is read again: what a push did to it is not known."""
        self._fingerprint = None

    async def sync(self, credentials: Credentials | None, pins: Pins) -> set[RevisionKey]:
        """Fetch and read; a mirror that is damaged is fetched anew. Return the revisions that are others now.

        Raises: GitError.
        """
        return await self._exclusive(self._sync, credentials, pins)

    def _sync(self, credentials: Credentials | None, pins: Pins) -> set[RevisionKey]:
        is_suspect, self._is_suspect = self._is_suspect, False
        if is_suspect and self._is_damaged():
            self._renew("an object cannot be read")
        try:
            return self._fetch_and_read(credentials, pins)
        except (GitError, *DAMAGE) as exc:
            may_be = exc.may_be_damage if isinstance(exc, GitError) else True
            if not may_be or not self._is_damaged():
                raise
            self._renew(str(exc))
        return self._fetch_and_read(credentials, pins)

    def _is_damaged(self) -> bool:
        return self._mirror is not None and self._mirror.is_damaged()

    def _renew(self, error: str) -> None:
        _log.warning("the mirror is damaged; it is fetched again", error=error, **self._settings.logged)
        self.mirror.renew()

    def _fetch_and_read(self, credentials: Credentials | None, pins: Pins) -> set[RevisionKey]:
        """Fetch and read (in a thread, so nothing here touches objects). Raises: GitError."""
        settings = self._settings
        mirror = self._open(credentials)
        self._fingerprint = _ref_fingerprint(settings.local) if settings.local else None
        mirror.fetch()
        catalog = self._catalog or Catalog(
            mirror, settings.directory, settings.branch, pins.commits, self._folder / CATALOG
        )
        if catalog.branch_ref not in mirror.refs:
            had_branch = pins.had_branch or bool(catalog.head)
            operations.require_branch(mirror, catalog.branch_ref, settings, had_branch=had_branch)
        changed = catalog.apply(mirror.refs)
        self._catalog = catalog
        self.leftovers, self.skipped = catalog.leftovers(), catalog.skipped()
        return changed

    def _open(self, credentials: Credentials | None) -> BareMirror:
        if self._git is None or credentials != self._credentials:
            self._git, self._credentials = Git(credentials, self._settings.url), credentials
            if self._mirror is not None:
                self._mirror.use(self._git)
        if self._mirror is None:
            self._mirror = BareMirror(self._folder / MIRROR, self._settings.url, self._git)
            self._mirror.pack()
        return self._mirror


def _ref_fingerprint(repository: Path) -> int | None:
    """Return a number that changes whenever a ref of a repository on this machine does.

    None if that is unknown. Reads the times of folders only: git replaces a ref by renaming a lock file
    in its folder, so no ref changes without its folder.
    """
    folder = repository / ".git"
    if folder.is_file():
        return None  # a linked worktree: its refs lie elsewhere
    folder = folder if folder.is_dir() else repository
    try:
        times = [(str(path), path.stat().st_mtime_ns) for path in _folders(folder / "refs")]
        for name in ("packed-refs", "HEAD"):
            path = folder / name
            times.append((name, path.stat().st_mtime_ns if path.exists() else 0))
    except OSError:
        return None
    return hash(tuple(times))


def _folders(root: Path) -> Iterator[Path]:
    yield root
    for entry in root.iterdir():
        if entry.is_dir():
            yield from _folders(entry)
