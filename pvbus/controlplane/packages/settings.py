"""A Repository object, checked and converted for the store: settings, credentials, recorded commits."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pvbus.adapters.sources.gitaccess import is_in_clear
from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.apiserver.store import UnavailableError
from pvbus.controlplane.apiserver.strategies import SECRET as SECRET
from pvbus.controlplane.packages import cron, layout
from pvbus.controlplane.packages.bounds import one_path_problem, shortened
from pvbus.controlplane.packages.gitcommand import Credentials, Failure, GitError, is_path
from pvbus.controlplane.packages.revisions import RepositoryFacts
from pvbus.core.api.packages import RepositorySpec
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Object

SCHEMES = ("https", "http", "ssh", "git", "file")
TEXT_CHARACTERS_MAX = 1_000
"""Length of an address, a branch or a name: git itself accepts no longer ref names."""


SECRET_KEYS = ("username", "password", "ca.crt")
"""Keys of a Secret. `ca.crt` is the PEM certificate of the authority that signed the server's."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the package store, the same for all Repositories.

    fetch_seconds: between fetches; a URL with a schedule is fetched at its times only
    poll_seconds: between checks of the refs of a path, each of which costs a stat per folder
    first_sync_seconds: how long a request waits for a newly created Repository
    local_folders: the folders in which Repositories and clones may have paths
    functions: a digest of the functions that can run, "" for none. Failed drafts are rendered again at the
        first start after it changed.
    """

    fetch_seconds: float = 60.0
    poll_seconds: float = 2.0
    first_sync_seconds: float = 30.0
    local_folders: tuple[str, ...] = ()
    functions: str = ""


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """A Repository's settings.

    facts: its name, namespace and what its objects show
    url: what git gets as the remote
    local: the path of a repository on this machine, None for a URL
    branch: the name of its branch
    directory: the folder of its packages, "" for the root
    create_branch: whether a missing branch is created
    author: the name of the author of commits
    email: the address of the author of commits
    secret: the name of the Secret with the credentials, "" for none
    schedule: the cron line of its full syncs, "" for none
    """

    facts: RepositoryFacts
    url: str
    local: Path | None
    branch: str
    directory: str
    create_branch: bool
    author: str
    email: str
    secret: str
    schedule: str

    @property
    def logged(self) -> dict[str, str]:
        """The fields of a line of the log about the Repository."""
        return {"namespace": self.facts.namespace, "repository": self.facts.name}

    def author_of(self, user: str) -> tuple[str, str]:
        """Return the author of a commit: the Repository's, else the user, else the service."""
        user = "".join(char for char in user if char.isprintable() and char not in "<>").strip()
        name = self.author or user or layout.SERVICE_NAME
        email = self.email or user or layout.SERVICE_EMAIL
        return name, email


def spec_of(repository: Mapping[str, Any]) -> RepositorySpec:
    """Return the spec of a Repository object. Raises: PermanentError."""
    try:
        return msgspec.convert(repository.get("spec") or {}, RepositorySpec)
    except msgspec.ValidationError as exc:
        raise PermanentError(f"spec: {exc}") from exc


def spec_problem(spec: RepositorySpec) -> tuple[str, str] | None:
    """Return the first invalid field of a spec and the reason, None if all are valid."""
    try:
        if spec.sync is not None and spec.sync.schedule:
            cron.parse(spec.sync.schedule)
    except ValueError as exc:
        return "spec.sync.schedule", str(exc)
    return git_problem(spec)


def git_problem(spec: RepositorySpec) -> tuple[str, str] | None:
    """Return the first invalid field of spec.git and the reason, None if all are valid."""
    git = spec.git
    if git is None:
        return None
    texts = {"repo": git.repo, "branch": git.branch, "directory": git.directory, "author": git.author}
    texts |= {"email": git.email, "secretRef.name": git.secret_ref.name if git.secret_ref else ""}
    for field, text in texts.items():
        if not text.isprintable() or len(text) > TEXT_CHARACTERS_MAX:
            return f"spec.git.{field}", f"must be at most {TEXT_CHARACTERS_MAX} printable characters"
    for field in ("author", "email"):
        if set(texts[field]) & set("<>"):
            return f"spec.git.{field}", "must not contain < or >"
    problems = (
        ("repo", address_problem(git.repo)),
        ("branch", _branch_problem(git.branch or "main")),
        ("directory", directory_problem(git.directory)),
    )
    if found := next(((f"spec.git.{field}", problem) for field, problem in problems if problem), None):
        return found
    if git.secret_ref and git.secret_ref.name and is_in_clear(git.repo):
        return "spec.git.secretRef", "a password is sent by https or ssh only: correct spec.git.repo"
    return None


def address_problem(address: str) -> str | None:
    """Return why a text is not the address of a git repository, None if it is one."""
    scheme, separator, rest = address.partition("://")
    if address.startswith("-") or address != address.strip():
        return "must be a path or URL"
    if "::" in address.partition("/")[0]:
        return "must be a path or URL: helper programs such as ext:: are not run"
    if not separator:
        return _path_problem(address)
    if scheme not in SCHEMES:
        return f"must be a path, or a URL of {', '.join(SCHEMES)}, not of {shortened(scheme)}"
    if scheme == "file":
        return None if rest.startswith("/") else "must have an absolute path after file://"
    try:
        urlsplit(address)
    except ValueError as exc:
        return f"is not a URL: {exc}"
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and ":" in user:
        return (
            "must not contain a password, which every reader of the Repository would see: put it into a "
            "Secret and name that in secretRef"
        )
    if rest.startswith("-"):
        return "must not have a host that begins with a dash"
    return None


