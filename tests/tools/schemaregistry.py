"""A stand-in for a Confluent-compatible schema registry: subjects, versions and the rule BACKWARD.

The rule is that of closed JSON Schemas: an added property that is required, a property that goes and a type
that changes are not compatible; for open ones an added property is not, either.
Source: Confluent's JsonSchemaDiff (schema-registry 7.x), where it concerns objects with properties.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class Registry:
    """levels: compatibility by subject. versions: schemas by subject."""

    def __init__(self) -> None:
        self.levels: dict[str, str] = {}
        self.versions: dict[str, list[Any]] = {}
        self.ids: list[Any] = []
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/config/{subject}", self._level)
        app.router.add_put("/config/{subject}", self._set_level)
        app.router.add_post("/subjects/{subject}/versions", self._register)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _level(self, request: web.Request) -> web.Response:
        subject = request.match_info["subject"]
        if subject not in self.levels:
            text = f"Subject '{subject}' does not have subject-level compatibility configured"
            return web.json_response({"error_code": 40408, "message": text}, status=404)
        return web.json_response({"compatibilityLevel": self.levels[subject]})

    async def _set_level(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.levels[request.match_info["subject"]] = body["compatibility"]
        return web.json_response(body)

    async def _register(self, request: web.Request) -> web.Response:
        subject, body = request.match_info["subject"], await request.json()
        assert body["schemaType"] == "JSON"
        schema = json.loads(body["schema"])
        versions = self.versions.setdefault(subject, [])
        if schema not in versions:
            if versions and (problems := list(_problems(versions[-1], schema))):
                text = f"Schema being registered is incompatible with an earlier schema: {problems}"
                return web.json_response({"error_code": 409, "message": text}, status=409)
            versions.append(schema)
        if schema not in self.ids:
            self.ids.append(schema)
        return web.json_response({"id": self.ids.index(schema) + 1})


def _problems(old: Any, new: Any) -> list[str]:
    """Return why data of the old schema may be invalid by the new one."""
    found = []
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in after.keys() - before.keys():
        if old.get("additionalProperties", True):
            found.append(f"PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL {name}")
        elif name in new.get("required", ()):
            found.append(f"REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL {name}")
    if not new.get("additionalProperties", True):
        found += [
            f"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL {name}" for name in before.keys() - after.keys()
        ]
    for name in before.keys() & after.keys():
        if before[name].get("type") != after[name].get("type"):
            found.append(f"TYPE_CHANGED {name}")
    for name in old.get("definitions", {}).keys() & new.get("definitions", {}).keys():
        found += _problems(old["definitions"][name], new["definitions"][name])
    return found
