"""Writes the objects of a revision so that all of them change or none does.

First every object is read, and its owner compared; then the API server checks every write without carrying
it out; only then are they written, one update per object, in which the former revision's control goes to the
new one. What the API server refuses after all is undone in reverse order. A crash in between is repaired by
the next run, which goes on or, if it may not, takes back what this revision has and never had whole.
"""

from collections.abc import Container, Generator, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.effects import Create, Delete, Discover, Effect, Get, KindRef, Update
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagerows import Stage
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish.objects import ADOPTED, CONTENT, Object, key_of, kind_of, title
from pvbus.core.platform.establish.owners import (
    Owner,
    owns,
    references_of,
    released,
    stranger_of,
    taken,
    without,
)

CONFLICT = "ObjectConflict"
"""The reason of a refusal as somebody else controls an object."""
_SHOWN_MAX = 5
"""Objects that a message names. More would not be read, and a condition's message has a limit."""


class RefusedError(Exception):
    """No object of a set may be written.

    reason: one CamelCase word, for the condition
    message: which object prevents it, and why
    stage: fetch, template or deploy, as the statuses of Carvel's kinds tell them apart
    """

    def __init__(self, reason: str, message: str, stage: Stage = "deploy") -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.stage: Stage = stage


class NotYetError(Exception):
    """An object is being deleted: it can be written when it is gone. message: which object."""


class Item(NamedTuple):
    """An object that is wanted, beside the one in the cluster.

    live: the object in the cluster, None if there is none
    new: the object to write; the live object itself if nothing is to be written
    """

    kind: KindRef
    wanted: Object
    live: Object | None
    new: Object

    @property
    def is_due(self) -> bool:
        return self.new is not self.live


def compare(
    wanted: Iterable[Object], owner: Owner, siblings: Container[str]
) -> Generator[Effect, Any, list[Item]]:
    """Read what is there of these objects, and return what is to be written, in order.

    Raises RefusedError if somebody else controls one, or its kind is not served, and NotYetError if one is
    being deleted.
    """
    placed = yield from with_namespaces(forms.in_order(wanted))
    items, foreign = [], []
    for obj in placed:
        kind, meta = kind_of(obj), obj["metadata"]
        live = yield from read(kind, meta.get("namespace", ""), meta["name"])
        if live is None:
            new = forms.wanted_object(obj, [owner.reference(is_controller=True)])
            items.append(Item(kind, obj, None, new))
            continue
        if stranger := stranger_of(live, owner, siblings):
            foreign.append(f"{title(key_of(obj))} is controlled by {stranger}")
            continue
        if live["metadata"].get("deletionTimestamp"):
            raise NotYetError(f"{title(key_of(obj))} is being deleted")
        items.append(Item(kind, obj, live, _taken_over(obj, live, owner, siblings)))
    if foreign:
        more = f", and {len(foreign) - _SHOWN_MAX} more" if len(foreign) > _SHOWN_MAX else ""
        raise RefusedError(CONFLICT, f"{'; '.join(foreign[:_SHOWN_MAX])}{more}: nothing was changed")
    return items


def _taken_over(obj: Object, live: Object, owner: Owner, siblings: Container[str]) -> Object:
    """Return a live object as the owner writes it; it is adopted if none of our revisions had it before."""
    references = references_of(live)
    is_known = any(
        owner.has(each)
        or (owner._replace(name=str(each.get("name"))).has(each) and each.get("name") in siblings)
        for each in references
    )
    is_adopted = bool(annotation(live, ADOPTED)) or not is_known
    return forms.updated_object(live, obj, taken(references, owner), is_adopted=is_adopted)


def with_namespaces(wanted: list[Object], default: str = "default") -> Generator[Effect, Any, list[Object]]:
    """Return objects without the namespaces that their kinds do not have. Raises RefusedError.

    default: the namespace of those that name none, and whose kinds need one.
    """
    own = forms.defined(wanted)
    scopes: dict[KindRef, bool] = {}
    placed = []
    for obj in wanted:
        kind = kind_of(obj)
        if kind not in scopes:
            served = yield Discover(kind)
            if served is None and (kind.group, kind.kind) not in own:
                raise RefusedError(
                    "NoMatch",
                    f"{title(key_of(obj))}: the API server does not serve {obj['apiVersion']} {kind.kind}",
                )
            scopes[kind] = own[kind.group, kind.kind] if served is None else served
        meta = {field: value for field, value in obj["metadata"].items() if field != "namespace"}
        if scopes[kind]:
            meta["namespace"] = obj["metadata"].get("namespace") or default
        placed.append({**obj, "metadata": meta})
    return placed


def read(
    kind: KindRef, namespace: str, name: str, as_user: str = ""
) -> Generator[Effect, Any, Object | None]:
    """Read an object; None also if its kind is not served yet."""
    try:
        found: Object | None = yield Get(kind, namespace, name, as_user)
    except PermanentError as error:
        if error.reason != "NoMatch":
            raise
        return None
    return found


