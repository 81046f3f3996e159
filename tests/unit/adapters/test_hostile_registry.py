"""Registries made to harm: each is given up in a sentence, holds no thread, and leads to no other server."""

import asyncio
import gzip
import io
import json
import socket
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.session import LimitedSession
from pvbus.core.errors import PermanentError, TransientError
from tests.tools.fakeregistry import FakeRegistry, fake_registry, refusal
from tests.tools.images import Built, basic, digest_of, image_of, index_of, pull_secret, tar_of, xpkg_of
from tests.unit.adapters.http_servers import ELSEWHERE
from tests.unit.adapters.test_sources import secrets, sources

FAST = SourceLimits(seconds_max=1.0, idle_seconds=0.5, attempts=1)
INDEX = "application/vnd.oci.image.index.v1+json"


@asynccontextmanager
async def dripping(
    first: bytes, again: bytes, pause_seconds: float
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve bytes, then others again and again; yield the address, and an event: the client has gone."""
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(first)
            while not writer.is_closing():
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(pause_seconds)
        except OSError:
            gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", gone
    finally:
        server.close()


@pytest.mark.parametrize(
    ("first", "again", "pause_seconds"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50, 0.01),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.1),
        (b"HTTP/1.", b"1", 0.1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0", 0.1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b" ", 0.1),
    ],
    ids=["interim answers", "a header", "a status line", "the size of a chunk", "a body"],
)
async def test_an_answer_that_drips_for_ever_is_cut_at_the_deadline(
    tmp_path: Path, first: bytes, again: bytes, pause_seconds: float
) -> None:
    """A thread reads as long as its connection is open."""
    async with (
        dripping(first, again, pause_seconds) as (address, gone),
        sources(tmp_path, limits=FAST) as made,
    ):
        with pytest.raises(TransientError, match=r"not done within 1 s"):
            await made.observe(f"{address}/team/network", (), ())
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_a_layer_at_a_metadata_address_is_not_asked_for(tmp_path: Path, url: str) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse | None:
        if "/blobs/" not in request.path:
            return None
        return web.Response(status=307, headers={"Location": url})

    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(redirect)
        with pytest.raises(PermanentError, match="no source is read there") as caught:
            await made.pull(registry.source(), digest, ())
        assert caught.value.reason == "Forbidden"


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_a_token_is_not_asked_for_at_a_metadata_address(tmp_path: Path, url: str) -> None:
    async def challenge(request: web.Request) -> web.StreamResponse | None:
        return refusal(401, "X", WWW_Authenticate=f'Bearer realm="{url}",service="r"')

    async with fake_registry() as registry, sources(tmp_path) as made:
        registry.faults.append(challenge)
        with pytest.raises(PermanentError, match="no source is read there"):
            await made.observe(registry.source(), (), ())


async def test_a_realm_that_is_no_address_gets_nothing(tmp_path: Path) -> None:
    """The login of a secret is for https, or for a registry on this machine."""
    for realm in ("file:///etc/passwd", "ftp://127.0.0.1/", "http://example.invalid/", "x", "//", "http://"):

        async def challenge(request: web.Request, realm: str = realm) -> web.StreamResponse | None:
            return refusal(401, "X", WWW_Authenticate=f'Bearer realm="{realm}",service="r"')

        async with fake_registry() as registry:
            registry.faults.append(challenge)
            read = secrets(pull_secret(registry.address, "joe", "right"))
            async with sources(tmp_path, secrets=read) as made:
                with pytest.raises((PermanentError, TransientError)) as caught:
                    await made.observe(registry.source(), (), ("demo/pull",))
                assert basic("joe", "right") not in str(caught.value)


def test_a_name_that_leads_to_this_machine_is_refused_without_a_request() -> None:
    """A name resolves to any address; only a source that names this machine may be on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("localhost", "127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]"):
            with LimitedSession(FAST) as session, pytest.raises(PermanentError, match="is this machine"):
                session.request("GET", f"http://{host}:{port}/v2/")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_pages_of_large_tags_are_given_up_before_they_fill_the_memory(tmp_path: Path) -> None:
    async def tags(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/tags/list"):
            return None
        number = int(request.query.get("last", "0"))
        link = f'<{request.path}?last={number + 1}>; rel="next"'
        return web.json_response({"tags": [f"{number}-{'x' * 900}"]}, headers={"Link": link})

    limits = FAST._replace(seconds_max=10.0, manifest_bytes_max=1000)
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        registry.faults.append(tags)
        with pytest.raises(PermanentError, match="it has too many tags") as caught:
            await made.observe(registry.source(), (), ())
        assert caught.value.reason == "TooLarge"
        assert len(registry.asked) < 12


def _nested(registry: FakeRegistry) -> str:
    inner = index_of([(xpkg_of(), "linux/amd64")])
    registry.add(xpkg_of())
    registry.add(inner)
    descriptor = {"mediaType": INDEX, "digest": inner.digest, "size": len(inner.manifest)}
    outer = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
    return registry.add(Built(json.dumps(outer).encode(), {}, INDEX))


def _two_names(registry: FakeRegistry) -> str:
    layer = gzip.compress(tar_of({"a.yaml": b"a: 1\n"}) + tar_of({"b.yaml": b"b: 1\n"}))
    return registry.add(image_of((layer, {})))


def _with_nul(registry: FakeRegistry, *, gnu: bool = False) -> str:
    data = bytearray(tar_of({"aXb.yaml": b"a: 1\n"}))
    data[1] = 0
    if gnu:
        data[257:265] = b"ustar  \0"
    header = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
    data[148:156] = f"{sum(header):06o}\0 ".encode()
    return registry.add(image_of((gzip.compress(bytes(data)), {})))


def _zeros(size: int) -> Callable[[FakeRegistry], str]:
    return lambda registry: registry.add(image_of((gzip.compress(bytes(size)), {})))


def _sparse(registry: FakeRegistry) -> str:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo("a.yaml")
        member.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(member)
    return registry.add(image_of((gzip.compress(stream.getvalue()), {})))


@pytest.mark.parametrize(
    ("add", "problem"),
    [
        (_nested, "the image has no layer"),
        (_two_names, "more than zeros follows the end of the archive"),
        (_with_nul, "the name has a NUL"),
        (partial(_with_nul, gnu=True), "the name has a NUL"),
        (_zeros(10_240), "the layers have no file: their archives are empty"),
        (_zeros(40 << 20), "more than 200 times its size: a bomb is refused"),
        (_sparse, "neither a file nor a folder"),
        (lambda registry: registry.add(image_of((b"\x28\xb5\x2f\xfd" + b"x" * 99, {}))), "packed by zstd"),
        (lambda registry: registry.add(Built(b"{}")), "the image has no layer"),
        (lambda registry: registry.add(Built(b"[" * 100_000)), "the manifest is unusable"),
        (lambda registry: registry.add(Built(b"x" * (5 << 20))), "it sent more than 4194304 bytes"),
        (
            lambda registry: registry.add(image_of((b"", {}), changed={"size": -1})),
            "is no digest",
        ),
        (
            lambda registry: registry.add(image_of((b"", {}), changed={"digest": "sha256:../../x"})),
            "is no digest",
        ),
    ],
    ids=[
        "an index in an index", "two archives in one", "a NUL in a name", "a NUL of GNU", "no file",
        "40 MB of zeros", "sparse", "zstd", "no layers", "a deep manifest", "a large manifest",
        "a size below zero", "a digest with a path",
    ],
)  # fmt: skip
async def test_what_an_image_holds_is_refused_in_words(
    tmp_path: Path, add: Callable[[FakeRegistry], str], problem: str
) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        with pytest.raises(PermanentError) as caught:
            await made.pull(registry.source(), add(registry), ())
        assert problem in str(caught.value)


async def test_a_layer_twice_is_the_same_files(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        layer = gzip.compress(tar_of({"a.yaml": b"a: 1\n"}))
        digest = registry.add(image_of((layer, {}), (layer, {})))
        assert (await made.pull(registry.source(), digest, ())).files == {"a.yaml": b"a: 1\n"}


async def test_a_tag_that_moves_meanwhile_changes_nothing_of_a_digest(tmp_path: Path) -> None:
    """What is read after the tag is asked for by its digest."""
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of(), "v1")
        seen = await made.observe(registry.source(), ("v1",), ())
        registry.tags["v1"] = digest_of(b"another")
        assert seen.digests == {"v1": digest}
        assert (await made.pull(registry.source(), digest, ())).digest == digest
