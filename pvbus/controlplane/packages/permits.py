"""What a request may name beside packages of its namespace: addresses of git, Secrets, paths of this machine.

The store reads with rights that are not the requester's: with the network, the files and the ssh keys of its
process, and with every Secret. So an address that no Repository of the namespace has takes a verb of its own,
CLONE_ADDRESS; a Secret takes the requester's right to `get` it; and a path of this machine has to be in a
folder of the setting PVBUS_PACKAGES_LOCAL, whoever asks.
"""

from collections.abc import Sequence
from pathlib import Path

from pvbus.adapters.sources.gitaccess import is_readable
from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.identity import Attributes, current
from pvbus.controlplane.packages.settings import location_of, spec_of
from pvbus.core.api.packages import GitPackage
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import REPOSITORY

CLONE_ADDRESS = "clone-address"
"""The verb on packagerevisions. It says what it permits, and no verb of Kubernetes includes it: a role has it
by name, or by `*`."""

LOCAL_SETTING = "PVBUS_PACKAGES_LOCAL"

_ADDRESS_ADVICE = (
    "a package is cloned by its address only from a Repository of the namespace, or with this verb: register "
    "a Repository with this address and name the PackageRevision in clone.upstreamRef.upstreamRef.name, or "
    f"ask an administrator for the verb {CLONE_ADDRESS} on packagerevisions.{PORCH_GROUP}"
)
_SECRET_ADVICE = (
    "clone.upstreamRef.git.secretRef takes the right to read the Secret: ask an administrator for it, or to "
    "register a Repository with this Secret"
)


class LocalFolders:
    """The folders of this machine in which git repositories may be."""

    def __init__(self, folders: Sequence[str | Path], barred: Sequence[Path]) -> None:
        """Permit some folders.

        folders: the folders that may be read
        barred: the paths in them that nobody may read
        """
        self._folders = tuple(folders)
        self._barred = tuple(barred)

    def problem(self, path: Path) -> str | None:
        """Return why a path may not be read, None if it may. The text is the same whatever is there."""
        if is_readable(path, self._folders, self._barred):
            return None
        return (
            "is a path of the server's machine that may not be read: use a URL, or ask whoever runs the "
            f"server to name its folder in {LOCAL_SETTING}; the server's data folder is never read"
        )


async def check_address(namespace: str) -> None:
    """Refuse an address without the right to name it. Raises StatusError: 403."""
    asked = Attributes(CLONE_ADDRESS, PORCH_GROUP, "v1alpha1", "packagerevisions", "", namespace)
    await _check(asked, _ADDRESS_ADVICE)


async def check_secret(namespace: str, name: str) -> None:
    """Refuse a Secret without the right to read it. Raises StatusError: 403."""
    await _check(Attributes("get", "", "v1", "secrets", "", namespace, name), _SECRET_ADVICE)


async def _check(wanted: Attributes, advice: str) -> None:
    asked = current()
    if asked.authorizer is None:
        return
    try:
        await asked.authorizer.authorize(asked.user, wanted)
    except StatusError as exc:
        if exc.code != 403:
            raise
        raise StatusError(403, exc.reason, f"{exc.message}: {advice}", details=exc.details) from exc


def is_registered(objects: Objects, namespace: str, git: GitPackage) -> bool:
    """Return whether a Repository of the namespace has an address, and the directory in it."""
    location, directory = location_of(git.repo), _folder(git.directory)
    for repository in objects.list(REPOSITORY, namespace):
        try:
            spec = spec_of(repository)
        except PermanentError:
            continue
        if spec.type != "git" or spec.git is None or location_of(spec.git.repo) != location:
            continue
        if directory.startswith(_folder(spec.git.directory)):
            return True
    return False


def _folder(directory: str) -> str:
    """Return a directory so that those in it begin with it; "" for the root."""
    path = directory.strip("/")
    return f"{path}/" if path else ""
