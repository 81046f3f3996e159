"""What the paths and workspaces of packages are like.

Source: Porch v1.5.8, pkg/util/util.go.
"""

import re

from pvbus.core.kernel import keys

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PATH = re.compile(r"[a-z0-9/]([-a-z0-9/]*[a-z0-9/])?")


def label_problem(text: str) -> str | None:
    """Return why a text is not an RFC 1123 label, None if it is one."""
    if len(text) > keys.NAME_BYTES_MAX:
        return f"must be no more than {keys.NAME_BYTES_MAX} characters"
    if not _LABEL.fullmatch(text):
        return (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        )
    return None


def package_problem(path: str) -> str | None:
    """Return why a text is not a package path, None if it is one."""
    parents, _, name = path.rpartition("/")
    if problem := label_problem(name):
        return problem
    if "//" in path or path.startswith("/") or (parents and not _PATH.fullmatch(parents)):
        return "the path must be labels joined by single slashes"
    if len(parents.replace("/", "")) > keys.NAME_BYTES_MAX:
        return f"the path must be no more than {keys.NAME_BYTES_MAX} characters"
    return None
