"""ImageConfigs: where images are read, with which pull secrets, and of which a signature is demanded."""

from typing import Any

import pytest

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagekinds import IMAGE_CONFIG
from pvbus.core.kernel.packagerows import SOURCE_FAILS, UNVERIFIED
from pvbus.core.platform.packaging.imageconfigs import (
    NOWHERE,
    ImageConfig,
    access_of,
    best_match,
    image_config_of,
    references_of,
)
from pvbus.core.platform.resolve.plans import Settings
from pvbus.core.platform.resolve.state import NAMESPACE
from tests.unit.core.platform.resolve.world import PKG, REGISTRY, ResolveWorld, started

PA, PB = f"{REGISTRY}/pa", f"{REGISTRY}/pb"
MIRRORED = "mirror.example.org/pa"
COSIGN = {"provider": "Cosign", "cosign": {"authorities": [{"name": "ours"}]}}
SIGNED_IN = {"authentication": {"pullSecretRef": {"name": "ours"}}}


def configure(world: ResolveWorld, name: str, *prefixes: str, **spec: Any) -> None:
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
    configure(world, "elsewhere", PB, rewriteImage={"prefix": "mirror.example.org"}, registry=SIGNED_IN)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert world.row("pa").status == "locked"
    assert world.source(PA).address == ""


def test_a_rewritten_image_is_read_at_its_mirror_and_keeps_its_name() -> None:
    """Nobody asks the address that the install has, and the lock names no other one."""
    world = started()
    digest = world.registry.publish(MIRRORED, "v1.0.0")
    configure(world, "air-gap", f"{REGISTRY}/", rewriteImage={"prefix": "mirror.example.org/"})
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    row = world.row("pa")
    assert (row.status, row.package, world.active("pa")) == ("locked", PA, digest)
    assert row.revisions[0].source == PA
    assert {*world.registry.observations, *(source for source, _ in world.registry.pulls)} == {MIRRORED}


def test_a_config_that_comes_or_goes_is_followed_at_once() -> None:
    """The source is looked at again where it is read now; that takes no look of its own time."""
    world = started()
    first = world.registry.publish(PA, "v1.0.0")
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    second = world.registry.publish(MIRRORED, "v1.0.0", salt="mirrored")
    configure(world, "air-gap", PA, rewriteImage={"prefix": MIRRORED})
    world.run()
    assert world.active("pa") == second
    world.put(okey(PKG, "ImageConfig", "", "air-gap"), None)
    world.run()
    assert world.active("pa") == first


def test_a_mirror_that_lacks_the_image_is_named_with_its_config() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    configure(world, "air-gap", PA, rewriteImage={"prefix": MIRRORED})
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert world.row("pa").status == "waiting"
    assert f"ImageConfig air-gap rewrites it to {MIRRORED}" in world.row("pa").message


def test_the_pull_secret_of_a_config_is_used_beside_those_of_the_install() -> None:
    """It is for the address that is read; a Secret that is missing is waited for, and named."""
    world = started()
    world.registry.publish(MIRRORED, "v1.0.0")
    world.registry.refusing[MIRRORED] = f"{NAMESPACE}/ours"
    configure(world, "air-gap", PA, rewriteImage={"prefix": MIRRORED})
    configure(world, "login", MIRRORED, registry=SIGNED_IN)
    world.install("pa", f"{PA}:v1.0.0", packagePullSecrets=[{"name": "own"}])
    world.run()
    row = world.row("pa")
    assert (row.status, row.reason, world.registry.observations) == ("waiting", SOURCE_FAILS, [])
    for part in (f"the pull secret {NAMESPACE}/ours does not exist", "ImageConfig login"):
        assert part in row.message
    world.registry.secrets.add("ours")
    world.pass_time(60)
    assert world.row("pa").status == "locked"
    assert world.source(PA).secrets == (f"{NAMESPACE}/own", f"{NAMESPACE}/ours")


def test_a_pull_secret_that_may_not_be_read_is_named_with_its_config() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    world.registry.hidden_secrets.add("ours")
    configure(world, "login", PA, registry=SIGNED_IN)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert (world.row("pa").status, world.registry.observations) == ("waiting", [])
    for part in ("secrets ours is forbidden", f"ImageConfig login names the pull secret {NAMESPACE}/ours"):
        assert part in world.row("pa").message


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"registry": SIGNED_IN}, f"name {PA} in its spec.matchImages"),
        ({"rewriteImage": {"prefix": MIRRORED}}, f"name {PA} in its spec.matchImages"),
    ],
)
def test_what_is_said_of_single_versions_holds_their_source(spec: Any, part: str) -> None:
    """A source is read with all its versions; once the config is gone it is read at once."""
    world = started()
    world.registry.publish(PA, "v1.0.0")
    configure(world, "narrow", f"{PA}:v1", **spec)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert (world.row("pa").status, world.registry.observations) == ("waiting", [])
    assert part in world.row("pa").message
    world.put(okey(PKG, "ImageConfig", "", "narrow"), None)
    world.run()
    assert world.row("pa").status == "locked"


def test_a_signature_that_is_demanded_of_the_rewritten_address_is_demanded() -> None:
    world = started()
    world.registry.publish(MIRRORED, "v1.0.0")
    configure(world, "air-gap", PA, rewriteImage={"prefix": MIRRORED})
    configure(world, "signed", "mirror.example.org/", verification=COSIGN)
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert (world.row("pa").reason, world.row("pa").revisions) == (UNVERIFIED, ())


def config(name: str, prefix: str, secret: str = "", rewrite: str | None = None) -> ImageConfig:
    return ImageConfig(name, (prefix,), secret=secret, rewrite=rewrite)


@pytest.mark.parametrize(
    ("configs", "address", "secrets"),
    [
        pytest.param([], "r.io/x", ("n/own",), id="none"),
        pytest.param(
            [config("a", "r.io/", rewrite="m.io/"), config("b", "r.io/x", rewrite="n.io/y")],
            "n.io/y",
            ("n/own",),
            id="the-longest-prefix-rewrites",
        ),
        pytest.param(
            [config("a", "r.io/", rewrite="m.io/"), config("b", "r.io/x", secret="s")],
            "m.io/x",
            ("n/own",),
            id="a-secret-is-for-the-new-address",
        ),
        pytest.param(
            [config("a", "r.io/", rewrite="m.io/"), config("b", "m.io/", "s"), config("c", "m.io/x", "t")],
            "m.io/x",
            ("n/own", "n/t"),
            id="each-purpose-has-its-own-match",
        ),
        pytest.param(
            [config("a", "r.io/", rewrite="m.io/"), config("b", "m.io/", rewrite="r.io/")],
            "m.io/x",
            ("n/own",),
            id="rewritten-once-also-in-a-ring",
        ),
        pytest.param([config("a", "r.io/", "own")], "r.io/x", ("n/own",), id="the-same-secret-is-tried-once"),
        pytest.param([config("a", "r.io/", rewrite="")], NOWHERE, ("n/own",), id="no-new-prefix"),
    ],
)
def test_how_a_source_is_read(configs: list[ImageConfig], address: str, secrets: tuple[str, ...]) -> None:
    access = access_of(configs, "r.io/x", ("n/own",), "n")
    assert (access.address, access.secrets) == (address, secrets)
    assert bool(access.problem) is (address == NOWHERE)


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
