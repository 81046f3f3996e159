"""Starts the real Kafka: brokers from Maven's jars, on free ports, in a folder of their own.

The jars are fetched once into a cache folder outside the repository (`PVBUS_CACHE`, else ~/.cache/pvbus).
`PVBUS_TEST_KAFKA=host:port[,host:port]` names a running Kafka instead, whose brokers are left alone. Every
cluster started here is ended by the process ids of its brokers, and by the kernel if this process dies.
`kafka_one` and `kafka_three` are pytest fixtures: a conftest that wants them imports them.
`python -m tests.tools.kafka run -- COMMAND...` gives a command a Kafka of one broker.
"""

import asyncio
import base64
import contextlib
import ctypes
import fcntl
import functools
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.tools.ports import free_ports

VERSION = "4.1.1"
SCALA = "2.13"
JAVA_MIN = 17
HEAP = "256m"
FAULTS = int(os.environ.get("PVBUS_TEST_FAULTS", "2"))
"""How many faults of each kind a test of faults makes. Each takes some ten seconds of real time, so there are
few by default; `make chaos` makes them for minutes."""
START_SECONDS_MAX = 240.0
"""A broker listens after 5 s on a free machine; machines that run tests are rarely free."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pvbus.test</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_{SCALA}</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


class KafkaUnavailableError(Exception):
    """Kafka cannot be started here; the text is one line that says what to install."""


def java() -> str:
    """Return a Java that is new enough."""
    found = shutil.which("java")
    if found is None or int(_version_of(found).partition(".")[0] or 0) < JAVA_MIN:
        raise KafkaUnavailableError(
            f"Kafka {VERSION} needs Java {JAVA_MIN} or newer on PATH (Debian: apt install "
            "openjdk-17-jre-headless maven), or PVBUS_TEST_KAFKA=host:port of a running Kafka"
        )
    return found


@functools.cache
def _version_of(program: str) -> str:
    """Return the version of a Java, as `17.0.15`; "" if it is none."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d[\d.]*)', answer.stderr)
    return version.group(1) if version else ""


def libraries() -> Path:
    """Return the folder with Kafka's jars, fetching them if this machine has none yet."""
    root = Path(os.environ.get("PVBUS_CACHE") or Path.home() / ".cache" / "pvbus")
    target = root / f"kafka-{SCALA}-{VERSION}"
    if target.exists():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes, one fetches
        if not target.exists():
            _fetch(root, target)
    return target


def _fetch(root: Path, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError(
            f"Kafka {VERSION} is not in {root} and is fetched with Maven: install it (Debian: apt install "
            "maven), or set PVBUS_TEST_KAFKA=host:port of a running Kafka"
        )
    with tempfile.TemporaryDirectory(dir=root, prefix="kafka-") as folder:
        (Path(folder) / "pom.xml").write_text(_POM, encoding="utf-8")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
        if result.returncode != 0:
            raise KafkaUnavailableError(f"mvn could not fetch Kafka {VERSION}: {result.stdout[-2000:]}")
        (Path(folder) / "lib").rename(target)


def archive() -> Path:
    """Return Java's archive of the classes that a broker loads, made by a broker's first run on this machine.

    With it a broker starts with two thirds of the CPU, and Kafka's tools with half. Java leaves an archive
    aside that is not of its own version and jars. So is an empty one: none can be made here then.
    """
    jars = libraries()
    target = jars.with_name(f"{jars.name}-{_version_of(java())}.jsa")
    if not target.exists():
        with jars.with_name(".archive.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _make_archive(target)
    return target


def _make_archive(target: Path) -> None:
    """Run a broker until it listens, and end it in order, as Java writes the archive at its end."""
    made = target.with_suffix(".new")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="kafka-") as folder:
        cluster = _start(1, Path(folder), None, False, (f"-XX:ArchiveClassesAtExit={made}",))
        process = cluster.brokers[0].process
        assert process is not None
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(START_SECONDS_MAX)
        cluster.brokers[0].kill()
    if made.exists():
        made.rename(target)
    else:
        target.touch()  # no archive: not tried again, and Java begins without


class KafkaFailedError(Exception):
    """Kafka is installed, and does not start: a failure of the tests, not a reason to skip them."""


class Broker:
    """One broker (and controller) process."""

    def __init__(
        self, number: int, folder: Path, ports: list[int], options: Sequence[str] | None = None
    ) -> None:
        """options: of Java, instead of those that make it start fast."""
        self.number = number
        self._options = options
        self.port, self.controller_port, self.secure_port, self.proxied_port, self.proxy_port = ports
        self.folder = folder / f"broker-{number}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def format(self, settings: dict[str, str], cluster_id: str, *options: str) -> None:
        self.folder.mkdir()
        lines = [f"{name}={value}" for name, value in settings.items()]
        self._properties.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(self._properties),
            *options,
        ]
        whole = _java(*command, options=() if self._options is not None else None)
        result = subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            raise KafkaFailedError(f"the broker's folder could not be formatted: {result.stderr[-2000:]}")

    def start(self) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                _java("kafka.Kafka", str(self._properties), options=self._options),
                stdout=log,
                stderr=log,
                preexec_fn=_detach,
            )

    def wait_until_ready(self, deadline: float) -> bool:
        """Wait until it listens; False if it ended instead (its port may have been taken)."""
        assert self.process is not None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
            time.sleep(0.1)
        raise KafkaFailedError(f"broker {self.number} does not listen: {self.tail()}")

    def tail(self) -> str:
        return (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-2000:]

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Start it again after `kill`, on the same port and with the data it had.

        It ends with the thread that called this.
        """
        self.start()
        assert self.wait_until_ready(time.monotonic() + START_SECONDS_MAX), self.tail()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


async def restarted(broker: Broker) -> None:
    """Restart a broker without blocking the event loop; it ends with the thread of the loop."""
    broker.start()
    deadline = time.monotonic() + START_SECONDS_MAX
    assert await asyncio.to_thread(broker.wait_until_ready, deadline), broker.tail()


class Security(NamedTuple):
    """A second listener, with TLS and SASL. keystore: PEM of the key and its certificate, for 127.0.0.1.

    It takes user and password (SCRAM-SHA-512), and as OAUTHBEARER any unsigned token of Kafka's own
    development handler. users: more of them, by name, all with this password. has_acls: users may do what
    ACLs allow and nothing else; whoever comes in by the open listener may do everything. authority: PEM of
    who must have signed the clients' certificates; without it they need none.
    """

    keystore: Path
    user: str
    password: str
    users: tuple[str, ...] = ()
    has_acls: bool = False
    authority: Path | None = None


PORTS = 5
"""Of one broker: for clients, for controllers, with security, behind a proxy, and of that proxy."""


class KafkaCluster:
    """Running brokers. `brokers` is empty when they are somebody else's."""

    def __init__(self, brokers: list[Broker], bootstrap: str) -> None:
        self.brokers = brokers
        self.bootstrap = bootstrap


