"""Registers the JSON Schemas of the public topics at a Confluent-compatible schema registry.

A subject is `<topic>-value`, with the prefix of the installation. The registered schemas allow no other
properties: only then is an added property compatible (BACKWARD), as no earlier event can have had it with
another type. Readers still ignore what they do not know. Events carry no schema id: their type names the
version.

Source: Confluent Schema Registry API (docs.confluent.io/platform/current/schema-registry/develop/api.html).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from pvbus.adapters.httpfailures import failure_of
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.topics import TOPICS

COMPATIBILITY = "BACKWARD"
SECONDS_MAX = 30.0
_TYPE = "application/vnd.schemaregistry.v1+json"
_DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that every registry reads."""

_NOT_FOUND = 404
_CONFLICT = 409


def subjects(prefix: str) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield each subject, and the type of its values."""
    for topic in TOPICS:
        if topic.public:
            (rows,) = topic.rows
            yield f"{prefix}.{topic.name}-value" if prefix else f"{topic.name}-value", rows.type


def schema_of(row: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema that is registered for a type: see the module."""
    _, parts = msgspec.json.schema_components((row,), ref_template="#/definitions/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
    root = parts.pop(row.__name__)
    document = {"$schema": _DRAFT, **root, "definitions": parts}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))  # defaults may be tuples
    return plain


async def register(url: str, prefix: str) -> list[dict[str, Any]]:
    """Register every schema; return a row of plain values per subject. Doing it again changes nothing.

    A compatibility that somebody has set for a subject stays.
    Raises UsageError for an invalid URL, TransientError if the registry does not answer, PermanentError if it
    refuses a schema.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f'invalid schema registry "{url}": PVBUS_SCHEMA_REGISTRY is its URL, for example '
            "http://registry:8081"
        )
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout, headers={"Accept": _TYPE}) as session:
        registry = _Registry(session, url.rstrip("/"))
        return [await registry.register(subject, schema_of(row)) for subject, row in subjects(prefix)]


class _Registry:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def register(self, subject: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        config = f"/config/{quote(subject, safe='')}"
        status, answer = await self._ask("GET", config)
        if status == _NOT_FOUND:
            await self._ask("PUT", config, {"compatibility": COMPATIBILITY})
            level = COMPATIBILITY
        else:
            level = str(answer.get("compatibilityLevel", ""))
        body = {"schemaType": "JSON", "schema": json.dumps(schema)}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        status, answer = await self._ask("POST", path, body)
        if status == _CONFLICT:
            raise PermanentError(
                f"{subject}: the registry at {self._url} refuses the schema of this release as not "
                f"compatible ({level}) with the registered one: {answer.get('message', '')}. A newer release "
                "may have registered that; then it is right",
                reason="IncompatibleSchema",
            )
        return {"subject": subject, "id": answer.get("id"), "compatibility": level}

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Return status and answer. A subject that is not found, and a conflict, are answers."""
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": _TYPE}
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers=headers
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise TransientError(
                f"the schema registry at {self._url} does not answer: {failure_of(exc)}; check "
                "PVBUS_SCHEMA_REGISTRY"
            ) from exc
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        is_expected = response.ok or (method, response.status) in {("GET", _NOT_FOUND), ("POST", _CONFLICT)}
        if not is_expected or not isinstance(answer, dict):
            said = answer.get("message") if isinstance(answer, dict) else text[:200]
            raise PermanentError(
                f"{method} {self._url}{path}: {response.status} {said}; PVBUS_SCHEMA_REGISTRY must be the "
                "URL of a Confluent-compatible schema registry that takes this request without a login",
                reason="SchemaRegistry",
            )
        return response.status, answer
