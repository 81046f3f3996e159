"""Notices that a repository on this machine has changed, without a git command."""

from collections.abc import Iterator
from pathlib import Path


def ref_fingerprint(repository: Path) -> int | None:
    """Return a number that changes whenever a ref of a repository on this machine does.

    None if that is unknown. Reads the times of folders only: git replaces a ref by renaming a lock file
    in its folder, so no ref changes without its folder.
    """
    folder = repository / ".git"
    if folder.is_file():
        return None  # a linked worktree: its refs lie elsewhere
    folder = folder if folder.is_dir() else repository
    try:
        times = [(str(path), path.stat().st_mtime_ns) for path in _folders(folder / "refs")]
        for name in ("packed-refs", "HEAD"):
            path = folder / name
            times.append((name, path.stat().st_mtime_ns if path.exists() else 0))
    except OSError:
        return None
    return hash(tuple(times))


def _folders(root: Path) -> Iterator[Path]:
    yield root
    for entry in root.iterdir():
        if entry.is_dir():
            yield from _folders(entry)