def _path_problem(address: str) -> str | None:
    """Return why a text without :// is neither a path nor `host:path`, None if it is one of them."""
    if is_path(address):
        try:
            Path(address).expanduser()
        except RuntimeError:
            return "names the home of a user whom this machine does not have"
        return None
    host = address.partition(":")[0]
    if not host:
        return "must name a host before the colon"
    return f"must have two slashes after {host}:" if host.lower() in SCHEMES else None


def ref_problem(name: str) -> str | None:
    """Return why a text is not the name of a branch or tag, None if it is one."""
    parts = name.split("/")
    bad = any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts)
    if bad or name.startswith("-") or name == "@" or ".." in name or "@{" in name:
        return "is not a valid branch name (git check-ref-format --branch)"
    if set(name) & set(" ~^:?*[\\"):
        return "is not a valid branch name: it must not contain spaces or any of ~^:?*[\\"
    return None


def _branch_problem(branch: str) -> str | None:
    if problem := ref_problem(branch):
        return problem
    if not layout.is_foreign_branch(f"{layout.HEADS}{branch}"):
        return "must not be one of the branches drafts/, proposed/ or deletionProposed/, which packages use"
    return None


def directory_problem(directory: str) -> str | None:
    """Return why a text is not a folder of a repository, None if it is one. The root is `` or `/`."""
    path = directory.strip("/")
    return one_path_problem(path) if path else None


def url_of(address: str) -> tuple[str, Path | None]:
    """Return what git is given for an address, and the path of a repository on this machine."""
    local: Path | None = None
    if is_path(address):
        local = Path(address).expanduser().absolute()
    elif address.startswith("file://"):
        local = Path(address.removeprefix("file://"))
    return (str(local) if local is not None else address), local


def location_of(address: str) -> str:
    """Return what two addresses of the same repository have in common. Paths have their links followed."""
    try:
        url, local = url_of(address)
        return str(local.resolve()) if local is not None else url.rstrip("/").removesuffix(".git")
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that is too long
        return address


def settings_of(repository: Mapping[str, Any]) -> RepositorySettings:
    """Return a Repository's settings. Raises: PermanentError if it is not a valid git repository."""
    spec = spec_of(repository)
    metadata = repository["metadata"]
    if spec.type != "git" or spec.git is None or not spec.git.repo:
        raise PermanentError("only Repositories of type git with spec.git.repo can be used")
    if found := spec_problem(spec):
        raise PermanentError(f"{found[0]}: {found[1]}")
    address = spec.git.repo
    url, local = url_of(address)
    return RepositorySettings(
        facts=RepositoryFacts(
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            address=address,
            deployment=spec.deployment,
        ),
        url=url,
        local=local,
        branch=spec.git.branch or "main",
        directory=spec.git.directory.strip("/"),
        create_branch=spec.git.create_branch,
        author=spec.git.author,
        email=spec.git.email,
        secret=spec.git.secret_ref.name if spec.git.secret_ref else "",
        schedule=spec.sync.schedule if spec.sync else "",
    )


class Pins(NamedTuple):
    """The stored state of a Repository.

    had_branch: whether the Repository's status has a commit: an empty remote has then lost its branch
    commits: directory -> the last commit of its placeholder
    """

    had_branch: bool
    commits: dict[str, str]


def pins_of(settings: RepositorySettings, repository: Object | None, revisions: Iterable[Object]) -> Pins:
    """Read the stored state of a Repository.

    repository: the Repository object, None if there is none
    revisions: the stored PackageRevisions of the Repository
    """
    had_branch = bool(((repository or {}).get("status") or {}).get("gitCommitHash"))
    commits = {}
    for obj in revisions:
        lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
        if obj["spec"].get("revision") == layout.PLACEHOLDER_REVISION and lock.get("ref") == settings.branch:
            directory = layout.join(settings.directory, obj["spec"]["packageName"])
            commits[directory] = str(lock.get("commit", ""))
    return Pins(had_branch, commits)


def credentials_of(objects: Objects, namespace: str, name: str) -> Credentials | None:
    """Return what a Secret has for a remote, None if none is named. Raises: GitError."""
    return credentials_in(objects.get(SECRET, namespace, name) if name else None, name)


def credentials_in(secret: Object | None, name: str) -> Credentials | None:
    """Return what a Secret, or the manifest of one, has for a remote.

    secret: None if there is none
    name: its name in spec.git.secretRef, "" if that names none
    Raises: GitError.
    """
    if not name:
        return None
    data, plain = ((secret or {}).get(field) or {} for field in ("data", "stringData"))
    try:
        found = {key: base64.b64decode(data[key]).decode() for key in SECRET_KEYS if key in data}
        found |= {key: plain[key] for key in SECRET_KEYS if key in plain}
        if "ca.crt" not in found or "username" in found:
            return Credentials(found["username"], found["password"], found.get("ca.crt", ""))
        return Credentials("", "", found["ca.crt"])
    except (KeyError, ValueError) as exc:
        raise GitError(
            Failure.UNREACHABLE,
            f'the Secret "{name}" of spec.git.secretRef does not exist or has no username and password: '
            f"kubectl create secret generic {name} --type kubernetes.io/basic-auth "
            "--from-literal=username=... --from-literal=password=...",
        ) from exc


async def present_credentials(objects: Objects, settings: RepositorySettings) -> Credentials | None:
    """Return what the Secret of a repository has now. Raises: GitError."""
    namespace, name = settings.facts.namespace, settings.secret
    if name:
        try:
            await objects.refresh(SECRET, namespace, name)
        except UnavailableError as exc:
            raise GitError(Failure.UNREACHABLE, f'the Secret "{name}" cannot be read: {exc}') from exc
    return credentials_of(objects, namespace, name)
