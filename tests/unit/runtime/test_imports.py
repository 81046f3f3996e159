"""What a process imports, which each start of a service takes time and memory for."""

import subprocess
import sys

import pytest

UNUSED = (
    "kubernetes_asyncio.client.models",
    "kubernetes_asyncio.client.api.",
    "oras",
    "requests",
    "pysat",
    "pysolvers",
)


def run(code: str) -> str:
    """Return what a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("service", ["ingest", "render", "resolve"])
def test_a_service_imports_no_library_that_it_does_not_use(service: str) -> None:
    """Kubernetes' generated models, and the client of registries, are for others."""
    imported = run(f"import sys, services.{service}.__main__; print(*sys.modules)").split()
    assert "kubernetes_asyncio.config.kube_config" in imported
    assert [name for name in imported if name.startswith(UNUSED)] == []


@pytest.mark.slow
def test_the_library_is_whole_for_who_imports_it_later() -> None:
    """The same class, and all of the models."""
    code = (
        "from pvbus.adapters.kubernetes import library\n"
        "from kubernetes_asyncio import client, config\n"
        "assert client.CoreV1Api and client.V1Pod\n"
        "assert config.ConfigException is library.ConfigException\n"
        "print(client.Configuration is library.Configuration)"
    )
    assert run(code).strip() == "True"
