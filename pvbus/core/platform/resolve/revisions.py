"""The revisions of one install: which there are, and which one is active.

A revision is a content, so its digest identifies it: the same digest never makes a second one. Exactly one is
active, once one was: a change of the active one is one row. A user activates a revision in its object, by a
desiredState other than establish's last, which the object has in the annotation WROTE. Both are written in
one request, so an observer never takes a late write of establish for a user's. A user's change is acted on
once: the row has the generation of the object at which that was done.

Source: Crossplane's design document on Packages v2.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.packagerows import LockedRevision

ACTIVE, INACTIVE = "Active", "Inactive"


class RevisionObject(NamedTuple):
    """A revision's object in the cluster.

    desired: its desiredState
    wrote: the desiredState that establish wrote last, "" if the object does not say
    generation: the generation of the object
    """

    name: str
    digest: str
    revision: int = 0
    version: str = ""
    source: str = ""
    desired: str = INACTIVE
    wrote: str = ""
    generation: int = 0


class Intent(NamedTuple):
    """What an install asks for.

    digest: the digest of the content, "" while that is unknown
    name: the name of the revision of this content
    is_manual: whether a new content waits for a user
    wanted: what the install asks for, in words that differ when that changes; "" if users activate anyway
    """

    digest: str
    name: str = ""
    version: str = ""
    source: str = ""
    objects: tuple[str, ...] = ()
    is_manual: bool = False
    history_max: int = 1
    wanted: str = ""


class History(NamedTuple):
    """The revisions of an install.

    revisions: the revisions, in the order of their numbers
    observed: the digest that the install asked for and that was last acted on, "" while that is unknown
    """

    revisions: tuple[LockedRevision, ...] = ()
    observed: str = ""

    @property
    def active(self) -> LockedRevision | None:
        return next((each for each in self.revisions if each.is_active), None)

    def of(self, digest: str) -> LockedRevision | None:
        return next((each for each in self.revisions if each.digest == digest), None)


class Request(NamedTuple):
    """What users changed in revisions' objects and nothing has acted on yet.

    activate: the digest of the revision that is to become active, "" if no change asks for one
    deactivate: whether the active revision is to become inactive
    seen: revision name -> generation of its object with such a change
    """

    activate: str = ""
    deactivate: bool = False
    seen: Mapping[str, int] = {}


def rebuilt(objects: Iterable[RevisionObject], current: str) -> History:
    """Return the history that the cluster's revisions tell, for an install that the lock does not have.

    current: the active one in the status of the install, "" if none ever was. Of several active ones, which a
    crash may leave, the newest counts. Of none the current one does, as establish ends one before it begins
    the next; and if that is gone, the newest.
    """
    by_digest: dict[str, RevisionObject] = {}
    for each in sorted(objects, key=lambda each: (_was_active(each), each.revision, each.name)):
        by_digest[each.digest] = each
    retained = sorted(by_digest.values(), key=lambda each: (each.revision, each.name))
    active = [each for each in retained if _was_active(each)]
    if current and not active:
        active = [each for each in retained if each.name == current] or retained
    revisions: list[LockedRevision] = []
    for each in retained:
        revisions.append(
            LockedRevision(
                name=each.name,
                revision=max(each.revision, _next_number(revisions)),
                digest=each.digest,
                version=each.version,
                source=each.source,
                is_active=bool(active) and each is active[-1],
            )
        )
    return History(tuple(revisions))


def _was_active(seen: RevisionObject) -> bool:
    return (seen.wrote or seen.desired) == ACTIVE


def request_of(history: History, objects: Iterable[RevisionObject]) -> Request:
    """Return what users ask for in revisions' objects. Of several activated ones the newest is asked for."""
    known = {each.name: each for each in history.revisions}
    activated: list[LockedRevision] = []
    deactivate, seen = False, {}
    for each in objects:
        revision = known.get(each.name)
        if revision is None or not each.wrote or each.desired == each.wrote:
            continue
        if each.generation <= revision.asked:
            continue
        seen[each.name] = each.generation
        if each.desired == ACTIVE and not revision.is_active:
            activated.append(revision)
        deactivate = deactivate or (each.desired == INACTIVE and revision.is_active)
    newest = max(activated, key=lambda each: each.revision, default=None)
    return Request(newest.digest if newest else "", deactivate, seen)


