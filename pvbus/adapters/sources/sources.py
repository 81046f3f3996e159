"""All sources of packages, by the form of their text, with one cache of contents."""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sources.cache import ContentCache
from pvbus.adapters.sources.git import GitRemote, Refs, check_ref, is_allowed
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.oci import (
    DIGEST_MISMATCH,
    NOT_FOUND,
    REFUSED,
    UNAUTHORIZED,
    Mirror,
    Registry,
    addresses,
)
from pvbus.adapters.sources.session import LimitedSession, StoppedError
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import Content, Observation
from pvbus.core.platform.packaging.archives import check_files, files_of_image
from pvbus.core.platform.packaging.pullsecrets import Login, login_for, logins_of
from pvbus.core.platform.packaging.references import (
    GitFolder,
    Image,
    Inline,
    digest_of_files,
    is_digest,
    is_tag,
    parse,
)
from pvbus.ports.clock import Clock
from pvbus.ports.sources import Secrets

OPERATIONS_MAX = 4
"""At a time: each holds an open connection and, at most, a package in memory, packed and unpacked."""
THREADS_MAX = 2 * OPERATIONS_MAX
"""A thread that nobody waits for any more may take a moment to end."""
RETRY_SECONDS = 0.5
"""The longest wait before the second attempt; the next one is four times as long."""
WAIT_SECONDS_MAX = 5.0
"""A server that wants a longer wait gets it from the caller, who does something else meanwhile."""
GRACE_SECONDS = 5.0
"""How long a thread may take to end after the time of its attempt, which it checks itself. Nobody waits for
it longer."""
DIGESTS_MAX = 10_000  # of folders in commits that are remembered: some 2 MB
NO_LIST = (NOT_FOUND, UNAUTHORIZED, FORBIDDEN, REFUSED)
REVISIONS_SEARCHED_MAX = 50
"""Refs of a git repository that are read to find a digest: one that old has been pulled before."""

_T = TypeVar("_T")


async def no_secrets(key: str) -> Mapping[str, Any] | None:
    """Know no Secret."""
    return None


