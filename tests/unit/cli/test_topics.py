"""`pvbus topics --create | --check | --acls`, where no Kafka is needed."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli import topics as command
from pvbus.cli.main import run
from pvbus.core.kernel.topics import ALL_SERVICES, TOPICS, topic_specs
from pvbus.ports.bus import TopicSpec
from pvbus.runtime.process.kafka_access import ROLES

KAFKA = "kafka://one:9092,two:9092/blue"
OTHER = TopicSpec(name="orders", partitions=2, cleanup="delete")
NAMES = [spec.name for spec in topic_specs()]


def rows(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    found: list[Any] = json.loads(capsys.readouterr().out)
    return found


def test_creating_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first time every topic is created, the second time it is there already; both are a success."""
    address = ["--bus", f"sqlite:{tmp_path / 'bus.db'}"]
    assert run(["topics", "--create", *address, "-o", "json"]) == 0
    assert [(row["name"], row["state"]) for row in rows(capsys)] == [(name, "created") for name in NAMES]
    assert run(["topics", "--create", *address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:]] == [[name, "already there"] for name in NAMES]
    assert run(["topics", "--check", *address, "-o", "yaml"]) == 0
    assert {row["state"] for row in yaml.safe_load(capsys.readouterr().out)} == {"as declared"}


def test_what_is_missing_or_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--check makes nothing and ends with 1; --create makes what is missing and leaves what differs alone."""
    address = ["--bus", f"sqlite:{tmp_path / 'bus.db'}", "-o", "json"]
    made, other, missing = topic_specs()[:3]
    monkeypatch.setattr(command, "topic_specs", lambda: [made, msgspec.structs.replace(other, partitions=5)])
    assert run(["topics", "--create", *address]) == 0
    capsys.readouterr()
    monkeypatch.setattr(command, "topic_specs", lambda: [made, other, missing])
    for _ in range(2):
        assert run(["topics", "--check", *address]) == 1
        assert [row["state"] for row in rows(capsys)] == ["as declared", "differs", "missing"]
    assert run(["topics", "--create", *address]) == 1
    found = rows(capsys)
    assert [row["state"] for row in found] == ["already there", "differs", "created"]
    assert "partitions is 5 instead of 12" in found[1]["problems"][0]
    assert f"mv {tmp_path / 'bus.db'} " in found[1]["problems"][0]


def test_checking_a_bus_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check does not make a file to look into."""
    assert run(["topics", "--check", "--data", str(tmp_path / "none")]) == 2
    assert "no bus at" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "command",
    [["topics"], ["topics", "pvbus.sets"], ["conditions"], ["explain", "a/b"], ["lag"]],
    ids=" ".join,
)
def test_a_bus_without_topics_of_ours(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks at the tables says that there are none, and what may be wrong, however it came to that."""
    address = tmp_path / "bus.db"
    asyncio.run(make_topics(address, OTHER))
    assert run([*command, "--bus", f"sqlite:{address}"]) == 2
    said = capsys.readouterr()
    assert (
        "error: nothing of pvbus is on this bus: start the services, or see whether its address" in said.err
    )
    assert said.out == ""


def test_topics_of_others_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a prefix all topics of a Kafka are on the bus; ours come as they are declared."""
    address = tmp_path / "bus.db"
    asyncio.run(make_topics(address, OTHER, *topic_specs()))
    assert run(["topics", "--bus", f"sqlite:{address}", "-o", "json"]) == 0
    assert [row["name"] for row in rows(capsys)] == NAMES


async def make_topics(address: Path, *specs: TopicSpec) -> None:
    bus = await SqliteBus.open(address)
    await bus.create_topics(specs)
    await bus.close()


def test_acls_follow_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    """A service may write what it produces, read what it owns and reads, and compare every topic."""
    assert run(["topics", "--acls", "--bus", KAFKA, "-o", "json"]) == 0
    found = rows(capsys)
    for service in ALL_SERVICES:
        given = {
            (row["resourceType"], row["operation"], row["resourceName"])
            for row in found
            if row["principal"] == f"User:pvbus-{service}"
        }
        for contract in TOPICS:
            name = f"blue.{contract.spec.name}"
            is_first = contract.spec.name == "pvbus.meta"
            assert (("topic", "Write", name) in given) == (service in contract.producers or is_first)
            assert (("topic", "Read", name) in given) == (service in contract.owners + contract.readers)
            assert ("topic", "DescribeConfigs", name) in given
        assert ("group", "Read", f"blue.pvbus-{service}") in given
        assert ("transactional-id", "Write", f"blue.pvbus-{service}-") in given
    assert {row["permission"] for row in found} == {"Allow"}
    assert {row["operation"] for row in found} == {"Read", "Write", "Create", "Describe", "DescribeConfigs"}
    assert {row["role"] for row in found if row["operation"] == "Create"} == {"operator"}


def test_a_role_alone_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """A consumer reads the public topics and its groups; the page writes nothing and reads no secrets."""
    chosen = ["--role", "consumer", "--principal", "User:team-a"]
    assert run(["topics", "--acls", "--bus", KAFKA, *chosen, "-o", "json"]) == 0
    found = rows(capsys)
    assert {row["principal"] for row in found} == {"User:team-a"}
    assert {(row["operation"], row["resourceName"], row["patternType"]) for row in found} == {
        ("Read", "blue.pvbus.conditions", "literal"),
        ("Read", "blue.pvbus.conditions.latest", "literal"),
        ("Read", "blue.pvbus-consumer-", "prefixed"),
    }
    assert run(["topics", "--acls", "--bus", KAFKA, "--role", "web", "-o", "json"]) == 0
    page = rows(capsys)
    assert {row["operation"] for row in page} == {"Read", "DescribeConfigs"}
    assert not {"blue.pvbus.injectables", "blue.pvbus.dlq"} & {row["resourceName"] for row in page}


def test_acls_as_commands_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """The script's few commands come to the same ACLs as the document's."""
    names = ["--principal", "User:CN={role},O=Example Dev"]
    assert run(["topics", "--acls", "--bus", KAFKA, *names, "-o", "json"]) == 0
    documented = {
        (r["principal"], r["operation"], r["resourceType"], r["resourceName"], r["patternType"])
        for r in rows(capsys)
    }
    assert run(["topics", "--acls", "--bus", KAFKA, *names, "--command-config", "admin.properties"]) == 0
    reported = set()
    count = 0
    begin = r"kafka-acls\.sh --bootstrap-server one:9092,two:9092 --command-config admin\.properties --add "
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("# "):
            continue
        assert re.match(begin, line), line
        words = shlex.split(line)[6:]
        given = list(zip(words[::2], words[1::2], strict=True))
        count += 1
        options = dict(given)
        pattern = options.get("--resource-pattern-type", "literal")
        principals = [value for option, value in given if option == "--allow-principal"]
        reported |= {
            (principal, options["--operation"], option.strip("-"), value, pattern)
            for option, value in given
            if option in ("--topic", "--group", "--transactional-id")
            for principal in principals
        }
    assert reported == documented
    assert count <= 4 * len(ROLES)
    assert "User:CN=render,O=Example Dev" in {each[0] for each in reported}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--acls"], "--acls is about a Kafka"),
        (["--acls", "--bus", "sqlite:bus.db"], "--acls is about a Kafka"),
        (["--acls", "--bus", "kafka://nowhere"], 'invalid bus URL "kafka://nowhere"'),
        (["--acls", "--role", "page", "--bus", KAFKA], "'page' is not one of 'ingest'"),
        (["--role", "web"], "--role is about --acls"),
        (["--check", "pvbus.meta"], "--check is about all topics"),
        (["--create", "--key", "k"], "--create is about all topics"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes no sense together is refused with exit code 2."""
    assert run(["topics", *arguments]) == 2
    assert words in capsys.readouterr().err
