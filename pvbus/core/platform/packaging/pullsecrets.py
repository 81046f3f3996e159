"""Credentials in pull secrets, and which of them are for a repository.

Source: Kubernetes documentation, "Pull an Image from a Private Registry" and "Images", section
"Interpretation of config.json": a `*` is within one part of a host name, and a key may have a path.
"""

import base64
import binascii
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from pvbus.core.errors import PermanentError

JSON_TYPE, JSON_KEY = "kubernetes.io/dockerconfigjson", ".dockerconfigjson"
OLD_TYPE, OLD_KEY = "kubernetes.io/dockercfg", ".dockercfg"
BASIC_TYPE = "kubernetes.io/basic-auth"
_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


class Login(NamedTuple):
    """A user's name and password; a token has a name, too."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.username!r}, ***)"  # a login may come into a log


def logins_of(secret: Mapping[str, Any]) -> dict[str, Login]:
    """Return the logins of a Secret: as its keys name registries, "" for every host.

    Raises PermanentError (InvalidSecret) that names no value.
    """
    metadata = secret.get("metadata", {})
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    data = secret.get("data") or {}
    if secret.get("type") == BASIC_TYPE:
        return {
            "": Login(_decoded(name, data, "username").decode(), _decoded(name, data, "password").decode())
        }
    is_old = secret.get("type") == OLD_TYPE
    key = OLD_KEY if is_old else JSON_KEY
    try:
        document = msgspec.json.decode(_decoded(name, data, key), type=dict[str, Any])
        entries = document if is_old else document.get("auths") or {}
        return {host: _login(entry) for host, entry in entries.items()}
    except (msgspec.DecodeError, ValueError, AttributeError, KeyError, TypeError) as exc:
        raise PermanentError(
            f"secret {name}: {key} is not a Docker configuration with auths", reason="InvalidSecret"
        ) from exc


def login_for(logins: Mapping[str, Login], registry: str, repository: str) -> Login | None:
    """Return the login of the most exact key that fits, None if none does."""
    fitting = [key for key in logins if _fits(key, registry, repository)]
    return (
        logins[max(fitting, key=lambda key: (len(_parts(key)[1]), "*" not in key, key))] if fitting else None
    )


def _fits(key: str, registry: str, repository: str) -> bool:
    if not key:
        return True
    host, path = _parts(key)
    if host in _HUB and registry in _HUB:
        return not path or path in ("v1", "v2") or f"{repository}/".startswith(f"{path}/")
    names, pattern = _host(registry)[0].split("."), _host(host)[0].split(".")
    if len(names) != len(pattern) or _host(host)[1] not in ("", _host(registry)[1]):
        return False
    if not all(fnmatchcase(name, part) for name, part in zip(names, pattern, strict=True)):
        return False
    return not path or path in ("v1", "v2") or f"{repository}/".startswith(f"{path}/")


def _parts(key: str) -> tuple[str, str]:
    """Return host and path of a key such as `https://registry.example.org/v2/`."""
    host, _, path = key.split("://")[-1].partition("/")
    return host, path.strip("/")


def _host(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text.partition("]")
        return host + "]", port.lstrip(":")
    host, _, port = text.partition(":")
    return host, port


def _decoded(name: str, data: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(data[key], validate=True)
    except (KeyError, binascii.Error, ValueError, TypeError) as exc:
        raise PermanentError(
            f"secret {name}: no data in base64 at {key}: its type must fit", reason="InvalidSecret"
        ) from exc


def _login(entry: Mapping[str, Any]) -> Login:
    if entry.get("auth"):
        username, colon, password = base64.b64decode(entry["auth"]).decode().partition(":")
        if not colon:
            raise ValueError("auth has no colon")
        return Login(username, password.rstrip("\0"))
    return Login(entry["username"], entry["password"])
