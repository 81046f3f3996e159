"""Sources of packages: what is read of a registry, git and the text itself, and how each fails."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus.adapters.sources.cache import LEFTOVER_SECONDS, ContentCache
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.oci import Mirror, parse_mirrors
from pvbus.adapters.sources.session import LimitedSession
from pvbus.adapters.sources.sources import PackageSources
from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Content
from pvbus.core.platform.packaging.archives import Limits
from pvbus.core.platform.packaging.references import Inline, digest_of_files
from tests.tools.fakeregistry import (
    FakeRegistry,
    always,
    cut,
    endless,
    failing,
    fake_registry,
    refusal,
    substituted,
)
from tests.tools.gitserver import GitServer
from tests.tools.images import (
    BASE,
    META,
    PACKAGE,
    basic,
    digest_of,
    image_of,
    index_of,
    layer_of,
    pull_secret,
    xpkg_of,
)
from tests.unit.adapters.http_servers import Handler, issue, server_context, serving

FAST = SourceLimits(seconds_max=10.0, idle_seconds=2.0)


class Waits:
    """A clock that only notes what is waited for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


@asynccontextmanager
async def sources(tmp_path: Path, **options: Any) -> AsyncIterator[PackageSources]:
    options.setdefault("clock", Waits())
    options.setdefault("limits", FAST)
    made = PackageSources(tmp_path / "cache", **options)
    try:
        yield made
    finally:
        await made.close()


def secrets(*documents: Mapping[str, Any]) -> Any:
    """Return a reader of Secrets of the namespace demo."""

    async def read(key: str) -> Mapping[str, Any] | None:
        return next((each for each in documents if key == f"demo/{each['metadata']['name']}"), None)

    return read


