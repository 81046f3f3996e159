"""Reads of packages by a controller: who carries them out, and how the settings open the sources."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.effects import Content, Observation, Observe, Pull
from pvbus.ports.cluster import Kind, Resource
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServiceConfig, ServicesConfig, SourcesConfig
from pvbus.runtime.process.sources import open_sources, secrets_of, sources_of
from pvbus.runtime.reconcile.effects import perform
from tests.tools.fakeregistry import fake_registry
from tests.tools.images import PACKAGE, pull_secret, xpkg_of
from tests.unit.runtime.fakes import FakeWorld, simulated

DIGEST = "sha256:" + "1" * 64


class FakeSources:
    """Has one package, of the source `good`."""

    async def observe(self, source: str, tags: Sequence[str], secrets: Sequence[str]) -> Observation:
        assert (tuple(tags), tuple(secrets)) == (("v1",), ("demo/pull",))
        if source == "slow":
            raise TransientError("no answer")
        if source != "good":
            raise PermanentError(f"{source}: refused", reason="Unauthorized")
        return Observation(("v1",), {"v1": DIGEST})

    async def pull(self, source: str, digest: str, secrets: Sequence[str]) -> Content:
        assert (source, digest, tuple(secrets)) == ("good", DIGEST, ("demo/pull",))
        return Content(DIGEST, {"package.yaml": b"content"})

    async def close(self) -> None:
        return None


def counted(metric: str, effect: str, outcome: str) -> float:
    return REGISTRY.get_sample_value(metric, {"effect": effect, "outcome": outcome}) or 0.0


def test_a_package_is_read_and_counted_and_a_refusal_reaches_the_decision() -> None:
    async def scenario(world: FakeWorld) -> None:
        cases = (("observe", "done"), ("pull", "done"), ("observe", "permanent"))
        before = [counted("pvbus_source_reads_total", *case) for case in cases]
        world.worker(None, FakeSources())
        await world.send("a", {"pull": "good"})
        await world.send("b", {"pull": "bad"})
        await asyncio.sleep(10)
        assert world.out() == {"a": "content", "b": "bad: refused"}
        after = [counted("pvbus_source_reads_total", *case) for case in cases]
        assert after == [count + 1 for count in before]

    simulated(scenario)


async def test_a_source_that_does_not_answer_is_counted_as_that() -> None:
    before = counted("pvbus_source_reads_total", "observe", "transient")
    nobody: Any = None
    with pytest.raises(TransientError):
        await perform(nobody, Observe("slow", ("v1",), ("demo/pull",)), None, FakeSources())
    assert counted("pvbus_source_reads_total", "observe", "transient") == before + 1


async def test_a_service_without_sources_says_so() -> None:
    nobody: Any = None
    for effect in (Observe("good"), Pull("good", DIGEST)):
        with pytest.raises(PermanentError, match="has no sources of packages") as caught:
            await perform(nobody, effect)
        assert caught.value.reason == "NotSet"


async def test_only_services_that_read_packages_open_the_sources() -> None:
    async with (
        open_sources(ServicesConfig(), ["unroll"]) as none,
        open_sources(ServiceConfig(), ["resolve"]) as other,
    ):
        assert (none, other) == (None, None)
    async with (
        open_sources(SourcesConfig(), ["resolve"]) as one,
        open_sources(ServicesConfig(), ["establish"]) as two,
    ):
        assert one is not None
        assert two is not None


def test_the_settings_of_sources_are_read_and_their_problems_named() -> None:
    variables = {
        "PVBUS_SOURCES_CACHE": "/cache",
        "PVBUS_SOURCES_MIRRORS": "docker.io=mirror.local:5000/hub, ghcr.io=mirror.local:5000",
        "PVBUS_SOURCES_LAYER_MB": "8",
    }
    config = load_config(SourcesConfig, variables)
    assert (config.sources_cache, config.sources_layer_mb) == ("/cache", 8)
    with pytest.raises(UsageError, match="PVBUS_SOURCES_MIRRORS: must be registry=address"):
        load_config(SourcesConfig, {"PVBUS_SOURCES_MIRRORS": "https://mirror"})
    with pytest.raises(UsageError, match="PVBUS_SOURCES_CA_FILE: /nothing: no such file"):
        sources_of(SourcesConfig(sources_ca_file="/nothing"))


async def test_the_settings_reach_the_sources(tmp_path: Path) -> None:
    async with fake_registry() as registry, fake_registry() as mirror:
        digest = registry.add(xpkg_of())
        mirror.add(xpkg_of())
        config = SourcesConfig(
            sources_cache=str(tmp_path / "cache"),
            sources_mirrors=f"{registry.address}={mirror.address}/copies",
        )
        async with open_sources(config, ["establish"]) as sources:
            assert sources is not None
            assert (await sources.pull(registry.source(), digest, ())).files == PACKAGE
        assert registry.asked == []
        assert len(list((tmp_path / "cache").iterdir())) == 1


class OneSecret:
    """A cluster with the Secret demo/pull."""

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        assert kind == Kind("", "Secret")
        return Resource("", "v1", "Secret", "secrets", True)

    async def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        secret = pull_secret("x.example.org", "a", "b")
        return secret if (namespace, name) == ("demo", "pull") else None


async def test_secrets_are_read_from_the_cluster() -> None:
    cluster: Any = OneSecret()
    read = secrets_of(cluster)
    assert (await read("demo/pull")) == pull_secret("x.example.org", "a", "b")
    assert (await read("demo/none")) is None
