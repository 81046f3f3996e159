"""Which bus an address names: `sqlite:PATH`, a file on this machine, or `kafka://HOST:PORT...`, a cluster."""

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
    """Return the file of a SQLite bus, None for a Kafka. Raises UsageError for what names no bus."""
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

    create: make the file of a SQLite bus where there is none; without it that is a UsageError. Raises
    TransientError when no broker of a Kafka answers.
    """
    path = bus_file(config.bus)
    if path is None:
        return await KafkaBus.open(kafka_settings(config))
    if not create and not path.exists():
        raise UsageError(f"there is no bus at {path}: start `pvbus up`, or name its folder with --data")
    if path.exists():
        open_plain(path).close()
    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteBus.open(path)