def only_for(user: str, password: str) -> Any:
    """Ask for a login."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if request.headers.get("Authorization") == basic(user, password):
            return None
        return refusal(401, "UNAUTHORIZED", WWW_Authenticate='Basic realm="test"')

    return answer


async def refused(made: PackageSources, registry: FakeRegistry, digest: str) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        await made.pull(registry.source(), digest, ())
    return caught.value


async def test_an_image_is_observed_and_pulled(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of(), "v1.0.0", "latest")
        seen = await made.observe(registry.source(), ("v1.0.0", "v9"), ())
        assert seen == (("latest", "v1.0.0"), {"v1.0.0": digest})
        assert await made.pull(registry.source(), digest, ()) == Content(digest, PACKAGE)


async def test_a_tag_or_digest_in_the_source_is_observed(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of(), "v1")
        assert (await made.observe(f"{registry.source()}:v1", (), ())).digests == {"v1": digest}
        assert (await made.observe(registry.source(), (digest,), ())).digests == {digest: digest}


async def test_all_pages_of_tags_are_read(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        registry.add(xpkg_of(), *(f"v1.0.{number}" for number in range(25)))
        registry.page = 10
        seen = await made.observe(registry.source(), (), ())
        assert len(seen.tags) == 25
        assert len([path for _, path, _ in registry.asked if path.endswith("/tags/list")]) == 3


async def test_pages_without_an_end_are_refused(tmp_path: Path) -> None:
    async def again(request: web.Request) -> web.StreamResponse | None:
        return web.json_response({"tags": ["v1"]}, headers={"Link": f'<{request.path}>; rel="next"'})

    limits = FAST._replace(requests_max=20)
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        registry.faults.append(again)
        with pytest.raises(PermanentError, match="more than 20 requests") as caught:
            await made.observe(registry.source(), (), ())
        assert caught.value.reason == "TooLarge"


async def test_a_page_at_another_host_gets_no_request(tmp_path: Path) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse | None:
        return web.json_response({"tags": ["v1"]}, headers={"Link": '<http://localhost:1/v2/>; rel="next"'})

    async with fake_registry() as registry, sources(tmp_path) as made:
        registry.faults.append(elsewhere)
        with pytest.raises(PermanentError, match="names another host"):
            await made.observe(registry.source(), (), ())


async def test_observing_the_same_image_again_gives_the_same_digest_and_a_moved_tag_another(
    tmp_path: Path,
) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        first = registry.add(xpkg_of(), "v1")
        seen = [await made.observe(registry.source(), ("v1",), ()) for _ in range(3)]
        assert {each.digests["v1"] for each in seen} == {first}
        second = registry.add(xpkg_of({"package.yaml": META}), "v1")
        assert first != second
        assert (await made.observe(registry.source(), ("v1",), ())).digests == {"v1": second}
        assert (await made.pull(registry.source(), first, ())).files == PACKAGE


async def test_a_registry_that_tells_no_digest_is_read_for_it(tmp_path: Path) -> None:
    async def without(request: web.Request) -> web.StreamResponse | None:
        if "/manifests/" not in request.path:
            return None
        return web.Response(body=xpkg_of().manifest, content_type=xpkg_of().type)

    async with fake_registry() as registry, sources(tmp_path) as made:
        registry.faults.append(without)
        registry.add(xpkg_of(), "v1")
        assert (await made.observe(registry.source(), ("v1",), ())).digests == {"v1": xpkg_of().digest}


@pytest.mark.parametrize("code", [401, 403, 404, 405])
async def test_a_registry_that_lists_no_tags_still_tells_a_digest(tmp_path: Path, code: int) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of(), "v1")
        registry.faults.append(always("/tags/list", code, "UNSUPPORTED"))
        assert await made.observe(registry.source(), ("v1",), ()) == ((), {"v1": digest})
        for tags in ((), ("v9",)):
            with pytest.raises(PermanentError):
                await made.observe(registry.source(), tags, ())


async def test_of_an_index_the_image_for_our_platform_is_taken(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        other = xpkg_of({"package.yaml": META})
        registry.add(xpkg_of())
        registry.add(other)
        index = index_of([(other, "linux/arm64"), (xpkg_of(), "linux/amd64"), (other, "unknown/unknown")])
        content = await made.pull(registry.source(), registry.add(index), ())
        assert content == Content(index.digest, PACKAGE)
        single = registry.add(index_of([(xpkg_of(), "linux/arm64"), (other, "unknown/unknown")]))
        assert (await made.pull(registry.source(), single, ())).files == PACKAGE


async def test_an_index_without_our_platform_is_refused(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(index_of([(xpkg_of(), "linux/arm64"), (xpkg_of(), "windows/amd64")]))
        assert (await refused(made, registry, digest)).reason == "NoPlatform"


async def test_only_the_base_layer_of_an_xpkg_is_read(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        runtime = layer_of({"bin/server": b"x" * 1000})
        image = image_of((runtime, {}), (layer_of(PACKAGE), BASE))
        digest = registry.add(image)
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
        assert not [path for _, path, _ in registry.asked if digest_of(runtime) in path]


# Failures of a registry


async def test_a_registry_that_is_down_is_asked_three_times(tmp_path: Path) -> None:
    waits = Waits()
    async with sources(tmp_path, clock=waits) as made:
        with pytest.raises(TransientError, match=r"no answer from http://127\.0\.0\.1:1/"):
            await made.observe("127.0.0.1:1/team/network", (), ())
    first, second = waits.seconds
    assert 0.25 <= first <= 0.5
    assert 1.0 <= second <= 2.0


async def test_a_silent_registry_is_given_up(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse | None:
        await asyncio.sleep(60)
        return None

    limits = FAST._replace(attempts=1, idle_seconds=0.2)
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        registry.faults.append(silent)
        begun = time.monotonic()
        with pytest.raises(TransientError, match="no answer"):
            await made.observe(registry.source(), (), ())
        assert time.monotonic() - begun < 2


async def test_a_registry_that_sends_a_byte_now_and_then_is_given_up(tmp_path: Path) -> None:
    limits = FAST._replace(attempts=1, seconds_max=0.5)
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(endless("/blobs/", b"x", 0.05))
        begun = time.monotonic()
        with pytest.raises(TransientError, match=r"not done within 0\.5 s"):
            await made.pull(registry.source(), digest, ())
        assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("code", "reason"), [(401, "Unauthorized"), (403, "Forbidden"), (404, "NotFound"), (400, "Refused")]
)
async def test_a_refusal_is_permanent_and_says_which(tmp_path: Path, code: int, reason: str) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(always("/manifests/", code, "SOME_WORD"))
        error = await refused(made, registry, digest)
        assert error.reason == reason
        assert f"http://{registry.source()}".replace("/team", "/v2/team") in str(error)
        assert len(registry.asked) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503])
async def test_an_overloaded_registry_is_asked_again(tmp_path: Path, code: int) -> None:
    waits = Waits()
    async with fake_registry() as registry, sources(tmp_path, clock=waits) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(failing("/manifests/", refusal(code, "X"), refusal(code, "X")))
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
    assert len(waits.seconds) == 2


async def test_a_wait_that_a_registry_wants_is_waited_if_it_is_short(tmp_path: Path) -> None:
    waits = Waits()
    async with fake_registry() as registry, sources(tmp_path, clock=waits) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(failing("/manifests/", refusal(429, "TOOMANYREQUESTS", Retry_After="4")))
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
    assert waits.seconds == [4.0]


async def test_a_long_wait_is_left_to_the_caller(tmp_path: Path) -> None:
    waits = Waits()
    async with fake_registry() as registry, sources(tmp_path, clock=waits) as made:
        registry.faults.append(always("/v2/", 429, "TOOMANYREQUESTS", Retry_After="120"))
        with pytest.raises(TransientError, match="429") as caught:
            await made.observe(registry.source(), (), ())
    assert caught.value.retry_after_seconds == 120
    assert waits.seconds == []


async def test_a_connection_that_is_cut_in_a_layer_is_made_again(tmp_path: Path) -> None:
    image = xpkg_of()
    data = layer_of(PACKAGE)
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(image)
        registry.faults.append(cut("/blobs/", data, 20))
        with pytest.raises(TransientError, match="ended in the middle"):
            await made.pull(registry.source(), digest, ())
        assert len([path for _, path, _ in registry.asked if "/blobs/" in path]) == 3
        registry.faults.clear()
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE


@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
async def test_other_bytes_than_the_digest_says_are_refused(tmp_path: Path, part: str) -> None:
    other = xpkg_of({"package.yaml": PACKAGE["package.yaml"].replace(b"network", b"newtork")})
    data = other.manifest if part == "/manifests/" else layer_of(PACKAGE)[:-1] + b"x"
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(substituted(part, data))
        assert (await refused(made, registry, digest)).reason == "DigestMismatch"
        registry.faults.clear()
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE


async def test_another_media_type_of_a_manifest_is_refused(tmp_path: Path) -> None:
    image = xpkg_of()._replace(
        manifest=b'{"schemaVersion":1}', type="application/vnd.docker.distribution.manifest.v1+prettyjws"
    )
    async with fake_registry() as registry, sources(tmp_path) as made:
        error = await refused(made, registry, registry.add(image))
        assert error.reason == "MediaType"
        assert "manifest.v1+prettyjws" in str(error)


async def test_another_media_type_of_a_layer_is_refused(tmp_path: Path) -> None:
    image = image_of((b"chart", {}), layer_type="application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    async with fake_registry() as registry, sources(tmp_path) as made:
        error = await refused(made, registry, registry.add(image))
        assert error.reason == "MediaType"
        assert "helm.chart" in str(error)


async def test_a_layer_of_200_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    image = image_of((layer_of(PACKAGE), BASE), changed={"size": 200 * 1024 * 1024})
    async with fake_registry() as registry, sources(tmp_path) as made:
        error = await refused(made, registry, registry.add(image))
        assert error.reason == "TooLarge"
        assert "209715200 bytes, and the limit is 67108864" in str(error)
        assert not [path for _, path, _ in registry.asked if "/blobs/" in path]


async def test_a_layer_that_never_ends_is_refused_at_its_size(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(endless("/blobs/", b"x" * 65536))
        assert (await refused(made, registry, digest)).reason == "TooLarge"


async def test_a_manifest_that_never_ends_is_refused(tmp_path: Path) -> None:
    limits = FAST._replace(manifest_bytes_max=100_000)
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        registry.faults.append(endless("/manifests/", b"x" * 65536))
        assert (await refused(made, registry, "sha256:" + "0" * 64)).reason == "TooLarge"


async def test_content_above_the_limits_is_refused(tmp_path: Path) -> None:
    limits = FAST._replace(content=Limits(bytes_max=100))
    async with fake_registry() as registry, sources(tmp_path, limits=limits) as made:
        assert (await refused(made, registry, registry.add(xpkg_of()))).reason == "TooLarge"


# Logins


async def test_a_wrong_secret_is_refused_and_a_right_one_works_at_once(tmp_path: Path) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of(), "v1")
        registry.faults.append(only_for("joe", "right"))
        stored = [pull_secret(registry.address, "joe", "wrong")]

        async def read(key: str) -> Mapping[str, Any] | None:
            return stored[0]

        async with sources(tmp_path, secrets=read) as made:
            for _ in range(2):
                with pytest.raises(PermanentError, match="refused as joe") as caught:
                    await made.pull(registry.source(), digest, ("demo/pull",))
                assert caught.value.reason == "Unauthorized"
                assert "wrong" not in str(caught.value)
            stored[0] = pull_secret(registry.address, "joe", "right")
            assert (await made.pull(registry.source(), digest, ("demo/pull",))).files == PACKAGE


async def test_secrets_are_tried_in_order_and_unusable_ones_are_named(tmp_path: Path) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of())
        registry.faults.append(only_for("joe", "right"))
        unusable = {**pull_secret("x", "a", "b", "unusable"), "data": {".dockerconfigjson": "e30"}}
        read = secrets(
            pull_secret("other.example.org", "joe", "right", "other"),
            pull_secret(registry.address, "joe", "wrong", "wrong"),
            pull_secret(registry.address, "joe", "right", "right"),
            unusable,
        )
        async with sources(tmp_path, secrets=read) as made:
            keys = ("demo/missing", "demo/other", "demo/unusable", "demo/wrong")
            with pytest.raises(PermanentError) as caught:
                await made.pull(registry.source(), digest, keys)
            assert "secret demo/missing does not exist" in str(caught.value)
            assert f"secret demo/other has no login for {registry.address}" in str(caught.value)
            assert "secret demo/unusable: no data in base64" in str(caught.value)
            content = await made.pull(registry.source(), digest, (*keys, "demo/right"))
            assert content.files == PACKAGE


def token_server(registry: FakeRegistry, answer: dict[str, Any] | int) -> Any:
    """Return a fault that asks for a token, of the address `/token` of the same server."""

    async def handle(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/token":
            if isinstance(answer, int):
                return refusal(answer, "X")
            if request.headers.get("Authorization") != basic("joe", "right"):
                return refusal(401, "UNAUTHORIZED")
            assert request.query["scope"] == "repository:team/network:pull"
            assert request.query["service"] == "registry"
            return web.json_response(answer)
        if request.headers.get("Authorization") == "Bearer abc":
            return None
        challenge = (
            f'Bearer realm="http://{registry.address}/token",service="registry",'
            'scope="repository:team/network:pull"'
        )
        return refusal(401, "UNAUTHORIZED", WWW_Authenticate=challenge)

    return handle


@pytest.mark.parametrize("field", ["token", "access_token"])
async def test_a_token_is_fetched_with_the_login(tmp_path: Path, field: str) -> None:
    async with fake_registry() as registry:
        digest = registry.add(xpkg_of(), "v1")
        registry.faults.append(token_server(registry, {field: "abc"}))
        read = secrets(pull_secret(registry.address, "joe", "right"))
        async with sources(tmp_path, secrets=read) as made:
            assert (await made.observe(registry.source(), ("v1",), ("demo/pull",))).digests == {"v1": digest}
            assert (await made.pull(registry.source(), digest, ("demo/pull",))).files == PACKAGE


async def test_a_token_service_that_fails_is_asked_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        registry.faults.append(token_server(registry, 503))
        with pytest.raises(TransientError, match="503"):
            await made.pull(registry.source(), digest, ())
        registry.faults[:] = [token_server(registry, {"token": "abc"})]
        assert (await refused(made, registry, digest)).reason == "Unauthorized"


async def test_a_password_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    async def challenge(request: web.Request) -> web.StreamResponse | None:
        return refusal(401, "X", WWW_Authenticate='Bearer realm="http://tokens.example.org/t",service="r"')

    async with fake_registry() as registry:
        registry.faults.append(challenge)
        read = secrets(pull_secret(registry.address, "joe", "right"))
        async with sources(tmp_path, secrets=read) as made:
            with pytest.raises(PermanentError, match="sent by https only") as caught:
                await made.observe(registry.source(), (), ("demo/pull",))
            assert caught.value.reason == "Insecure"


async def test_a_redirected_layer_is_read_without_the_login(tmp_path: Path) -> None:
    seen = []

    async def store(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.Response(body=layer_of(PACKAGE))

    async with fake_registry() as registry, serving(store) as url:
        digest = registry.add(xpkg_of())

        async def redirect(request: web.Request) -> web.StreamResponse | None:
            if "/blobs/" not in request.path:
                return None
            return web.Response(status=307, headers={"Location": url.replace("127.0.0.1", "localhost")})

        registry.faults += [only_for("joe", "right"), redirect]
        read = secrets(pull_secret(registry.address, "joe", "right"))
        async with sources(tmp_path, secrets=read) as made:
            assert (await made.pull(registry.source(), digest, ("demo/pull",))).files == PACKAGE
    assert seen == [None]


# Mirrors and authorities


async def test_a_mirror_is_asked_first_and_the_registry_after_it(tmp_path: Path) -> None:
    async with fake_registry() as registry, fake_registry() as mirror:
        digest = registry.add(xpkg_of())
        mirrors = (Mirror(registry.address, mirror.address, "copies"),)
        async with sources(tmp_path, mirrors=mirrors) as made:
            assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
            assert mirror.asked[0][1] == f"/v2/copies/team/network/manifests/{digest}"
            assert len(registry.asked) == 2
        mirror.add(xpkg_of())
        async with sources(tmp_path / "2", mirrors=mirrors) as made:
            assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
            assert len(registry.asked) == 2


async def test_a_mirror_cannot_serve_something_else(tmp_path: Path) -> None:
    async with fake_registry() as registry, fake_registry() as mirror:
        digest = registry.add(xpkg_of())
        mirror.faults.append(substituted("/manifests/", xpkg_of({"package.yaml": META}).manifest))
        mirrors = parse_mirrors(f"{registry.address} = {mirror.address}")
        async with sources(tmp_path, mirrors=mirrors) as made:
            assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
        assert mirror.asked


async def test_a_mirror_gets_no_login(tmp_path: Path) -> None:
    async with fake_registry() as registry, fake_registry() as mirror:
        digest = registry.add(xpkg_of())
        for each in (registry, mirror):
            each.faults.append(only_for("joe", "right"))
        mirrors = parse_mirrors(f"{registry.address} = {mirror.address}")
        read = secrets(pull_secret(registry.address, "joe", "right"))
        async with sources(tmp_path, mirrors=mirrors, secrets=read) as made:
            assert (await made.pull(registry.source(), digest, ("demo/pull",))).files == PACKAGE
    assert {authorization for _, _, authorization in mirror.asked} == {""}


@pytest.mark.parametrize("text", ["registry.example.org", "=x", "a=", "https://a=b"])
def test_a_mirror_that_is_written_wrong_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="write registry=address"):
        parse_mirrors(text)


# Git


def git(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t",
    }  # fmt: skip
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Repository:
    """A git repository with the package `team/app`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "team/app").mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
        self.commit(b"a: 1\n", "team/app/v1")

    @property
    def source(self) -> str:
        return f"git+file://{self.folder}//team/app"

    def commit(self, content: bytes, *tags: str) -> str:
        (self.folder / "team/app/a.yaml").write_bytes(content)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "-m", "x")
        for tag in tags:
            git(self.folder, "tag", "-a", "-m", "x", tag)
        return git(self.folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "repository"
    folder.mkdir()
    return Repository(folder)


V1 = digest_of_files({"a.yaml": b"a: 1\n"})
V2 = digest_of_files({"a.yaml": b"a: 2\n"})


async def test_versions_of_a_folder_of_git_are_its_tags(tmp_path: Path, repository: Repository) -> None:
    commit = repository.commit(b"a: 2\n", "team/app/v2", "other/v7", "v9")
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        seen = await made.observe(repository.source, ("v1", "v2", "main", commit, "v3"), ())
        assert sorted(seen.tags) == ["v1", "v2"]
        assert seen.digests == {"v1": V1, "v2": V2, "main": V2, commit: V2}
        assert await made.pull(repository.source, V1, ()) == Content(V1, {"a.yaml": b"a: 1\n"})


async def test_the_same_files_in_another_commit_have_the_same_digest(
    tmp_path: Path, repository: Repository
) -> None:
    repository.commit(b"a: 1\n", "team/app/v2")
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        seen = await made.observe(repository.source, ("v1", "v2"), ())
        assert seen.digests == {"v1": V1, "v2": V1}


async def test_a_moved_ref_gives_another_digest_and_the_former_content_stays_in_the_cache(
    tmp_path: Path, repository: Repository
) -> None:
    source = f"{repository.source}?ref=main"
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        assert (await made.observe(source, (), ())).digests == {"main": V1}
        repository.commit(b"a: 2\n")
        assert (await made.observe(source, (), ())).digests == {"main": V2}
        assert (await made.pull(source, V1, ())).files == {"a.yaml": b"a: 1\n"}
    async with sources(tmp_path / "new", local_folders=(str(tmp_path),)) as made:
        with pytest.raises(PermanentError, match="it has changed") as caught:
            await made.pull(source, V1, ())
        assert caught.value.reason == "DigestMismatch"
        assert (await made.pull(source, V2, ())).files == {"a.yaml": b"a: 2\n"}


async def test_without_a_ref_a_digest_is_found_among_the_versions(
    tmp_path: Path, repository: Repository
) -> None:
    repository.commit(b"a: 2\n", "team/app/v2")
    repository.commit(b"a: 3\n")
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        assert (await made.pull(repository.source, V1, ())).digest == V1


async def test_links_in_git_are_refused(tmp_path: Path, repository: Repository) -> None:
    (repository.folder / "team/app/link").symlink_to("/etc/passwd")
    repository.commit(b"a: 2\n", "team/app/v2")
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        with pytest.raises(PermanentError, match="'link': it is a link") as caught:
            await made.observe(repository.source, ("v2",), ())
        assert caught.value.reason == "InvalidContent"


async def test_a_folder_or_repository_that_is_not_there_is_said(
    tmp_path: Path, repository: Repository
) -> None:
    async with sources(tmp_path, local_folders=(str(tmp_path),)) as made:
        for source in (
            f"git+file://{repository.folder}//nothing?ref=main",
            f"git+file://{tmp_path}/no?ref=main",
        ):
            with pytest.raises(PermanentError) as caught:
                await made.observe(source, (), ())
            assert caught.value.reason == "NotFound"


async def test_a_folder_of_this_machine_is_read_only_where_that_is_allowed(
    tmp_path: Path, repository: Repository
) -> None:
    async with sources(tmp_path, local_folders=(str(tmp_path / "else"),)) as made:
        for asked in (made.observe(repository.source, (), ()), made.pull(repository.source, V1, ())):
            with pytest.raises(PermanentError, match="PVBUS_SOURCES_LOCAL"):
                await asked


async def test_a_git_server_wants_the_password_of_the_secret(tmp_path: Path, repository: Repository) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository.folder), "served.git")
    with GitServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            source = f"git+{server.url('served.git')}//team/app?ref=v1"
            address = f"127.0.0.1:{server.server_address[1]}"
            read = secrets(
                pull_secret(address, "joe", "wrong-password", "wrong"),
                pull_secret(address, "joe", server.password, "right"),
            )
            limits = FAST._replace(seconds_max=20.0)
            async with sources(tmp_path, secrets=read, limits=limits) as made:
                with pytest.raises(PermanentError) as caught:
                    await made.observe(source, (), ("demo/wrong",))
                assert caught.value.reason == "Unauthorized"
                assert "wrong-password" not in str(caught.value)
                seen = await made.observe(source, (), ("demo/wrong", "demo/right"))
                assert seen.digests == {"v1": V1}
        finally:
            server.shutdown()
            thread.join()


