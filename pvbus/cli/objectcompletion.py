"""Completes the names of objects in a shell, from the bus of a data folder; without one there are none."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.objectnames import Scope, kind_of
from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.keys import Key, ObjectKey
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import SET, VARIANT
from pvbus.core.kernel.records import OBJECTS, SETS, VARIANTS
from pvbus.ports.cluster import Kind

SECONDS_MAX = 1.0
"""A person waits for a tab: later than this, no names are better."""

TABLES = {SET: SETS, VARIANT: VARIANTS}


def completions(
    params: Mapping[str, Any], argument: str, kinds: Sequence[Kind], incomplete: str
) -> list[str]:
    """Return the names that complete a word of `objectnames.named`.

    params: the options and words of the command line before it
    argument: the parameter that has the words
    kinds: the kinds that the command takes
    """
    words = params.get(argument) or ()
    kind = kind_of(words[0]) if words else None
    if len(words) != (kind is not None):
        return []
    scope = Scope(params.get("namespace"), params.get("data") or DEFAULT, params.get("kubeconfig"))
    chosen = kinds if kind is None else [kind]
    try:
        keys = asyncio.run(asyncio.wait_for(_keys(scope.data, chosen), SECONDS_MAX))
    except (PvbusError, TimeoutError, OSError):
        return []
    return spellings(keys, scope.namespace or scope.default(), incomplete)


async def _keys(data: str, kinds: Sequence[Kind]) -> list[Key]:
    """Return the keys of the objects of some kinds, as the services know them. Raises UsageError."""
    keys: set[Key] = set()
    async with open_existing_bus(data, None) as bus:
        for topic in (TABLES[kind] for kind in kinds if kind in TABLES):
            keys.update(Key.parse(key) for key in await read_rows(bus, topic) if not is_marker(key))
        begin = tuple(f"{kind.group}/{kind.kind}|" for kind in kinds if kind not in TABLES)
        for name in await read_rows(bus, OBJECTS) if begin else ():
            if name.startswith(begin):
                keys.add(Key(*ObjectKey.parse(name)[2:]))
    return sorted(keys)


def spellings(keys: Iterable[Key], namespace: str, incomplete: str) -> list[str]:
    """Return how the keys that a person may mean are written: without the namespace that counts anyway."""
    if "/" in incomplete:
        texts = [str(key) for key in keys]
    else:
        texts = [key.name if key.namespace == namespace else str(key) for key in keys]
    return [text for text in texts if text.startswith(incomplete)]
