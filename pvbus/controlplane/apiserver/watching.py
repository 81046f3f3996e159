"""Watches: follow the log of changes of one kind from a resource version on.

A watcher has a position in the log and no queue of its own, so a slow one costs no memory. If the log no
longer has its position, it gets an error (410) and is closed. Events of the same change share their bytes.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.entries import Change, Entry, encode, event_line, event_parts
from pvbus.controlplane.apiserver.listing import Selection, asked_version
from pvbus.controlplane.apiserver.nodes import forbidden
from pvbus.controlplane.apiserver.registry import Registry
from pvbus.controlplane.apiserver.shapes import Form
from pvbus.controlplane.apiserver.store import ExpiredError, Store, Table

BOOKMARK_SECONDS = 10.0
"""How often an idle watcher gets a bookmark: after a lost connection it replays at most that much."""

CHUNK_CHANGES_MAX = 500
"""Changes read from the log at once."""

CHUNK_BYTES = 64 * 1024
"""Bytes of one write. A slow watcher holds about two of them; the objects are shared."""

HELD_BYTES_MAX = 1024 * 1024
"""Bytes of the changes that a watcher takes from the log at once, and holds until they are sent."""

DEFAULT_SECONDS = (1800, 3600)
"""A watch without timeoutSeconds ends after a random time in this range, as in kube-apiserver."""


class WatchPlan(NamedTuple):
    """A validated watch.

    selection: the selected objects
    form: the form in which they are sent
    initial: the objects to send first
    position: its start in the log
    rv: the resourceVersion of the store when it starts
    bookmarks: whether the client accepts bookmarks
    initial_bookmark: whether a bookmark ends the initial objects
    seconds: how long the watch lasts
    expired: why it cannot start there, "" if it can. As in a real API server this is an event, not the
        response's code.
    """

    selection: Selection
    form: Form
    initial: list[Entry]
    position: int
    rv: int
    bookmarks: bool
    initial_bookmark: bool
    seconds: float
    expired: str = ""


def plan(store: Store, selection: Selection, form: Form, query: Mapping[str, str]) -> WatchPlan:
    """Validate the options of a watch. Raises StatusError: 400, 422, 504."""
    table = store.table(selection.endpoint.stored_kind)
    asked = asked_version(store, query)
    send_initial = query.get("sendInitialEvents")
    if send_initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
        problem = forbidden(
            "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
        raise status.invalid_option("ListOptions", problem)
    if send_initial is None and query.get("resourceVersionMatch"):
        problem = forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
        raise status.invalid_option("ListOptions", problem)
    wants_initial = rq.is_true(query, "sendInitialEvents") if send_initial is not None else asked == 0
    initial: list[Entry] = []
    if wants_initial:
        initial = [e for e in table.in_order(selection.namespace) if selection.matches(e)]
    position, expired = 0, ""
    try:
        from_now = wants_initial or asked == 0
        position = table.position(store.rv if from_now else asked)
    except ExpiredError as exc:
        expired = str(exc)
    bookmarks = rq.is_true(query, "allowWatchBookmarks")
    return WatchPlan(
        selection,
        form,
        initial,
        position,
        store.rv,
        bookmarks,
        bookmarks and send_initial is not None and wants_initial,
        _seconds(query.get("timeoutSeconds", "")),
        expired,
    )


def _seconds(text: str) -> float:
    if not text or text == "0":
        return random.uniform(*DEFAULT_SECONDS)
    return float(rq.number("timeoutSeconds", text))


async def stream(
    store: Store, registry: Registry, watch: WatchPlan, user: str = ""
) -> AsyncIterator[bytes | memoryview]:
    """Yield chunks of event lines until the timeout, the end of the kind, or an expired position.

    An empty chunk lets the caller check that the client is still connected.

    user: whose watch it is; the watches of different users get an event in turn
    """
    if watch.expired:
        yield _expired(watch.expired)
        return
    table = store.table(watch.selection.endpoint.stored_kind)
    writer = _Lines(watch)
    deadline = time.monotonic() + watch.seconds
    position, reported = watch.position, watch.rv
    initial = watch.initial[::-1]
    watch.initial.clear()  # sent objects are released: a watch may last an hour, and objects change
    for chunk in _chunks(_drain_added(writer, initial)):
        yield chunk
    if watch.initial_bookmark:
        yield writer.bookmark(watch.rv, initial=True)
    while True:
        try:
            changes = _few(table.since(position, CHUNK_CHANGES_MAX))
        except ExpiredError as exc:
            yield _expired(str(exc))
            return
        if changes:
            position += len(changes)
            reported = changes[-1].rv
            sent = False
            for chunk in _chunks(part for change in changes for part in writer.change(change)):
                sent = True
                yield chunk
            if not sent:
                await asyncio.sleep(0)
            continue
        remaining = deadline - time.monotonic()
        if remaining <= 0 or registry.storage(watch.selection.endpoint.kind) is None:
            return
        waited = await table.watchers.wait(min(BOOKMARK_SECONDS, remaining), user)
        if not waited and watch.bookmarks and store.rv > reported and _is_caught_up(table, position):
            reported = store.rv
            yield writer.bookmark(reported, initial=False)
        elif not waited:
            yield b""


def _few(changes: Sequence[Change]) -> Sequence[Change]:
    """Return the first of these changes, about `HELD_BYTES_MAX` of them."""
    size = 0
    for count, change in enumerate(changes, 1):
        size += len(change.entry.raw)
        if size > HELD_BYTES_MAX:
            return changes[:count]
    return changes


def _drain_added(writer: "_Lines", entries: list[Entry]) -> Iterator[bytes]:
    """Yield the lines of the entries, in reverse order, and drop each entry."""
    while entries:
        yield from writer.event("ADDED", entries.pop())


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Join small parts, and split large ones without a copy."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        if len(part) <= CHUNK_BYTES:
            pending.append(part)
            size += len(part)
        if pending and (size >= CHUNK_BYTES or len(part) > CHUNK_BYTES):
            yield b"".join(pending)
            pending, size = [], 0
        if len(part) > CHUNK_BYTES:
            view = memoryview(part)
            yield from (view[at : at + CHUNK_BYTES] for at in range(0, len(part), CHUNK_BYTES))
    if pending:
        yield b"".join(pending)


def _expired(why: str) -> bytes:
    return event_line("ERROR", encode(status.body(status.expired(why))))


def _is_caught_up(table: Table, position: int) -> bool:
    return position == table.dropped + len(table.changes)


class _Lines:
    """Encodes the events of one watcher."""

    def __init__(self, watch: WatchPlan) -> None:
        self._selection = watch.selection
        self._form = watch.form
        self._plain = watch.form.shape == "" and not watch.selection.endpoint.converts
        self._first = True

    def change(self, change: Change) -> Sequence[bytes]:
        """Return the parts of this watcher's line for a change; none if the change does not match.

        An object that begins to match is ADDED and one that ceases to match is DELETED, whatever the change.
        """
        selection = self._selection
        if selection.unrestricted and selection.namespace is None:
            event: str = change.type
        else:
            after = change.type != "DELETED" and selection.matches(change.entry)
            before = change.old is not None and selection.matches(change.old)
            if not after and not before:
                return ()
            event = "DELETED" if not after else "MODIFIED" if before else "ADDED"
            if change.old is not None and not after and change.type != "DELETED":
                return self.event(event, Entry.encode(change.old.decode(), change.rv))
        if self._plain:
            return event_parts(event, change.entry.raw)
        return self.event(event, change.entry)

    def event(self, event: str, entry: Entry) -> Sequence[bytes]:
        first, self._first = self._first, False
        return event_parts(event, self._form.one(entry, watch=True, first=first))

    def bookmark(self, rv: int, *, initial: bool) -> bytes:
        return event_line("BOOKMARK", self._form.bookmark(rv, initial=initial))