async def test_git_trusts_the_authority_of_the_settings(tmp_path: Path, repository: Repository) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository.folder), "served.git")
    authority = issue("authority")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    files = issue("server", authority).write(tmp_path, "server")
    keystore = tmp_path / "keystore.pem"
    keystore.write_text("".join(Path(file).read_text() for file in files))
    with GitServer(tmp_path, keystore=keystore) as server:
        server.password = ""
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            source = f"git+{server.url('served.git')}//team/app?ref=v1"
            limits = FAST._replace(attempts=1)
            async with sources(tmp_path, limits=limits) as made:
                with pytest.raises(TransientError, match="certificate"):
                    await made.observe(source, (), ())
            async with sources(tmp_path, limits=limits, ca_file=str(tmp_path / "ca.pem")) as made:
                assert (await made.observe(source, (), ())).digests == {"v1": V1}
        finally:
            server.shutdown()
            thread.join()


# Files in the source


async def test_files_in_the_source_are_observed_and_pulled(tmp_path: Path) -> None:
    source = str(Inline({"a.yaml": b"a: 1\n"}))
    async with sources(tmp_path) as made:
        assert (await made.observe(source, ("",), ())).digests == {"": V1}
        assert (await made.pull(source, V1, ())).files == {"a.yaml": b"a: 1\n"}
        with pytest.raises(PermanentError, match="not sha256:") as caught:
            await made.pull(source, V2, ())
        assert caught.value.reason == "DigestMismatch"


