"""The objects of a kind that an informer has seen, and their rows. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import (
    STATIC_KINDS,
    WHOLE_KINDS,
    Emission,
    injectable_row,
    presence_row,
    rows_of,
)
from pvbus.core.kernel.records import INJECTABLES, Coverage, SyncMarker
from pvbus.core.kernel.rights import OBSERVED_LABEL, OBSERVED_VERBS
from pvbus.core.variants.ingest.commands import Note
from pvbus.core.variants.ingest.published import WRITTEN, Emit, KindRows, Name


class KindView:
    """The objects of one kind as the last list and the events since show them."""

    def __init__(
        self,
        kind: Kind,
        emit: Emit,
        *,
        partitions: int,
        topics: tuple[str, ...],
        known: dict[str, dict[str, str]],
        markers: dict[str, SyncMarker],
        content: frozenset[Name],
    ) -> None:
        """See `Informer`."""
        self.kind = kind
        self.topics = topics
        self.content = content
        self._rows = KindRows(kind, emit, partitions=partitions, known=known, markers=markers)
        self._versions_seen: dict[str, dict[str, str]] = {}  # namespace -> name -> resourceVersion
        self._content_seen: set[Name] = set()  # a read of their content must not undo a later event

    @property
    def is_whole(self) -> bool:
        """Whether whole objects are needed; if not, metadata suffices."""
        return self.kind in WHOLE_KINDS or bool(self.content)

    @property
    def served_versions(self) -> tuple[str, ...]:
        """Return the versions that the last list was read with."""
        return self._rows.versions

    @property
    def coverage(self) -> Coverage:
        """Return what the last list covers."""
        return self._rows.coverage

    @property
    def count(self) -> int:
        return sum(len(versions) for versions in self._versions_seen.values())

    def written_names(self) -> set[Name]:
        """Return the objects that have rows on the bus."""
        return self._rows.names(self.topics)

    def is_current(self, obj: Mapping[str, Any]) -> bool:
        """Tell whether an object is the one whose rows were written last."""
        version = obj["metadata"].get("resourceVersion", "")
        namespace, name = name_of(obj)
        seen = self._versions_seen.get(namespace, {}).get(name)
        rows = rows_of(self.kind, obj, self.topics)
        return bool(version) and seen == version and all(self._rows.is_written(row) for row in rows)

    def listed_rows(self, obj: Mapping[str, Any]) -> list[Emission]:
        """Return the rows of an object for `replace`; those that the bus has already are without their value.

        Caller: only if nothing is written before `replace`.
        """
        rows = rows_of(self.kind, obj, self.topics)
        for number, row in enumerate(rows):
            if self._rows.is_written(row):
                rows[number] = Emission(row.topic, row.key, WRITTEN, row.digest, row.partition)
        return rows

    # ------------------------------------------------------------ markers

    def mark_syncing(self) -> None:
        for topic in self.topics:
            self._rows.mark(topic, "syncing")

    def mark_unavailable(self, message: str) -> None:
        for topic in (*self.topics, *((INJECTABLES,) if self.content else ())):
            self._rows.mark(topic, "unavailable", message)

    # ------------------------------------------------------------ objects

    def replace(
        self,
        versions: tuple[str, ...],
        coverage: Coverage,
        items: Iterable[Mapping[str, Any]],
        made: Sequence[Sequence[Emission]] = (),
    ) -> None:
        """Write the difference to a complete list, under markers.

        made: the rows of the first items, in their order; those of the others are made here
        """
        self._rows.versions, self._rows.coverage = versions, coverage
        rows: dict[str, dict[str, Emission]] = {topic: {} for topic in self.topics}
        contents: dict[Name, Mapping[str, Any]] = {}
        self._versions_seen = {}
        for at, obj in enumerate(items):
            name = self._see(obj)
            for row in made[at] if at < len(made) else rows_of(self.kind, obj, self.topics):
                rows[row.topic][row.key] = row
            if name in self.content:
                contents[name] = obj
        for topic in self.topics:
            self._rows.replace(topic, rows[topic])
        self._replace_content(contents)

    def apply(self, obj: Mapping[str, Any], *, deleted: bool) -> None:
        """Write the rows of one event of the watch."""
        namespace, name = self._see(obj)
        if deleted:
            del self._versions_seen[namespace][name]
            for row in rows_of(self.kind, obj, self.topics):
                self._rows.tombstone(row.topic, row.key)
        else:
            for row in rows_of(self.kind, obj, self.topics):
                self._rows.upsert(row)
        if (namespace, name) in self.content:
            self._content_seen.add((namespace, name))
            self._rows.upsert(injectable_row(self.kind, namespace, name, None if deleted else obj))
        if (namespace, "") in self.content:
            self._rows.upsert(self._presence(namespace))

    def _see(self, obj: Mapping[str, Any]) -> Name:
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        self._versions_seen.setdefault(namespace, {})[name] = meta.get("resourceVersion", "")
        return namespace, name

    # ------------------------------------------------------------ content

    def _replace_content(self, contents: Mapping[Name, Mapping[str, Any]]) -> None:
        wanted = set()
        self._content_seen |= self.content
        for namespace, name in sorted(self.content):
            if not self.coverage.covers(namespace):
                wanted.add(okey(*self.kind, namespace, name))  # nothing is known of it, so its row stays
                continue
            if name:
                row = injectable_row(self.kind, namespace, name, contents.get((namespace, name)))
            else:
                row = self._presence(namespace)
            wanted.add(row.key)
            self._rows.upsert(row)
        for key in [key for key in self._rows.keys(INJECTABLES) if key not in wanted]:
            self._rows.tombstone(INJECTABLES, key)
        self.complete_content()

    def change_content(self, content: frozenset[Name]) -> set[Name]:
        """Follow other named objects; return those that must be read, and given to `take_content`."""
        more, less = content - self.content, self.content - content
        self.content = content
        for namespace, name in less:
            self._rows.tombstone(INJECTABLES, okey(*self.kind, namespace, name))
        for namespace, name in sorted(more):
            if not name:
                self._rows.upsert(self._presence(namespace))
        named = {(namespace, name) for namespace, name in more if name}
        self._content_seen -= named
        return named

    def take_content(self, name: Name, obj: Mapping[str, Any] | None) -> None:
        """Write the content that a read found, unless the watch has shown the object since the request."""
        if name in self.content and name not in self._content_seen:
            self._rows.upsert(injectable_row(self.kind, *name, obj))

    def complete_content(self) -> None:
        """Mark the content as complete."""
        if self.content:
            self._rows.mark(INJECTABLES, "ok")

    def _presence(self, namespace: str) -> Emission:
        return presence_row(self.kind, namespace, exists=bool(self._versions_seen.get(namespace)))


def name_of(obj: Mapping[str, Any]) -> Name:
    """Return (namespace, name) of an object."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def identity_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `KindView.replace` reads of an object whose rows were made, and whose content nobody asks
    for."""
    meta = obj["metadata"]
    fields = ("namespace", "name", "resourceVersion")
    return {"metadata": {field: meta[field] for field in fields if field in meta}}


def coverage_notes(before: Coverage, after: Coverage) -> Iterator[Note]:
    """Yield a line for each namespace that a list may not read any more, or may read again."""
    refused = {refusal.namespace for refusal in before.refused}
    for refusal in after.refused:
        if refusal not in before.refused:
            fields = {"namespace": refusal.namespace, "reason": refusal.message}
            yield Note(level="warning", text="kind cannot be observed in a namespace", fields=fields)
    for namespace in sorted(refused & set(after.namespaces)):
        yield Note(
            level="info", text="kind is observed in a namespace again", fields={"namespace": namespace}
        )


def remedy_of(kind: Kind) -> str:
    """Say how ingest gets the right to read a kind."""
    if kind in STATIC_KINDS:
        return "bind the ClusterRole of ingest: `pvbus doctor` prints the command"
    return (
        f"to let ingest read it, create a ClusterRole that may {', '.join(OBSERVED_VERBS)} it, with the "
        f"label {OBSERVED_LABEL}=true: `pvbus doctor` prints the commands"
    )
