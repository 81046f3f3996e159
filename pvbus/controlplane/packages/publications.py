"""Who published the packages on a Repository's branch, and when.

A placeholder is a package's folder on the branch. The commit at which the folder was read is mostly one of
another package: a push of many approvals moves the branch once. So this is read from the commits that name
the package, like in Porch.

The branch is read along its first parents, as an approval merges a draft, and only what was committed since
it was read last. What a user has pushed without a line of the store's names nobody.

Source: Porch v1.5.8, pkg/externalrepo/git/git.go, findLatestPackageCommit.
"""

import msgspec

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.gitrepo import BareMirror, Commit
from pvbus.controlplane.packages.leftovers import COMMITS_MAX


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The last publication of a package.

    by: the author's address
    at: the author's time, as RFC 3339 in UTC
    """

    by: str
    at: str


def read(
    mirror: BareMirror, head: str | None, last: str | None = None
) -> tuple[dict[str, Publication], bool]:
    """Return the last publications on a branch, by directory, and whether the reading came to `last`.

    Where it did not, the branch was rewritten, or merged into another one: what was known before counts no
    more. A commit that cannot be read ends the reading, like the first one of the branch.

    head: the branch's commit, None without a branch
    last: the commit up to which the branch is known, None if it is not
    """
    found: dict[str, Publication] = {}
    current = head
    for _ in range(COMMITS_MAX):
        if current is None or current == last:
            break
        commit = _commit(mirror, current)
        if commit is None:
            break
        for note in layout.parse_annotations(commit.message):
            if note.package and note.package not in found:
                found[note.package] = Publication(by=commit.author_email, at=commit.authored)
        current = commit.parents[0] if commit.parents else None
    return found, current is not None and current == last


def _commit(mirror: BareMirror, oid: str) -> Commit | None:
    try:
        return mirror.commit(oid)
    except ContentError:
        return None
