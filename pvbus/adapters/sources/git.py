"""Reads folders of git repositories, by the git command: it knows every transport, and asks for no password.

A commit is fetched alone into an empty repository, so that nothing of a remote stays here but the content.
The package store's own runner of git is above this layer; this one reads only, and keeps no mirror.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import certifi

from pvbus.adapters.gitenvironment import git_environment
from pvbus.adapters.sources.gitaccess import (
    basic_token,
    host_problem,
    is_in_clear,
    is_readable,
    login_settings,
)
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.platform.packaging.archives import check_files
from pvbus.core.platform.packaging.pullsecrets import Login
from pvbus.core.platform.packaging.references import GitFolder, Image, is_ref

PACK_BYTES_MAX = 256 << 20
MEMORY_BYTES_MAX = 1 << 30
"""The memory of git, on Linux only: a pack of some KB may hold objects of gigabytes, which git unpacks in
memory."""
OUTPUT_BYTES_MAX = 16 << 20
"""The size of a list of refs or files; a repository of 100,000 refs has 8 MB."""
ERROR_CHARACTERS_MAX = 20_000
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FILES = frozenset({"100644", "100755", "100664"})
_SETTINGS = {
    "core.sshCommand": "ssh",
    "credential.helper": "",
    "transfer.unpackLimit": "1",  # one pack: its file has a limit
}
_NO_CONFIGURATION = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
"""No settings of a person or machine: they may name programs and logins, and send an address elsewhere."""


class Refs(NamedTuple):
    """The refs of a remote.

    named: name -> commit; for a tag the commit that it is of
    head: the commit of HEAD, "" without one
    """

    named: Mapping[str, str]
    head: str = ""

    def versions(self, folder: str) -> dict[str, str]:
        """Return the tags that are versions of a folder: `folder/v1` as `v1`; without any, the plain tags."""
        tags = {
            name.removeprefix("refs/tags/"): commit
            for name, commit in self.named.items()
            if name.startswith("refs/tags/")
        }
        own = {
            name.removeprefix(f"{folder}/"): commit
            for name, commit in tags.items()
            if folder and name.startswith(f"{folder}/")
        }
        chosen = own or tags
        return {name: commit for name, commit in chosen.items() if "/" not in name}

    def commit(self, folder: str, ref: str) -> str:
        """Return the commit of a version, tag, branch or commit; "" if there is none of this name."""
        if ref in ("", "HEAD"):
            return self.head
        names = (f"refs/tags/{folder}/{ref}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
        found = next((self.named[name] for name in names if name in self.named), "")
        return found or (ref if _COMMIT.fullmatch(ref) else "")


class GitRemote:
    """A git repository, for one attempt of one operation. Blocks: for worker threads."""

    def __init__(
        self,
        source: GitFolder,
        limits: SourceLimits,
        *,
        login: Login | None = None,
        ca_file: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        if login is not None and is_in_clear(source.url):
            raise PermanentError(f"{source}: a password is sent by https or ssh only", reason="Insecure")
        if problem := host_problem(source.url, loopback=_is_local(source.url)):
            raise PermanentError(f"{source}: {problem}", reason=FORBIDDEN)
        self._source = source
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds_max
        self._stop = stop or threading.Event()
        self._ca_file = ca_file
        self._environment = _environment(source.url, login)
        self._secrets = (login.password, basic_token(login)) if login else ()

    def refs(self) -> Refs:
        """Return the refs of the remote. Raises PermanentError, TransientError."""
        with tempfile.TemporaryDirectory(prefix="pvbus-git-") as folder:
            output = self._run(Path(folder), "ls-remote", "--quiet", "--", self._source.url).decode(
                errors="replace"
            )
        named: dict[str, str] = {}
        for line in output.splitlines():
            commit, _, name = line.partition("\t")
            if _COMMIT.fullmatch(commit):
                named[name.removesuffix("^{}")] = commit  # the peeled line follows the tag's own
        return Refs(named, named.pop("HEAD", ""))

    def files(self, commit: str) -> dict[str, bytes]:
        """Return the files of the folder in a commit. Raises PermanentError, TransientError."""
        with tempfile.TemporaryDirectory(prefix="pvbus-git-") as name:
            folder = Path(name)
            self._run(folder, "init", "--quiet", "--bare", f"--object-format={_format_of(commit)}", ".")
            self._run(
                folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--",
                self._source.url, commit,
            )  # fmt: skip
            return self._read(folder, commit)

    def _read(self, folder: Path, commit: str) -> dict[str, bytes]:
        tree = f"{commit}:{self._source.folder}"
        # With its folders: one without files that holds itself many times over would be read for hours.
        listed = self._run(folder, "ls-tree", "-r", "-t", "-z", "-l", "--full-tree", tree)
        entries = list(self._entries(listed))
        check_files(((path, size) for path, _, size in entries), self._limits.content)
        request = "".join(f"{oid}\n" for _, oid, _ in entries).encode()
        bytes_max = sum(size for _, _, size in entries) + 200 * len(entries) + 1
        output = self._run(folder, "cat-file", "--batch", send=request, bytes_max=bytes_max)
        files: dict[str, bytes] = {}
        position = 0
        for path, oid, size in entries:
            header = f"{oid} blob {size}\n".encode()
            start = position + len(header)
            if output[position:start] != header:
                raise TransientError(f"{self._source}: {path}: git did not give its content")
            files[path] = output[start : start + size]
            position = start + size + 1
        return files

    def _entries(self, listed: bytes) -> Iterator[tuple[str, str, int]]:
        """Yield path, object and bytes of each file. Raises PermanentError for what is no file."""
        for entry in filter(None, listed.split(b"\0")):
            facts, _, name = entry.partition(b"\t")
            mode, kind, oid, size = facts.decode().split()
            if kind == "tree":
                continue
            path = name.decode(errors="surrogateescape")
            if mode not in _FILES:
                what = "a link" if mode == "120000" else "a submodule"
                raise PermanentError(
                    f"{self._source}: {path!r}: it is {what}: a package has none", reason="InvalidContent"
                )
            yield path, oid, int(size)

    def _run(
        self, folder: Path, *arguments: str, send: bytes = b"", bytes_max: int = OUTPUT_BYTES_MAX
    ) -> bytes:
        """Run git in a folder, within limits. Raises PermanentError, TransientError."""
        # The limit of a file's size, in blocks of 512 bytes, holds for the pack that a remote sends.
        script = (
            f"ulimit -d {MEMORY_BYTES_MAX // 1024} 2>/dev/null; ulimit -c 0; "
            f'ulimit -f {PACK_BYTES_MAX // 512} && exec git "$@"'
        )
        environment = self._environment
        if self._ca_file:
            environment = {**environment, "GIT_SSL_CAINFO": self._authorities(folder)}
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
            asked.write(send)
            asked.seek(0)
            try:
                process = subprocess.Popen(
                    ["sh", "-c", script, "git", *arguments], cwd=folder, env=environment, stdin=asked,
                    stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                )  # fmt: skip
            except FileNotFoundError as exc:
                raise TransientError("git is not installed: install it") from exc
            with process, _Watch(process, self._deadline - time.monotonic(), self._stop) as watch:
                assert process.stdout is not None
                output = process.stdout.read(bytes_max + 1)
                if len(output) > bytes_max:
                    watch.kill()
                code = process.wait()
            errors.seek(0)
            words = errors.read(ERROR_CHARACTERS_MAX).decode(errors="replace")
        if watch.is_late:
            raise TransientError(
                f"{self._source}: git {arguments[0]} was not done within {self._limits.seconds_max:g} s"
            )
        if len(output) > bytes_max:
            raise PermanentError(
                f"{self._source}: git printed more than {bytes_max} bytes", reason="TooLarge"
            )
        if code:
            raise self._explained(arguments[0], words)
        return output

    def _authorities(self, folder: Path) -> str:
        """Write the authorities of requests and ours to one file, as git takes one; return its path."""
        path = folder / "authorities.pem"
        try:
            path.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + Path(self._ca_file).read_bytes())
        except OSError as exc:
            raise PermanentError(f"PVBUS_SOURCES_CA_FILE: {self._ca_file}: {exc}", reason="NotSet") from exc
        return str(path)

    def _explained(self, command: str, words: str) -> PermanentError | TransientError:
        for secret in self._secrets:
            words = words.replace(secret, "***")
        line = next(
            (each for each in reversed(words.splitlines()) if "fatal:" in each or "error:" in each), ""
        )
        message = f"{self._source}: git {command}: {(line or words.strip() or 'it was ended')[:500]}"
        for pattern, reason in _KNOWN:
            if re.search(pattern, words):
                return PermanentError(message, reason=reason)
        return TransientError(message)


_KNOWN = (
    (r"returned error: 30[1278]", "Insecure"),
    (r"Authentication failed|could not read Username|Permission denied|returned error: 401", "Unauthorized"),
    (r"returned error: 403", "Forbidden"),
    (
        r"not found|does not appear to be a git repository|[Nn]ot a valid object name|returned error: 404"
        r"|not our ref|[Cc]ouldn't find remote ref|does not exist",
        "NotFound",
    ),
    (r"dubious ownership", FORBIDDEN),
    (r"invalid index-pack output|File size limit|[Oo]ut of memory", "TooLarge"),
)


class _Watch:
    """Ends a process and its children when its time is over, or nobody waits for it any more."""

    def __init__(self, process: "subprocess.Popen[bytes]", seconds_max: float, stop: threading.Event) -> None:
        self._process = process
        self._seconds_max = seconds_max
        self._stop = stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_late = False

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self) -> None:
        left = self._seconds_max
        while left > 0 and not self._stop.is_set():
            if self._done.wait(min(0.2, left)):
                return
            left -= 0.2
        self.is_late = True
        self.kill()


def check_ref(source: GitFolder, ref: str) -> None:
    """Raises PermanentError (InvalidSource) if git can have no ref of this name."""
    if ref and not is_ref(ref):
        raise PermanentError(f'{source}: "{ref}" is not a ref', reason="InvalidSource")


def is_allowed(source: GitFolder, folders: Sequence[str]) -> bool:
    """Return whether a source is remote, or in one of the folders of this machine that may be read."""
    if not source.url.startswith("file://"):
        return True
    # git decodes it, too
    return is_readable(Path(unquote(source.url.removeprefix("file://"))), folders)


def _is_local(url: str) -> bool:
    """Return whether a URL names this machine as its host."""
    return Image(urlsplit(url).netloc.rpartition("@")[2], "").is_local


def _format_of(commit: str) -> str:
    return "sha1" if len(commit) == 40 else "sha256"


def _environment(url: str, login: Login | None) -> dict[str, str]:
    settings = _SETTINGS | (login_settings(url, login) if login is not None else {})
    return git_environment(settings) | _NO_CONFIGURATION
