"""Settings of a Kafka cluster, and all options of our clients.

Every option that a guarantee depends on is set here. The library's defaults are auto-commit on, reading from
the latest record, idempotence off, and a rebalance that must end within the session.
"""

import re
import ssl
from typing import TYPE_CHECKING, Any

import msgspec

from pvbus.core.errors import UsageError

if TYPE_CHECKING:  # settings are read where there is no Kafka, too, and its client takes long to import
    from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

REQUEST_SECONDS = 40
"""Longer than the rebalance timeout: the response to a JoinGroup can take that long."""

TRANSACTION_SECONDS = 15.0
"""The deadline of a step or any other call. Below the transaction's own timeout, so that we give up first."""

BROKER_TRANSACTION_SECONDS = 20
"""The broker then aborts an open transaction; readers wait that long behind a dead worker's step."""

FETCH_WAIT_SECONDS = 0.25
"""How long a fetch waits at the broker for records. A partition that is added or resumed waits for the end
of the pending fetch. Readers at rest wait longer: see `fetching`."""

LOOK_SECONDS = 1.0
"""How often the library looks for something to fetch that nothing told it of, which should be never."""

FETCH_BYTES = 2 * 1024 * 1024
"""The maximum compressed size of a fetch response. It is unpacked at once, which blocks the event loop for up
to 0.2 s, and stays in memory until it is applied."""

OVERHEAD_BYTES = 16 * 1024
"""The overhead of a batch beyond the key, value and headers of one record."""

BROKER_MESSAGE_BYTES = 1_048_588
"""Kafka's own default of max.message.bytes."""


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the connections to the brokers.

    ca_file: PEM of the trusted authorities; "" trusts the system's
    certificate_file: PEM of our certificate for mutual TLS, "" for none
    key_file: PEM of its key, "" for none
    key_password: the password of the key, "" for none
    verify_hostname: whether a broker's certificate must have the name of its address
    """

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    verify_hostname: bool = True


class Scram(msgspec.Struct, frozen=True, kw_only=True, tag="scram", tag_field="mechanism"):
    """User name and password; SCRAM does not send the password itself.

    username: the user
    password: the password
    bits: the bits of SHA, 256 or 512
    """

    username: str
    password: str
    bits: int = 512


class OAuthBearer(msgspec.Struct, frozen=True, kw_only=True, tag="oauthbearer", tag_field="mechanism"):
    """A token from an issuer that the brokers trust, such as a projected service account token.

    token_file: read again for every connection, as tokens are replaced before they expire.
    """

    token_file: str


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a Kafka cluster, and how this installation uses it.

    bootstrap: `host:port` of some brokers
    prefix: the beginning of the names of all topics, groups and transactional ids, followed by a dot, so that
        installations can share a cluster; "" for none
    tls: TLS of the connections, None for plain ones
    sasl: the authentication, None for none
    session_seconds: as in the SQLite bus's `Timing`
    heartbeat_seconds: as in the SQLite bus's `Timing`
    rebalance_seconds: how long a rebalance waits for a member that is alive but does not answer
    drain_seconds: the limit for `revoked`, as in `Timing`
    record_bytes_max: the limit of key, value and headers of a record together
    replication: the replicas of a topic; 0 is three, or the number of brokers if there are fewer
    snapshots: the folder of local copies of what a start would read, "" for none
    snapshot_seconds: how often these are brought up to date
    """

    bootstrap: tuple[str, ...]
    prefix: str = ""
    tls: Tls | None = None
    sasl: Scram | OAuthBearer | None = None
    session_seconds: float = 10.0
    heartbeat_seconds: float = 1.0
    rebalance_seconds: float = 30.0
    drain_seconds: float = 2.0
    record_bytes_max: int = 1_000_000
    replication: int = 0
    snapshots: str = ""
    snapshot_seconds: float = 600.0

    def named(self, name: str) -> str:
        """Return the name of a topic, group or transactional id in the cluster."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def unnamed(self, name: str) -> str | None:
        """Return our name of a topic in the cluster, None if it is not ours."""
        if name.startswith("__"):
            return None
        if not self.prefix:
            return name
        return name.removeprefix(f"{self.prefix}.") if name.startswith(f"{self.prefix}.") else None

    def transactional_id(self, group: str, partition: int) -> str:
        """Return the id of a lease. Each has its own, so that fencing one lease does not fence another."""
        return f"{self.named(group)}-{partition}"


def settings_of(url: str) -> KafkaSettings:
    """Read `kafka://host:port[,host:port...][/prefix]`. Raises UsageError."""
    found = re.fullmatch(r"kafka://([^/]+?)(?:/([A-Za-z0-9._-]+))?/?", url)
    brokers = tuple(found.group(1).split(",")) if found else ()
    if found is None or not all(map(_is_address, brokers)):
        raise UsageError(f'invalid bus URL "{url}": expected kafka://HOST:PORT[,HOST:PORT...][/PREFIX]')
    return KafkaSettings(bootstrap=brokers, prefix=found.group(2) or "")


def _is_address(broker: str) -> bool:
    host, _, port = broker.rpartition(":")
    return bool(re.fullmatch(r"\S+", host) and re.fullmatch(r"\d{1,5}", port)) and 0 < int(port) <= 65_535


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options of every client: addresses, time limits, security."""
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap),
        "client_id": "pvbus",
        "request_timeout_ms": REQUEST_SECONDS * 1000,
        "retry_backoff_ms": 100,
        "metadata_max_age_ms": 60_000,
        "connections_max_idle_ms": 540_000,
        "security_protocol": _protocol(settings),
    }
    if settings.tls is not None:
        options["ssl_context"] = ssl_context(settings.tls)
    match settings.sasl:
        case Scram(username=username, password=password, bits=bits):
            options["sasl_mechanism"] = f"SCRAM-SHA-{bits}"
            options["sasl_plain_username"] = username
            options["sasl_plain_password"] = password
        case OAuthBearer(token_file=path):
            from pvbus.adapters.kafka.tokens import TokenFile

            options["sasl_mechanism"] = "OAUTHBEARER"
            options["sasl_oauth_token_provider"] = TokenFile(path)
    return options


