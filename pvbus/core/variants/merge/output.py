"""Tells what a package's pipeline has made from what a person has changed, for the conflicts of a merge.

A local package is rendered, its old upstream is not: to a merge, all output of the pipeline is a local
change. It is no such change if the pipeline makes it again of upstream's value. So the old value is put back
in every place in conflict, the package is rendered, and where the local value is there again, no person has
set it.
"""

from collections.abc import Iterable
from contextlib import suppress

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge import MergeError
from pvbus.core.variants.merge.objects import without_bookkeeping
from pvbus.core.variants.merge.packages import Texts, changed_files
from pvbus.core.variants.merge.taking import value_of, with_value
from pvbus.core.yaml.editor import YamlError, same


def put_back(conflicts: Iterable[Conflict], local: Texts) -> dict[str, str]:
    """Return the local texts with the old values in the places of the conflicts, as far as they have some."""
    texts = dict(local)
    for conflict in conflicts:
        if _has_place(conflict):
            with suppress(MergeError, YamlError):
                texts = with_value(conflict, texts, conflict.old)
    return texts


def made_again(conflicts: Iterable[Conflict], rendered: Texts) -> tuple[Conflict, ...]:
    """Return the conflicts whose local value is in the rendered package. rendered: made of `put_back`."""
    return tuple(conflict for conflict in conflicts if _is_made_again(conflict, rendered))


def _has_place(conflict: Conflict) -> bool:
    """Return whether a pipeline may have made the local value: of a field, or of what upstream had."""
    return conflict.local is not ABSENT and (bool(conflict.field) or conflict.old is not ABSENT)


def _is_made_again(conflict: Conflict, rendered: Texts) -> bool:
    if not _has_place(conflict):
        return False
    try:
        found = value_of(conflict, rendered)
    except YamlError:
        return False
    if conflict.folder and found is not ABSENT:
        return not changed_files(found, conflict.local)
    return found is not ABSENT and same(without_bookkeeping(found), without_bookkeeping(conflict.local))
