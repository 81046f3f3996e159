"""What a variant takes of a draft that it follows: the annotation `pvbus.dev/follow`.

It is on the PackageVariant, or in its `spec.annotations`, which a set's template fills. So the spec has no
field that a cluster with Porch's definitions would prune.
"""

from collections.abc import Iterator, Mapping

from pvbus.core.api.variants import PackageVariant

FOLLOW = "pvbus.dev/follow"
PUBLICATIONS = "publications"
"""The default: each save of the upstream would be a commit in the draft of each variant, or a new draft."""
SAVES = "saves"


def follows_saves(variant: PackageVariant) -> bool:
    """Return whether a variant takes what is saved to a draft before it is published."""
    own, given = variant.metadata.annotations, variant.spec.annotations
    return own.get(FOLLOW, given.get(FOLLOW)) == SAVES


def follow_problems(field: str, annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the annotation. field: of the annotations."""
    value = annotations.get(FOLLOW, PUBLICATIONS)
    if value not in (PUBLICATIONS, SAVES):
        yield f'{field}[{FOLLOW}] can only be "{PUBLICATIONS}" or "{SAVES}", not "{value[:40]}"'