def _protocol(settings: KafkaSettings) -> str:
    transport = "SSL" if settings.tls is not None else "PLAINTEXT"
    return f"SASL_{transport}" if settings.sasl is not None else transport


def ssl_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    context.check_hostname = tls.verify_hostname
    if tls.certificate_file:
        # Without a password (an empty one will do) OpenSSL would prompt for it at the terminal.
        context.load_cert_chain(tls.certificate_file, tls.key_file or None, tls.key_password)
    return context


def producer_options(settings: KafkaSettings, transactional_id: str) -> dict[str, Any]:
    return client_options(settings) | {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": BROKER_TRANSACTION_SECONDS * 1000,
        "enable_idempotence": True,
        "acks": "all",
        "compression_type": "lz4",
        "max_batch_size": 128 * 1024,
        "max_request_size": settings.record_bytes_max + OVERHEAD_BYTES,
    }


def reader_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options for reading tables: committed records only, from the start after a lost position."""
    return client_options(settings) | {
        "group_id": None,
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": int(LOOK_SECONDS * 1000),
        "fetch_max_wait_ms": int(FETCH_WAIT_SECONDS * 1000),
        "fetch_min_bytes": 1,
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": max(1024 * 1024, settings.record_bytes_max + OVERHEAD_BYTES),
        "check_crcs": True,
    }


def ends_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options for end offsets that include uncommitted records (see `KafkaBus.end_offsets`)."""
    return reader_options(settings) | {"isolation_level": "read_uncommitted"}


def member_options(
    settings: KafkaSettings, group: str, assignor: "AbstractPartitionAssignor"
) -> dict[str, Any]:
    """Return the options of a group member. It has one assignor: a second one doubles the rebalances.

    The member reads no records with this consumer, so it needs no policy for lost positions; it polls itself.
    """
    return reader_options(settings) | {
        "group_id": settings.named(group),
        "group_instance_id": None,
        "auto_offset_reset": "none",
        "partition_assignment_strategy": (assignor,),
        "session_timeout_ms": int(settings.session_seconds * 1000),
        "heartbeat_interval_ms": int(settings.heartbeat_seconds * 1000),
        "rebalance_timeout_ms": int(settings.rebalance_seconds * 1000),
        "max_poll_interval_ms": 300_000,
    }
