"""The names of installs that are created for dependencies, in both families."""

import hashlib
import re
from collections.abc import Container

NAME_BYTES_MAX = 240
"""Of 253. kapp-controller makes an App of this name, and names what belongs to that with a suffix."""
CHILD_CHARACTERS_MAX = 63
"""Of an install of Crossplane's family: its revisions have the name as a label."""
_HASH_CHARACTERS = 8


def install_name(package: str, version: str, taken: Container[str]) -> str:
    """Return the name of a PackageInstall: `<package>.<version>`, or a name with a hash if that is too long,
    not allowed or taken.

    taken: the names that other objects have. Source of the form: the example of Carvel's proposal,
    `pkg3.test.carvel.dev.1.0.0`.
    """
    whole = f"{package}.{version.removeprefix('v')}"
    name = re.sub(r"[^a-z0-9.-]+", "-", whole.lower()).strip(".-")
    name = re.sub(r"-*\.[-.]*", ".", name)
    if name == whole and len(name) <= NAME_BYTES_MAX and name not in taken:
        return name
    return _with_hash(name, whole, NAME_BYTES_MAX, taken)


def child_name(package: str, taken: Container[str]) -> str:
    """Return the name of an install of Crossplane's family: the package's path without the registry, of git
    the name of the repository and the folder, with a hash if that is taken or too long.

    Source: Crossplane names a dependency after its repository, for example `acme-network`.
    """
    path = _git_path(package) if package.startswith("git+") else package.partition("/")[2] or package
    name = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")
    if 0 < len(name) <= CHILD_CHARACTERS_MAX and name not in taken:
        return name
    return _with_hash(name, package, CHILD_CHARACTERS_MAX, taken)


def _git_path(package: str) -> str:
    location, _, folder = package.partition("://")[2].partition("//")
    return f"{location.rpartition('/')[2].removesuffix('.git')}/{folder}"


def _with_hash(name: str, text: str, characters_max: int, taken: Container[str]) -> str:
    """Return a free name that begins as this one, with a hash of a text."""
    head, count = name[: characters_max - _HASH_CHARACTERS - 1].rstrip(".-"), 0
    while True:
        digest = hashlib.sha256(f"{text}|{count}".encode()).hexdigest()[:_HASH_CHARACTERS]
        candidate = f"{head}-{digest}".lstrip("-")
        if candidate not in taken:
            return candidate
        count += 1
