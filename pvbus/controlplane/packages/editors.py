"""Who edited a draft: the people whose commits it has, apart from those of pvbus and of other programs.

A commit of pvbus' own services has the line `Cause: ` with the variant or the policy that it is for, or it
creates a draft for a PackageVariant. Of the others, a service account's is a program's, and so is one of the
package store itself. Everything else was written by a person: through the API, or with a push. Apart from
`tips`, so that the rule can be read, and tested, without a repository.
"""

import re

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.gitrepo import Commit
from pvbus.core.kernel.keys import WORKSPACE_PREFIX

UNNAMED = "somebody"
NAME_CHARACTERS_MAX = 100  # of one editor in an annotation: a longer one is no user's name
_GENERATED = re.compile(
    rf"^Cause: (PackageVariant \S+/\S+: |RolloutPolicy \S+/\S+, |{re.escape(layout.FUNCTIONS_CHANGED)}$)",
    re.MULTILINE,
)
_FOR_VARIANT = re.compile(r"^For PackageVariant \S+$", re.MULTILINE)
_SAVED_BY = re.compile(r"^Edit by (.+)$", re.MULTILINE)


def editor_of(commit: Commit, workspace: str, *, is_own: bool, is_first: bool) -> str:
    """Return the person who wrote a draft's commit, "" if none did.

    is_own: whether the commit has the package store's annotation for this draft
    is_first: whether the commit created the draft
    """
    if is_own:
        made = workspace.startswith(WORKSPACE_PREFIX) or _FOR_VARIANT.search(commit.message)
        if _GENERATED.search(commit.message) or (is_first and made):
            return ""
    said = _SAVED_BY.search(commit.message.partition("\n")[2]) if is_own else None  # not in the subject
    name = layout.one_line(said[1] if said else commit.author_email)[:NAME_CHARACTERS_MAX]
    if name.startswith(layout.PROGRAMS) or name == layout.SERVICE_EMAIL:
        return ""
    return name or UNNAMED
