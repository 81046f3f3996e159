"""The server around the resources: security, data folder, health, durability."""

import asyncio
import json
import os
import signal
import sqlite3
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography import x509

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.errors import PermanentError
from tests.integration.apiserver.client import WIDGETS, Api, crd, serving, widget
from tests.integration.apiserver.test_lists import WIDGET

REPOSITORY = Path(__file__).parents[3]


def kubeconfig(path: Path) -> tuple[str, str, str]:
    """Return the URL, token and authority that a kubeconfig names."""
    import base64

    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return cluster["server"], config["users"][0]["user"]["token"], authority


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Api]:
    """A client that knows nothing but the kubeconfig."""
    url, token, authority = kubeconfig(path)
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority))
    async with aiohttp.ClientSession(
        connector=connector, headers={"Authorization": f"Bearer {token}"}
    ) as session:
        yield Api(session, url)


async def test_the_kubeconfig_is_all_a_client_needs(tmp_path: Path) -> None:
    """HTTPS with an authority of its own, verified, on loopback only; files are private."""
    server = ApiServer(tmp_path / "data", crds=[crd()])
    await server.start()
    try:
        async with connected(server.kubeconfig_path) as api:
            await api.create(WIDGETS, widget("a"))
            assert api.url.startswith("https://127.0.0.1:")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                async with aiohttp.ClientSession() as stranger, stranger.get(api.url):
                    pass
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        secret = {"kubeconfig", "token", "server.key"}
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files if path.name in secret}
        assert modes == dict.fromkeys(secret, 0o600)
        assert stat.S_IMODE((tmp_path / "data" / "apiserver").stat().st_mode) == 0o700
    finally:
        await server.stop()


async def test_other_machines_are_served_by_a_name(tmp_path: Path) -> None:
    """An advertised name stands in the kubeconfig, and the certificate, made before, is made anew for it."""
    plain = ApiServer(tmp_path)
    await plain.start()
    await plain.stop()
    server = ApiServer(tmp_path, advertise="localhost")
    await server.start()
    try:
        async with connected(server.kubeconfig_path) as api:
            port = int(api.url.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.2", port)  # not the address of HOST
            writer.close()
            assert api.url.startswith("https://localhost:")
            assert await api.get("/api")
    finally:
        await server.stop()
    moved = ApiServer(tmp_path, advertise="apiserver.example")
    await moved.start()
    try:
        certificate = (tmp_path / "apiserver" / "pki" / "server.crt").read_bytes()
        names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert "apiserver.example" in names.value.get_values_for_type(x509.DNSName)
    finally:
        await moved.stop()


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic eDp5", "Bearer"])
async def test_without_the_token_there_is_nothing(api: Api, token: str) -> None:
    """401 for every path but the health checks, also for those that do not exist."""
    for path in ("/api", "/apis", WIDGETS, "/version", "/nothing", "/openapi/v3"):
        reply = await api.call("GET", path, token=token)
        assert (reply.code, reply.body["reason"]) == (401, "Unauthorized")
    for path in ("/healthz", "/livez", "/readyz"):
        assert (await api.call("GET", path, token=token)).body == b"ok"


async def test_version_and_questions_about_oneself(api: Api) -> None:
    """/version is there, and the one user may do everything."""
    assert int((await api.get("/version"))["minor"]) >= 32
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "widgets"}},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    assert answer["status"]["allowed"] is True


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    """Objects, versions, token, authority and port are those of the last start."""
    first = ApiServer(tmp_path, crds=[crd()])
    await first.start()
    async with connected(first.kubeconfig_path) as api:
        created = await api.create(WIDGETS, widget("a"))
        removed = await api.create(WIDGETS, widget("b"))
        await api.delete(f"{WIDGETS}/b")
    before = first.kubeconfig_path.read_text()
    await first.stop()
    second = ApiServer(tmp_path)
    await second.start()
    try:
        assert second.kubeconfig_path.read_text() == before
        async with connected(second.kubeconfig_path) as api:
            listed = await api.get(WIDGETS)
            assert listed["items"] == [created]
            version = int(listed["metadata"]["resourceVersion"])
            assert version > int(removed["metadata"]["resourceVersion"])
            old = created["metadata"]["resourceVersion"]
            async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={old}") as watch:
                assert (await watch.next())["object"]["code"] == 410
            async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={version}") as watch:
                later = await api.create(WIDGETS, widget("c"))
                assert await watch.names(1) == [("ADDED", "c")]
            assert int(later["metadata"]["resourceVersion"]) > version
    finally:
        await second.stop()


