"""Pushes from a mirror at a cost that depends on the refs that move, not on all refs.

git compares every ref that a remote shows with every ref of the folder that it pushes from, and walks the
history behind them. So a push starts in a folder that has the mirror's objects but no refs, and a repository
on this machine shows the drafts and tags of the push only. Branches stay visible: new commits are based on
them.

Proposals and rejections send no objects: each commit goes from one ref to another. In a repository on this
machine that nothing guards, one `git update-ref` moves them in one transaction, instead of the eight programs
of a push.
"""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pygit2

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.gitcommand import Git, GitError, RefUpdate, is_path

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

_GUARDS = (
    "core.hookspath",
    "core.sharedrepository",
    "extensions.",
    "hook.",
    "include",
    "receive.",
    "transfer.",
)
"""The beginnings of settings by which a repository may refuse a push or change how it is stored. An include
may have any of them."""

_NO_OBJECT = "0" * 40


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
        if is_path(self._url) and _is_move(updates) and is_unguarded(Path(self._url)):
            with suppress(GitError):  # the push below says why, or works
                _move(git, Path(self._url), updates)
                return
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


def _is_move(updates: Sequence[RefUpdate]) -> bool:
    """Return whether each ref gets a commit that another ref has until then: the remote has its objects."""
    present = {update.old for update in updates}
    return all(update.new in present for update in updates if update.new is not None)


def is_unguarded(repository: Path) -> bool:
    """Return whether a push into a repository on this machine does nothing but store objects and move refs.

    False if it has a hook, a work tree or a setting for pushes, and if it cannot be read.
    """
    try:
        opened = pygit2.Repository(str(repository))
        settings = [entry.name.lower() for entry in opened.config]
        hooks = repository / "hooks"
        has_hook = hooks.exists() and any(file.suffix != ".sample" for file in hooks.iterdir())
    except (OSError, ValueError, pygit2.GitError):
        return False
    has_tree = not opened.is_bare or (repository / "worktrees").exists()
    return not has_hook and not has_tree and not any(name.startswith(_GUARDS) for name in settings)


def _move(git: Git, repository: Path, updates: Sequence[RefUpdate]) -> None:
    """Move refs in a repository on this machine, all or none. Raises: GitError."""
    lines = (
        f"update {update.ref}\0{update.new or _NO_OBJECT}\0{update.old or _NO_OBJECT}\0" for update in updates
    )
    git.run("update-ref", "--stdin", "-z", directory=repository, given="".join(lines).encode())
