"""Mirrors whose objects or refs are not what was written: a mirror has nothing that the remote has not, so it
is fetched again.

git and libgit2 compare each object that they read with its hash, so damage is never served. A mirror is
checked as a whole only when reading it has failed.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog

from pvbus.controlplane.packages.gitcommand import GitError
from pvbus.controlplane.packages.gitrepo import DAMAGE as DAMAGE
from pvbus.controlplane.packages.gitrepo import BareMirror

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


def read_whole(
    mirror_now: Callable[[], BareMirror | None],
    read: Callable[[], _T],
    is_suspect: bool,
    logged: Mapping[str, str],
) -> _T:
    """Return what `read` returns; if the mirror is damaged, renew it and read again.

    is_suspect: whether reading it has failed since the last call
    Raises as `read`.
    """
    mirror = mirror_now()
    if mirror is not None and is_suspect and mirror.is_damaged():
        _renew(mirror, "an object cannot be read", logged)
    try:
        return read()
    except (GitError, *DAMAGE) as exc:
        mirror = mirror_now()
        may_be = exc.may_be_damage if isinstance(exc, GitError) else True
        if mirror is None or not may_be or not mirror.is_damaged():
            raise
        _renew(mirror, str(exc), logged)
    return read()


def _renew(mirror: BareMirror, error: str, logged: Mapping[str, str]) -> None:
    _log.warning("the mirror is damaged; it is fetched again", error=error, **logged)
    mirror.renew()


def unreadable(repository: str, error: Exception) -> str:
    """Return the answer to a request that met damage."""
    return (
        f'the mirror of repository "{repository}" cannot be read ({error}): it is checked, and fetched again '
        "if it is damaged; try again in a moment"
    )
