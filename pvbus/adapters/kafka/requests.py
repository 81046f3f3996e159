"""Requests that the library has not, or in versions that are too old: what all of them have besides a layout.

Flexible versions only: strings and arrays are compact, and each structure ends with its tags.
Source: KIP-482.
"""

from collections.abc import Callable
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactString, Schema, TaggedFields

STRING = CompactString("utf-8")
TAGS = ("tags", TaggedFields)


def request_of(api_key: int, version: int, *, asked: Schema, reported: Schema) -> Callable[..., Any]:
    """Return a class of requests, made of the values of their fields, the last tags left out."""

    class Reported(Response):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key
        API_VERSION = version
        SCHEMA = reported

    class Struct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key
        API_VERSION = version
        FLEXIBLE_VERSION = True
        RESPONSE_TYPE = Reported
        SCHEMA = asked

    class Asked(Request[Struct]):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key

        def __init__(self, *fields: Any) -> None:
            self._fields = fields

        def build(self, request_struct_class: Any) -> Any:
            return request_struct_class(*self._fields, {})

    return Asked
