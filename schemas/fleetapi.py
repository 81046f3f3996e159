"""The OpenAPI document of the lists that the page's server has for programs."""

from typing import Any

from pvbus.core.web.listing import FIELDS, URGENCY, Listed
from pvbus.runtime.web.api import API_PATH, PARAMETERS

DESCRIPTIONS = {
    "namespace": "Namespace of the variant, its set and its revisions.",
    "name": "Name of the variant.",
    "set": "The set that made the variant, as NAMESPACE/SET; empty if a person did.",
    "state": "State of the variant.",
    "reason": "Why: what waits for a person, else the reason of Ready.",
    "lifecycle": "Lifecycle of the open package revision, else Published.",
    "warning": "A condition that asks a person to look, and changes no state.",
    "object": "Of a target: what was selected, empty for a package of a list. Of a conflict: kind and name.",
    "repository": "The downstream repository.",
    "package": "The downstream package.",
    "revision": "The draft or proposal in conflict.",
    "conflict": "Id of the conflict within its revision.",
    "id": "Id of all conflicts in this field of this file with the same two values.",
    "place": "Id of all conflicts in this field of this file.",
    "file": "Path of the file.",
    "field": "Path of the field, empty for a whole object or file.",
    "taken": "Whose value the draft has.",
    "removal": "How far the removal is: waiting, held, confirmed or ordered.",
    "values": "Both values: local and upstream. Those of Secrets are hidden.",
    "labels": "Labels of the package, its variant, its target and its set.",
}
_TEXTS = {"type": "array", "items": {"type": "string"}}


def document() -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "pvbus fleet",
            "version": "v1",
            "description": "What a fleet has, in pages. Served by the web page's server, with its token.",
        },
        "paths": {f"{API_PATH}/{kind.value}": {"get": _operation(kind)} for kind in Listed},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": _object({"error": {"type": "string"}}),
                **{kind.value: _entry(kind) for kind in Listed},
            },
        },
        "security": [{"token": []}],
    }


def _operation(kind: Listed) -> dict[str, Any]:
    problems = {
        "400": "The query cannot be read: the answer says why.",
        "401": "The token is missing.",
        "503": "The bus is still being read.",
    }
    return {
        "operationId": f"list{kind.value.capitalize()}",
        "parameters": [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in PARAMETERS.items()
        ],
        "responses": {
            "200": {"description": "A page, or counts.", "content": _json(_answer(kind))},
            **{
                status: {
                    "description": text,
                    "content": _json({"$ref": "#/components/schemas/Problem"}),
                }
                for status, text in problems.items()
            },
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _answer(kind: Listed) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{kind.value}"}}
    answer = _object(
        {
            "kind": {"type": "string", "enum": [kind.value]},
            "items": items,
            "continue": {
                "type": "string",
                "description": "Token of the next page, empty after the last one.",
            },
            "remaining": {"type": "integer", "description": "How many entries are behind this page."},
            "counts": {"type": "array", "items": {"type": "object"}},
            "total": {"type": "integer", "description": "The sum of all counts."},
            "incomplete": {**_TEXTS, "description": "Kinds of which objects may be missing, and why."},
            "stale": {"type": "string", "description": "Why the bus is not read now, empty while it is."},
        }
    )
    return {**answer, "required": ["kind", "incomplete", "stale"]}


def _entry(kind: Listed) -> dict[str, Any]:
    entry = _object({name: _field(name) for name in FIELDS[kind]})
    return {**entry, "required": list(FIELDS[kind])}


def _field(name: str) -> dict[str, Any]:
    about = {"description": DESCRIPTIONS[name]}
    if name == "labels":
        return {**about, "type": "object", "additionalProperties": {"type": "string"}}
    if name == "values":
        return {**about, "type": "object", "properties": {"local": {}, "upstream": {}}}
    states = {"enum": [state.value for state in URGENCY]} if name == "state" else {}
    return {**about, "type": "string", **states}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}
