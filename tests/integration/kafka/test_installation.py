"""What an installation on a real Kafka was made with is recorded; workers that differ do not start."""

import asyncio
import re
import secrets
import shlex
import subprocess
import time

import pytest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.topics import topic_specs
from pvbus.runtime.process.installation import ensure_installation
from tests.tools.installation import pvbus
from tests.tools.kafka import KafkaCluster, tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def settings(kafka_one: KafkaCluster) -> KafkaSettings:
    return KafkaSettings(bootstrap=(kafka_one.bootstrap,), prefix=f"made-{secrets.token_hex(4)}")


async def start(settings: KafkaSettings, partitions: int) -> str:
    """Start as a worker does; returns the incarnation."""
    bus = await KafkaBus.open(settings)
    try:
        row = await ensure_installation(bus, partitions=partitions)
        return row.incarnation
    finally:
        await bus.close()


async def refused(settings: KafkaSettings, partitions: int) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        await start(settings, partitions)
    return caught.value


async def test_workers_that_start_together_agree(settings: KafkaSettings) -> None:
    """Several first starts at once make one installation, and later starts find it."""
    found = await asyncio.gather(*(start(settings, 3) for _ in range(3)))
    assert len(set(found)) == 1
    assert await start(settings, 3) == found[0]


def run_reported(command: str) -> str:
    """Run a command as it was told, with Kafka's own class in the place of its script."""
    script, *words = shlex.split(command)
    assert script == "kafka-topics.sh"
    result = subprocess.run(
        tool("TopicCommand", *words), capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


async def test_another_number_of_partitions(settings: KafkaSettings) -> None:
    """A worker with another number does not start; what it says to do about it works, for it alone."""
    neighbour = KafkaSettings(bootstrap=settings.bootstrap, prefix=f"{settings.prefix}-neighbour")
    await start(neighbour, 3)
    before = await start(settings, 3)
    error = await refused(settings, 2)
    assert error.reason == "PartitionsDiffer"
    assert "has 3 partitions, this worker expects 2" in str(error)
    assert await start(settings, 3) == before
    reported = re.search(r"delete the topics \((.*?)\)", str(error))
    assert reported is not None, error
    assert "use another prefix" in str(error)
    assert "bus.db" not in str(error)
    assert f"--delete --topic '{settings.prefix}" in str(error)
    run_reported(reported[1])
    deadline = time.monotonic() + 30
    bus = await KafkaBus.open(settings)
    while await bus.topics():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    await bus.close()
    assert await start(settings, 2) != before
    bus = await KafkaBus.open(neighbour)
    assert len(await bus.topics()) == len(topic_specs())
    await bus.close()


def test_a_service_process_refuses(kafka_one: KafkaCluster, settings: KafkaSettings) -> None:
    """A service's process ends with 1 and one line, before it asks an API server for anything."""
    url = f"kafka://{kafka_one.bootstrap}/{settings.prefix}"
    asyncio.run(start(settings, 3))
    result = pvbus("run", "render", "--bus", url, "--kubeconfig", "/nonexistent")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert "has 3 partitions, this worker expects 12: start all workers with" in result.stderr


def test_the_topics_commands(kafka_one: KafkaCluster, settings: KafkaSettings) -> None:
    """--check tells what is missing, --create makes it once, and --check is satisfied by it."""
    address = ["--bus", f"kafka://{kafka_one.bootstrap}/{settings.prefix}"]
    reported = [
        (result.returncode, [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()[1:]])
        for action in ("--check", "--create", "--create", "--check")
        for result in (pvbus("topics", action, *address),)
    ]
    count = len(topic_specs())
    assert reported == [
        (1, ["missing: pvbus topics --create makes it"] * count),
        (0, ["created"] * count),
        (0, ["already there"] * count),
        (0, ["as declared"] * count),
    ]


def test_the_topics_commands_about_differences(kafka_one: KafkaCluster, settings: KafkaSettings) -> None:
    """What differs is told with a command that puts it right, and --create does not touch it."""
    address = ["--bus", f"kafka://{kafka_one.bootstrap}/{settings.prefix}"]
    brokers = ["--bootstrap-server", kafka_one.bootstrap]
    name = settings.named("pvbus.desired")
    run_reported(shlex.join(["kafka-topics.sh", *brokers, "--create", "--topic", name, "--partitions", "12"]))
    asyncio.run(until_listed(settings, "pvbus.desired"))
    for action, others in (("--check", "missing"), ("--create", "created"), ("--check", "as declared")):
        result = pvbus("topics", action, *address)
        assert result.returncode == 1
        lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:])
        assert "cleanup.policy is delete" in lines.pop("pvbus.desired")
        assert {line.split(":")[0] for line in lines.values()} == {others}
    reported = re.search(r"kafka-configs\.sh (.*)", result.stdout)
    assert reported is not None
    configs = subprocess.run(
        _configs(*shlex.split(reported[1])), capture_output=True, text=True, timeout=60, check=False
    )
    assert configs.returncode == 0, configs.stderr
    deadline = time.monotonic() + 30  # the broker knows of the change later than the controller
    while (result := pvbus("topics", "--check", *address)).returncode:
        assert time.monotonic() < deadline, result.stdout


async def until_listed(settings: KafkaSettings, topic: str) -> None:
    """Wait until the broker knows of a topic: its creation is over before that."""
    deadline = time.monotonic() + 30
    bus = await KafkaBus.open(settings)
    while topic not in await bus.topics():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    await bus.close()


def _configs(*arguments: str) -> list[str]:
    """Return the command line of kafka-configs.sh, whose class is not among the tools."""
    command = tool("TopicCommand", *arguments)
    return ["kafka.admin.ConfigCommand" if "TopicCommand" in word else word for word in command]
