"""Functions at a function runner: a real gRPC server with Porch's service."""

import builtins
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import yaml

from pvbus.controlplane.apiserver.protobuf import fields
from pvbus.controlplane.packages.functions import executable
from pvbus.controlplane.packages.functions.item import FunctionOutput
from pvbus.controlplane.packages.functions.runner import METHOD, FunctionRunner, request_of
from pvbus.core.errors import PermanentError, TransientError, UsageError
from tests.unit.packages.support import config_map, eventually, items

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: b # why\n"
CATALOG = "ghcr.io/kptdev/krm-functions-catalog/"

Answer = Callable[[dict[int, Any], grpc.ServicerContext], bytes]


def message(**named: bytes) -> bytes:
    """Encode a response with single-byte lengths, independently of the client."""
    numbers = {"resource_list": 1, "log": 2}
    return b"".join(bytes([numbers[key] << 3 | 2, len(data)]) + data for key, data in named.items())


class Server:
    """A FunctionEvaluator. answer: what it does with a request's fields; requests: those that came."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[dict[int, bytes]] = []
        self.answer: Answer = lambda request, _: request_of(request[1].decode(), "")
        handlers = {
            METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(self._evaluate),
        }
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.server = grpc.server(ThreadPoolExecutor(4), options=options)
        service = METHOD.split("/")[1]
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    @property
    def client(self) -> FunctionRunner:
        return FunctionRunner(f"127.0.0.1:{self.port}")

    def _evaluate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        read = {
            number: bytes(data) for number, data in fields(memoryview(request)) if not isinstance(data, int)
        }
        self.requests.append(read)
        return self.answer(read, context)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.server.stop(0).wait()


def run(
    client: FunctionRunner, text: str = OBJECT, image: str = "my-fn:v1", *, timeout_seconds: float = 30
) -> FunctionOutput:
    return client.run(image, items(text), config_map(value="c"), timeout_seconds=timeout_seconds)


def _runs(client: FunctionRunner) -> bool:
    try:
        return bool(run(client).items)
    except TransientError:
        return False


def fails_with(code: grpc.StatusCode, details: str) -> Answer:
    def answer(_: dict[int, Any], context: grpc.ServicerContext) -> bytes:
        context.abort(code, details)
        raise AssertionError

    return answer


def test_a_function_runs_at_the_runner(server: Server) -> None:
    def answer(request: dict[int, Any], _: grpc.ServicerContext) -> bytes:
        given = yaml.safe_load(request[1])
        given["items"][0]["data"]["a"] = given["functionConfig"]["data"]["value"]
        given["results"] = [{"message": "done", "severity": "info"}]
        return request_of(json.dumps(given), "a log")

    server.answer = answer
    output = run(server.client)
    assert [item.text for item in output.items] == [OBJECT.replace("a: b", "a: c")]
    assert [result.message for result in output.results] == ["done"]
    (request,) = server.requests
    assert request.keys() == {1, 2}
    assert request[2].decode() == f"{CATALOG}my-fn:v1"


def test_an_image_with_a_registry_is_asked_for_as_it_is(server: Server) -> None:
    run(server.client, image="docker.io/x/my-fn:v1")
    assert server.requests[0][2] == b"docker.io/x/my-fn:v1"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("a/b:v1.2-x_y", {2: b"a/b:v1.2-x_y"}),
        ("a:5000/b", {2: b"a:5000/b"}),
        ("a:5000/b:~1.2", {2: b"a:5000/b", 3: b"~1.2"}),
        ("a/b:>=1.0 <2", {2: b"a/b", 3: b">=1.0 <2"}),
        ("a/b@sha256:0123", {2: b"a/b@sha256:0123"}),
    ],
)
def test_a_range_of_versions_is_the_runners_to_resolve(image: str, expected: dict[int, bytes]) -> None:
    read = {number: bytes(data) for number, data in fields(memoryview(request_of("", image))) if data != 0}
    assert read == {1: b"", **expected}


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 300_000])
def test_texts_of_every_length_arrive(length: int) -> None:
    text = "x" * length
    read = {number: bytes(data) for number, data in fields(memoryview(request_of(text, "i"))) if data != 0}
    assert read == {1: text.encode(), 2: b"i"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.NOT_FOUND, "has no function my-fn:v1: not in the cache"),
        (grpc.StatusCode.INTERNAL, "INTERNAL: not in the cache"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED: not in the cache"),
        (grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED: not in the cache"),
    ],
)
def test_what_the_runner_refuses_is_a_fault_of_the_render(
    server: Server, code: grpc.StatusCode, message: str
) -> None:
    server.answer = fails_with(code, "not in the cache")
    with pytest.raises(PermanentError, match=message) as caught:
        run(server.client)
    assert str(server.port) in str(caught.value)


def test_a_runner_that_is_away_is_found_when_it_is_back(server: Server) -> None:
    client = server.client
    run(client)
    server.server.stop(0).wait()
    with pytest.raises(TransientError, match=rf"function runner 127.0.0.1:{server.port} cannot be reached: "):
        run(client)
    back = Server(server.port)
    try:
        assert eventually(lambda: _runs(client))
    finally:
        back.server.stop(0).wait()


def test_a_runner_that_says_it_is_unavailable_is_tried_again_later(server: Server) -> None:
    server.answer = fails_with(grpc.StatusCode.UNAVAILABLE, "no pod yet")
    with pytest.raises(TransientError, match="no pod yet"):
        run(server.client)


def test_a_runner_that_hangs_is_given_up(server: Server) -> None:
    def answer(request: dict[int, Any], context: grpc.ServicerContext) -> bytes:
        import threading

        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(20)
        return b""

    server.answer = answer
    with pytest.raises(PermanentError, match=r"did not answer within 0\.5 s"):
        run(server.client, timeout_seconds=0.5)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\x0a\x7f", "cannot be read: the message ends too early"),
        (b"\x08\x01", "cannot be read: text or a message was expected"),
        (b"\x0a\x01\xff", "cannot be read"),
        (b"", "not a ResourceList"),
        (message(resource_list=b"{", log=b"l"), "not a ResourceList"),
        (message(resource_list=b"kind: Other"), "kind is not ResourceList"),
    ],
)
def test_garbage_of_the_runner_is_refused(server: Server, answer: bytes, text: str) -> None:
    server.answer = lambda *_: answer
    with pytest.raises(PermanentError, match=text):
        run(server.client)


def test_messages_above_the_limit_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own limit, 4 MiB, would refuse packages that the package store accepts."""
    big = "x" * 5_000_000
    answer = request_of("kind: ResourceList", "") + message(log=b"l")
    server.answer = lambda request, _: answer if len(request[1]) == len(big) else b""
    monkeypatch.setattr(executable, "encode", lambda *_: big)
    assert run(server.client).items == ()
    monkeypatch.setattr("pvbus.controlplane.packages.functions.runner.OUTPUT_BYTES_MAX", 1000)
    server.answer = lambda *_: request_of("x" * 2000, "")
    with pytest.raises(PermanentError, match="RESOURCE_EXHAUSTED"):
        run(server.client)


@pytest.mark.parametrize(
    "address", ["runner", "http://runner:80", "runner:", ":80", "unix:/x", "a:1 b", "a:1\n"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        FunctionRunner(address)


@pytest.mark.parametrize("address", ["runner:80", "function-runner.porch-system:9445", "[::1]:9445"])
def test_a_runner_is_connected_to_with_the_first_function_only(address: str) -> None:
    assert FunctionRunner(address).address == address


def test_without_grpc_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "grpc":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'pvbus\[grpc\]'"):
        FunctionRunner("runner:80")