@contextlib.contextmanager
def running(
    brokers: int,
    security: Security | None = None,
    *,
    is_proxied: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[KafkaCluster]:
    """Run a cluster of so many brokers. Raises KafkaUnavailableError.

    settings: of the brokers, beside those that all tests have
    is_proxied: each has one more listener, at `proxied_port`, and tells those who come in there that it is
    at `proxy_port`: whoever asks a proxy there for the brokers goes on by way of the proxies.
    """
    given = os.environ.get("PVBUS_TEST_KAFKA")
    if given:
        yield KafkaCluster([], given)
        return
    with tempfile.TemporaryDirectory(prefix="pvbus-kafka-", ignore_cleanup_errors=True) as folder:
        cluster = _start(brokers, Path(folder), security, is_proxied, more=settings or {})
        try:
            yield cluster
        finally:
            for broker in cluster.brokers:
                broker.kill()


def _start(
    count: int,
    folder: Path,
    security: Security | None,
    is_proxied: bool,
    options_of_java: Sequence[str] | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> KafkaCluster:
    """options_of_java: of the brokers, instead of those that make them start fast. more: settings of them."""
    for attempt in range(3):  # between choosing a port and listening, a program that is no test may take it
        location = folder / str(attempt)
        location.mkdir()
        ports = free_ports(PORTS * count)
        brokers = [
            Broker(n + 1, location, ports[PORTS * n : PORTS * (n + 1)], options_of_java) for n in range(count)
        ]
        # An id that begins with a dash would be taken for an option: a zero byte makes it begin with A.
        cluster_id = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        deadline = time.monotonic() + START_SECONDS_MAX
        try:
            for broker in brokers:
                settings = {**_settings(broker, brokers), **more}
                options: tuple[str, ...] = ()
                if security is not None:
                    _add_listener(settings, "SECURE", "SASL_SSL", broker.secure_port, broker.secure_port)
                    more, options = _secure(security)
                    settings |= more
                if is_proxied:
                    _add_listener(settings, "PROXIED", "PLAINTEXT", broker.proxied_port, broker.proxy_port)
                broker.format(settings, cluster_id, *options)
                broker.start()
            if all(broker.wait_until_ready(deadline) for broker in brokers):
                return KafkaCluster(brokers, ",".join(f"127.0.0.1:{broker.port}" for broker in brokers))
        except BaseException:
            for broker in brokers:
                broker.kill()
            raise
        for broker in brokers:
            broker.kill()
    raise KafkaFailedError(f"no broker could be started: {brokers[0].tail()}")


def _settings(broker: Broker, brokers: list[Broker]) -> dict[str, str]:
    copies = min(3, len(brokers))
    in_sync = max(1, copies - 1)
    own = f"PLAINTEXT://127.0.0.1:{broker.port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.number),
        "controller.quorum.voters": ",".join(f"{b.number}@127.0.0.1:{b.controller_port}" for b in brokers),
        "listeners": f"{own},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": own,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(broker.folder / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "min.insync.replicas": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "6000",
        # Compaction and retention are looked at each half second, so that tests of them need not wait.
        "log.initial.task.delay.ms": "500",
        "log.cleaner.backoff.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _add_listener(settings: dict[str, str], name: str, protocol: str, port: int, advertised: int) -> None:
    settings["listeners"] += f",{name}://127.0.0.1:{port}"
    settings["advertised.listeners"] += f",{name}://127.0.0.1:{advertised}"
    settings["listener.security.protocol.map"] += f",{name}:{protocol}"
    settings["inter.broker.listener.name"] = "PLAINTEXT"


def _secure(security: Security) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what a broker with a secure listener has besides, and how its users are made."""
    modules = "org.apache.kafka.common.security"
    own = "listener.name.secure"
    settings = {
        f"{own}.ssl.keystore.type": "PEM",
        f"{own}.ssl.keystore.location": str(security.keystore),
        f"{own}.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        f"{own}.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        f"{own}.oauthbearer.sasl.jaas.config": (
            f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    if security.authority is not None:
        settings |= {
            f"{own}.ssl.client.auth": "required",
            f"{own}.ssl.truststore.type": "PEM",
            f"{own}.ssl.truststore.location": str(security.authority),
        }
    if security.has_acls:
        settings |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
    options: list[str] = []
    for user in (security.user, *security.users):
        options += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={security.password}]"]
    return settings, tuple(options)


def tool(main_class: str, *arguments: str) -> list[str]:
    """Return the command line of one of Kafka's own console tools."""
    return _java(f"org.apache.kafka.tools.{main_class}", *arguments)


def java_command(*arguments: str) -> list[str]:
    """Return the command line of a Java program that uses Kafka's jars."""
    return [java(), "-cp", f"{libraries()}/*", *arguments]


def _java(*arguments: str, options: Sequence[str] | None = None) -> list[str]:
    program = java()  # before the jars: where both are missing, one sentence names both
    options = _fast() if options is None else options
    flags = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    flags += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libraries()}/*"]
    flags += ["-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=debug"]  # each decision, with its rule
    return [program, *options, *flags, *arguments]


def _fast() -> tuple[str, ...]:
    """Return the options of Java that use the archive, without a word if it does not fit."""
    return (f"-XX:SharedArchiveFile={archive()}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")


def _detach(number: int = signal.SIGKILL) -> None:
    """Be ended by this process alone: Ctrl-C at its terminal is not ours, but its death is (Linux only)."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, number)


def _fixture(brokers: int) -> Iterator[KafkaCluster]:
    try:
        with running(brokers) as cluster:
            yield cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_one() -> Iterator[KafkaCluster]:
    """A Kafka of one broker."""
    yield from _fixture(1)


@pytest.fixture(scope="session")
def kafka_three() -> Iterator[KafkaCluster]:
    """A Kafka of three brokers."""
    yield from _fixture(3)


# A command with a Kafka of its own


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Command:
    """Takes the signals of this process: before the command runs they end us, then they are the command's."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        for number in SIGNALS:
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            raise SystemExit(128 + number)
        self._process.send_signal(number)

    def run(self, command: Sequence[str]) -> int:
        """Run it to its end, in a process group of its own, or a terminal would send it each signal, too."""

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            _detach(signal.SIGTERM)

        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # it may run before we know it
        self._process = subprocess.Popen(command, preexec_fn=begin)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = self._process.wait()
        return code if code >= 0 else 128 - code


def _await_groups(cluster: KafkaCluster) -> None:
    """Wait until a new Kafka has coordinators: the first who asks for one makes it create their topic."""
    if cluster.brokers:
        asking = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"})
        asking.committed([TopicPartition("__consumer_offsets", 0)], timeout=START_SECONDS_MAX)
        asking.close()


def main(arguments: Sequence[str]) -> int:
    """`python -m tests.tools.kafka run -- COMMAND...`: `{kafka}` in the command becomes the broker's place.

    Returns the command's exit code. The broker ends after the command.
    """
    if list(arguments[:2]) != ["run", "--"] or len(arguments) < 3:
        print("usage: python -m tests.tools.kafka run -- COMMAND [ARGUMENT with {kafka}]...", file=sys.stderr)
        return 2
    command = _Command()
    try:
        with running(1) as cluster:
            print(
                f"Kafka {VERSION}: {cluster.bootstrap}"
                if cluster.brokers
                else f"Kafka of PVBUS_TEST_KAFKA: {cluster.bootstrap}",
                flush=True,
            )
            _await_groups(cluster)
            return command.run([each.replace("{kafka}", cluster.bootstrap) for each in arguments[2:]])
    except (KafkaUnavailableError, KafkaFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
