"""Every option that a guarantee rests on is spelled out; security is a matter of configuration."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kafka.groups import CoPartitioningAssignor
from pvbus.adapters.kafka.settings import (
    BROKER_TRANSACTION_SECONDS,
    REQUEST_SECONDS,
    TRANSACTION_SECONDS,
    KafkaSettings,
    OAuthBearer,
    Scram,
    Tls,
    client_options,
    ends_options,
    member_options,
    producer_options,
    reader_options,
    settings_of,
)
from pvbus.core.errors import UsageError

SETTINGS = KafkaSettings(bootstrap=("one:9092", "two:9092"), prefix="here")
ASSIGNOR = CoPartitioningAssignor(["a"], 2, held=list, on_share=lambda numbers: None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            producer_options(SETTINGS, "id"),
            {
                "transactional_id": "id",
                "enable_idempotence": True,
                "acks": "all",
                "compression_type": "lz4",
                "max_batch_size": 128 * 1024,
                "transaction_timeout_ms": 20_000,
            },
        ),
        (
            reader_options(SETTINGS),
            {
                "group_id": None,
                "isolation_level": "read_committed",
                "enable_auto_commit": False,
                "auto_offset_reset": "earliest",
            },
        ),
        (ends_options(SETTINGS), {"isolation_level": "read_uncommitted", "enable_auto_commit": False}),
        (
            member_options(SETTINGS, "group", ASSIGNOR),
            {
                "group_id": "here.group",
                "group_instance_id": None,
                "partition_assignment_strategy": (ASSIGNOR,),
                "session_timeout_ms": 10_000,
                "heartbeat_interval_ms": 1_000,
                "rebalance_timeout_ms": 30_000,
                "isolation_level": "read_committed",
                "enable_auto_commit": False,
                "auto_offset_reset": "none",
            },
        ),
    ],
    ids=["producer", "reader", "ends", "member"],
)
def test_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    """Nothing is left to a default: dynamic members, one assignor, idempotence, committed records only."""
    assert {name: options[name] for name in expected} == expected


def test_deadlines_are_in_order() -> None:
    """We give up on a transaction before the broker does, and on a request only after a rebalance may end."""
    assert TRANSACTION_SECONDS < BROKER_TRANSACTION_SECONDS
    assert TRANSACTION_SECONDS < REQUEST_SECONDS
    assert SETTINGS.rebalance_seconds < REQUEST_SECONDS


def test_names() -> None:
    """A prefix tells installations apart in topics, groups and transactional ids, and back."""
    assert SETTINGS.named("topic") == "here.topic"
    assert SETTINGS.transactional_id("group", 3) == "here.group-3"
    assert SETTINGS.unnamed("here.topic") == "topic"
    assert SETTINGS.unnamed("there.topic") is None
    bare = KafkaSettings(bootstrap=("one:9092",))
    assert (bare.named("topic"), bare.unnamed("topic")) == ("topic", "topic")
    assert bare.unnamed("__consumer_offsets") is None


def test_url() -> None:
    """Brokers and prefix come from one URL; what is none says how one looks."""
    assert settings_of("kafka://one:9092,two:9093") == KafkaSettings(bootstrap=("one:9092", "two:9093"))
    assert settings_of("kafka://one:9092/fleet.a").prefix == "fleet.a"
    assert settings_of("kafka://[::1]:9092").bootstrap == ("[::1]:9092",)
    unfinished = ("kafka://", "kafka://one", "sqlite:x", "kafka://one:9092,two", "kafka://one:9092/a/b")
    for wrong in (*unfinished, "kafka://one:99999", "kafka://one:0", "kafka://:9092"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            settings_of(wrong)


def test_plain_without_security() -> None:
    """Without TLS and SASL nothing of them is set."""
    options = client_options(SETTINGS)
    assert options["security_protocol"] == "PLAINTEXT"
    assert options["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert not [name for name in options if name.startswith(("sasl", "ssl"))]


def test_scram_over_tls() -> None:
    """User and password go with the mechanism, and the server's name is verified."""
    options = client_options(
        KafkaSettings(bootstrap=("one:9093",), tls=Tls(), sasl=Scram(username="u", password="p", bits=256))
    )
    assert options["security_protocol"] == "SASL_SSL"
    assert options["sasl_mechanism"] == "SCRAM-SHA-256"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")
    context = options["ssl_context"]
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


async def test_bearer_token_is_read_for_each_connection(tmp_path: Path) -> None:
    """A token file that was replaced is used by the next connection."""
    file = tmp_path / "token"
    file.write_text("first\n")
    options = client_options(KafkaSettings(bootstrap=("one:9093",), sasl=OAuthBearer(token_file=str(file))))
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_PLAINTEXT", "OAUTHBEARER")
    provider = options["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    file.write_text("second\n")
    assert await provider.token() == "second"