class PackageSources:
    """The port `pvbus.ports.sources.Sources`."""

    def __init__(
        self,
        cache: Path,
        *,
        secrets: Secrets = no_secrets,
        limits: SourceLimits = SourceLimits(),  # noqa: B008 - frozen
        mirrors: Sequence[Mirror] = (),
        ca_file: str = "",
        local_folders: Sequence[str] = (),
        clock: Clock | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Read nothing yet.

        cache: the folder of the contents
        secrets: reads the Secrets with logins
        limits: the limits of one operation
        mirrors: asked before the registries that they are for
        ca_file: PEM of authorities that are trusted beside the machine's own, "" for none
        local_folders: the folders of this machine in which `git+file://` may read
        clock: the clock of the waits, None for the system's
        jitter: the source of the randomness of all waits
        """
        self._cache = ContentCache(cache, bytes_max=limits.cache_bytes)
        self._secrets = secrets
        self._limits = limits
        self._mirrors = tuple(mirrors)
        self._ca_file = ca_file
        self._local_folders = tuple(local_folders)
        self._clock = clock or SystemClock()
        self._jitter = jitter
        self._turn = asyncio.Semaphore(OPERATIONS_MAX)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="sources")
        self._running: set[threading.Event] = set()
        self._git_digests: dict[tuple[str, str, str], str] = {}

    async def observe(self, source: str, tags: Sequence[str], secrets: Sequence[str]) -> Observation:
        reference = parse(source)
        match reference:
            case Image():
                return await self._for_logins(
                    reference.registry,
                    reference.repository,
                    secrets,
                    partial(self._observe_image, reference, tags),
                )
            case GitFolder():
                self._check_local(reference)
                host, path = _host_and_path(reference)
                return await self._for_logins(
                    host, path, secrets, partial(self._observe_git, reference, tuple(tags))
                )
            case Inline():
                return Observation((), dict.fromkeys(tags, _checked(reference, self._limits).digest))

    async def pull(self, source: str, digest: str, secrets: Sequence[str]) -> Content:
        reference = parse(source)
        if not is_digest(digest):
            raise PermanentError(f"{source}: {digest!r} is not a digest", reason="InvalidSource")
        if isinstance(reference, Inline):
            content = _checked(reference, self._limits)
            if content.digest != digest:
                raise _mismatch(source[:60], content.digest, digest)
            return content
        cached = await asyncio.to_thread(self._cache.get, digest)
        if cached is not None:
            return cached
        if isinstance(reference, Image):
            host, path = reference.registry, reference.repository
            action = partial(self._pull_image, reference, digest)
        else:
            self._check_local(reference)
            host, path = _host_and_path(reference)
            action = partial(self._pull_git, reference, digest)
        return await self._for_logins(host, path, secrets, action)

    async def close(self) -> None:
        for stop in self._running:
            stop.set()
        await asyncio.to_thread(self._threads.shutdown, wait=False, cancel_futures=True)

    def _check_local(self, source: GitFolder) -> None:
        if not is_allowed(source, self._local_folders):
            raise PermanentError(
                f"{source}: this folder of the machine may not be read: name it in PVBUS_SOURCES_LOCAL",
                reason=FORBIDDEN,
            )

    async def _for_logins(
        self,
        host: str,
        path: str,
        secrets: Sequence[str],
        action: Callable[[Login | None, threading.Event], _T],
    ) -> _T:
        """Call `action` with each login that fits, until one is not refused; without a login if none fits."""
        logins: list[Login | None] = []
        notes: list[str] = []
        for key in secrets:
            login = await self._login(key, host, path, notes)
            if login is not None and login not in logins:
                logins.append(login)
        refusal: PermanentError | None = None
        for login in logins or [None]:
            try:
                return await self._repeat(partial(action, login))
            except PermanentError as exc:
                if exc.reason not in (UNAUTHORIZED, FORBIDDEN):
                    raise
                refusal = exc
        assert refusal is not None
        if notes:
            raise PermanentError(f"{refusal} ({'; '.join(notes)})", reason=refusal.reason)
        raise refusal

    async def _login(self, key: str, host: str, path: str, notes: list[str]) -> Login | None:
        """Return the login of a secret. One that is missing or unusable is noted: another may do."""
        secret = await self._secrets(key)
        if secret is None:
            notes.append(f"secret {key} does not exist")
            return None
        try:
            login = login_for(logins_of(secret), host, path)
        except PermanentError as exc:
            notes.append(str(exc))
            return None
        if login is None:
            notes.append(f"secret {key} has no login for {host}")
        return login

    async def _repeat(self, action: Callable[[threading.Event], _T]) -> _T:
        """Call `action`, again after a wait if it fails for now."""
        wait_max = RETRY_SECONDS
        for attempt in range(1, self._limits.attempts + 1):
            try:
                return await self._in_thread(action)
            except TransientError as exc:
                wanted = exc.retry_after_seconds or 0.0
                if attempt == self._limits.attempts or wanted > WAIT_SECONDS_MAX:
                    raise
                await self._clock.sleep(max(wanted, self._jitter(wait_max / 2, wait_max)))
                wait_max *= 4
        raise AssertionError(self._limits.attempts)

    async def _in_thread(self, action: Callable[[threading.Event], _T]) -> _T:
        stop = threading.Event()
        async with self._turn:
            self._running.add(stop)
            try:
                future = asyncio.get_running_loop().run_in_executor(self._threads, action, stop)
                return await asyncio.wait_for(future, self._limits.seconds_max + GRACE_SECONDS)
            except TimeoutError as exc:
                raise TransientError(f"not done within {self._limits.seconds_max:g} s") from exc
            except StoppedError as exc:
                raise TransientError("the sources are closed") from exc
            finally:
                stop.set()  # the thread ends when it looks next
                self._running.discard(stop)

    def _session(self, stop: threading.Event, image: Image) -> LimitedSession:
        return LimitedSession(self._limits, ca_file=self._ca_file, stop=stop, loopback=image.is_local)

    def _at_mirrors(
        self, image: Image, login: Login | None, stop: threading.Event, action: Callable[[Registry], _T]
    ) -> _T:
        """Call `action` for the first address that has the image.

        The login is for the registry, not its mirrors.
        """
        for address in addresses(image, self._mirrors):
            is_last = address is image
            with self._session(stop, address) as session:
                try:
                    registry = Registry(address, session, self._limits, login if is_last else None)
                    return action(registry)
                except (TransientError, PermanentError):
                    if is_last:
                        raise
        raise AssertionError(image)

    def _observe_image(
        self, image: Image, tags: Sequence[str], login: Login | None, stop: threading.Event
    ) -> Observation:
        wanted = dict.fromkeys((*tags, *((image.tag,) if image.tag else ())))

        def observed(registry: Registry) -> Observation:
            asked = {tag: registry.digest(tag) for tag in wanted if is_tag(tag) or is_digest(tag)}
            digests = {tag: digest for tag, digest in asked.items() if digest}
            try:
                return Observation(registry.tags(), digests)
            except PermanentError as exc:
                # Some registries list no tags to those who may pull, which is enough for a tag or digest.
                if not digests or exc.reason not in NO_LIST:
                    raise
                return Observation((), digests)

        return self._at_mirrors(image, login, stop, observed)

    def _pull_image(self, image: Image, digest: str, login: Login | None, stop: threading.Event) -> Content:
        layers = self._at_mirrors(image, login, stop, lambda registry: registry.layers(digest))
        return self._cached(Content(digest, files_of_image(layers, self._limits.content)))

    def _cached(self, content: Content) -> Content:
        self._cache.put(content)
        return content

    def _remote(self, source: GitFolder, login: Login | None, stop: threading.Event) -> GitRemote:
        return GitRemote(source, self._limits, login=login, ca_file=self._ca_file, stop=stop)

    def _observe_git(
        self, source: GitFolder, tags: tuple[str, ...], login: Login | None, stop: threading.Event
    ) -> Observation:
        remote = self._remote(source, login, stop)
        refs = remote.refs()
        digests = {}
        for tag in dict.fromkeys((*tags, *((source.ref,) if source.ref else ()))):
            check_ref(source, tag)
            commit = refs.commit(source.folder, tag)
            if commit:
                digests[tag] = self._git_digest(remote, source, commit)
        return Observation(tuple(refs.versions(source.folder)), digests)

    def _git_digest(self, remote: GitRemote, source: GitFolder, commit: str) -> str:
        """Return the digest of a folder in a commit, which never changes; its content is cached then."""
        key = (source.url, commit, source.folder)
        if key not in self._git_digests:
            if len(self._git_digests) >= DIGESTS_MAX:
                self._git_digests.clear()
            self._git_digests[key] = self._git_content(remote, commit).digest
        return self._git_digests[key]

    def _git_content(self, remote: GitRemote, commit: str) -> Content:
        files = remote.files(commit)
        return self._cached(Content(digest_of_files(files), files))

    def _pull_git(
        self, source: GitFolder, digest: str, login: Login | None, stop: threading.Event
    ) -> Content:
        remote = self._remote(source, login, stop)
        refs = remote.refs()
        found = ""
        for commit in _candidates(source, refs):
            if (source.url, commit, source.folder) in self._git_digests:
                known = self._git_digest(remote, source, commit)
                found = found or known
                if known != digest:
                    continue
            content = self._git_content(remote, commit)
            if content.digest == digest:
                return content
            self._git_digests[(source.url, commit, source.folder)] = content.digest
            found = found or content.digest
        if not found:
            raise PermanentError(f"{source}: there is no such ref", reason="NotFound")
        raise _mismatch(str(source), found, digest)


def _candidates(source: GitFolder, refs: Refs) -> list[str]:
    """Return the commits in which a digest may be: of the ref, else of HEAD and the newest versions."""
    if source.ref:
        commit = refs.commit(source.folder, source.ref)
        return [commit] if commit else []
    versions = [*refs.versions(source.folder).values()]
    found = (*([refs.head] if refs.head else ()), *reversed(versions))
    return list(dict.fromkeys(found))[:REVISIONS_SEARCHED_MAX]


def _host_and_path(source: GitFolder) -> tuple[str, str]:
    """Return host and path of a git repository, as keys of pull secrets name them."""
    parts = urlsplit(source.url)
    return parts.netloc.rpartition("@")[2], parts.path.strip("/")


def _checked(source: Inline, limits: SourceLimits) -> Content:
    check_files(((path, len(data)) for path, data in source.files.items()), limits.content)
    return Content(digest_of_files(source.files), source.files)


def _mismatch(source: str, found: str, wanted: str) -> PermanentError:
    return PermanentError(
        f"{source}: its content has the digest {found}, and not {wanted}: it has changed, and the former "
        "content is not in the cache",
        reason=DIGEST_MISMATCH,
    )