# The cache


CONTENT = Content(V1, {"a.yaml": b"a: 1\n"})


async def test_a_content_is_pulled_once_and_then_without_its_source(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        await made.pull(registry.source(), digest, ())
        count = len(registry.asked)
        await made.pull(registry.source(), digest, ())
        assert len(registry.asked) == count
    async with sources(tmp_path) as made:
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE


@pytest.mark.parametrize("damage", ["cut", "empty", "changed"])
async def test_a_damaged_file_of_the_cache_is_read_again(tmp_path: Path, damage: str) -> None:
    async with fake_registry() as registry, sources(tmp_path) as made:
        digest = registry.add(xpkg_of())
        await made.pull(registry.source(), digest, ())
        (path,) = (tmp_path / "cache").iterdir()
        data = path.read_bytes()
        path.write_bytes({"cut": data[:-5], "empty": b"", "changed": data[:-1] + b"x"}[damage])
        assert (await made.pull(registry.source(), digest, ())).files == PACKAGE
        assert path.read_bytes() == data


def test_the_cache_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, bytes_max=3000)
    digests = [f"sha256:{number:064d}" for number in range(4)]
    for number, digest in enumerate(digests[:2]):
        cache.put(Content(digest, {"a": b"x" * 1000}))
        os.utime(tmp_path / digest.replace(":", "-"), (number + 1, number + 1))
    assert cache.get(digests[0]) is not None  # used now, so the other one is older
    cache.put(Content(digests[2], {"a": b"x" * 1000}))
    assert [cache.get(digest) is not None for digest in digests] == [True, False, True, False]
    cache.put(Content(digests[3], {"a": b"x" * 5000}))
    assert cache.get(digests[3]) is None
    assert cache.get(digests[2]) is not None


