"""Decides on packages as the service resolve does, from objects, with its tables in memory.

The controller is that of the service, so what this says is what the service decides. It has no lock before:
it decides as the service does that starts beside another installer for the first time. Time stands still, so
a source is looked at once; one that does not answer is waited for. Nothing is written anywhere.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pvbus.core.errors import PvbusError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Effect, Put
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.packagekinds import MIRRORED
from pvbus.core.kernel.packagerows import SCOPE, ContentRow, LockRow, PackagingObject
from pvbus.core.kernel.records import INSTALLS, LOCK, SOURCES, WATCHES, SyncMarker
from pvbus.core.platform.packaging.reading import okey_of
from pvbus.core.platform.resolve.controller import ResolveController
from pvbus.core.platform.resolve.plans import Settings
from pvbus.ports.cluster import Object

Result = TypeVar("Result")
Perform = Callable[[Any], Awaitable[Any]]
"""Answers an effect. Raises what the ports raise."""
NOW = 1.0
STEPS_MAX = 1_000_000
"""Decisions until a defect is assumed: each source takes a few, and each decision asks for what it needs."""


class DecidedLock(NamedTuple):
    """What is decided.

    rows: okey of an install -> its row, also of one that would be created
    contents: `<source>|<digest>` -> what was read of this content
    """

    rows: Mapping[str, LockRow]
    contents: Mapping[str, ContentRow]


async def decide_lock(
    objects: Iterable[Object], perform: Perform, *, settings: Settings, namespace: str
) -> DecidedLock:
    """Decide on installs, packages and definitions until nothing changes.

    perform: answers reads of sources, and of definitions
    namespace: where the pull secrets of Crossplane's installs are
    """
    controller = ResolveController(partitions=1, settings=settings, namespace=namespace)
    controller.open(0)
    for kind in MIRRORED:
        controller.load(INSTALLS, 0, sync_key(*kind), encode_row(SyncMarker(state="ok", epoch=1)))
    for obj in objects:
        controller.load(INSTALLS, 0, f"{SCOPE}|{okey_of(obj)}", encode_row(_row_of(obj)))
    tables: dict[str, dict[str, Any]] = {LOCK: {}, SOURCES: {}}
    pending = deque(controller.keys(0))
    for _ in range(STEPS_MAX):
        if not pending:
            break
        outcome = await drive(controller.reconcile(0, key := pending.popleft(), NOW), perform)
        for put in outcome.puts:
            _keep(tables, put)
            pending += [each for each in controller.store(0, put) if each not in pending]
        if any(put.topic == WATCHES for put in outcome.puts):
            pending.append(key)
    contents = {key: row for key, row in tables[SOURCES].items() if isinstance(row, ContentRow)}
    return DecidedLock(tables[LOCK], contents)


def _row_of(obj: Object) -> PackagingObject:
    return PackagingObject(
        api_version=obj["apiVersion"],
        kind=obj["kind"],
        metadata=obj["metadata"],
        spec=obj.get("spec") or {},
        status=obj.get("status") or {},
    )


def _keep(tables: Mapping[str, dict[str, Any]], put: Put) -> None:
    table, key = tables.get(put.topic), put.key.partition("|")[2]
    if table is not None and put.row is None:
        table.pop(key, None)
    elif table is not None:
        table[key] = put.row


async def drive(steps: Generator[Effect, Any, Result], perform: Perform) -> Result:
    """Run a decision to its end, and return what it returns; an error of an effect is raised in it."""
    answer: Any = None
    error: PvbusError | None = None
    while True:
        try:
            effect = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = error = None
        try:
            answer = await perform(effect)
        except PvbusError as failed:
            error = failed
