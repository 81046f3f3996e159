"""The keys under which promote and release serve a PackageRevision that no PackageVariant owns.

Such a revision has a row of its own, `PackageRevision|<namespace>/<name>`, in the partition of its own name.
The row of a revision that a variant owns has the variant's key, so the two are never mixed up: when a variant
adopts the revision, its owner and so its digest change, and an order that was made on it alone is void.
"""

from pvbus.core.kernel.keys import Key, SubjectKey
from pvbus.core.kernel.objectrows import REVISION

_PREFIX = f"{REVISION.kind}|"


def unowned_key(namespace: str, name: str) -> str:
    return str(SubjectKey(REVISION.kind, str(Key(namespace, name))))


def is_unowned(key: str) -> bool:
    """Tell whether a key is that of a revision, not of a variant."""
    return key.startswith(_PREFIX)


def address_of(key: str) -> Key:
    """Return namespace and name of the variant or revision that a key is of."""
    return Key.parse(key.removeprefix(_PREFIX))
