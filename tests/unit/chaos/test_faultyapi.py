"""What the proxy of a chaos run does to requests, seen by a client and by the server behind it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.tools import faultyapi
from tests.tools.authorizer import application, kubeconfig_at
from tests.tools.faultyapi import ApiFault, FaultyApi, faulty_api

VARIANTS = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/default/packagevariants"
REFUSED = {
    ApiFault.CONFLICT: {409},
    ApiFault.TOO_MANY: {429},
    ApiFault.SERVER_ERROR: {500, 503, 504},
}


class Behind:
    """A server that answers everything, and notes what reached it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.more = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.method)
        if request.query.get("watch"):
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b'{"type":"ADDED","object":{}}\n{"type":"half')
            await self.more.wait()
            await answer.write(b'"}\n')
            return answer
        return web.json_response(
            {"metadata": {"name": "made"}}, status=201 if request.method == "POST" else 200
        )


class Setting:
    def __init__(self, behind: Behind, api: FaultyApi, client: aiohttp.ClientSession) -> None:
        self.behind, self.api, self.client = behind, api, client


@pytest.fixture
async def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setting]:
    monkeypatch.setattr(faultyapi, "LATE_SECONDS", (0.05, 0.05))
    behind = Behind()
    runner = web.AppRunner(application(behind.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = kubeconfig_at(tmp_path / "behind", runner.addresses[0][1])
    try:
        async with faulty_api(kubeconfig, tmp_path / "proxy", 1) as api:
            url = next(
                line.split()[-1] for line in api.kubeconfig.read_text().splitlines() if "server:" in line
            )
            headers = {"User-Agent": "pvbus-render/1"}
            async with aiohttp.ClientSession(base_url=url, headers=headers) as client:
                yield Setting(behind, api, client)
    finally:
        behind.more.set()
        await runner.cleanup()


@pytest.mark.parametrize("fault", REFUSED)
async def test_a_refusal_never_reaches_the_server_and_is_told_once(setting: Setting, fault: ApiFault) -> None:
    setting.api.arm(fault)
    async with setting.client.put(f"{VARIANTS}/a", data=b"{}") as answer:
        assert answer.status in REFUSED[fault]
        assert (await answer.json())["code"] == answer.status
        assert ("Retry-After" in answer.headers) == (fault is ApiFault.TOO_MANY)
    assert setting.behind.asked == []
    async with setting.client.put(f"{VARIANTS}/a", data=b"{}") as answer:
        assert answer.status == 200
    assert setting.api.counts == {fault: 1}
    assert [(write.code, write.is_passed) for write in setting.api.writes] == [(0, False), (200, True)]


async def test_a_lost_answer_is_known_to_the_witness_only(setting: Setting) -> None:
    setting.api.arm(ApiFault.LOST)
    async with setting.client.get(VARIANTS) as answer:  # a read has no commit
        assert answer.status == 200
    with pytest.raises(aiohttp.ClientError):
        await setting.client.post(VARIANTS, data=b'{"metadata": {"name": "made"}}')
    assert setting.behind.asked == ["GET", "POST"]
    (write,) = setting.api.writes
    assert (write.agent, write.request.verb, write.namespace, write.name) == (
        "render",
        "create",
        "default",
        "made",
    )
    assert write.is_accepted


async def test_a_cut_connection_loses_the_request(setting: Setting) -> None:
    setting.api.arm(ApiFault.CUT)
    with pytest.raises(aiohttp.ClientError):
        await setting.client.post(VARIANTS, data=b"{}")
    assert setting.behind.asked == []
    assert setting.api.counts == {ApiFault.CUT: 1}


async def test_a_late_answer_comes(setting: Setting) -> None:
    setting.api.arm(ApiFault.LATE)
    async with setting.client.get(f"{VARIANTS}/a") as answer:
        assert answer.status == 200
    assert setting.api.counts == {ApiFault.LATE: 1}


async def test_an_open_watch_is_cut(setting: Setting) -> None:
    async with setting.client.get(f"{VARIANTS}?watch=true") as answer:
        assert await answer.content.readline() == b'{"type":"ADDED","object":{}}\n'
        setting.api.arm(ApiFault.WATCH_CUT)
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
    assert setting.api.counts == {ApiFault.WATCH_CUT: 1}


async def test_an_open_watch_expires_between_two_lines(setting: Setting) -> None:
    async with setting.client.get(f"{VARIANTS}?watch=true") as answer:
        await answer.content.readline()
        setting.api.arm(ApiFault.EXPIRED)
        rest = await answer.content.read()
    assert b'"code": 410' in rest
    assert b"half" not in rest


async def test_a_new_watch_meets_what_waited_for_one(setting: Setting) -> None:
    setting.api.arm(ApiFault.EXPIRED)
    async with setting.client.get(f"{VARIANTS}?watch=true") as answer:
        assert answer.status == 410


async def test_a_fault_that_nothing_has_met_does_not_count(setting: Setting) -> None:
    setting.api.arm(ApiFault.CONFLICT)
    setting.api.disarm()
    async with setting.client.put(f"{VARIANTS}/a", data=b"{}") as answer:
        assert answer.status == 200
    assert not setting.api.counts


async def test_a_server_that_is_away_answers_nobody(setting: Setting, tmp_path: Path) -> None:
    """No answer is made up: the client's connection ends, and the witness knows no code."""
    async with faulty_api(kubeconfig_at(tmp_path / "nowhere", 9), tmp_path / "second", 1) as api:
        url = next(line.split()[-1] for line in api.kubeconfig.read_text().splitlines() if "server:" in line)
        with pytest.raises(aiohttp.ClientError):
            await setting.client.post(f"{url}{VARIANTS}", data=b"{}")
        assert [(write.code, write.is_passed) for write in api.writes] == [(0, True)]
