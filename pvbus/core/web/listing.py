"""Lists of the fleet for programs and terminals: filtered, sorted, counted, and in pages. Pure.

A page begins after the last entry of the one before it, in the order of the list, so pages together have each
entry once, whatever was added, changed or removed elsewhere in between. One page costs a pass over the fleet,
and has in memory only its own entries.
"""

import base64
import binascii
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import Key, ObjectKey, digest
from pvbus.core.kernel.records import ChildState
from pvbus.core.web import conflicts
from pvbus.core.web.conflicts import ConflictRow
from pvbus.core.web.labels import merged
from pvbus.core.web.model import Model
from pvbus.core.web.rows import VariantRow
from pvbus.core.web.states import State, reason_of
from pvbus.core.web.touched import RecordKey, drafts_in, variants_in

LIMIT, LIMIT_MAX = 500, 10_000
"""Entries of a page: as kubectl asks for them, and what 10 MB of JSON hold."""
COUNTED_MAX = 10_000
"""Different values that are counted; more would be a list, not a summary."""
LABEL = "labels."


class Listed(StrEnum):
    """What can be listed."""

    VARIANTS = "variants"
    TARGETS = "targets"
    CONFLICTS = "conflicts"
    REMOVALS = "removals"


_COMMON = ("namespace", "name", "set", "state", "reason")
FIELDS: Mapping[Listed, tuple[str, ...]] = {
    Listed.VARIANTS: (*_COMMON, "lifecycle", "warning", "labels"),
    Listed.TARGETS: (*_COMMON, "object", "repository", "package", "labels"),
    Listed.CONFLICTS: (
        *("namespace", "name", "set", "state", "revision", "lifecycle", "conflict", "id", "place"),
        *("file", "object", "field", "taken", "values", "labels"),
    ),
    Listed.REMOVALS: (*_COMMON, "removal", "labels"),
}
"""The fields of an entry. name: that of the variant."""

URGENCY = (
    *(State.STALLED, State.ATTENTION, State.HELD, State.ON_HOLD),
    *(State.REMOVING, State.WORKING, State.READY),
)
"""States in the order in which a person looks at them."""
_RANK = {state.value: f"{number}" for number, state in enumerate(URGENCY)}

Entry = Mapping[str, Any]
SortKey = tuple[str, str]
"""Where an entry is in the order of a list: the value that it is sorted by, and its key."""


class Query(NamedTuple):
    """What is asked for.

    namespace: only of this namespace, "" for all
    set_name: only of this set, as `<namespace>/<set>`, "" for all
    states: only in one of these, empty for all
    selector: as it was written, for tokens; `requirements` is what it means
    sort_by: a field, or a label
    """

    kind: Listed
    namespace: str = ""
    set_name: str = ""
    states: frozenset[str] = frozenset()
    selector: str = ""
    requirements: Requirements = ()
    sort_by: str = "name"

    @property
    def digest(self) -> str:
        """Equal for queries whose pages belong together."""
        return digest([*self[:3], sorted(self.states), self.selector, self.sort_by])


class Page(NamedTuple):
    """A part of a list.

    token: continues after it, "" for the last page
    remaining: how many entries are behind it
    """

    entries: list[Entry]
    token: str
    remaining: int


# ------------------------------------------------------------ what is asked


def check_query(query: Query, count_by: Sequence[str] = ()) -> None:
    """Raises UsageError for an unknown state, and for a field that cannot be sorted or counted by."""
    states = [state.value for state in URGENCY]
    if wrong := sorted(query.states - set(states)):
        raise UsageError(f'there is no state "{wrong[0]}"; there are {", ".join(states)}')
    for name in (query.sort_by, *count_by):
        if name in ("labels", "values") or not name.removeprefix(LABEL):
            raise UsageError(f'"{name}" is no single value: name a label, as in {LABEL}region')


def value_at(entry: Entry, name: str) -> str:
    """Return a field, or the label of this name, as text; "" without it."""
    if name in entry and name not in ("labels", "values"):
        return str(entry[name])
    return str(entry["labels"].get(name.removeprefix(LABEL), ""))


# ------------------------------------------------------------ entries


def entries_of(model: Model, query: Query) -> Iterator[tuple[str, Entry]]:
    """Yield the selected entries by their keys, in any order."""
    if query.kind is Listed.CONFLICTS:
        rows: Iterable[tuple[str, Any]] = model.conflicts.items()
    else:
        rows = model.variants.items()
    for name, row in rows:
        yield from entries_at(model, query, name, row)


def entries_at(model: Model, query: Query, name: str, row: Any) -> Iterator[tuple[str, Entry]]:
    """Yield the selected entries of one row: none or one, of a draft as many as it has conflicts."""
    variant = row.variant if isinstance(row, ConflictRow) else name
    about = model.variants.get(variant) if isinstance(row, ConflictRow) else row
    if query.namespace and Key.parse(variant).namespace != query.namespace:
        return
    if about is None or not _is_of(query, about):
        return
    labels = labels_at(model, about)
    if not matches(query.requirements, labels):
        return
    if isinstance(row, ConflictRow):
        yield from _conflicts(variant, name, about, row, labels)
    else:
        yield from _variant(query.kind, variant, about, labels)