def next_digest(history: History, intent: Intent, request: Request) -> str:
    """Return the digest that is to be active after this, "" for none."""
    if request.activate:
        return request.activate
    if is_new(history, intent) and not intent.is_manual:
        return intent.digest
    return history.active.digest if history.active else ""


def is_held(history: History, wanted: str) -> bool:
    """Tell whether a user has activated another revision than the one that is asked for, and it stays.

    wanted: see `Intent`
    """
    return history.active is not None and history.active.held == wanted != ""


def new_contents(history: History, intent: Intent, target: str) -> dict[str, str]:
    """Return what a step would make active, or a revision of, and is not active: digest -> version.

    target: see `next_digest`
    """
    active, former = history.active, history.of(target)
    contents = {target: former.version} if former is not None and former != active else {}
    if is_new(history, intent) and (active is None or intent.digest != active.digest):
        contents[intent.digest] = intent.version
    return contents


def is_new(history: History, intent: Intent) -> bool:
    """Tell whether the install asks for another content than the one that was acted on.

    After a loss of the lock it is not known what that was. Then a content that has a revision was acted on
    if this is not newer than the active one: what becomes active gets the highest number.
    """
    if not intent.digest or intent.digest == history.observed:
        return False
    known, active = history.of(intent.digest), history.active
    is_lost = not history.observed and bool(history.revisions)
    if is_lost and known is not None and active is not None:
        return known.revision > active.revision
    return True


def advanced(history: History, intent: Intent, request: Request) -> History:
    """Return the history after what the install and its users ask for.

    Caller: only if the content that the intent has, and the one that becomes active, may be installed.
    """
    target = next_digest(history, intent, request)
    revisions = list(history.revisions)
    observed = history.observed or intent.digest
    if is_new(history, intent):
        observed = intent.digest
        if history.of(intent.digest) is None:
            revisions.append(
                LockedRevision(
                    name=intent.name,
                    revision=_next_number(revisions),
                    digest=intent.digest,
                    version=intent.version,
                    source=intent.source,
                    objects=intent.objects,
                )
            )
    revisions = [_seen(_named(each, intent), request) for each in revisions]
    known = history.of(target) is not None
    number = _next_number(revisions) if known else _next_number(history.revisions)
    held = intent.wanted if request.activate and request.activate != observed else ""
    return History(collected(_activated(revisions, target, number, held), intent.history_max), observed)


def _next_number(revisions: Iterable[LockedRevision]) -> int:
    return max((each.revision for each in revisions), default=0) + 1


def _named(revision: LockedRevision, intent: Intent) -> LockedRevision:
    """Return a revision with the version and the source by which the install names its content now."""
    version, source = intent.version or revision.version, intent.source or revision.source
    if revision.digest != intent.digest or (version, source) == (revision.version, revision.source):
        return revision
    return msgspec.structs.replace(revision, version=version, source=source)


def _seen(revision: LockedRevision, request: Request) -> LockedRevision:
    generation = request.seen.get(revision.name, revision.asked)
    if generation == revision.asked:
        return revision
    return msgspec.structs.replace(revision, asked=generation)


def _activated(revisions: list[LockedRevision], digest: str, number: int, held: str) -> list[LockedRevision]:
    """Make the revision of a digest the active one, with this number. held: see `LockedRevision`."""
    found = next((each for each in revisions if each.digest == digest), None)
    if found is None or found.is_active:
        return revisions
    changed = []
    for each in revisions:
        if each is found:
            changed.append(msgspec.structs.replace(each, is_active=True, revision=number, held=held))
        elif each.is_active:
            changed.append(msgspec.structs.replace(each, is_active=False, held=""))
        else:
            changed.append(each)
    return changed


def collected(revisions: Iterable[LockedRevision], history_max: int) -> tuple[LockedRevision, ...]:
    """Return the revisions that are kept, by number: the active one, and the newest others.

    history_max: how many others, 0 for all of them.
    """
    ordered = sorted(revisions, key=lambda each: each.revision)
    others = [each for each in ordered if not each.is_active]
    gone = {each.name for each in others[:-history_max]} if history_max > 0 else set()
    return tuple(each for each in ordered if each.name not in gone)
