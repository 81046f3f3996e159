"""Runs the git executable for all communication with remote repositories.

It never prompts, never runs forever, and never runs the user's hooks or signs anything: it works in our
own mirror (see `pvbus.adapters.gitenvironment`). The user's own git configuration does apply, as it has
proxies, credential helpers and the folders of other users that may be read; so do the hooks of a remote that
is pushed to. Every failure becomes a GitError that says what failed and what to do.
"""

import os
import re
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from pvbus.adapters.gitenvironment import PROTOCOLS, git_environment
from pvbus.adapters.sources.gitaccess import basic_token, host_problem, login_settings
from pvbus.controlplane.packages import programs
from pvbus.core.platform.packaging.pullsecrets import Login

NETWORK_SECONDS_MAX = 120.0
"""Enough for a fetch of a large repository over a slow line; a dead connection is given up."""

STALE_LOCK_SECONDS = 30.0
"""Age of a stale lock file: git holds one for milliseconds, or for seconds on a hanging disk. With a higher
value, a package whose push was killed waits longer."""

OUTPUT_BYTES_MAX = 4 * 1024 * 1024
"""Limit of git's output: a push of 64 changes prints some 20 KB."""

ANSWER_SECONDS_MAX = 30.0
"""The time of a list of a remote's refs: a request waits for it, and clients give up after some 60 s."""

UPSTREAM_LIMITS = programs.Limits(memory_bytes=1 << 30, file_bytes=256 << 20)
"""The limits of a fetch from a repository that is not registered: one commit without its history, as one
pack."""

FETCH_LIMITS = programs.Limits(memory_bytes=4 << 30, file_bytes=64 << 30)
"""The limits of a fetch from a registered repository, with its whole history: whoever may push to it can push
a pack of some KB whose objects have gigabytes."""

OUTPUT_CHARACTERS_MAX = 20_000
"""The part of git's output that is searched for the cause. Most of it comes from the remote."""

_SETTINGS = {
    "fetch.writeCommitGraph": "false",
    "pack.compression": "1",  # of the root tree of each draft, mostly hashes: higher levels gain nothing
    "pack.threads": "1",  # our packs are a few small objects: searching deltas costs more than it saves
    "pack.window": "0",
    "protocol.file.allow": "always",  # paths come from Repository objects, not from foreign packages
    "push.followTags": "false",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
}

_URL_USER = re.compile(r"://[^/@\s']{1,500}@")


_DAMAGE = re.compile(
    r"corrupt|inflate|bad (?:object|config|signature|tree)|valid object|loose object|packfile|hash mismatch"
    r"|not a git repository|missing (?:blob|tree|commit)|unable to (?:read|parse)|index file|garbage"
)


class Failure(Enum):
    """The classes of failure that callers handle differently."""

    MOVED = "moved"  # the remote's refs have changed: fetch and decide again
    REFUSED = "refused"  # the remote does not accept this update
    UNREACHABLE = "unreachable"  # no operation on the remote is possible now


