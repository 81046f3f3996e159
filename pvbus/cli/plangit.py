"""Reads the package revisions that a plan of files lacks from the git repositories of its Repository objects.

The repositories are only read: a mirror of each is fetched into a folder that is removed afterwards.
"""

import asyncio
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from pvbus.adapters.manifests import kind_of
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import signing
from pvbus.controlplane.packages.caching import FILES_BYTES_MAX, SizedCache, bytes_of_files
from pvbus.controlplane.packages.clone import RepositoryClone
from pvbus.controlplane.packages.filesets import File, texts
from pvbus.controlplane.packages.gitcommand import GitError
from pvbus.controlplane.packages.resources import resources_of
from pvbus.controlplane.packages.revisions import Revision, to_object
from pvbus.controlplane.packages.settings import Pins, RepositorySettings, credentials_in, settings_of
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Kind, Object

SECRET = Kind("", "Secret")
THREADS = 4  # repositories read at once: git waits for the network

Package = tuple[str, str, str]
"""Namespace, Repository and package name."""
Name = tuple[str, str]
"""Namespace and name of an object."""


class _Located(NamedTuple):
    clone: RepositoryClone
    revision: Revision
    shown: Object


class GitReader:
    """Reads Repositories; `revisions` holds the PackageRevisions read so far.

    outcomes: the Repositories that were read, as (namespace, name) -> why they cannot be, else ""
    """

    def __init__(self, folder: Path, executor: ThreadPoolExecutor, progress: Callable[[str], None]) -> None:
        self.outcomes: dict[Name, str] = {}
        self._folder = folder
        self._executor = executor
        self._progress = progress
        self._located: dict[Name, _Located] = {}
        self._files_read: set[Name] = set()

    @property
    def revisions(self) -> list[Object]:
        return [located.shown for located in self._located.values()]

    def read_repositories(self, repositories: Sequence[Object], secrets: Sequence[Object]) -> None:
        """Read the package revisions of Repositories, and note in `outcomes` what cannot be read."""
        asyncio.run(self._read_all(repositories, secrets))

    async def _read_all(self, repositories: Sequence[Object], secrets: Sequence[Object]) -> None:
        await asyncio.gather(
            *(self._read_repository(number, each, secrets) for number, each in enumerate(repositories))
        )

    async def _read_repository(self, number: int, repository: Object, secrets: Sequence[Object]) -> None:
        meta = repository["metadata"]
        key = (namespace_of(repository), meta["name"])
        self.outcomes[key] = ""
        self._progress(f"reading git of Repository {'/'.join(key)}")
        try:
            settings = settings_of({**repository, "metadata": {**meta, "namespace": key[0]}})
            # A missing branch is created by `up` only: nothing is ever written here.
            clone = self._clone_of(number, msgspec.structs.replace(settings, create_branch=False))
            await clone.sync(credentials_in(_secret(secrets, key[0], settings.secret), settings.secret), PINS)
        except (GitError, PermanentError) as exc:
            self.outcomes[key] = str(exc)
            return
        for revision in clone.catalog.revisions():
            shown = to_object(revision, settings.facts, {})
            self._located[key[0], shown["metadata"]["name"]] = _Located(clone, revision, shown)

    def _clone_of(self, number: int, settings: RepositorySettings) -> RepositoryClone:
        folder = self._folder / str(number)
        folder.mkdir()
        contents: SizedCache[str, Mapping[str, File]] = SizedCache(FILES_BYTES_MAX, bytes_of_files)
        return RepositoryClone(settings, folder, self._executor, contents, lambda: None)

    def read_packages(self, packages: Collection[Package]) -> list[Object]:
        """Read the files of all revisions of these packages."""
        return self.read_files(
            name
            for name, located in self._located.items()
            if (name[0], located.shown["spec"]["repository"], located.revision.package) in packages
        )

    def read_files(self, names: Iterable[Name]) -> list[Object]:
        """Return PackageRevisionResources that were not read before; names that git has not are skipped."""
        wanted = [name for name in names if name in self._located and name not in self._files_read]
        self._files_read.update(wanted)
        return asyncio.run(self._read_files(wanted))

    async def _read_files(self, names: Sequence[Name]) -> list[Object]:
        found = []
        for name in names:
            clone, revision, shown = self._located[name]
            try:
                found.append(
                    resources_of(shown, signing.current_texts(texts(await clone.files(revision)), revision))
                )
            except StatusError as exc:
                self.outcomes[name[0], shown["spec"]["repository"]] = exc.message
        return found


PINS = Pins(had_branch=False, commits={})


@contextmanager
def git_reader(progress: Callable[[str], None]) -> Iterator[GitReader]:
    with (
        tempfile.TemporaryDirectory(prefix="pvbus-plan-") as folder,
        ThreadPoolExecutor(THREADS, thread_name_prefix="git") as executor,
    ):
        yield GitReader(Path(folder), executor, progress)


def unread_repositories(objects: Sequence[Object]) -> list[Object]:
    """Return the git Repositories of which the files have no package revision."""
    present = {
        (namespace_of(obj), (obj.get("spec") or {}).get("repository"))
        for obj in objects
        if obj["kind"] == "PackageRevision"
    }
    return [
        obj
        for obj in objects
        if kind_of(obj) == REPOSITORY
        and ((obj.get("spec") or {}).get("git") or {}).get("repo")
        and (namespace_of(obj), obj["metadata"]["name"]) not in present
    ]


def namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace") or "default")


def secrets_of(objects: Iterable[Object]) -> list[Object]:
    return [obj for obj in objects if kind_of(obj) == SECRET]


def _secret(secrets: Iterable[Object], namespace: str, name: str) -> Object | None:
    return next((s for s in secrets if namespace_of(s) == namespace and s["metadata"]["name"] == name), None)
