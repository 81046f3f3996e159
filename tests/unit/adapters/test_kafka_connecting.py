"""What is told when no broker of a Kafka can be reached: the address, the reason, and what to set."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import errors

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.errors import unreachable
from pvbus.adapters.kafka.library import collect_reasons
from pvbus.adapters.kafka.settings import KafkaSettings, OAuthBearer, Scram, Tls
from pvbus.core.errors import TransientError
from tests.tools.certificate import make_certificate
from tests.tools.ports import free_ports

SCRAM = Scram(username="alice", password="pw")


async def refusal(*addresses: str, tls: Tls | None = None) -> str:
    """Open a bus that cannot be reached; returns why."""
    with pytest.raises(TransientError) as caught:
        await KafkaBus.open(KafkaSettings(bootstrap=addresses, tls=tls))
    return str(caught.value)


@asynccontextmanager
async def hanging_up(context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that closes each connection, as a broker does to who speaks otherwise than its port."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_each_address_has_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """No broker listens, no such name: a sentence for each, and the library does not log it a second time."""
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    for _ in range(2):  # whoever starts tries again each second
        reported = await refusal(first, second, "broker.invalid:9092")
        assert reported.startswith("connecting to ")
        assert f"{first}: connection refused" in reported
        assert f"{second}: connection refused" in reported
        assert "broker.invalid:9092: " in reported
    assert caplog.records == []


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        (None, "perhaps this port has TLS (PVBUS_KAFKA_TLS=true), or wants a login (PVBUS_KAFKA_SASL)"),
        (Tls(), "perhaps this port has no TLS (PVBUS_KAFKA_TLS=false), or wants a certificate of ours"),
    ],
)
async def test_who_is_hung_up_on_hears_what_the_port_may_want(tls: Tls | None, words: str) -> None:
    """A broker gives no reason: the settings that are otherwise than it may want are named."""
    async with hanging_up() as address:
        assert f"{address}: it closed the connection: {words}" in await refusal(address, tls=tls)


async def test_an_unknown_authority_is_told_with_its_setting(tmp_path: Path) -> None:
    """A certificate that the machine's authorities did not sign."""
    keystore, _ = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keystore)
    async with hanging_up(context) as address:
        reported = await refusal(address, tls=Tls())
    assert (
        f"{address}: its certificate is not accepted (self-signed certificate): PVBUS_KAFKA_CA_FILE"
        in reported
    )


@pytest.mark.parametrize(
    ("reason", "sasl", "words"),
    [
        (
            errors.SaslAuthenticationFailed("no"),
            SCRAM,
            'the user "alice", or the password in PVBUS_KAFKA_PASS',
        ),
        (
            errors.SaslAuthenticationFailed("no"),
            OAuthBearer(token_file="t"),
            "the token in PVBUS_KAFKA_TOKEN",
        ),
        (errors.UnsupportedSaslMechanismError("no"), SCRAM, "choose another PVBUS_KAFKA_SASL"),
        (errors.IllegalSaslStateError("no"), SCRAM, "leave PVBUS_KAFKA_SASL unset"),
        (TimeoutError(), None, "a:1: no answer"),
        (errors.KafkaError("odd"), None, "odd"),
    ],
)
def test_what_a_broker_refuses(reason: Exception, sasl: Scram | OAuthBearer | None, words: str) -> None:
    """Each kind of refusal names the setting that it is about; what is not known is told as it is."""
    found = unreachable(
        errors.KafkaConnectionError(), {"a:1": reason}, KafkaSettings(bootstrap=("a:1",), sasl=sasl)
    )
    assert isinstance(found, TransientError)
    assert words in str(found)


def test_one_address_of_several_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Another one may work: then no error tells of it. Who is not connecting leaves the log as it is."""
    log = logging.getLogger("aiokafka")
    with collect_reasons():
        log.error('Unable connect to "%s:%s": %s', "a", 1, OSError("gone"))
        assert caplog.messages == []
    assert caplog.messages == ["no connection to a:1: gone"]
    log.error('Unable connect to "%s:%s": %s', "b", 1, OSError("gone"))
    assert len(caplog.messages) == 2
