"""How git logs in at a remote, and which hosts and paths it may read: for every runner of git.

A password goes to the host that it is for, and to no other one; not in the clear either, but on this machine.
"""

import base64
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pvbus.core.kernel.addresses import address_problem
from pvbus.core.platform.packaging.pullsecrets import Login
from pvbus.core.platform.packaging.references import Image

_TRIED_BY_GIT = ("/.git", ".git", ".git/.git")
"""What git appends to a path. Source: git 2.39, path.c, enter_repo."""


def is_readable(path: Path, folders: Sequence[str | Path], barred: Sequence[Path] = ()) -> bool:
    """Return whether git reads a path only in these folders and outside of the barred ones, links followed.

    git also looks for a repository beside the path and in it.
    """
    try:
        beside = (Path(f"{path}{suffix}") for suffix in _TRIED_BY_GIT)
        candidates = [
            candidate.resolve() for candidate in (path, *(each for each in beside if each.exists()))
        ]
        allowed = [Path(folder).resolve() for folder in folders]
        closed = [folder.resolve() for folder in barred]
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that is too long, no right to look
        return False
    return all(
        any(candidate.is_relative_to(folder) for folder in allowed)
        and not any(candidate.is_relative_to(folder) for folder in closed)
        for candidate in candidates
    )


def host_problem(url: str, *, loopback: bool = True) -> str | None:
    """Return why git may not connect to the host of a URL or of `host:path`, None if it may.

    Blocks while the name is resolved. git resolves it again; its answers show nothing of another server's.
    """
    if "://" in url:
        host = urlsplit(url).hostname or ""
    else:
        host = url.partition(":")[0].rpartition("@")[2] if ":" in url.partition("/")[0] else ""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):  # git says so, too
        return None
    problems = (address_problem(str(info[4][0]), loopback=loopback) for info in infos)
    return next((f"{problem}: git does not connect there" for problem in problems if problem), None)


def is_in_clear(url: str) -> bool:
    """Return whether a password for a URL would leave this machine as anybody can read it."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not Image(parts.netloc, "").is_local


def login_settings(url: str, login: Login) -> dict[str, str]:
    """Return git's settings that log in at a URL, none but for http and https.

    git sends a header to whatever host it is redirected to: it drops it from the redirected request, and not
    from those that follow. So it follows no redirect with a password, and asks no alternates of a remote.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return {}
    host = f"http.{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    return {
        f"{host}.extraHeader": f"Authorization: Basic {basic_token(login)}",
        f"{host}.followRedirects": "false",
        "http.followRedirects": "false",
    }


def basic_token(login: Login) -> str:
    """Return what follows `Basic` in the header of a login."""
    return base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
