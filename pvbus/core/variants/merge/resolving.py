"""Tells which conflicts of a merge are open: the package still holds what the merge took."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from pvbus.core.kernel.conflicts import ABSENT, Conflict, shown
from pvbus.core.variants.merge.packages import Texts
from pvbus.core.variants.merge.taking import beside, value_of
from pvbus.core.yaml.editor import YamlError

_canonical = msgspec.json.Encoder(order="sorted")


def unresolved(conflicts: Iterable[Conflict], texts: Texts) -> tuple[Conflict, ...]:
    """Return the conflicts whose value is still the taken one, and the warnings whose elements are both
    there. A person resolves one by changing it."""
    return tuple(conflict for conflict in conflicts if _is_open(conflict, texts))


def carried(conflicts: Iterable[Conflict], texts: Texts) -> Iterator[Conflict]:
    """Yield open conflicts as they are after a later merge, which may have taken a newer upstream value."""
    for conflict in conflicts:
        new = conflict.new
        if conflict.field and conflict.taken == "upstream":
            with suppress(YamlError):  # else the report stays as it is
                new = value_of(conflict, texts)
        yield msgspec.structs.replace(conflict, new=new)


def _is_open(conflict: Conflict, texts: Texts) -> bool:
    if not conflict.has_values:  # no one can tell
        return True
    taken = conflict.local if conflict.taken == "local" else conflict.new
    try:
        if conflict.is_warning:
            return all(value_of(one, texts) is not ABSENT for one in (conflict, beside(conflict)))
        present = value_of(conflict, texts)
    except YamlError:  # no one can tell
        return True
    if conflict.folder or (conflict.object and not conflict.field):
        return (present is ABSENT) == (taken is ABSENT)  # rendering may change it, so its presence counts
    return _is_same(present, taken)


def _is_same(present: Any, taken: Any) -> bool:
    """Compare a value with one that was in the annotation, which may be cut."""
    if present is ABSENT or taken is ABSENT:
        return present is taken
    return _canonical.encode(shown(present)) == _canonical.encode(shown(taken))
