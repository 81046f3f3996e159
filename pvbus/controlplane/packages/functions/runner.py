"""Runs functions at Porch's function runner, over gRPC.

Like Porch, without TLS: the runner belongs to the same network as the package store.
Source: Porch v1.5.8 func/evaluator/evaluator.proto, pkg/engine/grpcruntime.go.
"""

import re
from collections.abc import Sequence
from typing import Any

from pvbus.controlplane.apiserver import protobuf
from pvbus.controlplane.packages.functions import executable
from pvbus.controlplane.packages.functions.executable import OUTPUT_BYTES_MAX
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value
from pvbus.controlplane.packages.functions.limits import exclude_time
from pvbus.core.api.packages import qualified
from pvbus.core.errors import PermanentError, TransientError, UsageError

METHOD = "/evaluator.FunctionEvaluator/EvaluateFunction"
_RESOURCE_LIST, _IMAGE, _TAG = 1, 2, 3
_RANGE = re.compile(r"(.+):([^:/]*[^\w.:/-][^:/]*)")
"""An image with a range of versions instead of a tag, as in `x/set-labels:~0.2`."""
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


class FunctionRunner:
    """A client of one function runner; threads may share it. It connects with the first function."""

    def __init__(self, address: str) -> None:
        """Connect with the first function.

        address: HOST:PORT of the runner
        Raises: UsageError, also if gRPC is not installed.
        """
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"PVBUS_FUNCTION_RUNNER: {address!r}: must be HOST:PORT")
        try:
            import grpc
        except ImportError as exc:
            raise UsageError(
                "PVBUS_FUNCTION_RUNNER needs gRPC: pip install 'pvbus[grpc]', or unset the setting"
            ) from exc
        self.address = address
        self._errors: type[Exception] = grpc.RpcError
        options = [
            ("grpc.max_send_message_length", OUTPUT_BYTES_MAX),
            ("grpc.max_receive_message_length", OUTPUT_BYTES_MAX),
            ("grpc.enable_http_proxy", 0),
        ]
        self._call = grpc.insecure_channel(address, options).unary_unary(METHOD)

    def run(
        self, image: str, items: Sequence[Item], config: Value | None, *, timeout_seconds: float
    ) -> FunctionOutput:
        """Run an image on the items; block until the runner answers.

        Raises: PermanentError if the function fails, TransientError if the runner cannot be reached.
        """
        request = request_of(executable.encode(items, config), qualified(image))
        try:
            with exclude_time():
                response = self._call(request, timeout=timeout_seconds)
        except self._errors as exc:
            raise self._translated(exc, image, timeout_seconds) from exc
        return executable.decoded(_resource_list(response), items)

    def _translated(self, error: Any, image: str, timeout_seconds: float) -> Exception:
        code, details = error.code().name, error.details()
        where = f"function runner {self.address}"
        match code:
            case "UNAVAILABLE":
                return TransientError(f"{where} cannot be reached: {details}")
            case "DEADLINE_EXCEEDED":
                return executable.fault(f"{where} did not answer within {timeout_seconds:g} s")
            case "NOT_FOUND":
                return PermanentError(
                    f"{where} has no function {image}: {details}", reason="FunctionNotFound"
                )
        return executable.fault(f"{where}: {code}: {details}")


def request_of(resource_list: str, image: str) -> bytes:
    """Return an EvaluateFunctionRequest. A range of versions has a field of its own."""
    match = _RANGE.fullmatch(image)
    fields = {_IMAGE: match[1], _TAG: match[2]} if match else {_IMAGE: image}
    encoded = [_field(number, text.encode()) for number, text in fields.items()]
    return b"".join([_field(_RESOURCE_LIST, resource_list.encode()), *encoded])


def _resource_list(response: bytes) -> str:
    """Return the ResourceList of an EvaluateFunctionResponse. Raises: PermanentError."""
    try:
        fields = dict(protobuf.fields(memoryview(response)))
        return bytes(protobuf.length_delimited(fields.get(_RESOURCE_LIST, memoryview(b"")))).decode()
    except ValueError as exc:
        raise executable.fault(f"the function runner's answer cannot be read: {exc}") from exc


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field."""
    length, size = len(data), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *size, length)) + data