class GitError(Exception):
    """A git operation failed. The message is for users and says what to do."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure

    @property
    def may_be_damage(self) -> bool:
        """Whether git speaks of damage, here or at the remote: then the mirror is worth a check."""
        return _DAMAGE.search(str(self)) is not None


class Credentials(NamedTuple):
    """How to log in to a remote; without a username, git does not log in.

    username: the user, "" for none
    password: the password or token
    authority: the PEM certificate of an authority to trust, "" for none
    """

    username: str
    password: str
    authority: str = ""


class RefUpdate(NamedTuple):
    """The move of a ref.

    ref: the ref
    old: the object id that it is expected to have, None if it must be absent
    new: the object id that it gets, None to delete it
    """

    ref: str
    old: str | None
    new: str | None


def is_path(repository: str) -> bool:
    """Return whether a repository is a path on this machine, not a URL (`scheme://...` or `host:path`)."""
    return "://" not in repository and not re.match(r"[^/]+:", repository)


class Git:
    """Runs git, from worker threads; `interrupt` may be called from any thread."""

    def __init__(self, credentials: Credentials | None = None, url: str = "") -> None:
        """Run nothing yet.

        credentials: how to log in at the remote, None for no login
        url: the remote, the only one that gets the credentials; "" for any remote, without them
        """
        authority = _authority_file(credentials.authority) if credentials and credentials.authority else ""
        if authority:
            weakref.finalize(self, Path(authority).unlink, missing_ok=True)
        self._environment = _environment(credentials, authority, url)
        self._secrets = _secrets(credentials)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(
        self,
        *arguments: str,
        directory: Path,
        seconds_max: float = NETWORK_SECONDS_MAX,
        limits: programs.Limits | None = None,
        given: bytes = b"",
    ) -> str:
        """Run a git command and return its output.

        given: its input
        Raises: GitError.
        """
        with self._lock:
            if self._stopped:
                raise GitError(Failure.UNREACHABLE, "the package store is shutting down")
            try:
                process = programs.start(
                    ["git", *arguments],
                    directory,
                    dict(self._environment),
                    with_input=bool(given),
                    limits=limits,
                )
            except FileNotFoundError as exc:
                raise GitError(Failure.UNREACHABLE, "git is not installed: install it") from exc
            except ValueError as exc:
                raise GitError(Failure.REFUSED, f"git {arguments[0]}: {exc}: correct the names") from exc
            self._running.add(process)
        try:
            outcome = programs.run(process, given, seconds_max=seconds_max, bytes_max=OUTPUT_BYTES_MAX)
        finally:
            with self._lock:
                self._running.discard(process)
        if outcome.code is None:
            raise GitError(
                Failure.UNREACHABLE,
                f"git {arguments[0]} did not end within {seconds_max:g} s: "
                "check that the remote answers; it will be retried",
            )
        output, errors = (text.decode(errors="replace") for text in (outcome.out, outcome.err))
        if outcome.excess:
            raise GitError(
                Failure.UNREACHABLE,
                f"git {arguments[0]}: the remote sent more than {OUTPUT_BYTES_MAX} bytes of messages: "
                f"check the remote ({self._redacted(_essence(output + errors))})",
            )
        if outcome.code:
            raise explain(arguments[0], self._redacted(output + errors))
        return output

    def _redacted(self, text: str) -> str:
        """Return a text without the credentials: messages are shown in logs and conditions."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _URL_USER.sub("://***@", text[:OUTPUT_CHARACTERS_MAX])

    def fetch(self, mirror: Path, url: str) -> None:
        """Update the mirror's branches and tags to those of the remote."""
        command = (
            "fetch", "--quiet", "--prune", "--no-tags", "--force", "--no-write-fetch-head",
            "--", url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*",
        )  # fmt: skip
        _check_host(url)
        with _explaining_size(FETCH_LIMITS):
            self.run_past_locks(command, mirror, url, limits=FETCH_LIMITS)

    def remote_refs(self, url: str, names: Sequence[str], directory: Path) -> dict[str, str]:
        """Return the named refs that the remote has, with their object ids."""
        _check_host(url)
        listed = self.run("ls-remote", "--", url, *names, directory=directory, seconds_max=ANSWER_SECONDS_MAX)
        found = {name: oid for oid, _, name in (line.partition("\t") for line in listed.splitlines())}
        return {name: found[name] for name in names if name in found}

    def fetch_one(self, mirror: Path, url: str, source: str, target: str) -> None:
        """Fetch one ref or commit without its history, and set a ref of the mirror to it."""
        command = (
            "fetch", "--quiet", "--depth=1", "--keep", "--no-tags", "--force", "--no-write-fetch-head",
            "--", url, f"+{source}:{target}",
        )  # fmt: skip
        with _explaining_size(UPSTREAM_LIMITS):
            self.run(*command, directory=mirror, limits=UPSTREAM_LIMITS)

    def run_past_locks(
        self, command: Sequence[str], folder: Path, url: str, limits: programs.Limits | None = None
    ) -> None:
        """Run a command; if it fails on a stale lock of a killed git, remove the lock and run it again."""
        try:
            self.run(*command, directory=folder, limits=limits)
        except GitError as error:
            folders = [folder, *([Path(url)] if is_path(url) else [])]
            if not remove_stale_locks(str(error), folders):
                raise
            self.run(*command, directory=folder, limits=limits)

    def interrupt(self) -> None:
        """Kill the running commands and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                programs.kill_group(process)


def _check_host(url: str) -> None:
    """Raises: GitError."""
    if not is_path(url) and (problem := host_problem(url)):
        raise GitError(Failure.UNREACHABLE, f"{problem}: correct spec.git.repo")


@contextmanager
def _explaining_size(limits: programs.Limits) -> Iterator[None]:
    """Say which limit ended a fetch: git says only that its own program failed."""
    try:
        yield
    except GitError as exc:
        if not re.search(r"invalid index-pack output|unpack-objects failed|[Oo]ut of memory", str(exc)):
            raise
        raise GitError(
            Failure.REFUSED,
            f"the commit has more than {limits.file_bytes} packed bytes, or takes more than "
            f"{limits.memory_bytes} bytes of memory to unpack: use a smaller repository",
        ) from exc


def remove_stale_locks(message: str, folders: Sequence[Path]) -> bool:
    """Remove the lock files that a message of git names, if they are in these folders and old.

    git holds a lock for milliseconds; one that is older than STALE_LOCK_SECONDS was left by a killed git,
    and would stay forever. One from so far in the future is as old: the clock was set back. Return
    whether any was removed.
    """
    removed = False
    for name in re.findall(r"Unable to create '([^']+\.lock)': File exists", message):
        lock = Path(name).resolve()
        inside = any(lock.is_relative_to(folder.resolve()) for folder in folders)
        try:
            if inside and abs(time.time() - lock.stat().st_mtime) > STALE_LOCK_SECONDS:
                lock.unlink()
                removed = True
        except FileNotFoundError:
            removed = True  # its owner has finished meanwhile
    return removed


def _secrets(credentials: Credentials | None) -> tuple[str, ...]:
    """Return the secrets to remove from messages; a very short password would match in ordinary words."""
    if credentials is None or not credentials.username:
        return ()
    token = basic_token(Login(credentials.username, credentials.password))
    return (token, *([credentials.password] if len(credentials.password) > 3 else []))


def _authority_file(certificate: str) -> str:
    """Write a certificate to a file of this user; return its path."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    with open(descriptor, "w") as file:
        file.write(certificate)
    return path


