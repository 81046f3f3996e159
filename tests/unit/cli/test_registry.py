"""`pvbus topics --register`: the schemas of the public topics at a schema registry."""

import asyncio
import copy
from typing import Any

import msgspec
import pytest

from pvbus.cli.main import run
from pvbus.cli.registry import register, schema_of, subjects
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.eventrows import ConditionEvent
from tests.tools.schemaregistry import Registry

SUBJECTS = ["blue.pvbus.conditions-value", "blue.pvbus.conditions.latest-value"]


def without(schema: Any, name: str) -> Any:
    """Return a schema of a release that had no such property."""
    older = copy.deepcopy(schema)
    del older["properties"][name]
    return older


async def test_registering_again_changes_nothing() -> None:
    registry = Registry()
    async with registry.running():
        first = await register(registry.url, "blue")
        assert await register(f"{registry.url}/", "blue") == first
    assert [(row["subject"], row["compatibility"]) for row in first] == [(s, "BACKWARD") for s in SUBJECTS]
    assert registry.versions == {subject: [schema_of(ConditionEvent)] for subject in SUBJECTS}
    assert registry.levels == dict.fromkeys(SUBJECTS, "BACKWARD")


def test_without_a_prefix_the_subjects_are_the_topics() -> None:
    assert [subject for subject, _ in subjects("")] == [s.removeprefix("blue.") for s in SUBJECTS]


async def test_a_later_release_adds_a_version_and_an_earlier_one_is_refused() -> None:
    """An added property is compatible, as the registered schemas are closed; the way back is not."""
    registry, schema = Registry(), schema_of(ConditionEvent)
    older = without(schema, "cause")
    registry.versions[SUBJECTS[0]] = [older]
    async with registry.running():
        await register(registry.url, "blue")
        assert registry.versions[SUBJECTS[0]] == [older, schema]
        registry.versions[SUBJECTS[0]].append({**schema, "properties": {**schema["properties"], "new": {}}})
        registry.versions[SUBJECTS[0]].remove(schema)
        with pytest.raises(PermanentError, match=r"blue.pvbus.conditions-value.*\(BACKWARD\).*new"):
            await register(registry.url, "blue")


async def test_a_compatibility_that_somebody_has_set_stays() -> None:
    registry = Registry()
    registry.levels[SUBJECTS[1]] = "FULL"
    async with registry.running():
        found = await register(registry.url, "blue")
    assert [row["compatibility"] for row in found] == ["BACKWARD", "FULL"]
    assert registry.levels == dict(zip(SUBJECTS, ["BACKWARD", "FULL"], strict=True))


def test_the_schema_is_closed_and_knows_every_field() -> None:
    schema = schema_of(ConditionEvent)
    names = [field.encode_name for field in msgspec.structs.fields(ConditionEvent)]
    assert sorted(schema["properties"]) == sorted(names)
    parts = [schema, *schema["definitions"].values()]
    assert [part["additionalProperties"] for part in parts] == [False] * len(parts)
    definitions = {"Condition", "EventCause", "EventRollout", "EventTask", "TargetCounts"}
    assert set(schema["definitions"]) == definitions


async def test_what_is_no_registry_is_named() -> None:
    """One that is away, one that is no URL, and a server that is something else."""
    registry = Registry()
    async with registry.running():
        with pytest.raises(
            PermanentError, match=r"GET http://\S+/elsewhere/config/\S+: 404 .*PVBUS_SCHEMA_REGISTRY"
        ):
            await register(f"{registry.url}/elsewhere", "")
    with pytest.raises(TransientError, match=rf"{registry.url} does not answer"):
        await register(registry.url, "")
    with pytest.raises(UsageError, match='invalid schema registry "registry:8081"'):
        await register("registry:8081", "")


def test_the_command_prints_the_subjects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PVBUS_SCHEMA_REGISTRY", raising=False)
    arguments = ["topics", "--register", "--bus", "kafka://127.0.0.1:1/blue"]
    assert run(arguments) == 2
    assert "no schema registry: set PVBUS_SCHEMA_REGISTRY" in capsys.readouterr().err
    assert run(["topics", "--register", "--bus", "sqlite:x"]) == 2
    assert "--register is about a Kafka" in capsys.readouterr().err

    async def registered() -> int:
        registry = Registry()
        async with registry.running():
            monkeypatch.setenv("PVBUS_SCHEMA_REGISTRY", registry.url)
            return await asyncio.to_thread(run, arguments)

    assert asyncio.run(registered()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SUBJECT", "ID", "COMPATIBILITY"]
    assert [line.split() for line in lines[1:]] == [[subject, "1", "BACKWARD"] for subject in SUBJECTS]
