"""What a variant takes of an upstream that changes in place: `pvbus.dev/follow` is for a draft that is saved,
`pvbus.dev/moved-tags` for a tag that is moved.

The annotations are on the PackageVariant, or in its `spec.annotations`, which a set's template fills. So the
spec has no field that a cluster with Porch's definitions would prune.
"""

from collections.abc import Iterator, Mapping

from pvbus.core.api.variants import PackageVariant

FOLLOW = "pvbus.dev/follow"
PUBLICATIONS = "publications"
"""The default: each save of the upstream would be a commit in the draft of each variant, or a new draft."""
SAVES = "saves"

MOVED_TAGS = "pvbus.dev/moved-tags"
UPDATE = "update"
"""The default: a moved tag is a reason for an update."""
REFUSE = "refuse"
_VALUES = {FOLLOW: (PUBLICATIONS, SAVES), MOVED_TAGS: (UPDATE, REFUSE)}
"""By annotation, the default and the other value."""


def follows_saves(variant: PackageVariant) -> bool:
    """Return whether a variant takes what is saved to a draft before it is published."""
    return _value(variant, FOLLOW) == SAVES


def refuses_moved_tags(variant: PackageVariant) -> bool:
    """Return whether a variant keeps what it has when the tag of its upstream is moved."""
    return _value(variant, MOVED_TAGS) == REFUSE


def _value(variant: PackageVariant, name: str) -> str | None:
    """Return an annotation; the variant's own comes before those that it gives to its revisions."""
    return variant.metadata.annotations.get(name, variant.spec.annotations.get(name))


def follow_problems(field: str, annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the annotations. field: the path of the annotations."""
    for name, (usual, other) in _VALUES.items():
        value = annotations.get(name, usual)
        if value not in (usual, other):
            yield f'{field}[{name}] can only be "{usual}" or "{other}", not "{value[:40]}"'
