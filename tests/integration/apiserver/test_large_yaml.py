"""Large YAML is read and written beside the event loop: others are answered meanwhile."""

import asyncio
import os
from pathlib import Path

import pytest
import yaml

from pvbus.controlplane.apiserver import bodies
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.workers import WAITING_MAX, WORKERS_MAX, Workers
from pvbus.core.yaml.reader import Limits
from tests.integration.apiserver.client import CORE, Api, config_map

MAPS = f"{CORE}/namespaces/default/configmaps"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LIMITS = Limits(bytes_max=50_000_000, depth_max=10, nodes_max=10_000_000)


def large(name: str, keys: int = 5000) -> bytes:
    head = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n"
    return (head + "".join(f"  key{number}: '{number:08d}'\n" for number in range(keys))).encode()


async def test_a_large_body_is_what_a_small_one_is(api: Api) -> None:
    """Create, replace, apply, and an answer in YAML."""
    assert len(large("a")) > bodies.LARGE_BYTES
    posted = await api.call("POST", MAPS, large("a"), media="application/yaml")
    assert (posted.code, len(posted.body["data"])) == (201, 5000)
    put = await api.call("PUT", f"{MAPS}/a", large("a", 6000), media="application/yaml")
    assert (put.code, put.body["data"]["key5999"]) == (200, "00005999")
    applied = await api.call(
        "PATCH", f"{MAPS}/b?fieldManager=t", large("b"), media="application/apply-patch+yaml"
    )
    assert (applied.code, len(applied.body["data"])) == (201, 5000)
    answer = await api.call("GET", f"{MAPS}/b", accept="application/yaml")
    assert yaml.safe_load(answer.body)["data"] == applied.body["data"]


async def test_duplicate_fields_of_a_large_body_are_reported(api: Api) -> None:
    body = large("a") + b"  key1: x\n"
    refused = await api.call("POST", f"{MAPS}?fieldValidation=Strict", body, media="application/yaml")
    assert refused.code == 400
    assert 'duplicate field "data.key1"' in refused.body["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"a: " + b"1:" * 700_000 + b"1.5\nb: .inf", "line 2: .inf is not"),
        (b"a: [" + b"1," * 600_000 + b"]", "it has more than 500000 values"),
    ],
    ids=["base 60", "many values"],
)
async def test_others_are_answered_while_a_hostile_body_is_read(api: Api, body: bytes, words: str) -> None:
    """Several requests come and go before the refusal of the body."""
    hostile = asyncio.create_task(api.call("POST", REVIEWS, body, media="application/yaml"))
    answered = 0
    while not hostile.done():
        await api.create(MAPS, config_map(f"m{answered}"))
        answered += 1
    assert answered > 3
    reply = await hostile
    assert (reply.code, words in reply.body["message"]) == (400, True)


async def test_a_worker_that_takes_too_long_costs_its_request_only() -> None:
    workers = Workers(seconds_max=0.001)
    try:
        with pytest.raises(StatusError, match=r"took more than 0\.001 s") as caught:
            await workers.run("read_yaml", large("a"), LIMITS)
        assert caught.value.code == 504
    finally:
        await workers.stop()


async def test_a_worker_that_dies_costs_its_request_only() -> None:
    """It takes more memory than it may; the next request gets another one."""
    workers = Workers(memory_bytes=60 << 20)
    try:
        with pytest.raises(StatusError, match="the process that computed ended") as caught:
            await workers.run("read_yaml", b"a: " + b"x" * 40_000_000, LIMITS)
        assert caught.value.code == 500
        assert await workers.run("read_yaml", b"a: 1", LIMITS) == (b'{"a":1}', ())
    finally:
        await workers.stop()


async def test_what_a_job_refuses_is_a_value_error() -> None:
    workers = Workers()
    with pytest.raises(ValueError, match=r"line 1: \.inf"):
        await workers.run("read_yaml", b"a: .inf", LIMITS)
    await workers.stop()


async def test_workers_are_few_and_so_are_those_who_wait() -> None:
    workers = Workers()
    body = large("a", 50)
    tasks = [asyncio.create_task(workers.run("read_yaml", body, LIMITS)) for _ in range(WAITING_MAX + 3)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await workers.stop()
    refused = [result for result in results if isinstance(result, StatusError)]
    assert [error.code for error in refused] == [429] * 3
    assert WORKERS_MAX < WAITING_MAX


def workloads() -> list[str]:
    """Return the processes of this one that do the work of servers."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in listed]
    return [pid for pid, line in lines if b"apiserver.workload" in line]


async def test_no_process_stays_when_the_server_ends() -> None:
    workers = Workers()
    await workers.run("read_yaml", b"a: 1", LIMITS)
    (command,) = workloads()
    await workers.stop()
    assert command not in workloads()
