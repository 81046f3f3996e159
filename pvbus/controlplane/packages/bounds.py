"""Limits of a package, when it is read from git and when it is written.

Other programs push to a repository. Its content must cost bounded time and memory here, and a package
beyond a limit fails alone, with a message that names the limit.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from pvbus.controlplane.packages.layout import KPTFILE
from pvbus.core.yaml.rawtext import text_of

PACKAGE_BYTES_MAX = 6 * 1024 * 1024
"""All files of one package. A request that writes a package has the same limit."""

FILES_MAX = 10_000
"""Files of one package; the largest catalogs known have some hundred."""

PATH_BYTES_MAX = 1024
NAME_BYTES_MAX = 255
DEPTH_MAX = 64
"""Length of a path, of one of its names, and depth of folders: limits of file systems, for a checkout of the
repository."""

KPTFILE_BYTES_MAX = 512 * 1024
"""A Kptfile is read for every revision."""

FACTS_BYTES_MAX = 256 * 1024
"""The Kptfile's facts in a PackageRevision: as much as an object's annotations may have."""

MESSAGE_BYTES_MAX = 64 * 1024
"""The part of a commit message that is read; the `kpt:` line of a task has less than one KiB."""

FOLDERS_MAX = 100_000
"""Folders of a branch that are searched for packages. A tree that contains itself many times over looks like
billions of them."""


LINK_STEPS_MAX = 1_000
"""Parts of paths that are followed for one link; file systems follow 40 links."""


class ContentError(Exception):
    """The content of one package is beyond a limit. The message names it for users."""


def path_problem(paths: Iterable[str]) -> str | None:
    """Return why these cannot be all files of a package, None if they can."""
    known = list(paths)
    if problem := paths_problem(known):
        return problem
    return None if KPTFILE in known else "a package needs a Kptfile at its root"


def paths_problem(known: Sequence[str]) -> str | None:
    """Return why these cannot be files of one package, None if they can."""
    if len(known) > FILES_MAX:
        return f"a package can have at most {FILES_MAX} files, these are {len(known)}"
    folders: set[str] = set()
    by_folded: dict[str, str] = {}
    for path in known:
        if problem := one_path_problem(path):
            return problem
        parts = path.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for path in [*known, *folders]:
        other = by_folded.setdefault(path.casefold(), path)
        if path in folders and other != path and other not in folders:
            continue
        if other != path:
            return f"{path!r} and {other!r} differ only in case: some file systems cannot hold both"
    for path in known:
        if path in folders:
            return f"{path!r} is both a file and a folder"
    return None


def one_path_problem(path: str) -> str | None:
    """Return why a path is invalid inside a package or repository, None if it is valid."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or _is_git_folder(part) for part in parts):
        return f"{shortened(path)} is not a path inside a package"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        return f"{shortened(path)} has characters that no file name may have"
    if len(path.encode()) > PATH_BYTES_MAX or any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        return (
            f"{shortened(path)} is too long: a path has at most {PATH_BYTES_MAX} bytes, and {NAME_BYTES_MAX} "
            "between slashes"
        )
    if len(parts) > DEPTH_MAX:
        return f"{shortened(path)} has {len(parts)} nested folders, at most {DEPTH_MAX} are allowed"
    return None


def _is_git_folder(name: str) -> bool:
    """Return whether a file system may take a name for `.git`: case, ignored characters, short names."""
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    plain = visible.casefold().partition(":")[0].rstrip(" .\\")
    return plain in (".git", "git~1") or plain.startswith(".git\\") or "\\.git" in plain


def shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def link_problem(links: Mapping[str, bytes]) -> str | None:
    """Return the problem of a link that leads out of its package or nowhere, None without one.

    links: path -> target.
    """
    targets = {path: text_of(target) for path, target in links.items()}
    for path, target in targets.items():
        if where := _bad_end(path, targets):
            return f"the symbolic link {shortened(path)} leads {where}, to {shortened(target)}"
    return None


def _bad_end(path: str, targets: Mapping[str, str]) -> str:
    """Follow a link as a file system does: the parts of a path one by one, and links within it."""
    out = "out of the package"
    at = path.split("/")
    left: list[str] = []
    for _ in range(LINK_STEPS_MAX):
        target = targets.get("/".join(at))
        if target is not None:
            at.pop()
            left = [*target.split("/"), *left]
            if target.startswith("/"):
                return out
        elif not left:
            return ""
        elif (part := left.pop(0)) == "..":
            if not at:
                return out
            at.pop()
        elif part not in ("", "."):
            at.append(part)
    return "in a circle"
