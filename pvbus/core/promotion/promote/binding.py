"""Binds the conditions of an open revision to its content, on whatever server it is.

pvbus' package store does that itself, and records it in the Kptfile. Porch's own server binds nothing, so
promote notes the content that it first sees a condition True with. A condition of other content, or of
content that cannot be read, counts as Unknown for every rule; release writes that, as promote writes nothing.
Content that returns restores nothing. A condition with other words is a new statement.
"""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from pvbus.core.api.kptfile import FILE, read
from pvbus.core.api.variants import Condition
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Effect, Get
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.promotionrows import BoundCondition
from pvbus.core.promotion.promote.barrier import Signed
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import RESOURCES
from pvbus.core.variants.revisions.signatures import (
    INPUTS_CHANGED,
    Signature,
    holds,
    is_signature,
    outdated,
    signatures_in,
    signed_digest,
    survives_of,
)

CONTENT_UNKNOWN = "ContentUnknown"
UNREAD = "its files cannot be read, so nobody knows what it was found on: it counts when they can be"
Files = Mapping[str, str]


class Binding(NamedTuple):
    """The fields of a `Verdict` with these names."""

    content: str = ""
    bound: Mapping[str, BoundCondition] = {}
    void: tuple[str, ...] = ()


def statements_of(revision: ObservedRevision) -> dict[str, Condition]:
    """Return the conditions that say of the content that it is good, by type."""
    return {
        each.type: each
        for each in revision.facts.conditions
        if each.status == "True" and is_signature(each.type)
    }


def read_files(revision: ObservedRevision) -> Generator[Effect, Any, Files | None]:
    """Return the files of a revision, None if they cannot be read."""
    try:
        resources = yield Get(RESOURCES, revision.namespace, revision.name)
    except PermanentError:
        return None
    return (resources["spec"].get("resources") or {}) if resources is not None else None


def bind(statements: Mapping[str, Condition], before: Signed, files: Files | None) -> Binding:
    """Return what each condition is bound to, and which of them are of other content.

    before: what was returned last
    files: the revision's, None if they cannot be read: then nothing is bound, and nothing is unbound
    """
    former = {
        type_: each
        for type_, each in before.bound.items()
        if type_ in statements and each.words == _words(statements[type_])
    }
    void = {type_ for type_ in before.void if type_ in former}
    if files is None:
        return Binding("", former, tuple(sorted(void)))
    annotations, found = _annotations(files), dict(former)
    recorded = signatures_in(annotations)
    for type_, condition in statements.items():
        own = recorded.get(type_)
        if own is not None and holds(own, files):
            found[type_] = _bound(condition, own)
            void.discard(type_)
        elif type_ not in former:
            found[type_] = _bound(condition, _first_seen(type_, annotations, files))
        elif signed_digest(files, former[type_].survives) != former[type_].content:
            void.add(type_)
    return Binding(signed_digest(files), found, tuple(sorted(void)))


def believed(revision: ObservedRevision, signed: Signed) -> ObservedRevision:
    """Return a revision as every rule sees it: with a condition Unknown that is not known to be of its
    content."""
    conditions = tuple(_believed(each, signed) for each in revision.facts.conditions)
    if conditions == revision.facts.conditions:
        return revision
    return revision._replace(facts=replace(revision.facts, conditions=conditions))


def _believed(condition: Condition, signed: Signed) -> Condition:
    if condition.status != "True" or not is_signature(condition.type):
        return condition
    if not signed.content:
        return replace(condition, status="Unknown", reason=CONTENT_UNKNOWN, message=UNREAD)
    if condition.type not in signed.void:
        return condition
    said = {"type": condition.type, "reason": condition.reason, "message": condition.message}
    message = outdated(said)["message"]
    return replace(condition, status="Unknown", reason=INPUTS_CHANGED, message=message)


def _first_seen(type_: str, annotations: Mapping[str, str], files: Files) -> Signature:
    try:
        survives = survives_of(annotations, type_, files)
    except ValueError:  # too much to survive, so that nothing does
        survives = ()
    return Signature(content=signed_digest(files, survives), survives=survives)


def _bound(condition: Condition, signature: Signature) -> BoundCondition:
    return BoundCondition(content=signature.content, survives=signature.survives, words=_words(condition))


def _words(condition: Condition) -> str:
    return digest((condition.reason, condition.message))


def _annotations(files: Files) -> Mapping[str, str]:
    try:
        return read(files.get(FILE, "")).metadata.annotations
    except PermanentError:
        return {}
