"""Opens the sources of packages, as the settings say.

They are imported where they are opened: the client of registries and what it imports take 0.2 s and 10 MB,
a fifth of the start of a service that reads no packages.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pvbus.core.errors import UsageError
from pvbus.ports.cluster import Cluster, Kind
from pvbus.ports.sources import Secrets, Sources
from pvbus.runtime.process.settings import ServiceConfig, ServicesConfig, SourcesConfig, split_folders

if TYPE_CHECKING:
    from pvbus.adapters.sources.sources import PackageSources

READERS = frozenset({"resolve", "establish"})
"""The services that read packages."""
_MB = 1024 * 1024


@asynccontextmanager
async def open_sources(
    config: ServiceConfig, names: Sequence[str], secrets: Secrets | None = None
) -> AsyncIterator[Sources | None]:
    """Open the sources of the settings; None if none of these services reads packages. Raises UsageError."""
    if not isinstance(config, SourcesConfig | ServicesConfig) or READERS.isdisjoint(names):
        yield None
        return
    sources = sources_of(config, secrets)
    try:
        yield sources
    finally:
        await sources.close()


def sources_of(
    config: SourcesConfig | ServicesConfig,
    secrets: Secrets | None = None,
    *,
    local_folders: Sequence[str] | None = None,
) -> "PackageSources":
    """Return the sources of the settings. Raises UsageError.

    secrets: reads the Secrets with logins, None for a process that knows none
    local_folders: the folders of this machine that may be read, instead of those of the settings
    """
    from pvbus.adapters.sources.limits import SourceLimits
    from pvbus.adapters.sources.oci import parse_mirrors
    from pvbus.adapters.sources.sources import PackageSources, no_secrets
    from pvbus.core.platform.packaging.archives import Limits

    if config.sources_ca_file and not Path(config.sources_ca_file).is_file():
        raise UsageError(f"PVBUS_SOURCES_CA_FILE: {config.sources_ca_file}: no such file")
    return PackageSources(
        Path(config.sources_cache),
        secrets=secrets or no_secrets,
        limits=SourceLimits(
            seconds_max=config.sources_timeout_seconds,
            layer_bytes_max=config.sources_layer_mb * _MB,
            content=Limits(bytes_max=config.sources_content_mb * _MB),
            cache_bytes=config.sources_cache_mb * _MB,
        ),
        mirrors=parse_mirrors(config.sources_mirrors),
        ca_file=config.sources_ca_file,
        local_folders=split_folders(config.sources_local) if local_folders is None else local_folders,
    )


def secrets_of(cluster: Cluster) -> Secrets:
    """Return a reader of the Secrets of a cluster."""

    async def read(key: str) -> Mapping[str, Any] | None:
        namespace, _, name = key.partition("/")
        resource = await cluster.resource(Kind("", "Secret"))
        return None if resource is None else await cluster.get(resource, namespace, name)

    return read
