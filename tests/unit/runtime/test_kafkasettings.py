"""How to reach a Kafka, as the settings tell it; what contradicts itself is told all at once."""

from pathlib import Path

import pytest

from pvbus.adapters.kafka.settings import KafkaSettings, OAuthBearer, Scram, Tls
from pvbus.core.errors import UsageError
from pvbus.runtime.process.buses import kafka_settings
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServiceConfig
from tests.tools.certificate import make_pair

BUS = {"PVBUS_BUS": "kafka://a:9092,b:9092/blue"}


def settings(**variables: str | Path) -> KafkaSettings:
    given = {f"PVBUS_KAFKA_{name.upper()}": str(value) for name, value in variables.items()}
    return kafka_settings(load_config(ServiceConfig, BUS | given))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    return file


def test_an_address_is_enough() -> None:
    """Brokers and prefix come from the address, the rest has defaults."""
    assert settings() == KafkaSettings(bootstrap=("a:9092", "b:9092"), prefix="blue")


def test_copies_and_session_are_settings() -> None:
    """Both go to the bus as they are."""
    found = settings(replication="2", session_seconds="30")
    assert (found.replication, found.session_seconds) == (2, 30.0)


@pytest.mark.parametrize(("mechanism", "bits"), [("scram-sha-256", 256), ("scram-sha-512", 512)])
def test_a_password_comes_from_a_file(secret: Path, mechanism: str, bits: int) -> None:
    """The line's end, which editors add, is no part of it."""
    found = settings(sasl=mechanism, username="pvbus-ingest", password_file=secret)
    assert found.sasl == Scram(username="pvbus-ingest", password="s3cret", bits=bits)
    assert found.tls is None


def test_a_token_is_read_when_it_is_needed(secret: Path) -> None:
    """The bus gets the file, not what stands in it now."""
    assert settings(tls="true", sasl="oauthbearer", token_file=secret).sasl == OAuthBearer(
        token_file=str(secret)
    )


@pytest.mark.parametrize("password", [None, b"s3cret"], ids=["open key", "locked key"])
def test_certificates(tmp_path: Path, secret: Path, password: bytes | None) -> None:
    """An authority, and a certificate of ours with its key and the key's password."""
    certificate, key = make_pair(tmp_path, password)
    more = {"key_password_file": secret} if password else {}
    found = settings(tls="true", ca_file=certificate, certificate_file=certificate, key_file=key, **more)
    assert found.tls == Tls(
        ca_file=str(certificate),
        certificate_file=str(certificate),
        key_file=str(key),
        key_password="s3cret" if password else "",
    )


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"ca_file": "ca.pem"}, ["PVBUS_KAFKA_CA_FILE needs PVBUS_KAFKA_TLS=true"]),
        (
            {"username": "u", "password_file": "p", "token_file": "t"},
            [
                "PVBUS_KAFKA_USERNAME needs PVBUS_KAFKA_SASL=scram",
                "PVBUS_KAFKA_PASSWORD_FILE needs PVBUS_KAFKA_SASL=scram",
                "PVBUS_KAFKA_TOKEN_FILE needs PVBUS_KAFKA_SASL=oauthbearer",
            ],
        ),
        (
            {"sasl": "scram-sha-512"},
            [
                "PVBUS_KAFKA_SASL=scram-sha-512 needs PVBUS_KAFKA_USERNAME",
                "PVBUS_KAFKA_SASL=scram-sha-512 needs PVBUS_KAFKA_PASSWORD_FILE",
            ],
        ),
        (
            {"sasl": "oauthbearer"},
            [
                "PVBUS_KAFKA_SASL=oauthbearer needs PVBUS_KAFKA_TLS=true",
                "PVBUS_KAFKA_SASL=oauthbearer needs PVBUS_KAFKA_TOKEN_FILE",
            ],
        ),
        (
            {"sasl": "scram-sha-256", "username": "u", "password_file": "missing"},
            ["PVBUS_KAFKA_PASSWORD_FILE: cannot read missing: No such file"],
        ),
        (
            {"sasl": "scram-sha-256", "username": "u", "password_file": "/dev/null"},
            ["PVBUS_KAFKA_PASSWORD_FILE: /dev/null is empty"],
        ),
        (
            {"tls": "true", "certificate_file": __file__, "key_password_file": "missing"},
            [
                "PVBUS_KAFKA_CERTIFICATE_FILE and PVBUS_KAFKA_KEY_FILE belong together",
                "PVBUS_KAFKA_KEY_PASSWORD_FILE: cannot read missing",
            ],
        ),
        ({"tls": "true", "ca_file": __file__}, ["PVBUS_KAFKA_CA_FILE: not valid PEM files that belong"]),
        (
            {"ca_file": "ca.pem", "sasl": "scram-sha-512"},
            ["PVBUS_KAFKA_CA_FILE needs", "needs PVBUS_KAFKA_USERNAME", "needs PVBUS_KAFKA_PASSWORD_FILE"],
        ),
    ],
)
def test_contradictions_are_told_all_at_once(given: dict[str, str], reported: list[str]) -> None:
    """One line for each problem, with the variable that it is about."""
    with pytest.raises(UsageError) as caught:
        settings(**given)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(reported), lines
    for line, words in zip(lines, reported, strict=True):
        assert words in line


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    """Files that do not belong together are found before anybody connects."""
    certificate, _ = make_pair(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    _, key = make_pair(other)
    with pytest.raises(UsageError, match="PVBUS_KAFKA_CERTIFICATE_FILE, PVBUS_KAFKA_KEY_FILE: not valid PEM"):
        settings(tls="true", certificate_file=certificate, key_file=key)


def test_a_locked_key_without_its_password(tmp_path: Path) -> None:
    """Nobody is asked for it at a terminal: a service has none."""
    certificate, key = make_pair(tmp_path, b"s3cret")
    with pytest.raises(UsageError, match="PVBUS_KAFKA_KEY_FILE: not valid PEM files that belong together"):
        settings(tls="true", certificate_file=certificate, key_file=key)


def test_settings_from_a_file(tmp_path: Path, secret: Path) -> None:
    """The same settings are keys of the file, and a variable goes before them."""
    file = tmp_path / "pvbus.yaml"
    file.write_text(
        f"bus: kafka://a:9092\nkafkaTls: true\nkafkaSasl: scram-sha-256\nkafkaUsername: pvbus\n"
        f"kafkaPasswordFile: {secret}\nkafkaReplication: 2\n"
    )
    given = {"PVBUS_CONFIG": str(file), "PVBUS_KAFKA_REPLICATION": "1"}
    found = kafka_settings(load_config(ServiceConfig, given))
    assert (found.tls, found.replication) == (Tls(), 1)
    assert found.sasl == Scram(username="pvbus", password="s3cret", bits=256)