def test_the_cache_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, bytes_max=10_000)
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for path, age in ((old, LEFTOVER_SECONDS + 60), (new, 0.0)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age, time.time() - age))
    cache.put(CONTENT)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_disk_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ContentCache(tmp_path / "file", bytes_max=10_000)
    cache.put(CONTENT)
    assert cache.get(V1) is None


def test_a_file_of_another_content_is_not_taken(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, bytes_max=10_000)
    cache.put(CONTENT)
    (tmp_path / V1.replace(":", "-")).rename(tmp_path / V2.replace(":", "-"))
    assert cache.get(V2) is None


_WRITER = """
import sys
from pathlib import Path
from pvbus.adapters.sources.cache import ContentCache
from pvbus.core.kernel.effects import Content
cache = ContentCache(Path(sys.argv[1]), bytes_max=60_000)
for turn in range(60):
    digest = f"sha256:{turn % 7:064d}"
    cache.put(Content(digest, {"a": str(turn % 7).encode() * 10_000}))
    found = cache.get(digest)
    assert found is None or found.files["a"] == str(turn % 7).encode() * 10_000
"""


def test_several_processes_share_the_cache(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 60_000


async def test_a_cancelled_pull_ends_its_thread(tmp_path: Path) -> None:
    async with fake_registry() as registry, sources(tmp_path, limits=SourceLimits()) as made:
        digest = registry.add(xpkg_of())
        begun, ended = asyncio.Event(), asyncio.Event()

        async def drip(request: web.Request) -> web.StreamResponse | None:
            if "/blobs/" not in request.path:
                return None
            response = web.StreamResponse()
            await response.prepare(request)
            begun.set()
            try:
                for _ in range(400):
                    await response.write(b"x")
                    await asyncio.sleep(0.02)
            except (ConnectionError, asyncio.CancelledError):
                ended.set()
                raise
            return response

        registry.faults.append(drip)
        task = asyncio.create_task(made.pull(registry.source(), digest, ()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 5)


async def test_an_authority_of_the_settings_is_trusted(tmp_path: Path) -> None:
    """TLS is spoken by the session; `127.0.0.1` is plain HTTP, so the session is asked itself."""
    authority = issue("authority")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    handler: Handler = FakeRegistry()
    async with serving(handler, server_context(tmp_path, issue("server", authority))) as url:
        with (
            LimitedSession(FAST, loopback=True) as session,
            pytest.raises(TransientError, match="certificate verify failed"),
        ):
            await asyncio.to_thread(session.request, "GET", f"{url}/v2/x/tags/list")
        with LimitedSession(FAST, ca_file=str(tmp_path / "ca.pem"), loopback=True) as session:
            answer = await asyncio.to_thread(session.request, "GET", f"{url}/v2/x/tags/list")
            assert answer.json() == {"name": "x", "tags": []}
