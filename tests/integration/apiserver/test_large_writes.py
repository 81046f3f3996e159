"""Writes of objects with very many fields are computed beside the event loop, as small ones are in it.

The check of stalls, which watches all tests of this folder, finds any part of them that is computed in it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pvbus.controlplane.apiserver import bodies
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.changes import Sent
from pvbus.controlplane.apiserver.entries import encode, opened
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.namespaces import create_initial
from pvbus.controlplane.apiserver.registry import NAMESPACE, Registry
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.strategies import BUILTIN, CONFIG_MAP
from pvbus.controlplane.apiserver.workers import Workers
from pvbus.controlplane.apiserver.writes import COMPUTATIONS_MAX, Writer
from pvbus.ports.cluster import Kind, Object
from tests.integration.apiserver import attacks
from tests.integration.apiserver.attacks import FREE, MERGE, STEPS
from tests.integration.apiserver.client import CORE, CRDS, Api, Reply, config_map

MAPS = f"{CORE}/namespaces/default/configmaps"
APPLY = "application/apply-patch+yaml"
KEYS = 20_000
"""So many take twice as long as the check of stalls allows, where the loop computes them."""


def data(text: str, keys: int = KEYS) -> dict[str, str]:
    return {f"k{number}": text for number in range(keys)}


def free(text: str) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Free", "metadata": {"name": "a"}, "spec": data(text)}


async def answered_meanwhile(api: Api, request: Awaitable[Reply]) -> Reply:
    """Return the answer; several other requests come and go before."""
    task = asyncio.ensure_future(request)
    answered = 0
    while not task.done() and answered < 100:
        await api.get(f"{CORE}/namespaces/default")
        answered += 1
    reply = await task
    assert answered > 3
    return reply


@pytest.mark.parametrize("path", [MAPS, FREE], ids=["a built-in kind", "a custom kind"])
async def test_others_are_answered_while_large_objects_are_written(api: Api, path: str) -> None:
    def obj(text: str) -> dict[str, Any]:
        return config_map("a", data=data(text)) if path == MAPS else free(text)

    async def write(method: str, body: Any, media: str = "application/json", query: str = "") -> Reply:
        at = path if method == "POST" else f"{path}/a"
        return await answered_meanwhile(api, api.call(method, f"{at}{query}", encode(body), media=media))

    field = "data" if path == MAPS else "spec"
    if path == FREE:
        await api.create(CRDS, attacks.free_crd())
    new = await write("POST", obj("1"))
    assert (new.code, len(new.body[field])) == (201, KEYS)
    put = await write("PUT", {**obj("2"), "metadata": new.body["metadata"]})
    assert (put.code, put.body[field]["k7"]) == (200, "2")
    merged = await write("PATCH", {field: {"k7": "3"}}, MERGE)
    assert (merged.code, merged.body[field]["k7"]) == (200, "3")
    stepped = await write("PATCH", [{"op": "remove", "path": f"/{field}/k7"}], STEPS)
    assert (stepped.code, len(stepped.body[field])) == (200, KEYS - 1)
    applied = await write("PATCH", obj("2"), APPLY, "?fieldManager=t")
    assert (applied.code, applied.body[field]) == (200, data("2"))
    refused = await write("PATCH", obj("4"), APPLY, "?fieldManager=u")
    assert (refused.code, "conflicts with" in refused.body["message"]) == (409, True)
    again = await write("PATCH", {**obj("2"), field: {"k1": "2"}}, APPLY, "?fieldManager=t")
    del put.body[field]["k7"]  # nobody else owns it
    assert (again.code, again.body[field]) == (200, put.body[field])
    await api.delete(f"{path}/a")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
async def test_a_small_body_that_expands_is_a_large_one(api: Api, encoding: str) -> None:
    """Its aliases stand for many values."""
    await api.create(CRDS, attacks.free_crd())
    fields = ",".join(f"k{number}: 1" for number in range(500))
    copies = ",".join(f"b{number}: *x" for number in range(90))
    head = "apiVersion: example.com/v1\nkind: Free\nmetadata: {name: a}\n"
    body = f"{head}spec: {{a: &x {{{fields}}},{copies}}}"
    assert len(body.encode(encoding)) < bodies.LARGE_BYTES
    request = api.call("PATCH", f"{FREE}/a?fieldManager=t", body.encode(encoding), media=APPLY)
    reply = await answered_meanwhile(api, request)
    assert (reply.code, len(reply.body["spec"]), len(reply.body["spec"]["b59"])) == (201, 91, 500)


@pytest.mark.parametrize("method", ["POST", "apply"])
async def test_a_large_object_is_refused_as_a_small_one_is(api: Api, method: str) -> None:
    """With the code, the reason and the causes of what is wrong."""
    replies = []
    for count in (1, KEYS):
        body = encode(config_map("a", data={**data("1", count), "not a key": ""}))
        if method == "POST":
            replies.append(await api.call("POST", MAPS, body))
        else:
            replies.append(await api.call("PATCH", f"{MAPS}/a?fieldManager=t", body, media=APPLY))
    assert [reply.code for reply in replies] == [422, 422]
    assert replies[0].body == replies[1].body


async def test_warnings_of_a_large_object_arrive_once(api: Api) -> None:
    body = encode(config_map("a", data=data("1"))).replace(b'"kind"', b'"oops":1,"oops":2,"kind"')
    reply = await api.call("POST", MAPS, body)
    assert (reply.code, len(reply.warnings)) == (201, 2)
    patched = await api.call("PATCH", f"{MAPS}/a", b'{"wrong":1}', media=MERGE)
    assert (patched.code, len(patched.warnings)) == (200, 1)


async def test_an_object_whose_parts_stay_encoded_is_the_same_object() -> None:
    obj: Object = {**free("1"), "metadata": {"name": "a", "managedFields": [{"manager": "t"}], "labels": {}}}
    assert encode(opened(encode(obj))) == encode(obj)
    package: Object = {**obj, "spec": {**data("1"), "packageName": "p"}}
    assert opened(encode(package))["spec"]["packageName"] == "p"


# --- races ---


class Interrupted(Workers):
    """Lets others write while a computation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], Awaitable[Any]]] = []
        self.computations = 0

    async def run(self, job: Any, *arguments: Any) -> Any:
        self.computations += 1
        result = await super().run(job, *arguments)
        if self.meanwhile:
            await self.meanwhile.pop(0)()
        return result


