"""The start of a process: what it waits for, and for how long."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.records import MetaRow
from pvbus.ports.bus import Bus
from pvbus.runtime.process import hosting
from pvbus.runtime.process.hosting import grounded
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.settings import ServicesConfig

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: nobody
contexts: [{name: nobody, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: nobody, user: {}}]
"""


class Installing:
    """Fails as often as told, as when a broker that is asked is still starting, then does it."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self._real = ensure_installation

    async def __call__(self, bus: Bus, **options: Any) -> MetaRow:
        if self.failures:
            self.failures -= 1
            raise TransientError("a broker is starting")
        return await self._real(bus, **options)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicesConfig:
    monkeypatch.setattr(hosting, "BUS_RETRY_SECONDS", 0.01)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    return ServicesConfig(bus=f"sqlite:{tmp_path / 'bus.db'}", kubeconfig=str(kubeconfig))


async def test_a_start_waits_for_all_brokers(config: ServicesConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that was reached, and then does not answer for a moment, does not end the start."""
    installing = Installing(3)
    monkeypatch.setattr(hosting, "ensure_installation", installing)
    async with grounded(config) as ground:
        assert ground.partitions == 12
    assert installing.failures == 0


async def test_a_start_does_not_wait_for_ever(
    config: ServicesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it ends with the last reason."""
    monkeypatch.setattr(hosting, "ensure_installation", Installing(1_000_000))
    monkeypatch.setattr(hosting, "BUS_SECONDS_MAX", 0.1)
    with pytest.raises(PermanentError, match="a broker is starting"):
        async with grounded(config):
            pass
