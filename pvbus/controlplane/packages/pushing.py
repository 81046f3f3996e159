"""Pushes from a mirror at a cost that depends on the refs that move, not on all refs.

git compares every ref that a remote shows with every ref of the folder that it pushes from, and walks the
history behind them. So a push starts in a folder that has the mirror's objects but no refs, and a repository
on this machine shows the drafts and tags of the push only. Branches stay visible: new commits are based on
them.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.gitcommand import Git, RefUpdate, is_path

FOLDER = "pushing"

LOOSE_OBJECTS_MAX = 32
"""Objects of a push that a repository on this machine stores one by one; it keeps the pack of a larger push.
Each object costs it a file, and each pack slows later reads: git's limit is 100, and 50 packs for a gc."""

_HIDDEN = (layout.DRAFTS, layout.PROPOSALS, layout.DELETIONS, layout.TAGS)
_SETTINGS = (
    # The receiving git would start another git to list refs that it does not need.
    "core.alternateRefsCommand=true",
    f"receive.unpackLimit={LOOSE_OBJECTS_MAX}",
)


class Pusher:
    """Pushes from one mirror. Only one push may run at a time."""

    def __init__(self, mirror: Path, url: str) -> None:
        self._mirror = mirror
        self._url = url
        self._folder = mirror / FOLDER

    def push(self, git: Git, updates: Sequence[RefUpdate], bases: Iterable[str] = ()) -> None:
        """Move refs of the remote atomically, each only if it still has the expected value.

        bases: other refs whose commits the new ones build on
        Raises: GitError.
        """
        self._prepare()
        leases = [f"--force-with-lease={update.ref}:{update.old or ''}" for update in updates]
        refspecs = [f"{update.new or ''}:{update.ref}" for update in updates]
        shown = {*bases, *(update.ref for update in updates)}
        receiver = [f"--receive-pack={self._receiver(shown)}"] if is_path(self._url) else []
        command = (
            "push", "--porcelain", "--atomic", "--no-verify", *receiver, *leases, "--", self._url, *refspecs,
        )  # fmt: skip
        git.run_past_locks(command, self._folder, self._url)

    def _prepare(self) -> None:
        """Make the folder: a bare repository, as git recognizes it, with the objects of the mirror."""
        head = self._folder / "HEAD"
        if head.exists():
            return
        for name in ("refs", "objects/info"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "objects/info/alternates").write_text("../../objects\n", encoding="utf-8")
        head.write_text(f"ref: {layout.HEADS}main\n", encoding="utf-8")

    def _receiver(self, shown: Iterable[str]) -> str:
        """Return the command of the receiving git, which hides all drafts and tags but these refs."""
        # A file, as the names of many refs are too long for one argument of a program.
        file = (self._folder / "shown").absolute()
        hidden = [*_HIDDEN, *(f"!{ref}" for ref in sorted(shown))]
        lines = "".join(f"\thideRefs = {_quoted(name)}\n" for name in hidden)
        file.write_text(f"[receive]\n{lines}", encoding="utf-8")
        settings = (*_SETTINGS, f"include.path={file}")
        return " ".join(["git", *(f"-c {shlex.quote(setting)}" for setting in settings), "receive-pack"])


def _quoted(name: str) -> str:
    """Return a ref's name as a value of git's configuration. It has no line break and no backslash."""
    escaped = name.replace('"', '\\"')
    return f'"{escaped}"'
