"""Events go an hour after they were last written, whatever they say of their times."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.ports.cluster import Kind, Object
from tests.integration.apiserver.client import Api, serving

EVENT = Kind("", "Event")
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
SECONDS_MAX = 30.0


def event(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "finalizers": ["example.com/keep"]},
        "eventTime": "2096-01-01T00:00:00.000000Z",
        "regarding": {"kind": "ConfigMap", "name": "a", "namespace": "default"},
        "reason": "Tried",
        "action": "Try",
        "type": "Normal",
        "reportingController": "example.com/tester",
        "reportingInstance": "tester-1",
    }


@asynccontextmanager
async def expiring(folder: Path, *, seconds: float) -> AsyncIterator[tuple[ApiServer, Api]]:
    server = ApiServer(folder, tls=False, event_seconds=seconds)
    async with serving(server) as api:
        yield server, api


async def first_gone(server: ApiServer, count: int) -> list[str]:
    """Wait until so many Events were removed; return their names, in that order."""
    gone: list[str] = []
    async with asyncio.timeout(SECONDS_MAX):
        async for change in server.objects.watch(EVENT):
            if change.type == "DELETED":
                gone.append(change.object["metadata"]["name"])
            if len(gone) == count:
                break
    return gone


async def test_events_go_in_the_order_of_their_last_writes(tmp_path: Path) -> None:
    """Their finalizers and their own times do not keep them."""
    async with expiring(tmp_path, seconds=0.5) as (server, api):
        await api.create(EVENTS, event("repeated"))
        await api.create(EVENTS, event("single"))
        series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}
        await api.patch(f"{EVENTS}/repeated", {"series": series})
        gone = await first_gone(server, 2)
        assert gone == ["single", "repeated"]
        assert server.objects.list(EVENT, "default") == []


async def test_after_a_restart_what_was_written_too_long_ago_goes_at_once(tmp_path: Path) -> None:
    async with expiring(tmp_path, seconds=3600.0) as (server, api):
        await api.create(EVENTS, event("new"))
        old: Object = {**await api.get("/api/v1/namespaces/default/events/new")}
        old["metadata"] = {
            "name": "old",
            "namespace": "default",
            "uid": "u",
            "creationTimestamp": "2020-01-01T00:00:00Z",
        }
        await server.objects.put(EVENT, old)
    async with expiring(tmp_path, seconds=3600.0) as (server, _):
        async with asyncio.timeout(SECONDS_MAX):
            async for _ in server.objects.watch(EVENT):  # its bookmark comes after what is there
                if [obj["metadata"]["name"] for obj in server.objects.list(EVENT)] == ["new"]:
                    break
