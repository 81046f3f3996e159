"""One user who takes all he can get makes no other one wait, and is told to come again later."""

import asyncio
import logging
import ssl

import pytest

from pvbus.controlplane.apiserver import accepting, connections, shares
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.attacks import JSON, MAPS
from tests.integration.apiserver.client import Api, config_map, eventually
from tests.integration.apiserver.wires import user, wires

WATCH = f"{MAPS}?watch=1&timeoutSeconds=600"


async def test_a_users_watches_take_nobody_elses_room(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond his share he is refused, and others, the administrator and services are not."""
    monkeypatch.setattr(shares, "WATCHES", shares.Room("watches", 3, 6, 4))
    ann, bob = user(server, "ann"), user(server, "bob")
    async with wires(server, 5, ann) as anns, wires(server, 1, bob) as bobs, wires(server, 1) as admins:
        codes = []
        for wire in (*anns, *bobs, *admins):
            wire.head("GET", WATCH)
            codes.append(await wire.code())
        assert codes == [200, 200, 200, 429, 429, 200, 200]
        refused = await api.call("GET", WATCH, token=f"Bearer {ann}")
        assert (refused.code, refused.body["reason"], refused.headers["Retry-After"]) == (
            429,
            "TooManyRequests",
            "1",
        )
        assert refused.body["details"]["retryAfterSeconds"] == 1
        assert 'user "ann" has 3 watches already, of 3 for one user' in refused.body["message"]
        anns[0].close()

        async def has_room() -> bool:
            async with wires(server, 1, ann) as (wire,):
                wire.head("GET", WATCH)
                return await wire.code() == 200

        await eventually(has_room)


async def test_all_users_together_leave_the_services_room(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many users flood the server, its own accounts get in."""
    monkeypatch.setattr(shares, "WATCHES", shares.Room("watches", 2, 3, 2))
    codes = []
    first, second = user(server, "first"), user(server, "second")
    async with wires(server, 2, first) as some, wires(server, 2, second) as others, wires(server, 1) as own:
        for wire in (*some, *others, *own):
            wire.head("GET", WATCH)
            codes.append(await wire.code())
    assert codes == [200, 200, 200, 429, 200]


async def test_who_acts_as_others_is_counted_as_himself(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impersonation multiplies nobody's share."""
    monkeypatch.setattr(shares, "WATCHES", shares.Room("watches", 10, 10, 4))
    codes = []
    async with wires(server, 3) as opened:
        for n, wire in enumerate(opened):
            more = {"Impersonate-User": f"person-{n}", "Impersonate-Group": "system:masters"}
            wire.head("GET", WATCH, **more)
            codes.append(await wire.code())
    assert codes == [200, 200, 429]


async def test_requests_in_flight_have_a_share(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests whose bodies do not come count, and those of others are answered."""
    monkeypatch.setattr(shares, "REQUESTS", shares.Room("requests", 2, 10, 10))
    ann = user(server, "ann", "admin")
    headers = {"Content-Type": JSON, "Content-Length": "900"}
    async with wires(server, 2, ann) as slow:
        for wire in slow:
            wire.head("POST", MAPS, **headers)

        async def is_refused() -> bool:
            return (await api.call("GET", f"{MAPS}/x", token=f"Bearer {ann}")).code == 429

        await eventually(is_refused)
        assert (await api.call("GET", MAPS)).code == 200
        slow[0].write(b" " * 900)
        assert await slow[0].code() == 400
        assert (await api.call("GET", f"{MAPS}/x", token=f"Bearer {ann}")).code == 404


async def test_bytes_of_bodies_have_a_share(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "BODIES", shares.Room("bytes of bodies", 1000, 5000, 5000))
    ann, bob = user(server, "ann", "admin"), user(server, "bob", "admin")
    body = config_map("a", data={"a": "b" * 200})
    async with wires(server, 1, ann) as (slow,):
        slow.head("POST", MAPS, **{"Content-Type": JSON, "Content-Length": "900"})

        async def is_refused() -> bool:
            query = "?dryRun=All"
            return (await api.call("POST", MAPS + query, body, token=f"Bearer {ann}")).code == 429

        await eventually(is_refused)
        assert (await api.call("POST", MAPS, body, token=f"Bearer {bob}")).code == 201


async def test_a_user_has_a_share_of_the_connections(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His oldest idle ones are closed for his new ones, and nobody else's are."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 100)
    ann, bob = user(server, "ann"), user(server, "bob")

    async with wires(server, 3, bob) as bobs, wires(server, 12, ann) as anns:
        for wire in (*bobs, *anns):
            wire.head("GET", "/version")
            assert await wire.whole() == 200
        assert await anns[0].is_closed()
        for wire in bobs:
            wire.head("GET", "/version")
            assert await wire.whole() == 200


async def test_strangers_do_not_close_the_connections_of_users(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens many connections without a token replaces his own."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 40)
    async with wires(server, 2, user(server, "ann")) as known:
        for wire in known:
            wire.head("GET", "/version")
            assert await wire.whole() == 200
        async with wires(server, 80) as strangers:
            assert await strangers[0].is_closed()
            for wire in known:
                wire.head("GET", "/version")
                assert await wire.whole() == 200


async def test_a_handshake_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that never begins TLS is closed; too many of them make room for one that does."""
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(accepting, "HANDSHAKES_MAX", 4)
    server = ApiServer(None)
    caplog.set_level(logging.INFO)
    await server.start()
    try:
        port = int(server.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        for quiet, closing in silent:
            async with asyncio.timeout(20):
                assert await quiet.read() == b""
            closing.close()
        writer.close()
    finally:
        await server.stop()
    assert caplog.records == []


async def test_a_large_answer_is_not_written_as_yaml_on_the_loop(server: ApiServer, api: Api) -> None:
    """It is JSON, which is YAML: a small one has YAML's usual form."""
    small = await api.call("GET", f"{MAPS}/none", accept="application/yaml")
    assert small.code == 404
    await api.create(MAPS, config_map("a", data={"a": "b"}))
    assert (await api.call("GET", f"{MAPS}/a", accept="application/yaml")).body.startswith(
        b"apiVersion: v1\n"
    )
    await api.create(MAPS, config_map("large", data={"a": "b" * 100_000}))
    large = await api.call("GET", f"{MAPS}/large", accept="application/yaml")
    assert large.headers["Content-Type"] == "application/yaml"
    assert large.body.startswith(b'{"')