def _protocols(url: str) -> tuple[str, ...]:
    """Return how git may connect to a URL: only for a path to this machine itself."""
    everything = (*PROTOCOLS, "git")
    if not url:
        return everything
    return tuple(protocol for protocol in everything if (protocol == "file") == is_path(url))


def _environment(credentials: Credentials | None, authority: str, url: str) -> Mapping[str, str]:
    settings = dict(_SETTINGS)
    if credentials is not None and credentials.username:
        settings |= login_settings(url, Login(credentials.username, credentials.password))
    environment = git_environment(settings, _protocols(url))
    for name in ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_PROXY_COMMAND"):
        if name in os.environ:
            environment[name] = os.environ[name]
    if authority:
        environment["GIT_SSL_CAINFO"] = authority
    return environment


_KNOWN: tuple[tuple[str, Failure, str], ...] = (
    (
        r"refusing to update checked out branch|branch is currently checked out",
        Failure.REFUSED,
        "the branch is checked out in that repository: use a bare repository, check out another branch "
        "there, or set receive.denyCurrentBranch=updateInstead in it",
    ),
    (
        r"hook declined",
        Failure.REFUSED,
        "a hook of the remote repository refused the push: correct the hook, or the content it checks",
    ),
    (
        r"exists; cannot create",
        Failure.REFUSED,
        "another branch or tag conflicts with the package's: rename or delete it",
    ),
    (
        r"stale info|fetch first|non-fast-forward|reference already exists|cannot lock ref|failed to lock"
        r"|incorrect old value|remote ref (?:updated|changed)",
        Failure.MOVED,
        "the remote repository was changed at the same time: read again and retry",
    ),
    (
        r"does not appear to be a git repository|Repository not found|repository .* not found"
        r"|[Nn]o such (?:file or directory|repository)",
        Failure.UNREACHABLE,
        "there is no git repository at this address: create it, or correct spec.git.repo",
    ),
    (
        r"Permission denied \(|Host key verification failed",
        Failure.UNREACHABLE,
        "ssh cannot log in: give this user a key that the remote accepts, and the remote's host key "
        "(~/.ssh, or GIT_SSH_COMMAND)",
    ),
    (
        r"error: 30[1278]",
        Failure.UNREACHABLE,
        "the remote redirects to another address, to which no password is sent: name that address in "
        "spec.git.repo",
    ),
    (
        r"Authentication failed|could not read (?:Username|Password)|HTTP 40[13]|error: 40[13]",
        Failure.UNREACHABLE,
        "the remote does not accept the credentials: correct the Secret of spec.git.secretRef, or git's "
        "own credential settings",
    ),
    (
        r"not our ref|unadvertised object",
        Failure.REFUSED,
        "the remote does not have this commit, or gives none by its hash: name a branch or tag",
    ),
    (
        r"certificate|SSL",
        Failure.UNREACHABLE,
        "cannot trust the remote's certificate: add that of its authority as ca.crt to the Secret of "
        "spec.git.secretRef, or to this machine",
    ),
    (
        r"dubious ownership",
        Failure.UNREACHABLE,
        "the repository belongs to another user: git config --global --add safe.directory <path>",
    ),
    (
        r"Could not resolve host|Connection (?:refused|timed out|reset)|Failed to connect|unable to access"
        r"|Could not read from remote|early EOF|hung up|Network is unreachable|No route to host",
        Failure.UNREACHABLE,
        "cannot reach the remote: check the address and the network; it will be retried",
    ),
    (
        r"No space left|File too large|Disk quota|unable to write|insufficient permission|Permission denied",
        Failure.REFUSED,
        "cannot write to the repository: check its disk space and permissions",
    ),
    (r"remote rejected|failed to push", Failure.REFUSED, "the remote repository refused the push"),
)


def explain(command: str, output: str) -> GitError:
    """Convert git's output to an error for users."""
    output = output[:OUTPUT_CHARACTERS_MAX]
    detail = _essence(output)
    for pattern, failure, advice in _KNOWN:
        if re.search(pattern, output):
            return GitError(failure, f"git {command}: {advice} ({detail})")
    return GitError(Failure.UNREACHABLE, f"git {command} failed: {detail}")


def _essence(output: str) -> str:
    """Return the relevant lines: a hook's output, and git's errors."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    telling = [
        line
        for line in lines
        if (line.startswith(("remote:", "fatal:", "error:", "! ")) and "failed to push some refs" not in line)
        or re.search(r": Permission denied \(|^Host key", line)
    ]
    chosen = list(dict.fromkeys(telling)) or [line for line in lines if line]
    return "; ".join(chosen[:4])[:600] or "git gave no reason"
