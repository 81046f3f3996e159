"""Opens what answers the queries of rollouts, as the settings say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pvbus.adapters.prometheus.client import Prometheus
from pvbus.ports.monitoring import Monitoring
from pvbus.runtime.process.settings import RolloutConfig, ServiceConfig, ServicesConfig


@asynccontextmanager
async def monitored(config: ServiceConfig) -> AsyncIterator[Monitoring | None]:
    """Open the Prometheus of the settings; None if none is set. Raises UsageError for an unusable file."""
    if not isinstance(config, RolloutConfig | ServicesConfig) or not config.prometheus_url:
        yield None
        return
    client = Prometheus(
        config.prometheus_url, token_file=config.prometheus_token_file, ca_file=config.prometheus_ca_file
    )
    try:
        yield client
    finally:
        await client.close()
