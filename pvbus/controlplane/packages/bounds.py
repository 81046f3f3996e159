"""What a package may be: limits on what is read from git and written to it.

A repository is pushed to by others. Whatever is in it must cost bounded time and memory here, and a
package beyond a limit fails alone, with a message that names the limit.
"""

import posixpath
import unicodedata
from collections.abc import Iterable, Mapping

from pvbus.controlplane.packages.layout import KPTFILE

PACKAGE_BYTES_MAX = 6 * 1024 * 1024
"""All files of one package. A request that writes a package holds no more either."""

FILES_MAX = 10_000
"""Files of one package; the largest catalogs known have some hundred."""

PATH_BYTES_MAX = 1024
NAME_BYTES_MAX = 255
DEPTH_MAX = 64
"""Length of a path, of one of its names, and folders inside each other: what file systems can hold when
somebody checks the repository out."""

KPTFILE_BYTES_MAX = 512 * 1024
"""A Kptfile is read for every revision there is."""

FACTS_BYTES_MAX = 256 * 1024
"""What a PackageRevision repeats of its Kptfile: as much as the annotations of an object may have."""

MESSAGE_BYTES_MAX = 64 * 1024
"""How much of a commit message is read; the `kpt:` line of a task has less than one."""

FOLDERS_MAX = 100_000
"""Folders of a branch that are looked through for packages. A tree that contains itself many times over
looks like billions of them."""


class ContentError(Exception):
    """The content of one package is beyond a limit. The message says which, for people."""


def path_problem(paths: Iterable[str]) -> str | None:
    """Return why these cannot be the files of a package, None when they can."""
    known = list(paths)
    if len(known) > FILES_MAX:
        return f"a package has {FILES_MAX} files at most, these are {len(known)}"
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
            return f"{path!r} and {other!r} differ in case only: not every file system can hold both"
    for path in known:
        if path in folders:
            return f"{path!r} is a file and a folder at once"
    if KPTFILE not in known:
        return "a package needs a Kptfile at its root"
    return None


def one_path_problem(path: str) -> str | None:
    """Return why a path cannot be one inside a package or repository, None when it can."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or _is_git_folder(part) for part in parts):
        return f"{shortened(path)} is no path inside a package"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        return f"{shortened(path)} has characters that no file name may have"
    if len(path.encode()) > PATH_BYTES_MAX or any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        return (
            f"{shortened(path)} is too long: a path has {PATH_BYTES_MAX} bytes at most, and {NAME_BYTES_MAX} "
            "between slashes"
        )
    if len(parts) > DEPTH_MAX:
        return f"{shortened(path)} has {len(parts)} folders inside each other, {DEPTH_MAX} are allowed"
    return None


def _is_git_folder(name: str) -> bool:
    """Tell a name that some file system takes for `.git`: by case, ignored characters, short names."""
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    plain = visible.casefold().partition(":")[0].rstrip(" .\\")
    return plain in (".git", "git~1") or plain.startswith(".git\\") or "\\.git" in plain


def shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def link_problem(links: Mapping[str, bytes]) -> str | None:
    """Return which symbolic link leads out of its package, None where none does. links: path -> target."""
    for path, target in links.items():
        where = target.decode(errors="replace")
        end = posixpath.normpath(posixpath.join(posixpath.dirname(path), where))
        if posixpath.isabs(where) or end == ".." or end.startswith("../"):
            return f"the symbolic link {shortened(path)} leads out of the package, to {shortened(where)}"
    return None