def _is_of(query: Query, row: VariantRow) -> bool:
    if query.set_name and row.set_name != query.set_name:
        return False
    return not query.states or row.state.value in query.states


def labels_at(model: Model, row: VariantRow) -> Mapping[str, str]:
    """Return the labels of a variant, its package and its target, over those of its set."""
    owner = model.sets.get(row.set_name)
    return dict(merged(owner.labels, row.labels) if owner is not None else row.labels)


def _head(variant: str, row: VariantRow) -> dict[str, Any]:
    state, key = row.state, Key.parse(variant)
    return {
        "namespace": key.namespace,
        "name": key.name,
        "set": row.set_name,
        "state": state.value,
        "reason": reason_of(row, state),
    }


def _variant(
    kind: Listed, variant: str, row: VariantRow, labels: Mapping[str, str]
) -> Iterator[tuple[str, Entry]]:
    head = _head(variant, row)
    if kind is Listed.VARIANTS:
        yield variant, {**head, "lifecycle": row.lifecycle, "warning": row.warning, "labels": labels}
    elif kind is Listed.TARGETS and row.child is not None:
        repository, _, package = row.downstream.partition("/")
        where = {"object": object_words(row.target), "repository": repository, "package": package}
        yield variant, {**head, **where, "labels": labels}
    elif kind is Listed.REMOVALS and row.state in (State.HELD, State.REMOVING):
        removal = row.child if row.child not in (None, ChildState.PRESENT) else ChildState.ORDERED
        yield variant, {**head, "removal": str(removal), "labels": labels}


def object_words(target: str) -> str:
    """Return a selected object as `<Kind>.<group> <namespace>/<name>`, "" for a package of a list."""
    if not target:
        return ""
    key = ObjectKey.parse(target)
    kind = f"{key.kind}.{key.group}" if key.group else key.kind
    return f"{kind} {key.namespace}/{key.name}" if key.namespace else f"{kind} {key.name}"


def _conflicts(
    variant: str, revision: str, about: VariantRow, row: ConflictRow, labels: Mapping[str, str]
) -> Iterator[tuple[str, Entry]]:
    head = _head(variant, about)
    del head["reason"]
    for each in row.conflicts:
        entry = {
            **head,
            "revision": Key.parse(revision).name,
            "lifecycle": row.lifecycle,
            "conflict": digest(each),
            "id": conflicts.group_id(each),
            "place": conflicts.place_id(each),
            "file": each.file,
            "object": each.object,
            "field": each.field,
            "taken": each.taken,
            "values": conflicts.values_of(each),
            "labels": labels,
        }
        yield f"{variant}|{revision}|{entry['conflict']}", entry


# ------------------------------------------------------------ pages and counts


def page_of(
    entries: Iterable[tuple[str, Entry]], query: Query, *, limit: int = LIMIT, token: str = ""
) -> Page:
    """Return the page after a token, or the first one. Raises UsageError for a token of another query."""
    if not 0 < limit <= LIMIT_MAX:
        raise UsageError(f"a page has 1 to {LIMIT_MAX} entries, not {limit}")
    after = _position(token, query) if token else None
    behind = 0

    def left() -> Iterator[tuple[SortKey, Entry]]:
        nonlocal behind
        for key, entry in entries:
            position = (_sorted_by(entry, query.sort_by), key)
            if after is None or position > after:
                behind += 1
                yield position, entry

    chosen = heapq.nsmallest(limit, left(), key=lambda each: each[0])
    remaining = behind - len(chosen)
    last = chosen[-1][0] if chosen and remaining else None
    return Page([entry for _, entry in chosen], _token(last, query) if last else "", remaining)


def _sorted_by(entry: Entry, name: str) -> str:
    if name == "name":
        return f"{entry['namespace']}/{entry['name']}"
    value = value_at(entry, name)
    return _RANK.get(value, value) if name == "state" else value


def _token(position: SortKey, query: Query) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([query.digest, *position])).decode()


_position_decoder = msgspec.json.Decoder(tuple[str, str, str])


def _position(token: str, query: Query) -> SortKey:
    try:
        of, value, key = _position_decoder.decode(base64.urlsafe_b64decode(token))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as exc:
        raise UsageError(f'"{token[:40]}" continues no list: take the token of the page before') from exc
    if of != query.digest:
        raise UsageError(
            "this token continues another list: repeat the kind, selectors and order of its page"
        )
    return value, key


