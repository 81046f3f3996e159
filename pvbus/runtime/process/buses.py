"""Opens the bus of a URL: `sqlite:PATH`, a file on this machine, or `kafka://HOST:PORT...`, a cluster.

Each bus is imported only where it is used: Kafka's client would be a tenth of the start of other processes.
"""

import ssl
from pathlib import Path

import msgspec

from pvbus.adapters.files import open_plain
from pvbus.adapters.kafka.settings import KafkaSettings, OAuthBearer, Scram, Tls, settings_of, ssl_context
from pvbus.core.errors import UsageError
from pvbus.ports.bus import Bus
from pvbus.runtime.process.configuration import variable_of
from pvbus.runtime.process.settings import KafkaConfig, ServiceConfig

SQLITE = "sqlite:"
KAFKA = "kafka://"


def bus_file(url: str) -> Path | None:
    """Return the file of a SQLite bus, None for Kafka. Raises UsageError for an invalid URL."""
    if url.startswith(KAFKA):
        return None
    if url.startswith(SQLITE) and url != SQLITE:
        return Path(url.removeprefix(SQLITE))
    raise UsageError(
        f'invalid bus URL "{url}": expected sqlite:PATH, for example sqlite:.pvbus/bus.db, or '
        "kafka://HOST:PORT[,HOST:PORT...][/PREFIX]"
    )


def bus_prefix(url: str) -> str:
    """Return the prefix of an installation's topics, "" if the bus has none. Raises UsageError."""
    return "" if bus_file(url) is not None else settings_of(url).prefix


async def open_bus(config: ServiceConfig, *, create: bool = True) -> Bus:
    """Open the bus of these settings.

    create: whether to create a missing file of a SQLite bus; if False, a missing file is a UsageError
    Raises TransientError if no Kafka broker answers.
    """
    path = bus_file(config.bus)
    if path is None:
        from pvbus.adapters.kafka.bus import KafkaBus

        return await KafkaBus.open(kafka_settings(config))
    if not create and not path.exists():
        raise UsageError(f"no bus at {path}: start `pvbus up`, or give its folder with --data")
    if path.exists():
        open_plain(path).close()
    path.parent.mkdir(parents=True, exist_ok=True)
    from pvbus.adapters.sqlite.bus import SqliteBus

    return await SqliteBus.open(path)


_TLS_ONLY = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_key_password_file")
_SCRAM_ONLY = ("kafka_username", "kafka_password_file")


def kafka_settings(config: ServiceConfig) -> KafkaSettings:
    """Return the Kafka settings for the URL in `bus`. Reads files; raises UsageError with every problem."""
    settings = settings_of(config.bus)
    problems: list[str] = []
    tls = _tls(config, problems)
    sasl = _sasl(config, problems)
    if problems:
        raise UsageError("invalid Kafka configuration:\n  " + "\n  ".join(problems))
    return msgspec.structs.replace(
        settings,
        tls=tls,
        sasl=sasl,
        replication=config.kafka_replication,
        session_seconds=config.kafka_session_seconds,
        snapshots=config.kafka_snapshots,
        snapshot_seconds=config.kafka_snapshot_seconds,
    )


def _tls(config: KafkaConfig, problems: list[str]) -> Tls | None:
    if not config.kafka_tls:
        problems += _useless(config, _TLS_ONLY, f"needs {variable_of('kafka_tls')}=true")
        return None
    before = len(problems)
    if bool(config.kafka_certificate_file) != bool(config.kafka_key_file):
        problems.append(
            f"{variable_of('kafka_certificate_file')} and {variable_of('kafka_key_file')} belong together"
        )
    elif config.kafka_key_password_file and not config.kafka_key_file:
        problems += _useless(config, _TLS_ONLY[-1:], f"needs {variable_of('kafka_key_file')}")
    for field in _TLS_ONLY[:-1]:
        if getattr(config, field):
            _content(config, field, problems)
    tls = Tls(
        ca_file=config.kafka_ca_file,
        certificate_file=config.kafka_certificate_file,
        key_file=config.kafka_key_file,
        key_password=_secret(config, "kafka_key_password_file", problems)
        if config.kafka_key_password_file
        else "",
    )
    if len(problems) == before:
        try:
            ssl_context(tls)
        except (ssl.SSLError, ValueError) as exc:
            given = ", ".join(variable_of(field) for field in _TLS_ONLY if getattr(config, field))
            problems.append(f"{given}: not valid PEM files that belong together: {exc}")
    return tls


def _sasl(config: KafkaConfig, problems: list[str]) -> Scram | OAuthBearer | None:
    sasl = variable_of("kafka_sasl")
    if not config.kafka_sasl.startswith("scram"):
        problems += _useless(config, _SCRAM_ONLY, f"needs {sasl}=scram-sha-512 (or 256)")
    if config.kafka_sasl != "oauthbearer":
        problems += _useless(config, ("kafka_token_file",), f"needs {sasl}=oauthbearer")
    match config.kafka_sasl:
        case "":
            return None
        case "oauthbearer":
            if not config.kafka_tls:
                problems.append(
                    f"{sasl}=oauthbearer needs {variable_of('kafka_tls')}=true: an unencrypted "
                    "connection would expose the token"
                )
            _secret(config, "kafka_token_file", problems)
            return OAuthBearer(token_file=config.kafka_token_file)
        case scram:
            if not config.kafka_username:
                problems.append(f"{sasl}={scram} needs {variable_of('kafka_username')}")
            password = _secret(config, "kafka_password_file", problems)
            bits = int(scram.rpartition("-")[2])
            return Scram(username=config.kafka_username, password=password, bits=bits)


def _useless(config: KafkaConfig, fields: tuple[str, ...], reason: str) -> list[str]:
    return [f"{variable_of(field)} {reason}" for field in fields if getattr(config, field)]


def _secret(config: KafkaConfig, field: str, problems: list[str]) -> str:
    """Return a file's content without the final line end, which editors add; an empty file is a problem."""
    if not getattr(config, field):
        problems.append(f"{variable_of('kafka_sasl')}={config.kafka_sasl} needs {variable_of(field)}")
        return ""
    before = len(problems)
    secret = _content(config, field, problems).rstrip("\r\n")
    if not secret and len(problems) == before:
        problems.append(f"{variable_of(field)}: {getattr(config, field)} is empty")
    return secret


def _content(config: KafkaConfig, field: str, problems: list[str]) -> str:
    path = getattr(config, field)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        problems.append(f"{variable_of(field)}: cannot read {path}: {reason}")
        return ""
