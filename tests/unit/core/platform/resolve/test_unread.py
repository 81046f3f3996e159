"""What is decided while contents were not read yet: neither a digest nor an API is refused too early."""

from typing import Any

import pytest

from pvbus.core.platform.resolve.naming import child_name
from tests.unit.core.platform.resolve.world import REGISTRY, ResolveWorld, started

SHOP, DNS, NETWORK = (f"{REGISTRY}/{name}" for name in ("shop", "dns", "network"))
CRD = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}


def definition(kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    spec = {
        "group": "example.dev",
        "names": {"kind": kind, "plural": plural},
        "versions": [{"name": "v1", "served": True, "storage": True}],
    }
    return {**CRD, "metadata": {"name": f"{plural}.example.dev"}, "spec": spec}


def needs_api(kind: str) -> dict[str, Any]:
    return {"crd": {"apiVersion": "example.dev/v1", "kind": kind}}


def installed(world: ResolveWorld, *depends: dict[str, Any]) -> ResolveWorld:
    world.registry.publish(SHOP, "v1.0.0", kind="Configuration", depends=depends)
    world.install("shop", f"{SHOP}:v1.0.0", "Configuration")
    for _ in range(20):  # each look at a source may lead to the next one
        world.run()
        world.pass_time(1)
    return world


def test_what_is_needed_by_digest_is_installed_by_it() -> None:
    """The newest version has another content, and no tag of the needed one was asked for before."""
    world = started()
    old = world.registry.publish(DNS, "v0.3.0", salt="old")
    new = world.registry.publish(DNS, "v0.4.0", salt="new")
    installed(world, {"package": DNS, "kind": "Provider", "version": old})
    assert world.row("shop", "Configuration").status == "locked"
    assert world.active("acme-dns") == old != new


def test_a_digest_that_nobody_has_is_refused() -> None:
    """The content cannot be read, and the reason says so."""
    world = started()
    world.registry.publish(DNS, "v0.4.0")
    installed(world, {"package": DNS, "kind": "Provider", "version": f"sha256:{'0' * 64}"})
    assert world.row("shop", "Configuration").status in ("refused", "waiting")
    assert "dns" in world.row("shop", "Configuration").message


def test_an_api_of_another_dependency_is_met() -> None:
    """The package that provides the API is needed for itself, and was not read when the decision began."""
    world = started()
    world.registry.publish(NETWORK, "v1.0.0", objects=(definition("Network"),))
    installed(world, {"package": NETWORK, "kind": "Provider", "version": ">=v1.0.0"}, needs_api("Network"))
    assert world.row("shop", "Configuration").status == "locked"
    assert world.row("acme-network").status == "locked"


def test_an_older_version_is_taken_if_only_that_provides_the_api() -> None:
    """The highest one is read first, and turns out not to have it."""
    world = started()
    old = world.registry.publish(NETWORK, "v1.0.0", objects=(definition("Network"),))
    world.registry.publish(NETWORK, "v1.1.0", objects=(definition("Subnet"),))
    installed(world, {"package": NETWORK, "kind": "Provider", "version": ">=v1.0.0"}, needs_api("Network"))
    assert world.active("acme-network") == old


def test_an_api_that_no_content_has_is_refused() -> None:
    """That it might be in an unread content is no answer: it is read, and then the reason names the API."""
    world = started()
    world.registry.publish(NETWORK, "v1.0.0", objects=(definition("Subnet"),))
    installed(world, {"package": NETWORK, "kind": "Provider", "version": ">=v1.0.0"}, needs_api("Network"))
    assert world.row("shop", "Configuration").status == "refused"
    assert "API example.dev/v1 Network" in world.row("shop", "Configuration").message
    assert "acme-network" not in world.lock


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("xpkg.example.org/acme/network", "acme-network"),
        ("git+file:///srv/a very long way/platform.git//network", "platform-network"),
        ("git+https://git.example.org/acme/platform//packages/network", "platform-packages-network"),
        ("git+ssh://git@git.example.org/acme/network.git", "network"),
    ],
)
def test_what_is_created_has_a_short_name(package: str, name: str) -> None:
    """Of git the repository and the folder, of a registry the repository."""
    assert child_name(package, ()) == name