class Setting:
    """A store with the kind ConfigMap, and its writer."""

    def __init__(self) -> None:
        self.store = Store(None)
        self.registry = Registry(BUILTIN_KINDS)
        self.writer = Writer(self.store, self.registry, BUILTIN, {})
        self.workers = self.writer.workers = Interrupted()
        endpoint = self.registry.endpoint("", "v1", "configmaps")
        assert endpoint is not None
        self.endpoint = endpoint

    async def apply(self, obj: Object) -> Object:
        sent = Sent("PATCH", APPLY, encode(obj), ("default", "a"), "")
        entry, _ = await self.writer.apply(self.endpoint, sent, Options("u", [], manager="t", applies=True))
        return entry.decode()

    def adding(self, name: str) -> Callable[[], Awaitable[Any]]:
        """Return a write of another that adds a field."""

        def change(old: Object) -> Object:
            return {**old, "data": {**old["data"], name: "theirs"}}

        options = Options("other", [], manager="other")
        return lambda: self.writer.update(self.endpoint, ("default", "a"), change, options)


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting()
    setting.store.start()
    await create_initial(setting.store, BUILTIN[NAMESPACE])
    yield setting
    await setting.writer.workers.stop()
    await setting.store.stop()


async def test_an_apply_is_done_on_what_others_wrote_meanwhile(setting: Setting) -> None:
    """Nothing is lost: it is computed again, from the newer object."""
    await setting.apply(config_map("a", data={"k0": "0"}))
    setting.workers.meanwhile = [setting.adding("x"), setting.adding("y")]
    after = await setting.apply(config_map("a", data=data("1", 6000)))
    assert after["data"] == {**data("1", 6000), "x": "theirs", "y": "theirs"}
    assert setting.workers.computations == 3
    owners = {entry["manager"]: entry["fieldsV1"]["f:data"] for entry in after["metadata"]["managedFields"]}
    assert (len(owners["t"]), set(owners["other"])) == (6000, {"f:x", "f:y"})