async def test_a_data_folder_has_one_server(tmp_path: Path) -> None:
    """A second one is refused with a sentence, and the first goes on."""
    first = ApiServer(tmp_path, tls=False)
    await first.start()
    try:
        second = ApiServer(tmp_path, tls=False)
        with pytest.raises(PermanentError, match="in use by another pvbus") as refused:
            await second.start()
        assert refused.value.reason == "DataInUse"
        assert first.objects.get(WIDGET, "", "x") is None
    finally:
        await first.stop()
    third = ApiServer(tmp_path, tls=False)
    await third.start()
    await third.stop()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """For a port that was asked for and for one that was kept; the folder is free again afterwards."""
    first = ApiServer(tmp_path / "one", tls=False)
    await first.start()
    port = int(first.url.rpartition(":")[2])
    try:
        asked = ApiServer(tmp_path / "two", port, tls=False)
        with pytest.raises(PermanentError, match=f"port {port} .* in use"):
            await asked.start()
        retained = ApiServer(tmp_path / "two", tls=False)
        await retained.start()
        kept_port = int(retained.url.rpartition(":")[2])
        assert kept_port != port
        await retained.stop()
        thief = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", kept_port)
        async with thief:
            again = ApiServer(tmp_path / "two", tls=False)
            with pytest.raises(PermanentError) as refused:
                await again.start()
            assert refused.value.reason == "PortInUse"
    finally:
        await first.stop()


async def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    """A row that cannot be decoded stops the start with a sentence; nothing is dropped silently."""
    server = ApiServer(tmp_path, tls=False)
    await server.start()
    await server.stop()
    database = sqlite3.connect(tmp_path / "apiserver" / "objects.db")
    with database:
        database.execute("UPDATE objects SET data = x'7b' WHERE name = 'default'")
    database.close()
    with pytest.raises(PermanentError, match="restore a backup") as refused:
        await ApiServer(tmp_path, tls=False).start()
    assert refused.value.reason == "DataDamaged"


async def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """The message says what to do, and the file is left alone."""
    server = ApiServer(tmp_path, tls=False)
    await server.start()
    await server.stop()
    path = tmp_path / "apiserver" / "objects.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(PermanentError, match="written by a newer pvbus"):
        await ApiServer(tmp_path, tls=False).start()
    path.write_bytes(b"this is no database, but it is long enough to be looked at as one" * 50)
    with pytest.raises(PermanentError, match="cannot be opened"):
        await ApiServer(tmp_path, tls=False).start()


async def test_a_server_in_memory_leaves_nothing() -> None:
    """Its folder goes when it stops."""
    server = ApiServer(None, tls=False)
    await server.start()
    folder = server.kubeconfig_path.parent
    assert folder.exists()
    await server.stop()
    assert not folder.exists()


def change_file(data: Path, *statements: str) -> None:
    """Run SQL on the objects' file, past the server."""
    database = sqlite3.connect(data / "apiserver" / "objects.db", isolation_level=None, timeout=30)
    for statement in statements:
        database.execute(statement)
    database.close()


def fill(data: Path) -> None:
    """Make each write fail, as a full disk does."""
    full = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    change_file(
        data,
        f"CREATE TRIGGER no_objects BEFORE INSERT ON objects {full}",
        f"CREATE TRIGGER no_revision BEFORE UPDATE ON revision {full}",
    )


async def until_ready(api: Api) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while (await api.call("GET", "/readyz")).code != 200:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


def make_room(data: Path) -> None:
    change_file(data, "DROP TRIGGER no_objects", "DROP TRIGGER no_revision")


