"""What hostile clients try, one row each: a clear refusal, in bounded time, and the server goes on."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from pvbus.controlplane.apiserver import bodies
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver import attacks
from tests.integration.apiserver.attacks import FREE, MAPS, Attack
from tests.integration.apiserver.client import CORE, CRDS, WIDGETS, Api, config_map, crd, serving, widget

SECONDS_MAX = 6.0
"""For any attack, on a machine that does other things, too. Unbounded ones take minutes."""


@pytest.fixture
async def target() -> AsyncIterator[tuple[ApiServer, Api]]:
    """A server with something to attack."""
    server = ApiServer(None, crds=[crd(), attacks.free_crd()], tls=False)
    async with serving(server) as api:
        await api.create(MAPS, config_map("a", data={"a": "b"}))
        body = json.loads(attacks.free('{"list": [1, 2], "map": {"a": 1}}', "a"))
        await api.create(FREE, body)
        yield server, api


def request_of(attack: Attack, token: str) -> bytes:
    """Return the request as it goes over the wire; header values and paths are bytes, not only text."""
    body = attack.content()
    headers = {"Host": attacks.HOST, "Content-Type": attack.media, "Connection": "close"}
    if attack.with_token:
        headers["Authorization"] = f"Bearer {token}"
    if body or attack.method in ("POST", "PATCH", "PUT"):
        headers["Content-Length"] = str(len(body))
    headers |= attack.headers
    lines = [f"{attack.method} {attack.path.replace('$TOKEN', token)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def exchange(server: ApiServer, request: bytes) -> tuple[int, str]:
    """Send bytes, and return the code and the text of the first answer."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        text = await reader.readexactly(int(length[0].partition(b":")[2])) if length else b""
        return int(head.split(b" ", 2)[1]), text.decode()
    finally:
        writer.close()


def said(text: str) -> str:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return text
    return str(value["message"] if isinstance(value, dict) and "message" in value else value)


@pytest.mark.parametrize("attack", attacks.ALL, ids=[attack.name for attack in attacks.ALL])
async def test_an_attack_is_refused(
    attack: Attack, target: tuple[ApiServer, Api], caplog: pytest.LogCaptureFixture
) -> None:
    """The answer says what is wrong, comes soon, leaves no trace in the log, and others are served on."""
    server, api = target
    request = request_of(attack, server.token)
    begun = time.monotonic()
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.WARNING):
        async with asyncio.timeout(60):
            code, text = await exchange(server, request)
        took = time.monotonic() - begun
        assert await api.get(MAPS)
    assert (code, attack.says.lower() in said(text).lower()) == (attack.code, True), (code, text[:500])
    assert took < SECONDS_MAX
    assert not [entry for entry in logs if entry["log_level"] in ("error", "warning")]
    assert not caplog.records
    assert server.token not in text
    assert len(text) < 100_000


GADGETS = "/apis/example.com/v1/namespaces/default/gadgets"


def gadget(spec: Any, name: str = "g") -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": spec}


def loops(depth: int) -> str:
    """Return a rule of loops within loops over the list."""
    inside = "true"
    for level in range(depth):
        inside = f"self.all(x{level}, {inside})"
    return inside


def allowed_branches(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"minLength": 1}
    for _ in range(depth):
        schema = {"allOf": [schema]}
    return {"type": "string", **schema}


