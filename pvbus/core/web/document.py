"""The model as the page gets it: the whole, or what changed since a version.

Rows are lists, and texts that repeat are numbers in the lists `texts` and `labels` of the same document. A
variant is `[name, set, state, lifecycle, reason, labels, warning, since]`, a set `[name, state, reason, hold,
labels, warning, since]`, where hold is null or `[count, token]`, warning the type of a condition or "", and
since the seconds since 1970 at which its state began, 0 if that is not known. An open
task is `[name, revision, type, variant, state, question, owner, ticket, due, due time in seconds since 1970
or null, since, note, blocks, command]`; name is its key, blocks are numbers of gates. A draft that stayed
when its variant went is `[name, variant, note]`, a quarantine that lasts `[name, covers, why]`, a stop of all
rollouts `[name, why]`. Rollouts are
objects, see `pvbus.core.web.rollouts`. Of conflicts it says how many drafts have some, and at which version
this changed last.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pvbus.core.kernel.keys import Key
from pvbus.core.web import rollouts
from pvbus.core.web.labels import Labels
from pvbus.core.web.model import Model
from pvbus.core.web.rows import KeptRow, QuarantineRow, RolloutRow, SetRow, StopRow, VariantRow
from pvbus.core.web.states import reason_of
from pvbus.core.web.tasks import Question, TaskRow

Document = dict[str, Any]


class _Numbers:
    """Values by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def __iter__(self) -> Any:
        return iter(self._numbers)


def whole(model: Model, now: float) -> Document:
    """Return everything that is shown. now: seconds since 1970."""
    return {
        **_document(model.variants.items(), model.sets.items(), model.tasks.items()),
        "retained": _retained(model.retained.items()),
        "quarantines": _quarantines(model.quarantines.items()),
        "stops": _stops(model.stops.items()),
        "rollouts": _rollouts(model.rollouts.items(), now),
        "conflicts": [len(model.conflicts), model.conflicts_changed],
        "whole": True,
    }


def changes(model: Model, since: int, now: float) -> Document | None:
    """Return what changed after a version; None where that is not known, so the whole is needed."""
    tables = (model.variants, model.sets, model.rollouts, model.tasks, model.retained, model.quarantines)
    floors = (table.floor for table in (*tables, model.stops))
    if not max(floors) <= since <= model.version:
        return None
    return {
        **_document(model.variants.changed(since), model.sets.changed(since), model.tasks.changed(since)),
        "gone": model.variants.gone(since),
        "setsGone": model.sets.gone(since),
        "tasksGone": model.tasks.gone(since),
        "retained": _retained(model.retained.changed(since)),
        "retainedGone": model.retained.gone(since),
        "quarantines": _quarantines(model.quarantines.changed(since)),
        "quarantinesGone": model.quarantines.gone(since),
        "stops": _stops(model.stops.changed(since)),
        "stopsGone": model.stops.gone(since),
        "rollouts": _rollouts(model.rollouts.changed(since), now),
        "rolloutsGone": model.rollouts.gone(since),
        "conflicts": [len(model.conflicts), model.conflicts_changed],
    }


def _rollouts(rows: Iterable[tuple[str, RolloutRow]], now: float) -> list[Mapping[str, Any]]:
    return [rollouts.document_of(Key.parse(name), row.policy, now) for name, row in rows]


def _retained(rows: Iterable[tuple[str, KeptRow]]) -> list[list[str]]:
    return [[name, row.variant, row.note] for name, row in rows]


def _quarantines(rows: Iterable[tuple[str, QuarantineRow]]) -> list[list[str]]:
    return [[name, row.covers, row.why] for name, row in rows]


def _stops(rows: Iterable[tuple[str, StopRow]]) -> list[list[Any]]:
    return [[name, row.why, row.entries] for name, row in rows]


def _document(
    variants: Iterable[tuple[str, VariantRow]],
    sets: Iterable[tuple[str, SetRow]],
    tasks: Iterable[tuple[str, TaskRow]],
) -> Document:
    texts, labels = _Numbers(), _Numbers()
    rows = [_variant(name, row, texts, labels) for name, row in variants]
    set_rows = [_set(name, row, texts, labels) for name, row in sets]
    task_rows = [_task(name, row.asked, texts) for name, row in tasks]
    return {
        "variants": rows,
        "sets": set_rows,
        "tasks": task_rows,
        "texts": list(texts),
        "labels": [_mapping(each) for each in labels],
    }


def _variant(name: str, row: VariantRow, texts: _Numbers, labels: _Numbers) -> list[Any]:
    state = row.state
    return [
        name,
        texts.of(row.set_name),
        texts.of(state.value),
        texts.of(row.lifecycle),
        texts.of(reason_of(row, state)),
        labels.of(row.labels),
        texts.of(row.warning),
        row.since,
    ]


def _set(name: str, row: SetRow, texts: _Numbers, labels: _Numbers) -> list[Any]:
    state = row.state
    hold = [row.hold.count, row.hold.token] if row.hold is not None else None
    shown = (texts.of(state.value), texts.of(reason_of(row, state)))
    return [name, *shown, hold, labels.of(row.labels), texts.of(row.warning), row.since]


def _task(name: str, asked: Question, texts: _Numbers) -> list[Any]:
    shared = (asked.state, asked.question, asked.owner, asked.ticket, asked.due)
    return [
        name,
        asked.revision,
        texts.of(asked.type),
        asked.variant,
        *(texts.of(each) for each in shared),
        asked.due_seconds,
        texts.of(asked.since),
        texts.of(asked.note),
        [texts.of(gate) for gate in asked.blocks],
        asked.command,
    ]


def _mapping(labels: Labels) -> dict[str, str]:
    return dict(labels)
