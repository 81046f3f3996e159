"""What a process imports, which each start of a service or command takes time and memory for."""

import subprocess
import sys

import pytest

UNUSED = (
    "kubernetes_asyncio.client.models",
    "kubernetes_asyncio.client.api",
    "oras",
    "requests",
    "urllib3",
    "dateutil",
    "rich",
    "cryptography",
    "pysat",
    "pysolvers",
)
"""The libraries that no service needs at its start, by the beginnings of their modules."""


def run(code: str) -> str:
    """Return what a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def imported(code: str) -> list[str]:
    """Return the modules that are imported once some code has run."""
    return run(f"import sys, contextlib, io\n{code}\nprint(*sys.modules)").split()


CONTROLLERS = {
    f"pvbus.core.{wing}.{room}.controller"
    for wing, rooms in {
        "variants": ("unroll", "render", "inject", "conditions"),
        "promotion": ("promote", "rollout", "release"),
        "platform": ("resolve", "establish"),
    }.items()
    for room in rooms
}


@pytest.mark.slow
@pytest.mark.parametrize("service", ["ingest", "render", "resolve"])
def test_a_service_imports_no_library_that_it_does_not_use(service: str) -> None:
    """Kubernetes' generated models, the client of registries, and the other controllers are for others."""
    modules = imported(
        f"import asyncio, services.{service}.__main__\n"
        "from pvbus.adapters.memory.cluster import MemoryCluster\n"
        "from pvbus.adapters.sqlite.bus import SqliteBus\n"
        "from pvbus.adapters.clock import SystemClock\n"
        "from pvbus.runtime.process.assembly import build_service\n"
        "async def build():\n"
        "    bus, cluster = await SqliteBus.open(':memory:'), MemoryCluster(now=str)\n"
        f"    build_service({service!r}, bus, cluster, SystemClock())\n"
        "    await bus.close()\n"
        "asyncio.run(build())"
    )
    assert "pvbus.adapters.kubernetes.library" in modules
    assert [name for name in modules if name.startswith(UNUSED)] == []
    assert {name for name in CONTROLLERS & set(modules) if f".{service}." not in name} == set()
    assert service == "ingest" or CONTROLLERS & set(modules)


@pytest.mark.slow
def test_a_service_imports_neither_the_bus_nor_the_worker_of_others() -> None:
    """The bus is imported once its address is known, and the informers by ingest alone."""
    modules = set(imported("import services.render.__main__"))
    others = ("sqlite3", "aiokafka", "tarfile", "pvbus.adapters.sqlite.bus", "pvbus.runtime.ingest.worker")
    assert modules.isdisjoint(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most"),
    [("--help", 150), ("version", 190), ("get --help", 355)],
)
def test_a_command_imports_only_what_it_uses(command: str, most: int) -> None:
    """What reads a bus has no client of an API server. The limits are a tenth above what is used now."""
    modules = imported(
        "from pvbus.cli.main import run\n"
        f"with contextlib.redirect_stdout(io.StringIO()): run({command.split()!r})"
    )
    assert len(modules) <= most
    assert [name for name in modules if name in ("aiohttp", "structlog", "rich", "aiokafka")] == []


@pytest.mark.slow
def test_the_library_is_whole_for_who_imports_it_later() -> None:
    """All of the models, a client from a kubeconfig, and what takes urllib3."""
    code = (
        "from pvbus.adapters.kubernetes import library\n"
        "import urllib3\n"
        "from kubernetes_asyncio import client, config\n"
        "assert client.CoreV1Api and client.V1Pod and urllib3.PoolManager\n"
        "assert config.kube_config.ApiClient is client.ApiClient\n"
        "print(client.Configuration(username='u', password='p').get_basic_auth_token())"
    )
    assert run(code).startswith("Basic ")


@pytest.mark.slow
def test_the_library_is_used_as_it_is_where_it_was_imported_before() -> None:
    """Its classes are the same ones then."""
    code = (
        "from kubernetes_asyncio import client\n"
        "from pvbus.adapters.kubernetes import library\n"
        "print(client.Configuration is library.Configuration)"
    )
    assert run(code).strip() == "True"
