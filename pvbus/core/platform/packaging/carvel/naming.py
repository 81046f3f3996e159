"""The names of installs that are created for dependencies."""

import hashlib
import re
from collections.abc import Container

NAME_BYTES_MAX = 240
"""Of 253. kapp-controller makes an App of this name, and names what belongs to that with a suffix."""
_HASH_CHARACTERS = 8


def install_name(package: str, version: str, taken: Container[str]) -> str:
    """Return `<package>.<version>`, or a name with a hash if that is too long, not allowed or taken.

    taken: the names that other objects have. Source of the form: the example of Carvel's proposal,
    `pkg3.test.carvel.dev.1.0.0`.
    """
    whole = f"{package}.{version.removeprefix('v')}"
    name = re.sub(r"[^a-z0-9.-]+", "-", whole.lower()).strip(".-")
    name = re.sub(r"-*\.[-.]*", ".", name)
    if name == whole and len(name) <= NAME_BYTES_MAX and name not in taken:
        return name
    count = 0
    while True:
        digest = hashlib.sha256(f"{whole}|{count}".encode()).hexdigest()[:_HASH_CHARACTERS]
        head = name[: NAME_BYTES_MAX - _HASH_CHARACTERS - 1].rstrip(".-")
        found = f"{head}-{digest}"
        if found not in taken:
            return found
        count += 1
