"""Addresses of commits and folders at the usual forges, from the address of a git repository."""

import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit

FORGES = {
    "github": ("commit/{commit}", "tree/{commit}/{directory}"),
    "gitlab": ("-/commit/{commit}", "-/tree/{commit}/{directory}"),
    "gitea": ("commit/{commit}", "src/commit/{commit}/{directory}"),
    "forgejo": ("commit/{commit}", "src/commit/{commit}/{directory}"),
    "codeberg": ("commit/{commit}", "src/commit/{commit}/{directory}"),
    "bitbucket": ("commits/{commit}", "src/{commit}/{directory}"),
}
"""The paths of a commit and of a folder in it, by a word in the name of the forge's host."""
_SCP = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?!//)(.+)")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class Links(NamedTuple):
    commit: str
    folder: str


def links_of(address: str, commit: str, directory: str) -> Links | None:
    """Return the pages of a commit and of a folder in it; None if the forge is not known.

    Only https, without login: nothing else of an address that somebody wrote becomes a link. A port is that
    of an address over https; one of ssh belongs to another server.
    """
    scp = _SCP.fullmatch(address)
    try:
        parts = urlsplit(f"ssh://{scp[1]}/{scp[2]}" if scp is not None else address)
        host, port = (parts.hostname or "").lower(), parts.port if parts.scheme == "https" else None
    except ValueError:
        return None
    path = parts.path.strip("/").removesuffix(".git")
    words = host.split(".")
    forge = next((paths for word, paths in FORGES.items() if word in words), None)
    is_usable = parts.scheme in ("https", "http", "ssh") and _HOST.fullmatch(host) and path
    if forge is None or not is_usable or not _COMMIT.fullmatch(commit):
        return None
    base = f"https://{host}{f':{port}' if port else ''}/{quote(path)}/"
    folder = quote(directory.strip("/"))
    return Links(*(base + page.format(commit=commit, directory=folder) for page in forge))
