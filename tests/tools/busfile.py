"""The bus's file read by plain SQL, as somebody who trusts none of pvbus's own readers.

`Snapshot.of` reads a copy, so that looking at the file of a killed process changes nothing in it.
`problems` names every broken promise that can be seen in one moment; `problems_since` those between
two moments.
"""

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CONDITIONS = "pvbus.conditions"


class Row(NamedTuple):
    """A record with its decoded value; None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: str
    value: dict[str, Any] | None


class Snapshot(NamedTuple):
    """Everything in the file at one moment. ends: next offset by (topic, partition); offsets: committed
    ones by (group, partition, topic); epochs: by (group, partition)."""

    rows: tuple[Row, ...]
    ends: Mapping[tuple[str, int], int]
    offsets: Mapping[tuple[str, int, str], int]
    epochs: Mapping[tuple[str, int], int]
    integrity: str

    @classmethod
    def of(cls, file: Path) -> "Snapshot":
        with tempfile.TemporaryDirectory() as folder:
            for part in (file, file.with_name(f"{file.name}-wal")):
                if part.exists():
                    shutil.copy(part, folder)
            db = sqlite3.connect(Path(folder) / file.name)
            try:
                return cls._read(db)
            finally:
                db.close()

    @classmethod
    def _read(cls, db: sqlite3.Connection) -> "Snapshot":
        ((integrity,),) = db.execute("PRAGMA integrity_check")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if "topics" not in tables:  # killed before it was made
            return cls((), {}, {}, {}, integrity)
        names = {
            number: json.loads(spec)["name"] for number, spec in db.execute("SELECT id, spec FROM topics")
        }
        ends = {
            _topic_partition(names, lane): end for lane, end in db.execute("SELECT lane, next FROM lanes")
        }
        rows = []
        for position, key, value in db.execute("SELECT position, key, value FROM log ORDER BY position"):
            topic, partition = _topic_partition(names, position >> 40)
            decoded = None if value is None else json.loads(value)
            rows.append(Row(topic, partition, position & (1 << 40) - 1, key.decode(), decoded))
        offsets = {
            (g, p, t): n
            for g, p, t, n in db.execute("SELECT consumer_group, partition, topic, next FROM offsets")
        }
        epochs = {(g, p): e for g, p, e in db.execute("SELECT consumer_group, partition, epoch FROM leases")}
        return cls(tuple(rows), ends, offsets, epochs, integrity)

    def table(self, topic: str) -> dict[str, dict[str, Any]]:
        """Fold a topic: the last value of each key, without markers and tombstones."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            if row.topic == topic and not row.key.startswith("!"):
                found.pop(row.key, None)
                if row.value is not None:
                    found[row.key] = row.value
        return found

    def problems(self) -> list[str]:
        if self.integrity != "ok":
            return [f"the file is damaged: {self.integrity}"]
        return [*self._compaction(), *self.promises()]

    def promises(self) -> list[str]:
        """What any bus must keep, whenever it compacts."""
        return [*self._offsets(), *self._children(), *self._events()]

    def problems_since(self, before: "Snapshot") -> Iterator[str]:
        """Nothing that was committed is taken back."""
        for what in ("ends", "offsets", "epochs"):
            old, new = getattr(before, what), getattr(self, what)
            for tp, number in old.items():
                if new.get(tp, -1) < number:
                    yield f"{what} of {tp} went from {number} to {new.get(tp)}"

    def _offsets(self) -> Iterator[str]:
        for (group, partition, topic), offset in self.offsets.items():
            end = self.ends[topic, partition]
            if offset > end:
                yield f"{group} consumed {topic}[{partition}] up to {offset}, which ends at {end}"
        for row in self.rows:
            if row.offset >= self.ends[row.topic, row.partition]:
                yield f"{row} is beyond the end of its partition"

    def _compaction(self) -> Iterator[str]:
        """A compacted table has one record of a key, in one partition only."""
        counted = Counter(
            (row.topic, row.key)
            for row in self.rows
            if row.topic not in ("pvbus.conditions", "pvbus.dlq") and not row.key.startswith("!")
        )
        for (topic, key), count in counted.items():
            if count > 1:
                yield f"{topic} has {count} records of {key}"

    def _children(self) -> Iterator[str]:
        """unroll writes a child's row and render's input in one step: one alone is half a step."""
        targets = self.table("pvbus.targets")
        children = self.table("pvbus.unroll")
        reported = set()
        for key, child in children.items():
            skey, _, name = key.partition("|")
            namespace, _, set_name = skey.partition("/")
            target_key = f"{namespace}/{name}|{set_name}"
            target = targets.get(target_key)
            reported.add(target_key)
            state, digest = child["state"], child.get("digest", "")
            if state == "gone":
                if target is not None:
                    yield f"{target_key} is still told to render, although it is gone"
            elif state == "ordered":
                if target is None or target["state"] != "removed":
                    yield f"{key} is ordered to be removed, but render was told {target}"
            elif digest and (target is None or target.get("digest") != digest):
                yield f"{key} is {state} at {digest}, but render was told {target and target.get('digest')}"
        yield from (f"{key} has no child" for key in targets.keys() - reported)

    def _events(self) -> Iterator[str]:
        """Events of a condition form a chain, ids occur once, and the last one is the one remembered."""
        chain = EventChain()
        for row in self.rows:
            if row.topic == CONDITIONS:
                yield from chain.see(row)
        yield from chain.differences(self.table("pvbus.conditions.latest"))


class EventChain:
    """The events of all conditions, record by record. seen: how many there were."""

    def __init__(self) -> None:
        self.seen = 0
        self._last: dict[str, dict[str, Any]] = {}
        self._ids: set[str] = set()
        self._generations: dict[tuple[str, str], int] = {}

    def see(self, row: Row) -> Iterator[str]:
        """Take the next record of `pvbus.conditions`; yield what is wrong with it."""
        event = row.value
        if event is None:
            return
        self.seen += 1
        condition = event["condition"]
        key, kind = f"{row.key}|{condition['type']}", condition["type"]
        if event["id"] in self._ids:
            yield f"event {event['id']} occurs 2 times, again at {row.offset}"
        self._ids.add(event["id"])
        before = self._last.get(key)
        known = before is not None and before["uid"] == event["uid"] and not before.get("last", False)
        expected = before["condition"]["status"] if before is not None and known else ""
        previous = event.get("previous", "")
        if previous != expected:
            yield f"{key}: the event at {row.offset} follows {expected!r}, but says {previous!r}"
        generation = condition.get("observedGeneration", 0)
        tp = (event["uid"], kind)
        if generation < self._generations.get(tp, 0):
            yield f"{key}: observed generation {generation} after {self._generations[tp]}"
        self._generations[tp] = generation
        self._last[key] = event

    def differences(self, latest: Mapping[str, Any]) -> Iterator[str]:
        """Compare what is remembered with the last event of each condition."""
        for key, event in latest.items():
            if self._last.get(key) != event:
                yield f"{key} is remembered as {event}, the last event is {self._last.get(key)}"


def _topic_partition(names: Mapping[int, str], lane: int) -> tuple[str, int]:
    return names[lane >> 12], lane & 4095