async def test_a_large_object_that_changes_all_the_time_is_a_conflict(setting: Setting) -> None:
    await setting.apply(config_map("a", data={"k0": "0"}))
    setting.workers.meanwhile = [setting.adding(f"x{number}") for number in range(COMPUTATIONS_MAX)]
    with pytest.raises(StatusError, match="the object has been modified") as caught:
        await setting.apply(config_map("a", data=data("1", 6000)))
    assert caught.value.code == 409
    head = setting.store.head(CONFIG_MAP, ("default", "a"))
    assert head is not None
    assert len(head.decode()["data"]) == 1 + COMPUTATIONS_MAX


async def test_an_apply_changes_the_object_that_another_created_meanwhile(setting: Setting) -> None:
    async def create() -> None:
        theirs = config_map("a", data={"x": "theirs"})
        await setting.writer.create(
            setting.endpoint, theirs, "default", Options("other", [], manager="other")
        )

    setting.workers.meanwhile = [create]
    after = await setting.apply(config_map("a", data=data("1", 6000)))
    assert after["data"] == {**data("1", 6000), "x": "theirs"}


async def test_nothing_is_created_in_a_namespace_that_began_to_end_meanwhile(setting: Setting) -> None:
    async def end() -> None:
        setting.store.remove(NAMESPACE, ("", "default"))

    setting.workers.meanwhile = [end]
    with pytest.raises(StatusError, match='namespaces "default" not found'):
        await setting.apply(config_map("a", data=data("1", 6000)))
    assert setting.store.head(CONFIG_MAP, ("default", "a")) is None


def definition(spec: Any) -> Object:
    """Return the definition of Free as it is served."""
    made = attacks.free_crd()
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    return {**made, "status": {"conditions": [{"type": "Established", "status": "True"}]}}


ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


@pytest.mark.parametrize(
    ("after", "code"),
    [(definition({"type": "object", "maxProperties": 1, **ANYTHING}), 422), (None, 404)],
    ids=["changes", "goes"],
)
async def test_a_large_object_is_judged_by_the_definition_of_now(
    setting: Setting, after: Object | None, code: int
) -> None:
    async def define() -> None:
        setting.registry.drop_crd("frees.example.com")
        if after is not None:
            setting.registry.set_crd(after)

    setting.registry.set_crd(definition(ANYTHING))
    endpoint = setting.registry.endpoint("example.com", "v1", "frees")
    assert endpoint is not None
    setting.workers.meanwhile = [define]
    sent = Sent("POST", "application/json", encode(free("1")), ("default", ""), "")
    with pytest.raises(StatusError) as caught:
        await setting.writer.create(endpoint, sent, "default", Options("u", []))
    assert caught.value.code == code
    assert setting.store.head(Kind("example.com", "Free"), ("default", "a")) is None


async def test_writes_of_one_large_object_wait_for_each_other(setting: Setting) -> None:
    """Each is computed once, and none is lost."""
    await setting.apply(config_map("a", data=data("1", 8000)))
    setting.workers.computations = 0
    await asyncio.gather(
        *(
            setting.writer.update(
                setting.endpoint,
                ("default", "a"),
                Sent("PATCH", MERGE, encode({"data": {f"n{number}": "1"}}), ("default", "a"), ""),
                Options("u", [], manager="u"),
            )
            for number in range(4)
        )
    )
    head = setting.store.head(CONFIG_MAP, ("default", "a"))
    assert head is not None
    assert len(head.decode()["data"]) == 8004
    assert setting.workers.computations == 4


def test_long_texts_do_not_make_an_object_large() -> None:
    """Files of packages are few values: a fleet that writes them does not wait for two processes."""
    assert not bodies.is_large(encode({"data": {"a": "x" * 1_000_000}}))
    assert not bodies.is_large(encode(data("1", 4000)))
    assert bodies.is_large(encode(data("1", 8000)))
