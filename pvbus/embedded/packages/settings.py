"""A Repository object as the store uses it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pvbus.core.porch import RepositorySpec
from pvbus.embedded.packages import layout
from pvbus.embedded.packages.gitcommand import is_path
from pvbus.embedded.packages.revisions import RepositoryFacts
from pvbus.errors import PermanentError


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How closely remotes are followed.

    fetch_seconds: between fetches of a URL, and between full comparisons of a path; poll_seconds:
    between looks at the refs of a path, which cost a stat per folder; first_sync_seconds: how long a
    request waits for a Repository that was created a moment ago.
    """

    fetch_seconds: float = 60.0
    poll_seconds: float = 2.0
    first_sync_seconds: float = 30.0


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """url: what git is given; local: the path, where it is on this machine."""

    facts: RepositoryFacts
    url: str
    local: Path | None
    branch: str
    directory: str
    create_branch: bool
    author: str
    email: str
    secret: str

    def author_of(self, user: str) -> tuple[str, str]:
        """Return the author of a commit: the Repository's, else the user, else the service."""
        name = self.author or user or layout.SERVICE_NAME
        email = self.email or user or layout.SERVICE_EMAIL
        return name, email


def spec_of(repository: Mapping[str, Any]) -> RepositorySpec:
    """Raises: PermanentError."""
    try:
        return msgspec.convert(repository.get("spec") or {}, RepositorySpec)
    except msgspec.ValidationError as exc:
        raise PermanentError(f"spec: {exc}") from exc


def settings_of(repository: Mapping[str, Any]) -> RepositorySettings:
    """Raises: PermanentError, for what is no git repository."""
    spec = spec_of(repository)
    metadata = repository["metadata"]
    if spec.type != "git" or spec.git is None or not spec.git.repo:
        raise PermanentError("only Repositories of type git with spec.git.repo can be used")
    address = spec.git.repo
    local: Path | None = None
    if is_path(address):
        local = Path(address).expanduser().absolute()
    elif address.startswith("file://"):
        local = Path(address.removeprefix("file://"))
    return RepositorySettings(
        facts=RepositoryFacts(
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            address=address,
            deployment=spec.deployment,
        ),
        url=str(local) if local is not None else address,
        local=local,
        branch=spec.git.branch or "main",
        directory=spec.git.directory.strip("/"),
        create_branch=spec.git.create_branch,
        author=spec.git.author,
        email=spec.git.email,
        secret=spec.git.secret_ref.name if spec.git.secret_ref else "",
    )
