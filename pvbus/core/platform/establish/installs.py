"""Installs that exist for others: made from the lock's template, handed on, moved, and removed.

Such an install has an annotation that names the install that it was made for, the first of its holders. An
object that has another owner in it, or none, is a user's: it is left alone.
"""

from collections.abc import Generator, Mapping
from typing import Any

from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, Update
from pvbus.core.kernel.keys import ObjectKey, digest
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagerows import LockRow, ScopedKey
from pvbus.core.platform.establish.families import family_of, kind_of_key
from pvbus.core.platform.establish.objects import CONTENT, Object, contains, with_annotations
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.packaging.carvelfacts import ORPHANED
from pvbus.core.platform.packaging.statuses import DELETING

SOON_SECONDS = 2.0
"""After a write of an install, until its echo changes the lock."""


def holder_of(row: LockRow) -> str:
    """Return the first holder of an install as `<kind>/<name>`, "" without."""
    if not row.holders:
        return ""
    first = row.holders[0]
    key = ObjectKey.parse(ScopedKey.parse(first).rest if first.count("|") > 2 else first)
    return f"{key.kind}/{key.name}"


def is_made(live: Mapping[str, Any] | None, key: ObjectKey) -> bool:
    """Return whether an install is there for others."""
    return live is not None and bool(annotation(live, family_of(key).owner))


def make(key: ObjectKey, row: LockRow) -> Generator[Effect, Any, Carried]:
    """Make an install that does not exist yet. One that a user has made meanwhile is left as it is."""
    kind = kind_of_key(key)
    live: Object | None = yield Get(kind, key.namespace, key.name)
    if live is None:
        yield Create(kind, _new(kind, key, row))
    waiting = "the lock to know the install that was made"
    return Carried(reason="Creating", message=waiting, waiting=(waiting,), again_after=SOON_SECONDS)


def _new(kind: KindRef, key: ObjectKey, row: LockRow) -> Object:
    """Return an install as the template says: a spec, or a spec with metadata of its own."""
    meta: Object = {"name": key.name}
    if key.namespace:
        meta["namespace"] = key.namespace
    meta["annotations"] = {family_of(key).owner: holder_of(row), CONTENT: digest(row.template)}
    return {
        "apiVersion": f"{kind.group}/{kind.version}",
        "kind": kind.kind,
        "metadata": meta,
        "spec": dict(row.template),
    }


def update(key: ObjectKey, row: LockRow, obj: Object) -> Generator[Effect, Any, str]:
    """Hand an install on to its present holder, and give it the template of the lock.

    Returns in words how it differs from the template by a change that is not ours, "" if it does not.
    """
    if not is_made(obj, key):
        return ""
    if not row.holders:
        if row.reason == ORPHANED or row.status == "refused":  # a refusal has a reason of its own
            orphan: Object | None = yield Get(kind_of_key(key), key.namespace, key.name)
            if orphan is not None and is_made(orphan, key):
                yield Update(
                    kind_of_key(key), with_annotations(orphan, {family_of(key).owner: None, CONTENT: None})
                )
        return ""
    changes: dict[str, str | None] = {}
    if annotation(obj, family_of(key).owner) != holder_of(row):
        changes[family_of(key).owner] = holder_of(row)
    spec, drift = obj.get("spec") or {}, ""
    if row.template and annotation(obj, CONTENT) != digest(row.template):
        changes[CONTENT] = digest(row.template)
        spec = {**spec, **row.template}
    elif row.template and not contains(spec, row.template):
        fields = [name for name, value in row.template.items() if not contains(spec.get(name), value)]
        drift = f"somebody has changed spec.{', spec.'.join(fields)} of an install that others need"
    if changes:
        live: Object | None = yield Get(kind_of_key(key), key.namespace, key.name)
        if live is not None and live["metadata"].get("uid") == obj["metadata"].get("uid"):
            given = {**(live.get("spec") or {}), **spec}
            taken = _taken_back(key, row) if CONTENT in changes else ()
            left = {name: value for name, value in given.items() if name not in taken}
            yield Update(kind_of_key(key), {**with_annotations(live, changes), "spec": left})
    return drift


def _taken_back(key: ObjectKey, row: LockRow) -> tuple[str, ...]:
    """Return the fields that the template has no longer, or never had."""
    return tuple(name for name in family_of(key).passed_on if name not in row.template)


def delete(key: ObjectKey, live: Object) -> Generator[Effect, Any, Carried]:
    """Delete an install that nobody needs any more. live: its object."""
    meta = live["metadata"]
    if not meta.get("deletionTimestamp"):
        uid, version = meta.get("uid", ""), meta.get("resourceVersion", "")
        yield Delete(kind_of_key(key), key.namespace, key.name, uid, version)
    waiting = "the install to be gone"
    message = f"waits for {waiting}"
    return Carried(reason=DELETING, waiting=(waiting,), message=message, again_after=SOON_SECONDS)


def release(key: ObjectKey, live: Object) -> Generator[Effect, Any, Carried]:
    """Leave an install to the user: it does not say any more whom it was made for. live: its object."""
    yield Update(kind_of_key(key), with_annotations(live, {family_of(key).owner: None, CONTENT: None}))
    return Carried(is_over=True)
