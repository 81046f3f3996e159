"""TLS and SASL against a real broker that insists on them."""

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings, OAuthBearer, Scram, Tls
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Output
from pvbus.runtime.process.buses import kafka_settings
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServiceConfig
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import fold, holder, read_all
from tests.tools.certificate import make_certificate
from tests.tools.kafka import KafkaCluster, KafkaUnavailableError, Security, running

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

USER, PASSWORD = "pvbus", "not-a-secret"


@contextmanager
def secured(folder: Path, *, certificates: bool = False) -> Iterator[tuple[Path, KafkaCluster]]:
    """Run a broker that insists on logins, and on certificates of the same authority if told to."""
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("a Kafka that is not ours has its own users and certificates")
    keystore, authority = make_certificate(folder)
    security = Security(keystore, USER, PASSWORD, authority=authority if certificates else None)
    try:
        with running(1, security) as cluster:
            yield authority, cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def authority_and_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, KafkaCluster]]:
    with secured(tmp_path_factory.mktemp("tls")) as found:
        yield found


def token_file(folder: Path) -> str:
    """Write a token as Kafka's development handler takes it: unsigned, with a subject and an end."""

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    file = folder / "token"
    now = time.time()
    file.write_text(f"{part({'alg': 'none'})}.{part({'sub': USER, 'iat': now, 'exp': now + 3600})}.")
    return str(file)


async def works(cluster: KafkaCluster, tls: Tls, sasl: Scram | OAuthBearer) -> None:
    """Create topics, join, write, read and commit."""
    harness = KafkaHarness(f"127.0.0.1:{cluster.brokers[0].secure_port}", tls=tls, sasl=sasl)
    try:
        async with holder(harness) as (bus, leases):
            await bus.step(leases[1], [Output("out", 1, b"k", b"v")], {"table": 3})
            assert fold(await read_all(bus, "out")) == {b"k": b"v"}
            assert await bus.committed(leases[1], ["table"]) == {"table": 3}
    finally:
        await harness.close()


async def test_scram(authority_and_cluster: tuple[Path, KafkaCluster]) -> None:
    """Everything works with user and password over TLS."""
    authority, cluster = authority_and_cluster
    await works(cluster, Tls(ca_file=str(authority)), Scram(username=USER, password=PASSWORD))


async def test_bearer_token(authority_and_cluster: tuple[Path, KafkaCluster], tmp_path: Path) -> None:
    """Everything works with a token from a file over TLS."""
    authority, cluster = authority_and_cluster
    await works(cluster, Tls(ca_file=str(authority)), OAuthBearer(token_file=token_file(tmp_path)))


@pytest.mark.parametrize(
    ("tls", "sasl", "words"),
    [
        ("ours", Scram(username=USER, password="wrong-secret"), "the password in PVBUS_KAFKA_PASSWORD_FILE"),
        ("ours", Scram(username="nobody", password=PASSWORD), 'the user "nobody", or the password in'),
        ("ours", Scram(username="", password=PASSWORD), "PVBUS_KAFKA_PASSWORD_FILE|SASL"),
        ("ours", None, "PVBUS_KAFKA_SASL|closed the connection"),
        ("none", Scram(username=USER, password=PASSWORD), "PVBUS_KAFKA_CA_FILE"),
        ("off", Scram(username=USER, password=PASSWORD), "PVBUS_KAFKA_TLS=true"),
        ("off", None, "PVBUS_KAFKA_TLS=true"),
    ],
)
async def test_who_is_not_trusted(
    authority_and_cluster: tuple[Path, KafkaCluster],
    caplog: pytest.LogCaptureFixture,
    tls: str,
    sasl: Scram | None,
    words: str,
) -> None:
    """A wrong login, another authority and no TLS are refused at once, with the setting to mend."""
    authority, cluster = authority_and_cluster
    settings = KafkaSettings(
        bootstrap=(f"127.0.0.1:{cluster.brokers[0].secure_port}",),
        tls=None if tls == "off" else Tls(ca_file=str(authority) if tls == "ours" else ""),
        sasl=sasl,
    )
    with pytest.raises(TransientError, match=words) as caught:
        await KafkaBus.open(settings)
    assert len(caplog.records) <= 3, "no attempt after another"
    for secret in ("wrong-secret", PASSWORD):
        assert secret not in f"{caught.value}{caplog.text}"


async def test_a_certificate_of_ours(tmp_path: Path) -> None:
    """A broker that wants a certificate takes the one that the settings name, and nobody without one."""
    with secured(tmp_path, certificates=True) as (authority, cluster):
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        given = {
            "PVBUS_BUS": f"kafka://127.0.0.1:{cluster.brokers[0].secure_port}/blue",
            "PVBUS_KAFKA_TLS": "true",
            "PVBUS_KAFKA_CA_FILE": str(authority),
            "PVBUS_KAFKA_SASL": "scram-sha-512",
            "PVBUS_KAFKA_USERNAME": USER,
            "PVBUS_KAFKA_PASSWORD_FILE": str(tmp_path / "password"),
        }
        with pytest.raises(TransientError):
            await KafkaBus.open(kafka_settings(load_config(ServiceConfig, given)))
        ours = {
            "PVBUS_KAFKA_CERTIFICATE_FILE": str(authority),
            "PVBUS_KAFKA_KEY_FILE": str(tmp_path / "keystore.pem"),
        }
        settings = kafka_settings(load_config(ServiceConfig, given | ours))
        assert settings.tls is not None
        assert settings.sasl is not None
        await works(cluster, settings.tls, settings.sasl)