def counts_of(entries: Iterable[tuple[str, Entry]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return how many entries have each combination of some fields or labels, in order.

    Raises: UsageError if there are too many combinations
    """
    counter: Counter[tuple[str, ...]] = Counter()
    for _, entry in entries:
        counter[tuple(value_at(entry, name) for name in names)] += 1
        if len(counter) > COUNTED_MAX:
            raise UsageError(
                f"{', '.join(names)} has more than {COUNTED_MAX} values: list instead of counting"
            )
    return [{**dict(zip(names, values, strict=True)), "count": n} for values, n in sorted(counter.items())]


# ------------------------------------------------------------ changes


class Change(NamedTuple):
    """A difference to what was listed.

    type: ADDED, MODIFIED, or DELETED, also of an entry that the query does not select any more
    entry: of one that is DELETED its names alone
    """

    type: str
    entry: Entry


_encode = msgspec.json.Encoder(order="sorted").encode


def _names(key: str) -> Entry:
    """Return the names in an entry's key."""
    variant, _, rest = key.partition("|")
    names = dict(zip(("namespace", "name"), Key.parse(variant), strict=True))
    revision, _, conflict = rest.partition("|")
    return {**names, "revision": Key.parse(revision).name, "conflict": conflict} if rest else names


class Watcher:
    """Follows the entries of a query through the versions of a model.

    A model that was read up to an earlier position of the bus lacks what has changed since: a compacted topic
    has only the last row of a key. While such a one catches up, each row that a record is about is reported
    anew, also if it is as it was, and as DELETED if it is not selected, whether or not it ever was.
    """

    def __init__(self, model: Model, query: Query) -> None:
        self._model = model
        self._query = query
        self._digests: dict[str, tuple[tuple[str, int], ...]] = {}
        """By row: the key of each entry, and a hash of its content."""
        self._version = model.version
        self._set_labels = self._labels_of_sets()
        for name, row in self._rows():
            self._note(name, dict(entries_at(model, query, name, row)))

    def changes(self, records: Iterable[RecordKey] = (), *, catches_up: bool = False) -> Iterator[Change]:
        """Yield what has changed since the last call, or since the watcher was made.

        records: those since then; needed while it catches up
        """
        model, since, self._version = self._model, self._version, self._model.version
        set_labels, self._set_labels = self._set_labels, self._labels_of_sets()
        table = self._table()
        if set_labels != self._set_labels or max(table.floor, model.variants.floor) > since:
            names = [*dict.fromkeys((*self._digests, *(name for name, _ in self._rows())))]
        else:
            names = [*table.gone(since), *(name for name, _ in table.changed(since))]
            names += self._conflicting(since)
        touched = self._touched([*records]) if catches_up else set()
        for name in sorted({*names, *touched}):
            yield from self._compare(name, catches_up=catches_up, is_touched=name in touched)

    def _touched(self, records: Sequence[RecordKey]) -> set[str]:
        """Return the rows that records are about, of any content."""
        variants = variants_in(self._model, records)
        if self._query.kind is not Listed.CONFLICTS:
            return variants
        conflicting = {name for name, row in self._model.conflicts.items() if row.variant in variants}
        return conflicting | drafts_in(self._model, records)

    def _conflicting(self, since: int) -> Iterator[str]:
        """Yield the drafts in conflict whose variants changed: entries have a variant's state and labels."""
        if self._query.kind is not Listed.CONFLICTS:
            return
        dirty = {name for name, _ in self._model.variants.changed(since)} | set(
            self._model.variants.gone(since)
        )
        yield from (name for name, row in self._model.conflicts.items() if row.variant in dirty)

    def _compare(self, name: str, *, catches_up: bool, is_touched: bool) -> Iterator[Change]:
        row = self._table().get(name)
        entries = dict(entries_at(self._model, self._query, name, row)) if row is not None else {}
        before = dict(self._digests.get(name, ()))
        self._note(name, entries)
        if catches_up and (self._query.kind is Listed.CONFLICTS or not entries):
            yield Change("DELETED", self._row_names(name))
            before = {}
        yield from (Change("DELETED", _names(key)) for key in before if key not in entries)
        for key, content in self._digests.get(name, ()):
            if is_touched or before.get(key) != content:
                yield Change("MODIFIED" if key in before else "ADDED", entries[key])

    def _row_names(self, name: str) -> Entry:
        """Return the names in a row's name: of a variant, or of a draft, which stands for its conflicts."""
        key = Key.parse(name)
        field = "revision" if self._query.kind is Listed.CONFLICTS else "name"
        return {"namespace": key.namespace, field: key.name}

    def _note(self, name: str, entries: Mapping[str, Entry]) -> None:
        if entries:
            self._digests[name] = tuple((key, hash(_encode(entry))) for key, entry in entries.items())
        else:
            self._digests.pop(name, None)

    def _table(self) -> Any:
        model = self._model
        return model.conflicts if self._query.kind is Listed.CONFLICTS else model.variants

    def _rows(self) -> Iterator[tuple[str, Any]]:
        yield from self._table().items()

    def _labels_of_sets(self) -> dict[str, Any]:
        return {name: row.labels for name, row in self._model.sets.items()}