NUMBERS = {"type": "array", "items": {"type": "integer"}}
COSTLY = {
    "a pattern that backtracks": (
        {"type": "string", "pattern": "^(a+)+$"},
        "a" * 60 + "!",
        "should match",
    ),
    "a pattern over 3 MB": ({"type": "string", "pattern": "x{0,900}y{0,900}z"}, "x" * 2_900_000, "budget"),
    "allOf 50 levels deep": (allowed_branches(50), "", "should be at least 1 chars"),
    "loops within loops": (
        {**NUMBERS, "x-kubernetes-validations": [{"rule": loops(4)}]},
        list(range(300)),
        "cost limit exceeded",
    ),
    "loops in a rule for each of 5,000 items": (
        {"type": "array", "items": {**NUMBERS, "x-kubernetes-validations": [{"rule": loops(3)}]}},
        [list(range(20))] * 5_000,
        "budget",
    ),
    "an enum of 15,000, 100,000 times": (
        {"type": "array", "items": {"type": "integer", "enum": list(range(1, 15_000))}},
        [0] * 100_000,
        "and more",
    ),
    "a set of 200,000": (
        {**NUMBERS, "x-kubernetes-list-type": "set"},
        [1, *range(200_000)],
        "Duplicate value: 1",
    ),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_a_definition_cannot_make_validation_costly(name: str, target: tuple[ApiServer, Api]) -> None:
    """Patterns, rules and schemas come from clients, and so does what is judged by them."""
    _, api = target
    schema, value, says = COSTLY[name]
    await api.create(CRDS, attacks.schema_crd(schema))
    begun = time.monotonic()
    reply = await api.call("POST", GADGETS, gadget(value))
    assert time.monotonic() - begun < SECONDS_MAX
    assert reply.code == 422, reply.body
    assert says in reply.body["message"]
    assert len(reply.body["message"]) < 200_000


async def test_a_list_by_keys_is_compared_in_linear_time(target: tuple[ApiServer, Api]) -> None:
    """An update looks for each item's old value."""
    _, api = target
    item: dict[str, Any] = {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}}}
    item["x-kubernetes-validations"] = [{"rule": "self.k == oldSelf.k"}]
    by_keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    await api.create(CRDS, attacks.schema_crd({"type": "array", "items": item, **by_keys}))
    await api.create(GADGETS, gadget([{"k": n} for n in range(8_000)]))
    begun = time.monotonic()
    patch = json.dumps([{"op": "remove", "path": "/spec/0"}])
    reply = await api.call("PATCH", f"{GADGETS}/g", patch, media=attacks.STEPS)
    assert (reply.code, time.monotonic() - begun < SECONDS_MAX) in ((200, True), (422, True))


async def test_definitions_have_a_limit(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the answer says so; the ones that are there can still be changed."""
    _, api = target
    monkeypatch.setattr("pvbus.controlplane.apiserver.crds.DEFINITIONS_MAX", 3)
    await api.create(CRDS, crd("gadgets", "Gadget"))
    reply = await api.call("POST", CRDS, crd("gizmos", "Gizmo"))
    assert (reply.code, "3 CustomResourceDefinitions" in reply.body["message"]) == (403, True)
    await api.patch(f"{CRDS}/gadgets.example.com", {"metadata": {"labels": {"a": "b"}}})
    await api.delete(f"{CRDS}/gadgets.example.com")


async def test_a_date_at_the_end_of_the_calendar_is_shown(target: tuple[ApiServer, Api]) -> None:
    """Its age cannot be counted, which spoils one cell of the table and nothing else."""
    _, api = target
    for name, text in (("first", "0001-01-01T00:00:00+23:59"), ("last", "9999-12-31T23:59:59-23:59")):
        event = attacks.with_dates(text)
        await api.create(f"{CORE}/namespaces/default/events", {**event, "metadata": {"name": name}})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    rows = (await api.get(f"{CORE}/namespaces/default/events", accept=table))["rows"]
    assert [row["cells"][0].rstrip("0123456789y") for row in rows] == ["", "<invalid>"]


async def test_a_warning_cannot_add_headers(target: tuple[ApiServer, Api]) -> None:
    """What a client wrote is part of a header of the answer."""
    _, api = target
    fields = {"a\r\nX-Evil: 1": 1, "b\u2028": 2, **{f"c{n}": n for n in range(5_000)}}
    reply = await api.call("POST", WIDGETS, widget("w", spec=fields))
    assert reply.code == 201
    assert "X-Evil" not in reply.headers
    assert "a??X-Evil: 1" in reply.warnings[0]
    assert sum(map(len, reply.warnings)) < 10_000


async def test_objects_are_stored_up_to_the_limit_of_depth(target: tuple[ApiServer, Api]) -> None:
    """What is accepted can be read in every form, and selected, patched and deleted."""
    _, api = target
    body = attacks.free(attacks.nested(bodies.DEPTH_MAX - 1), "deep")
    assert (await api.call("POST", FREE, body)).code == 201
    assert (await api.call("POST", FREE, body.replace("deep", "yaml"), media=attacks.YAML)).code == 201
    for accept in ("", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"):
        assert (await api.call("GET", f"{FREE}/deep", accept=accept)).code == 200
    await api.patch(f"{FREE}/deep", {"metadata": {"labels": {"a": "b"}}})
    await api.delete(f"{FREE}/deep")
