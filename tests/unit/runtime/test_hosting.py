"""The start of a process: what it waits for, and for how long."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.records import MetaRow
from pvbus.ports.bus import Bus
from pvbus.runtime.process import hosting
from pvbus.runtime.process.hosting import host_services, open_ground, source_of, whole_config
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.settings import SERVICE_CONFIGS, ConditionsConfig, ServiceConfig, ServicesConfig

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
    async with open_ground(config) as ground:
        assert ground.partitions == 12
    assert installing.failures == 0


async def test_a_start_does_not_wait_for_ever(
    config: ServicesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it ends with the last reason."""
    monkeypatch.setattr(hosting, "ensure_installation", Installing(1_000_000))
    monkeypatch.setattr(hosting, "BUS_SECONDS_MAX", 0.1)
    with pytest.raises(PermanentError, match="a broker is starting"):
        async with open_ground(config):
            pass


async def test_a_service_without_rights_needs_no_kubeconfig(config: ServicesConfig) -> None:
    """unroll sends the API server nothing: it starts where there is none, and is ready without it."""
    nowhere = replace(config, kubeconfig="/nonexistent/kubeconfig")
    async with host_services(["unroll"], nowhere) as host:
        assert list(host.services) == ["unroll"]
        assert host.api_server.problem == ""
        assert host.rights.lines("unroll") == []
    with pytest.raises(UsageError, match="no kubeconfig at /nonexistent/kubeconfig"):
        async with host_services(["unroll", "render"], nowhere):
            pass


KAFKA = "kafka://127.0.0.1:9092"


@pytest.mark.parametrize(
    ("config", "source"),
    [
        (ConditionsConfig(bus="sqlite:bus.db"), "/pvbus/0f1e"),
        (ServicesConfig(bus=KAFKA), "/pvbus/0f1e"),
        (ConditionsConfig(bus=f"{KAFKA}/team-a", cluster_name="prod-eu"), "/pvbus/prod-eu/team-a"),
        (ServicesConfig(bus=f"{KAFKA}/team-a"), "/pvbus/0f1e/team-a"),
        (ConditionsConfig(bus=f"{KAFKA}/team-a", cluster_name="a", source="urn:x"), "urn:x"),
        (ServiceConfig(bus=f"{KAFKA}/team-a"), ""),
    ],
)
def test_the_source_of_events_names_the_cluster_and_the_prefix(config: ServiceConfig, source: str) -> None:
    """Without a name for the cluster, the installation's own id stands for it; a source that is set wins."""
    assert source_of(config, "0f1e") == source


async def test_both_starts_of_an_installation_have_one_source(config: ServicesConfig) -> None:
    """The id is made once, and read at each start after it."""
    found = []
    for _ in range(2):
        async with open_ground(config) as ground:
            found.append(source_of(config, ground.incarnation))
    assert found[0] == found[1] != "/pvbus/"


@pytest.mark.parametrize("type_", sorted(set(SERVICE_CONFIGS.values()), key=str))
def test_the_settings_of_each_service_are_among_those_of_all(type_: type[ServiceConfig]) -> None:
    """A setting that several services in one process do not know could not be built of one's own."""
    own = type_(bus=KAFKA)
    whole = whole_config(own, "/pvbus/0f1e")
    assert {**asdict(own), "source": "/pvbus/0f1e"}.items() <= asdict(whole).items()
