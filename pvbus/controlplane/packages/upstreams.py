"""Reads packages of git repositories that are not registered, for clones.

Every read asks the remote for its refs with the caller's credentials; only then may the answer come from the
cache. A commit is fetched without its history into a folder that is deleted afterwards; its packages stay
in memory.

Source: Porch v1.5.8, pkg/task/clone.go and pkg/externalrepo/git/git.go (GetPackageRevision).
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.packages import answers, layout
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.caching import SizedCache, bytes_of_files
from pvbus.controlplane.packages.filesets import Files
from pvbus.controlplane.packages.gitcommand import Failure, Git, GitError
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.controlplane.packages.operations import Source
from pvbus.controlplane.packages.permits import LocalFolders, check_address, check_secret, is_registered
from pvbus.controlplane.packages.settings import (
    SECRET,
    TEXT_CHARACTERS_MAX,
    address_problem,
    credentials_of,
    directory_problem,
    ref_problem,
    url_of,
)
from pvbus.core.api.packages import GitPackage, UpstreamPackage

READS_MAX = 2
"""The reads at a time: each holds a thread of the store until its remote answers."""

PACKAGES_BYTES_MAX = 32 * 1024 * 1024
"""Packages in memory: a fleet clones few of them."""

NAMED_MAX = 5
FIELD = "clone.upstreamRef.git"
_UNSAFE = ("http://", "git://")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Origin(NamedTuple):
    """The package that a clone copies.

    source: its name and commit
    tree: the tree of its files
    files: its files
    lock: its position in git
    """

    source: Source
    tree: str
    files: Files
    lock: Mapping[str, Any]


class _Package(NamedTuple):
    commit: str
    tree: str
    files: Files


class Upstreams:
    """Reads upstream packages by address. Call all methods on the event loop's thread."""

    def __init__(
        self, objects: Objects, folder: Path, executor: Executor, local: LocalFolders, *, is_admitting: bool
    ) -> None:
        """Fetch into a folder, in the executor's threads.

        folder: holds what is being fetched
        local: the folders in which paths are allowed
        is_admitting: whether a path of a Repository may be read
        """
        self._objects = objects
        self._local = local
        self._is_admitting = is_admitting
        self._folder = folder
        self._executor = executor
        self._turns = asyncio.Semaphore(READS_MAX)
        self._packages: SizedCache[tuple[str, str, str], _Package] = SizedCache(
            PACKAGES_BYTES_MAX, lambda package: bytes_of_files(package.files)
        )
        self._running: set[Git] = set()

    def start(self) -> None:
        """Empty the folder: a killed process may have left something."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """End the git processes."""
        for git in self._running:
            git.interrupt()

    async def read(self, namespace: str, reference: Mapping[str, Any]) -> Origin:
        """Return the package that a clone task locates, if the requester may name it. Raises: StatusError."""
        wanted = await self._require_permit(namespace, _parsed(reference))
        directory = wanted.directory.strip("/")
        name = f"{wanted.repo} {directory or '/'}@{wanted.ref}"
        try:
            package = await self._read(namespace, wanted, directory)
        except GitError as exc:  # only the client can try again, so it gets the answer at once
            text = str(exc).replace("spec.git.", f"{FIELD}.").replace("; it will be retried", "")
            raise answers.internal(f'upstream package "{name}": {text}') from exc
        except ContentError as exc:
            raise answers.unusable(f'upstream package "{name}" cannot be cloned: {exc}') from exc
        lock = {
            "repo": wanted.repo,
            "directory": directory or "/",
            "ref": wanted.ref,
            "commit": package.commit,
        }
        source = Source(name, package.commit)
        return Origin(source, package.tree, package.files, {"type": "git", "git": lock})

    async def _require_permit(self, namespace: str, upstream: UpstreamPackage) -> GitPackage:
        """Return the location in git. Raises: StatusError (400, 403; 501 for another one)."""
        git = upstream.git
        is_known = git is not None and is_registered(self._objects, namespace, git)
        if not is_known:
            await check_address(namespace)
        if git is None or upstream.oci is not None or upstream.type not in ("", "git"):
            raise StatusError(
                501, "NotImplemented", "clone.upstreamRef: only packages in git can be cloned: use type git"
            )
        local = url_of(git.repo)[1]
        if local is not None and not (is_known and self._is_admitting):
            if problem := self._local.problem(local):
                raise answers.bad_request(f"{FIELD}.repo: {problem}")
        if git.secret_ref is not None and git.secret_ref.name:
            if local is not None or git.repo.startswith(_UNSAFE):
                raise answers.bad_request(f"{FIELD}.secretRef: a Secret is used by https or ssh only")
            await check_secret(namespace, git.secret_ref.name)
        return git

    async def _read(self, namespace: str, wanted: GitPackage, directory: str) -> _Package:
        secret = wanted.secret_ref.name if wanted.secret_ref else ""
        if secret:
            await self._objects.refresh(SECRET, namespace, secret)
        url, local = url_of(wanted.repo)
        if local is not None:
            url = str(local.resolve())  # as it was checked
        git = Git(credentials_of(self._objects, namespace, secret), url)
        async with self._turns:
            self._running.add(git)
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._read_in_thread, git, url, wanted.ref, directory
                )
            finally:
                git.interrupt()  # the client may have gone away
                self._running.discard(git)

    def _read_in_thread(self, git: Git, url: str, ref: str, directory: str) -> _Package:
        names = _candidates(ref, directory)
        found = git.remote_refs(url, names, self._folder)
        if not found and not _COMMIT.fullmatch(ref):
            shown = " or ".join(f'"{name}"' for name in dict.fromkeys(map(layout.short_ref, names)))
            raise GitError(
                Failure.REFUSED,
                f"the repository has no branch or tag {shown}: correct spec.git.ref (a commit: whole hash)",
            )
        source, oid = next(iter(found.items()), (ref, ref))
        return self._packages.get((url, oid, directory), lambda: self._fetched(git, url, source, directory))

    def _fetched(self, git: Git, url: str, source: str, directory: str) -> _Package:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            mirror = BareMirror(Path(folder), url, git)
            commit = mirror.fetch_one(source)
            tree = mirror.tree_of(commit, directory)
            if commit is None or tree is None or mirror.blob(tree, layout.KPTFILE) is None:
                lacks = "such directory" if tree is None else "Kptfile in this directory"
                raise GitError(Failure.REFUSED, f"there is no {lacks}; {_packages(mirror, commit)}")
            return _Package(commit, tree, mirror.files(tree))


def _parsed(reference: Mapping[str, Any]) -> UpstreamPackage:
    """Return the location that a clone's reference has. Raises: StatusError (400)."""
    try:
        upstream = msgspec.convert(reference, UpstreamPackage)
    except msgspec.ValidationError as exc:
        raise answers.bad_request(f"clone.upstreamRef: {exc}") from exc
    if upstream.git is None and upstream.oci is None:
        raise answers.bad_request(
            "clone.upstreamRef: name a PackageRevision in upstreamRef.name, or a package in git "
            "(git.repo, git.ref, git.directory)"
        )
    for field, problem in _problems(upstream.git) if upstream.git is not None else ():
        if problem:
            raise answers.bad_request(f"{FIELD}.{field}: {problem}")
    return upstream