async def test_a_full_disk_loses_nothing_and_ends_with_it(tmp_path: Path) -> None:
    """Writes fail with 500 and /readyz with 503 while there is no room; then nothing of them is there."""
    server = ApiServer(tmp_path, crds=[crd()], tls=False)
    async with serving(server) as api:
        retained = await api.create(WIDGETS, widget("kept"))
        fill(tmp_path)
        replies = await asyncio.gather(
            *(api.call("POST", WIDGETS, widget(f"w{n}", spec={"note": "x" * 100_000})) for n in range(20))
        )
        assert {reply.code for reply in replies} == {500}
        assert "could not be stored" in replies[0].body["message"]
        assert (await api.get(WIDGETS))["items"] == [retained]
        ready = await api.call("GET", "/readyz")
        assert ready.code == 503
        assert "make room on the disk" in str(ready.body)
        assert (await api.call("GET", "/livez")).code == 200
        make_room(tmp_path)
        await until_ready(api)
        await api.create(WIDGETS, widget("w1", spec={"note": "x" * 100_000}))
        assert len((await api.get(WIDGETS))["items"]) == 2


_SERVE = """
import asyncio, json, pathlib, sys
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.client import crd

async def main():
    server = ApiServer(pathlib.Path(sys.argv[1]), crds=[crd()])
    await server.start()
    print(server.kubeconfig_path, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def serving_process(data: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server in a process of its own, ready when this yields."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVE, str(data), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def write_until_killed(api: Api, process: Any, answered: dict[str, Any], seconds: float) -> None:
    """Create, change and delete from many sides, remembering what was answered, until kill -9."""

    async def writer(number: int) -> None:
        count = 0
        while True:
            name = f"w{number}-{count}-{os.urandom(3).hex()}"
            count += 1
            try:
                created = await api.call("POST", WIDGETS, widget(name))
                assert created.code == 201
                answered[name] = created.body
                if count % 3 == 0:
                    answered[name] = None  # In doubt from the request on.
                    deleted = await api.call("DELETE", f"{WIDGETS}/{name}")
                    assert deleted.code == 200
                    answered[name] = "deleted"
            except (aiohttp.ClientError, ConnectionError):
                return

    async def killer() -> None:
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        group.create_task(killer())
        for number in range(16):
            group.create_task(writer(number))


async def test_kill_9_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """Five times under load: every answered create is there, every answered delete is gone."""
    answered: dict[str, Any] = {}
    seen: list[str] = []
    for seconds in (0.3, 0.1, 0.5, 0.2, 0.4):
        async with serving_process(tmp_path) as process, connected(tmp_path / "kubeconfig") as api:
            rv = (await api.get(f"{WIDGETS}?limit=1"))["metadata"]["resourceVersion"]

            async def follow(api: Api = api, rv: str = rv) -> None:
                async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}") as watch:
                    while (event := await watch.next()) is not None:
                        if event["type"] == "ADDED":
                            seen.append(event["object"]["metadata"]["name"])

            watching = asyncio.create_task(follow())
            await write_until_killed(api, process, answered, seconds)
            await asyncio.gather(watching, return_exceptions=True)
        async with serving_process(tmp_path), connected(tmp_path / "kubeconfig") as api:
            present = {item["metadata"]["name"]: item for item in (await api.get(WIDGETS))["items"]}
            for name, state in answered.items():
                if state == "deleted":
                    assert name not in present
                elif state is not None:
                    assert present[name] == state
    assert sum(state is not None for state in answered.values()) > 100
    lost = [name for name in seen if name not in answered and name not in present]
    assert lost == [], "a watch showed what was not durable"


def test_the_status_of_an_error_is_json() -> None:
    """The bodies of errors are metav1.Status documents, which programs can read."""
    from pvbus.controlplane.apiserver import nodes, status

    subject = status.Subject("example.com", "widgets", "Widget", "a")
    problem = nodes.required("spec.size")
    body = json.loads(json.dumps(status.body(status.invalid(subject, [problem]))))
    assert body["details"] == {
        "name": "a",
        "group": "example.com",
        "kind": "Widget",
        "causes": [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.size"}],
    }
