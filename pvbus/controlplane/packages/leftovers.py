"""Folders that deleted packages left on a Repository's branch.

Like in Porch, deleting a published revision removes its tag but not its folder on the branch, so a tool
that deploys the branch still deploys the package. Such a folder has only a placeholder revision. It is
a leftover only if its content comes from an approval: a folder that a user pushed, or changed after the
approval, belongs to that user.
"""

import threading
from collections.abc import Iterable, Iterator

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.gitrepo import BareMirror, Commit
from pvbus.core.kernel.keys import REMOVE_LAST_REVISION

COMMITS_MAX = 20_000
"""Commits that are searched for approvals, at about 20 us each: once per start, when the branch was
rewritten, and after as many new ones, so that what is remembered is of twice as many at most. A package whose
last approval is older counts as a user's: then a new clone of it is refused."""

NAMED_MAX = 3
CONDITION = "LeftoverFolders"
_MANY = ("folders of deleted packages are", "them")


class Approvals:
    """The content that approvals wrote to a branch. Thread-safe.

    `_trees` has the trees of each directory in all approvals that were read; `_read_to` is the head up to
    which the branch was read, so the next call reads only what was committed since. `_added` counts the
    commits that were read in this way.
    """

    def __init__(self, mirror: BareMirror) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._trees: dict[str, set[str]] = {}
        self._read_to: str | None = None
        self._added = 0

    def leftovers(self, head: str | None, folders: Iterable[tuple[str, str]]) -> list[str]:
        """Return the directories of (directory, tree) pairs whose tree comes from an approval on `head`."""
        candidates = list(folders)
        if head is None or not candidates:
            return []
        with self._lock:
            self._read(head)
            return sorted(
                directory for directory, tree in candidates if tree in self._trees.get(directory, ())
            )

    def _read(self, head: str) -> None:
        """Read the first-parent history of a branch, back to the last commit read before.

        If that is not in it, the branch was rewritten, and the approvals that were read are forgotten.
        """
        last = self._read_to if self._added < COMMITS_MAX else None
        current: str | None = head
        trees: dict[str, set[str]] = {}
        count = 0
        while current and current != last and count < COMMITS_MAX:
            commit = self._mirror.commit(current)
            if commit is None:
                break
            count += 1
            for directory, tree in self._approved(commit):
                trees.setdefault(directory, set()).add(tree)
            current = commit.parents[0] if commit.parents else None
        if last is None or current != last:
            self._trees, self._added = trees, 0
        else:
            self._added += count
            for directory, found in trees.items():
                self._trees.setdefault(directory, set()).update(found)
        self._read_to = head

    def _approved(self, commit: Commit) -> Iterator[tuple[str, str]]:
        """Yield the directories that a commit approved, with their trees."""
        for note in layout.parse_annotations(commit.message):
            if note.task is None and note.package and layout.revision_number(f"v{note.revision}") > 0:
                tree = self._mirror.tree_of(commit.id, note.package)
                if tree is not None:
                    yield note.package, tree


def condition(repository: str, branch: str, packages: list[str]) -> dict[str, str] | None:
    """Return the condition that counts leftover folders, None if there are none.

    packages: the paths of their packages, as in PackageRevisions
    """
    if not packages:
        return None
    count = len(packages)
    subject, them = ("folder of a deleted package is", "it") if count == 1 else _MANY
    named = ", ".join(packages[:NAMED_MAX]) + (
        f" (and {count - NAMED_MAX} more)" if count > NAMED_MAX else ""
    )
    first = f"{repository}.{packages[0].replace('/', '.')}.{branch}"
    return {
        "type": CONDITION,
        "status": "True",
        "reason": "PackagesDeleted",
        "message": (
            f'{count} {subject} still on branch "{branch}", so a tool that deploys the branch still deploys '
            f"{them}: {named}. To remove one, propose and approve the deletion of its PackageRevision, such "
            f"as {first}. To remove the folder with the last revision from now on, set the annotation "
            f'{REMOVE_LAST_REVISION}: "true" on this Repository'
        ),
    }
