"""Pushes from a mirror at a cost that depends on the refs that move, not on all refs.

git compares every ref that a remote shows with every ref of the folder that it pushes from, and walks the
history behind them. So a push starts in a folder that has the mirror's objects but no refs, and a repository
on this machine shows the drafts and tags of the push only. Branches stay visible: new commits are based on
them.

In a repository on this machine that nothing guards, the objects are stored directly, and one `git update-ref`
moves the refs in one transaction, instead of the eight programs of a push.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pygit2

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.gitcommand import Git, GitError, RefUpdate, is_path
from pvbus.controlplane.packages.newobjects import LOOSE_OBJECTS_MAX, Finder, store_new

FOLDER = "pushing"

DIRECT_MAX = 32
"""Direct pushes after which git looks whether the repository needs a gc, as it does after each of its own."""

_HIDDEN = (layout.DRAFTS, layout.PROPOSALS, layout.DELETIONS, layout.TAGS)
_SETTINGS = (
    # The receiving git would start another git to list refs that it does not need.
    "core.alternateRefsCommand=true",
    f"receive.unpackLimit={LOOSE_OBJECTS_MAX}",
)

_GUARDS = (
    "core.fsync",
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
        self._direct = 0

    def push(self, git: Git, updates: Sequence[RefUpdate], bases: Mapping[str, str], find: Finder) -> None:
        """Move refs of the remote atomically, each only if it still has the expected value.

        bases: other refs whose commits the new ones build on, with their object ids
        find: finds the objects that commits add
        Raises: GitError.
        """
        if is_path(self._url) and is_unguarded(Path(self._url)):
            with suppress(GitError, OSError, pygit2.GitError):  # the push below says why, or works
                if self._push_directly(git, updates, bases, find):
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

    def _push_directly(
        self, git: Git, updates: Sequence[RefUpdate], bases: Mapping[str, str], find: Finder
    ) -> bool:
        """Push without git's protocol; return False, and do nothing, if what is to be sent is not known.

        Raises: GitError, OSError, pygit2.GitError.
        """
        known = {*bases.values(), *(update.old for update in updates if update.old)}
        new = find((update.new for update in updates if update.new), known)
        if new is None:
            return False
        store_new(git, self._mirror, Path(self._url), new)
        _move(git, Path(self._url), updates)
        self._direct += 1
        if self._direct >= DIRECT_MAX:
            self._direct = 0
            with suppress(GitError):  # the refs have moved
                git.run("gc", "--auto", "--quiet", directory=Path(self._url))
        return True

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
