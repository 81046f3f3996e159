"""ImageConfigs: an image of which one demands a verified signature is not installed."""

from typing import Any

import pytest

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagekinds import IMAGE_CONFIG
from pvbus.core.kernel.packagerows import UNVERIFIED
from pvbus.core.platform.packaging.imageconfigs import best_match, image_config_of, references_of
from pvbus.core.platform.resolve.plans import Settings
from tests.unit.core.platform.resolve.world import PKG, REGISTRY, World, started

PA, PB = f"{REGISTRY}/pa", f"{REGISTRY}/pb"
COSIGN = {"provider": "Cosign", "cosign": {"authorities": [{"name": "ours"}]}}


def configure(world: World, name: str, *prefixes: str, **spec: Any) -> None:
    matches = [{"type": "Prefix", "prefix": prefix} for prefix in prefixes]
    key = okey(PKG, "ImageConfig", "", name)
    obj = {"apiVersion": f"{PKG}/v1beta1", "kind": "ImageConfig", "metadata": {"name": name}}
    world.put(key, {**obj, "spec": {"matchImages": matches, **spec}})


@pytest.mark.parametrize("verification", [COSIGN, {"provider": "Cosign"}, {}, "unreadable"])
def test_what_a_config_demands_a_signature_of_is_refused_and_told_what_to_do(verification: Any) -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    configure(world, "signed", f"{REGISTRY}/", verification=verification)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    row = world.row("pa")
    assert (row.status, row.reason, row.revisions) == ("refused", UNVERIFIED, ())
    for part in ("ImageConfig signed", f"{PA}:v1.0.0", "spec.matchImages"):
        assert part in row.message


def test_what_runs_stays_as_a_config_begins_to_demand_a_signature_and_no_upgrade_follows() -> None:
    world = started()
    first = world.registry.publish(PA, "v1.0.0")
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    configure(world, "signed", f"{REGISTRY}/", verification=COSIGN)
    world.run()
    assert (world.row("pa").status, world.active("pa")) == ("locked", first)
    second = world.registry.publish(PA, "v1.1.0", salt="second")
    world.install("pa", f"{PA}:v1.1.0")
    world.run()
    assert (world.row("pa").reason, world.active("pa")) == (UNVERIFIED, first)
    world.put(okey(PKG, "ImageConfig", "", "signed"), None)
    world.run()
    assert (world.row("pa").status, world.active("pa")) == ("locked", second)


def test_a_person_cannot_activate_a_former_revision_that_needs_a_signature() -> None:
    world = started()
    for tag in ("v1.0.0", "v1.1.0"):
        world.registry.publish(PA, tag, salt=tag)
        world.install("pa", f"{PA}:{tag}", revisionHistoryLimit=5)
        world.run()
    current = world.active("pa")
    former = next(each for each in world.row("pa").revisions if not each.is_active)
    configure(world, "signed", f"{PA}:v1.0.0", verification=COSIGN)
    world.activate(former)
    assert (world.row("pa").reason, world.active("pa")) == (UNVERIFIED, current)


def test_with_manual_activation_no_revision_is_made() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    configure(world, "signed", PA, verification=COSIGN)
    world.install("pa", f"{PA}:v1.0.0", revisionActivationPolicy="Manual")
    world.run()
    assert (world.row("pa").reason, world.row("pa").revisions) == (UNVERIFIED, ())


def test_a_dependency_that_needs_a_signature_is_not_made() -> None:
    world = started()
    world.registry.publish(PB, "v1.0.0")
    world.registry.publish(PA, "v1.0.0", depends=({"provider": PB, "version": ">=v1.0.0"},))
    configure(world, "signed", PB, verification=COSIGN)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    (child,) = (row for row in world.lock.values() if row.package == PB)
    assert (child.reason, child.revisions) == (UNVERIFIED, ())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("imageconfigs.pkg.crossplane.io is forbidden: User ingest cannot list", UNVERIFIED),
        ("", UNVERIFIED),
        ('no matches for kind "ImageConfig" in group "pkg.crossplane.io"', ""),
    ],
)
def test_configs_that_cannot_be_read_may_demand_a_signature(message: str, reason: str) -> None:
    """A kind that is not served has no objects. What is active stays, and what is new waits for the list."""
    world = started()
    first = world.registry.publish(PA, "v1.0.0")
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    world.sync("unavailable", [IMAGE_CONFIG], message)
    second = world.registry.publish(PA, "v1.1.0", salt="second")
    world.install("pa", f"{PA}:v1.1.0")
    world.run()
    assert (world.row("pa").reason, world.active("pa")) == (reason, first if reason else second)
    assert (message in world.row("pa").message) is bool(reason)
    world.sync("ok", [IMAGE_CONFIG])
    world.run()
    assert (world.row("pa").status, world.active("pa")) == ("locked", second)


def test_other_images_and_other_concerns_are_left_alone() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    configure(world, "signed", PB, verification=COSIGN)
    configure(world, "rewritten", PA, rewriteImage={"prefix": "mirror.example.org"})
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert world.row("pa").status == "locked"


def test_beside_crossplane_the_signature_is_left_to_it() -> None:
    world = started(Settings(is_verified_beside=True))
    world.registry.publish(PA, "v1.0.0")
    configure(world, "signed", PA, verification=COSIGN)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert world.row("pa").status == "locked"


DIGEST = "sha256:1"


@pytest.mark.parametrize(
    ("prefixes", "wanted"),
    [
        ({"a": "r.io/", "b": "r.io/x"}, "b"),
        ({"a": "r.io/x:v1", "b": "r.io/x"}, "a"),
        ({"a": f"r.io/x@{DIGEST}", "b": "r.io/x"}, "a"),
        ({"b": "r.io/x", "a": "r.io/x"}, "a"),
        ({"a": "x"}, None),
        ({"a": ""}, None),
        ({"a": "r.io/x:v2"}, None),
    ],
)
def test_the_longest_prefix_counts(prefixes: dict[str, str], wanted: str | None) -> None:
    configs = [
        image_config_of({"metadata": {"name": name}, "spec": {"matchImages": [{"prefix": prefix}]}})
        for name, prefix in prefixes.items()
    ]
    config = best_match(configs, references_of("r.io/x", "v1", DIGEST))
    assert (config.name if config else None) == wanted


@pytest.mark.parametrize("spec", [None, 7, {"matchImages": 7}, {"matchImages": [7, {"prefix": 7}]}])
def test_a_config_that_cannot_be_read_matches_nothing(spec: Any) -> None:
    assert image_config_of({"metadata": {"name": "a"}, "spec": spec}).prefixes == ()
