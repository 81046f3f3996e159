"""Which variants records of the bus are about, whether or not they change what is known of these.

For a reader that goes on from an earlier position: a compacted topic no longer has what was there before, so
a record may bring back what the reader knows already, and yet be news to whoever it reports to.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pvbus.core.kernel.keys import ChildKey, ConditionKey, Key, ObjectKey, SubjectKey, is_check
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import LATEST, OBJECTS, SETS, UNROLL, VARIANTS
from pvbus.core.variants.notices import LIFECYCLE_TYPE
from pvbus.core.web.model import REVISION, SHOWN, VARIANT, Model

RecordKey = tuple[str, str]
"""Topic and key."""


class _About(NamedTuple):
    """What records are about, as far as their keys tell. drafts: those whose own rows are among them"""

    variants: set[str]
    sets: set[str]
    revisions: set[str]
    drafts: set[str]


def variants_in(model: Model, keys: Iterable[RecordKey]) -> set[str]:
    """Return the variants that records are about. model: has the records"""
    about = _about(model, keys)
    found = about.variants
    if about.sets:
        found |= {name for name, row in model.variants.items() if row.set_name in about.sets}
    return found | _owners(model, about.revisions)


def drafts_in(model: Model, keys: Iterable[RecordKey]) -> set[str]:
    """Return the package revisions whose own rows are among records."""
    return _about(model, keys).drafts


def _about(model: Model, keys: Iterable[RecordKey]) -> _About:
    about = _About(set(), set(), set(), set())
    for topic, key in keys:
        if not is_marker(key) and not is_check(key):
            with suppress(ValueError):  # a key that cannot be read changes nothing
                _note(model, about, topic, key)
    return about


def _note(model: Model, about: _About, topic: str, key: str) -> None:
    if topic == VARIANTS:
        about.variants.add(key)
    elif topic == SETS:
        about.sets.add(key)
    elif topic == UNROLL:
        child = ChildKey.parse(key)
        about.variants.add(str(Key(Key.parse(child.skey).namespace, child.variant)))
    elif topic == OBJECTS:
        observed = ObjectKey.parse(key)
        about.variants.update(model.made_from(key))
        if observed.kind == REVISION:
            about.drafts.add(f"{observed.namespace}/{observed.name}")
    elif topic == LATEST:
        subject, type_ = ConditionKey.parse(key)
        kind, name = SubjectKey.parse(subject)
        if kind == VARIANT and type_ in SHOWN:
            about.variants.add(name)
        elif kind == REVISION and type_ == LIFECYCLE_TYPE:
            about.revisions.add(name)


def _owners(model: Model, revisions: set[str]) -> set[str]:
    """Return the variants of package revisions; of one that is gone those that may have had it."""
    known = {name: model.owner_of(name) for name in revisions}
    found = {owner for owner in known.values() if owner}
    if packages := {name.rpartition(".")[0] for name, owner in known.items() if not owner}:
        found |= {name for name, row in model.variants.items() if _package(name, row.downstream) in packages}
        found |= {name for name, row in model.variants.items() if not row.downstream}
    return found


def _package(variant: str, downstream: str) -> str:
    """Return the name of a package's revisions without the workspace, which has no dot."""
    return f"{Key.parse(variant).namespace}/{downstream.replace('/', '.')}"
