"""Whether the bus is reachable, and its topics are as this release declares them."""

from collections.abc import Iterator

import msgspec

from pvbus.cli.doctor.findings import Finding
from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.core.kernel.keys import CHECK_PREFIX
from pvbus.core.kernel.records import WATCHES, WatchRequest
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import Bus, TopicState
from pvbus.ports.cluster import Kind

AREA = "bus"


async def check_bus(url: str) -> tuple[list[Finding], set[Kind]]:
    """Return the findings, and the kinds that the services observe.

    url: the address of the bus, "" if none is known
    """
    if not url:
        action = "give --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX]"
        return [Finding(AREA, "bus", "unknown", "no bus is known", action)], set()
    try:
        async with open_existing_bus("", url) as bus:
            states = await bus.check_topics(topic_specs())
            observed = await _read_observed_kinds(bus, states)
    except PvbusError as exc:
        action = "run this where the bus can be reached, as in a pod; see address, TLS, login and ACLs"
        return [Finding(AREA, url, "wrong", str(exc), action)], set()
    return [Finding(AREA, url, "ok", "it answers"), *_topics(states)], observed


def _topics(states: list[TopicState]) -> Iterator[Finding]:
    """Yield the topics that are not as declared, or one line for all."""
    wrong = [state for state in states if state.problems or not state.is_there]
    for state in wrong:
        if state.is_there:
            message, action = state.problems[0], "; ".join(state.problems[1:]) or "pvbus topics --check"
        else:
            message, action = "is missing", "pvbus topics --create"
        yield Finding(AREA, state.name, "wrong", message, action)
    if not wrong:
        yield Finding(AREA, "topics", "ok", f"all {len(states)} are as declared")


async def _read_observed_kinds(bus: Bus, states: list[TopicState]) -> set[Kind]:
    """Return the kinds that are requested of ingest: selected by sets, or injected into packages.

    None if the topic may not be read: not every service may, in whose pod this may run.
    """
    if not any(state.name == WATCHES and state.is_there for state in states):
        return set()
    try:
        rows = await read_rows(bus, WATCHES)
    except PermanentError:
        return set()
    kinds = set()
    for key, value in rows.items():
        if not key.startswith(CHECK_PREFIX):
            try:
                request = msgspec.json.decode(value, type=WatchRequest)
            except msgspec.MsgspecError:
                continue
            kinds.add(Kind(request.group, request.kind))
    return kinds
