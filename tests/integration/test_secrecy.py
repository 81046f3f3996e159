"""What malformed requests carry is read by nobody: every kind of port in this process, at level debug."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.controlplane.aggregated.server import AggregatedServer
from pvbus.controlplane.aggregated.serving import self_signed
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.kernel.keys import Key
from pvbus.core.variants.sink.answers import Failed
from pvbus.core.variants.sink.message import Event
from pvbus.ports.cluster import Resource
from pvbus.runtime.process.health import HealthServer
from pvbus.runtime.process.state import Observer
from pvbus.runtime.sink.receiver import Receiver
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.server import Address, PageServer
from pvbus.telemetry import logs
from tests.integration.aggregated.replicas import embedded_cluster
from tests.tools.marked import MARK, answers, malformed

PAGE_TOKEN = f"{MARK}page-0123456789"
MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
REVISIONS = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions"


class Port(NamedTuple):
    """paths: that requests name. url: for others. token: that requests to it carry, and nobody may read."""

    number: int
    paths: tuple[str, ...]
    context: ssl.SSLContext | None = None
    token: str = f"{MARK}bearer"


class NothingElse:
    """API server, rights and Porch's controllers of a process that has no trouble with them."""

    problem = ""
    failing_seconds = 0.0

    def lines(self, service: str) -> list[str]:
        return []

    def is_useless(self, service: str) -> bool:
        return False


def port_of(url: str) -> int:
    return int(url.rstrip("/").rpartition(":")[2].partition("/")[0])


@asynccontextmanager
async def every_port(folder: Path) -> AsyncIterator[dict[str, Port]]:
    """Serve all that pvbus serves."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    nothing: Any = NothingElse()
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(embedded_cluster(folder))
        assert world.server is not None
        plain = ApiServer(None, tls=False)
        await plain.start()
        stack.push_async_callback(plain.stop)
        await world.cluster.create(
            Resource("", "v1", "ConfigMap", "configmaps", True),
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            },
        )
        replica = await stack.enter_async_context(world.replica("replica"))
        aggregated = AggregatedServer(
            world.cluster, replica.state, problem=str, on_answer=lambda verb, code: None
        )
        number = await aggregated.listen("127.0.0.1", 0, partial(self_signed, folder / "pki", ["x.svc"]))
        stack.push_async_callback(aggregated.stop)
        bus = await SqliteBus.open(folder / "bus.db")
        stack.push_async_callback(bus.close)

        async def explain(key: Key, is_set: bool) -> dict[str, Any]:
            return {}

        page = await stack.enter_async_context(PageServer(Feed(bus, 1), explain, PAGE_TOKEN, Address()))
        health = await stack.enter_async_context(
            HealthServer(
                Observer({}, bus, SystemClock()), nothing, nothing, nothing, host="127.0.0.1", port=0
            )
        )
        yield {
            "API server": Port(port_of(world.server.url), (SECRETS, MAPS), unverified, world.server.token),
            "plain API server": Port(port_of(plain.url), (SECRETS,), None, plain.token),
            "aggregated API": Port(number, (REVISIONS,), unverified),
            "page": Port(page.port, ("/api/fleet", f"/?token={PAGE_TOKEN}")),
            "health": Port(port_of(health.url), ("/metrics", "/state")),
        }


async def test_no_port_repeats_a_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of more than 200 malformed requests with secrets, none is in a log, in a file of the bus, or in the
    answer to a request that is not valid HTTP; and every port serves on."""
    logs.configure("debug", "json")
    async with every_port(tmp_path) as ports:
        secrets = {MARK, *(port.token for port in ports.values())}
        count = 0
        for name, port in ports.items():
            for request, answer in await answers(
                port.number, malformed(port.paths, port.token), port.context
            ):
                count += 1
                if b"not valid HTTP" in answer or name in ("health", "page"):
                    assert not any(each.encode() in answer for each in secrets), (name, request[:300], answer)
                assert b"Traceback" not in answer
        assert count > 200
        async with aiohttp.ClientSession() as session:
            for port in ports.values():
                url = f"http{'s' if port.context else ''}://127.0.0.1:{port.number}/readyz"
                async with session.get(url, ssl=port.context or True) as response:
                    assert response.status in (200, 401, 403, 503)
                    assert MARK not in await response.text()
    written = capfd.readouterr()
    for secret in secrets:
        assert secret not in written.err + written.out
        for file in tmp_path.glob("bus.db*"):
            assert secret.encode() not in file.read_bytes()
    assert "client gone" in written.err  # so the lines were written, at this level
    assert "Traceback" not in written.err
    assert "Error handling request" not in written.err


async def test_the_sink_names_no_secret_of_its_address(tmp_path: Path) -> None:
    """A webhook's address is often all that it takes to write there."""
    receiver = Receiver(
        f"http://127.0.0.1:1/hook/{MARK}path?token={MARK}query",
        mode="binary",
        token_file=None,
        tls=None,
        timeout_seconds=5,
        in_flight_max=1,
    )
    async with receiver:
        answer = await receiver.send(Event("PackageVariant|a/b", "PackageVariant", "Ready", {}, b"{}"))
    assert isinstance(answer, Failed)
    assert "cannot connect to 127.0.0.1:1" in str(answer)
    assert MARK not in str(answer)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:9090"}, 200),
        ({"Host": "10.1.2.3:9090"}, 200),
        ({"Host": "[fd00::1]:9090"}, 200),
        ({"Host": "LOCALHOST."}, 200),
        ({"Host": "pvbus-render.pvbus-system.svc:9090"}, 200),
        ({"Host": "pvbus-render.pvbus-system.svc.cluster.local"}, 200),
        ({"Host": "metrics.example"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:9090"}, 403),
        ({"Host": "x.svc.evil.example"}, 403),
        ({"Host": "user@127.0.0.1"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "127.0.0.1", "Origin": "http://evil.example"}, 403),
    ],
)
async def test_metrics_and_state_are_for_who_names_this_server(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    """A page of another site can resolve its own name to this machine, but not send another Host."""
    bus = await SqliteBus.open(tmp_path / "bus.db")
    nothing: Any = NothingElse()
    observer = Observer({}, bus, SystemClock())
    health = HealthServer(
        observer, nothing, nothing, nothing, host="127.0.0.1", port=0, names=["Metrics.example"]
    )
    async with health, aiohttp.ClientSession() as session:
        for path in ("/metrics", "/state", "/healthz"):
            async with session.get(health.url + path, headers=headers) as answer:
                assert answer.status == status, path
    await bus.close()
