"""What the page shows of one variant beyond the bus: its revisions, what its draft changes, and its events.

All of it is read from the API server as the person's own user.
"""

import shlex
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import msgspec

from pvbus.cli.diff import Revisions, revisions_of, sides_of
from pvbus.cli.differences import differences, unified
from pvbus.cli.fleet import Member, require_served
from pvbus.cli.progress import VARIANT
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.keys import EDITED_BY, Key
from pvbus.core.kernel.objects import annotation
from pvbus.core.promotion.protocol.proposals import conflicts_of
from pvbus.core.variants.merge.objects import words_of
from pvbus.core.variants.revisions.making import CAUSE
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.core.variants.revisions.signatures import shown_digest
from pvbus.core.web.conflicts import HIDDEN, is_secret, values_of
from pvbus.core.web.forges import links_of
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Cluster, Kind, Object

EVENT = Kind("", "Event")
FILES_MAX, FIELDS_MAX, EVENTS_MAX = 100, 100, 50
DIFF_CHARACTERS_MAX = 50_000
"""Of one file: more is not read on a page; `pvbus diff` has all."""

Document = dict[str, Any]


async def detail_of(cluster: Cluster, key: Key) -> Document:
    """Return the revisions of a variant, the changes of its draft, its conflicts and its events.

    A part that cannot be read has an `error` in words. Raises PvbusError without the variant itself.
    """
    found = await revisions_of(cluster, key)
    members = [*found.drafts, *found.published_all]
    return {
        "revisions": [revision_row(each) for each in members],
        "conflicts": [_conflict(each) for draft in found.drafts for each in conflicts_of(draft.revision)],
        "published": await _or_error(_changes(cluster, found, upstream=False)),
        "upstream": await _or_error(_changes(cluster, found, upstream=True)),
        "events": await _or_error(read_events(cluster, key)),
    }


async def _or_error(work: Awaitable[Document]) -> Document:
    try:
        return await work
    except PvbusError as exc:
        return {"error": str(exc)}


def revision_row(member: Member) -> Document:
    """Return a revision: its lifecycle, who published it when, and where it is in git."""
    revision = member.revision
    status = revision.get("status") or {}
    git = (status.get("selfLock") or {}).get("git") or {}
    address, commit, ref = (str(git.get(name) or "") for name in ("repo", "commit", "ref"))
    links = links_of(address, commit, str(git.get("directory") or ""))
    is_local = address.startswith(("/", "file:///"))
    log = ["git", "-C", address.removeprefix("file://"), "log", ref]
    return {
        "name": member.name,
        "lifecycle": lifecycle_of(revision),
        "revision": revision["spec"].get("revision") or 0,
        "at": status.get("publishTimestamp") or revision["metadata"].get("creationTimestamp") or "",
        "by": status.get("publishedBy") or annotation(revision, EDITED_BY),
        "why": annotation(revision, CAUSE) or _task_words(revision),
        "ref": ref,
        "commit": commit,
        "links": links._asdict() if links is not None else None,
        "log": shlex.join(log) if is_local and ref else "",
    }


def _task_words(revision: Object) -> str:
    """Return what a revision was made from, as its first task says, "" if it has none."""
    match next(iter(revision["spec"].get("tasks") or ()), {}):
        case {"type": "upgrade", "upgrade": {"newUpstreamRef": {"name": str(name)}}}:
            return f"upgrade to {name}"
        case {"type": "edit", "edit": {"sourceRef": {"name": str(name)}}}:
            return f"copy of {name}"
        case {"type": other}:
            return str(other)
    return ""


def _conflict(each: Any) -> Document:
    sides = values_of(each)
    plain = msgspec.to_builtins(each)
    old = HIDDEN if is_secret(each) else plain.get("old")
    return {
        "file": each.file,
        "object": each.object,
        "field": each.field,
        "warning": each.is_warning,
        "old": old,
        **sides,
    }


# ------------------------------------------------------------ what a draft changes


async def _changes(cluster: Cluster, found: Revisions, *, upstream: bool) -> Document:
    sides = await sides_of(cluster, found, upstream=upstream)
    if sides is None:
        return {"files": []}
    changed = [
        path for path in sorted({*sides.before, *sides.after}) if _differs(path, sides.before, sides.after)
    ]
    files = [file_change(path, sides.before, sides.after) for path in changed[:FILES_MAX]]
    more = max(len(changed) - FILES_MAX, 0)
    seen = {"revision": str(Key(found.variant["metadata"]["namespace"], sides.newer))}
    seen["content"] = shown_digest(sides.after)
    return {"older": sides.older, "newer": sides.newer, "files": files, "more": more, **seen}


def _differs(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    return before.get(path) != after.get(path)


def file_change(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> Document:
    """Return how a file differs: field by field where it has objects, and as text."""
    only = ({path: side[path]} if path in side else {} for side in (before, after))
    text = unified(*only)
    fields = list(field_changes(before.get(path, ""), after.get(path, "")))
    what = "changed" if path in before and path in after else "added" if path in after else "removed"
    return {
        "file": path,
        "what": what,
        "fields": fields[:FIELDS_MAX] if what == "changed" else [],
        "more": max(len(fields) - FIELDS_MAX, 0) if what == "changed" else 0,
        "diff": text[:DIFF_CHARACTERS_MAX],
        "cut": max(len(text) - DIFF_CHARACTERS_MAX, 0),
    }


def field_changes(before: str, after: str) -> Iterator[Document]:
    """Yield the fields of objects that differ between two texts; none where one is not of objects."""
    old, new = _objects(before), _objects(after)
    if old is None or new is None:
        return
    for words in dict.fromkeys((*old, *new)):
        for each in differences(old.get(words), new.get(words)):
            yield {"object": words, "field": each["path"], "before": each["before"], "after": each["after"]}


def _objects(text: str) -> dict[str, Object] | None:
    """Return the objects of a file by their words; None if it is no YAML, or has one of them twice."""
    try:
        values = [value for value in editor.values(text) if isinstance(value, dict)]
    except editor.YamlError:
        return None
    found = {words_of(value): value for value in values}
    return found if len(found) == len(values) else None


# ------------------------------------------------------------ events


async def read_events(cluster: Cluster, key: Key) -> Document:
    """Return the newest Events of a variant as `rows`. Raises PvbusError."""
    selector = f"involvedObject.kind={VARIANT.kind},involvedObject.name={key.name}"
    resource = await require_served(cluster, EVENT)
    items = (await cluster.list(resource, key.namespace, field_selector=selector)).items
    rows = sorted(map(_event, items), key=lambda row: str(row["at"]), reverse=True)
    return {"rows": rows[:EVENTS_MAX]}


def _event(event: Object) -> Document:
    at = (
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )
    words = {name: str(event.get(name) or "") for name in ("type", "reason", "message")}
    return {"at": at, **words, "count": event.get("count") or 1}