def _problems(git: GitPackage) -> list[tuple[str, str | None]]:
    texts = {"repo": git.repo, "ref": git.ref, "directory": git.directory}
    too_long = f"must be at most {TEXT_CHARACTERS_MAX} printable characters"
    bad = [
        (field, too_long)
        for field, text in texts.items()
        if not text.isprintable() or len(text) > TEXT_CHARACTERS_MAX
    ]
    return [
        *bad,
        ("repo", address_problem(git.repo) if git.repo else "Required value"),
        ("ref", ref_problem(git.ref) if git.ref else "Required value: a branch, a tag or a commit"),
        ("directory", directory_problem(git.directory)),
    ]


def _candidates(ref: str, directory: str) -> list[str]:
    """Return the refs that a name may mean, the package's own first, and tags before branches."""
    if ref.startswith((layout.TAGS, layout.HEADS)):
        return [ref]
    names = [name for name in (layout.join(directory, ref), ref) if ref_problem(name) is None]
    return [f"{kind}{name}" for name in dict.fromkeys(names) for kind in (layout.TAGS, layout.HEADS)]


def _packages(mirror: BareMirror, commit: str | None) -> str:
    """Name the packages of a commit, for whoever mistyped one."""
    names = sorted(mirror.packages(commit, "")) if commit else []
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"its packages are {', '.join(names[:NAMED_MAX])}{more}" if names else "it has no package"
