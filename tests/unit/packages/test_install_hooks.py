"""Admission of PackageInstalls between the check and the moment in which a write is visible."""

import asyncio
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import install_hooks
from pvbus.controlplane.packages.install_hooks import PACKAGE, PACKAGE_INSTALL, PackageInstallHooks
from tests.kit.objects import MemoryObjects

DEFINED = {
    "apiVersion": "data.packaging.carvel.dev/v1alpha1",
    "kind": "Package",
    "metadata": {"name": "db.test.dev.1.0.0", "namespace": "default"},
    "spec": {"refName": "db.test.dev", "version": "1.0.0", "installationType": "onePerNamespace"},
}


def _install(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"packageRef": {"refName": "db.test.dev"}},
    }


async def test_an_install_counts_before_it_is_visible() -> None:
    """A second one is refused while the first is written, and the first may be tried again."""
    objects = MemoryObjects()
    await objects.put(PACKAGE, DEFINED)
    hooks = PackageInstallHooks(objects)
    await hooks.on_create(_install("first"), user="jane")
    with pytest.raises(StatusError, match="default/first is there"):
        await hooks.on_create(_install("second"), user="jane")
    await hooks.on_create(_install("first"), user="jane")
    await objects.put(PACKAGE_INSTALL, _install("first"))
    with pytest.raises(StatusError, match="default/first is there"):
        await hooks.on_create(_install("second"), user="jane")
    await objects.remove(PACKAGE_INSTALL, "default", "first")
    await hooks.on_create(_install("second"), user="jane")


async def test_an_admitted_install_that_never_comes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that failed after the check excludes another one for a short time only."""
    objects = MemoryObjects()
    await objects.put(PACKAGE, DEFINED)
    hooks = PackageInstallHooks(objects)
    await hooks.on_create(_install("first"), user="jane")
    monkeypatch.setattr(install_hooks, "_ADMITTED_SECONDS", 0.01)
    await asyncio.sleep(0.02)
    await hooks.on_create(_install("second"), user="jane")