def check(items: list[Item], *, as_user: str = "") -> Generator[Effect, Any, None]:
    """Have the API server check every write that is due. Raises RefusedError with its answer.

    An object whose kind, namespace or role is made by these writes cannot be checked before them.
    """
    own = forms.defined(item.wanted for item in items)
    namespaces = {item.wanted["metadata"]["name"] for item in items if _is_new(item, "Namespace")}
    roles = {item.wanted["metadata"]["name"] for item in items if _is_new(item, "ClusterRole", "Role")}
    for item in items:
        meta = item.wanted["metadata"]
        depends = (
            (item.kind.group, item.kind.kind) in own
            or meta.get("namespace") in namespaces
            or (item.wanted.get("roleRef") or {}).get("name") in roles
        )
        if not item.is_due or (item.live is None and depends):
            continue
        try:
            yield from _write(item, is_dry_run=True, as_user=as_user)
        except PermanentError as error:
            if error.reason == "NoMatch":
                continue
            raise RefusedError(
                error.reason, f"{title(key_of(item.wanted))}: {error}: nothing was changed"
            ) from error


def _is_new(item: Item, *kinds: str) -> bool:
    return item.live is None and item.kind.kind in kinds


def _write(item: Item, *, is_dry_run: bool = False, as_user: str = "") -> Generator[Effect, Any, Object]:
    if item.live is None:
        stored: Object = yield Create(item.kind, item.new, is_dry_run, as_user)
    else:
        stored = yield Update(item.kind, item.new, "", is_dry_run, as_user)
    return stored


def write(items: list[Item], *, as_user: str = "") -> Generator[Effect, Any, None]:
    """Write every object that is due. Raises RefusedError once all is undone that was written before."""
    journal: list[tuple[Item, Object]] = []
    for item in items:
        if not item.is_due:
            continue
        try:
            journal.append((item, (yield from _write(item, as_user=as_user))))
        except PermanentError as error:
            if error.reason == "NoMatch":
                raise NotYetError(f"{title(key_of(item.wanted))} waits until its kind is served") from error
            yield from _undo_writes(journal, as_user)
            raise RefusedError(
                error.reason, f"{title(key_of(item.wanted))}: {error}: what was written before was undone"
            ) from error


def _undo_writes(journal: list[tuple[Item, Object]], as_user: str) -> Generator[Effect, Any, None]:
    """Undo writes in reverse order. What others have written since is left to the next run.

    Each object is read again, as the API server's own controllers write a definition's status at once.
    """
    for item, stored in reversed(journal):
        meta = stored["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        live = yield from read(item.kind, namespace, name, as_user)
        if live is None or annotation(live, CONTENT) != annotation(item.new, CONTENT):
            continue
        version = live["metadata"].get("resourceVersion", "")
        with suppress(ConflictError):
            if item.live is None:
                yield Delete(item.kind, namespace, name, meta.get("uid", ""), version, as_user=as_user)
            else:
                before = {**item.live["metadata"], "resourceVersion": version}
                yield Update(item.kind, {**item.live, "metadata": before}, as_user=as_user)


def _read_owned(key: str, owner: Owner) -> Generator[Effect, Any, tuple[KindRef, Object] | None]:
    """Read an object with its kind; None if it is gone, or the owner does not own it."""
    parsed = ObjectKey.parse(key)
    kind = KindRef(parsed.group, parsed.kind)
    live = yield from read(kind, parsed.namespace, parsed.name)
    return (kind, live) if live is not None and owns(owner, live) else None


def take_back(keys: Iterable[str], owner: Owner) -> Generator[Effect, Any, None]:
    """Take back what a revision has that never had all its objects.

    What only this revision owns and has made is deleted; of all else it loses its reference. Raises the last
    PermanentError at the end: an object that must not be read is no reason to leave the others.
    """
    refused: PermanentError | None = None
    for key in keys:
        try:
            yield from _take_back_one(key, owner)
        except PermanentError as error:
            refused = error
    if refused is not None:
        raise refused


def _take_back_one(key: str, owner: Owner) -> Generator[Effect, Any, None]:
    if (owned := (yield from _read_owned(key, owner))) is None:
        return
    kind, live = owned
    meta, others = live["metadata"], without(references_of(live), owner)
    if not others and not annotation(live, ADOPTED):
        if not meta.get("deletionTimestamp"):
            namespace, version = meta.get("namespace", ""), meta.get("resourceVersion", "")
            yield Delete(kind, namespace, meta["name"], meta.get("uid", ""), version)
        return
    left = forms.with_owners(live, others)
    yield Update(kind, left if others else forms.with_annotations(left, {ADOPTED: None, CONTENT: None}))


def release_objects(keys: Iterable[str], owner: Owner) -> Generator[Effect, Any, tuple[str, ...]]:
    """Give up an owner's control of these objects, and keep its references. Return those that it owns.

    A reference with a former uid of the owner gets the present one.
    """
    keys_owned = []
    for key in keys:
        if (owned := (yield from _read_owned(key, owner))) is None:
            continue
        kind, live = owned
        keys_owned.append(key)
        references = released(references_of(live), owner)
        if references != references_of(live):
            yield Update(kind, forms.with_owners(live, references))
    return tuple(keys_owned)
