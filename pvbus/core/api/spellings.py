"""Fields that readers of the design documents write and the API does not have, with those it has.

Source: Nephio's documents of PackageVariant and PackageVariantSet, whose examples are older than the API.
"""

import re
from collections.abc import Sequence
from typing import Final

_HINTS: Final[Sequence[tuple[str, str]]] = (
    (r"injectionSelectors$", "objects to inject are listed in `injectors`, each with kind and name"),
    (
        r"upstream\.tag$",
        "a tag that moves is named by `workspaceName`: `stable` for the git tag `<package>/stable`",
    ),
    (
        r"[sS]elector\.labelSelector(\.|$)",
        "the labels stand beside kind: `matchLabels`, `matchExpressions`",
    ),
    (r"targets\[\d+\]\.(packageExpr|repoExpr)$", "it stands in `template.downstream`"),
)
_UPSTREAM_NAME: Final = re.compile(r"\bupstream\.name\b")
_KINDS: Final = frozenset(["PackageVariant", "PackageVariantSet"])


def unknown_field(kind: str, path: str) -> str:
    """Return the message about a field that the API does not have, with the right field if one is known."""
    hint = hint_of(kind, path)
    return f'unknown field "{path}" ({hint})' if hint else f'unknown field "{path}"'


def hint_of(kind: str, path: str) -> str:
    """Return the right spelling of an unknown field, "" if nothing is known of it."""
    if kind not in _KINDS:
        return ""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, path)), "")


def meaning_of(path: str, expression: str) -> str:
    """Return a warning about an expression whose result its author does not expect, "" without one."""
    if path.endswith(".packageExpr") and _UPSTREAM_NAME.search(expression):
        return (
            "upstream.name is the name of the PackageRevision, such as blueprints.app.v1; the name of the "
            "package is packageDefault"
        )
    return ""
