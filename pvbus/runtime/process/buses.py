"""Opens the bus of a URL: `sqlite:PATH`, a file on this machine, or `kafka://HOST:PORT...`, a cluster."""

from pathlib import Path

from pvbus.adapters.files import open_plain
from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import UsageError
from pvbus.ports.bus import Bus
from pvbus.runtime.process.kafka_settings import kafka_settings
from pvbus.runtime.process.settings import ServiceConfig

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


async def open_bus(config: ServiceConfig, *, create: bool = True) -> Bus:
    """Open the bus of these settings.

    create: create a missing file of a SQLite bus; if False, that is a UsageError. Raises TransientError
    if no Kafka broker answers.
    """
    path = bus_file(config.bus)
    if path is None:
        return await KafkaBus.open(kafka_settings(config))
    if not create and not path.exists():
        raise UsageError(f"no bus at {path}: start `pvbus up`, or give its folder with --data")
    if path.exists():
        open_plain(path).close()
    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteBus.open(path)
