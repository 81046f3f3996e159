"""The credentials of a Repository's remote: the Secret that it names."""

import base64

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.packages.gitcommand import Credentials, Failure, GitError
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.ports.cluster import Kind

SECRET = Kind("", "Secret")


def credentials_of(objects: Objects, settings: RepositorySettings) -> Credentials | None:
    """Return the credentials, None if the Repository names none. Raises: GitError."""
    name = settings.secret
    if not name:
        return None
    secret = objects.get(SECRET, settings.facts.namespace, name)
    data = (secret or {}).get("data") or {}
    try:
        user, password = (base64.b64decode(data[key]).decode() for key in ("username", "password"))
    except (KeyError, ValueError) as exc:
        raise GitError(
            Failure.UNREACHABLE,
            f'the Secret "{name}" of spec.git.secretRef does not exist or has no username and password: '
            f"kubectl create secret generic {name} --type kubernetes.io/basic-auth "
            "--from-literal=username=... --from-literal=password=...",
        ) from exc
    return Credentials(user, password)
