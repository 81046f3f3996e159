"""A platform of packages that depend on each other, from its installation to its removal."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.command import Done, Running, git, pvbus
from tests.e2e.packaging.platform import (
    CREATED,
    INSTALLED,
    UPGRADED,
    Object,
    Platform,
    conditions_of,
    is_created,
    kubectl_or_skip,
    message_of,
    owners_of,
    what_a_person_deletes_comes_back,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]

PACKAGING = ("pkg.crossplane.io/", "packaging.carvel.dev/", "kappctrl.k14s.io/App ")
RIVAL = {"apiVersion": "pkg.crossplane.io/v1", "kind": "Configuration", "metadata": {"name": "rival"}}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("a platform")
    yield Platform(folder, kubectl_or_skip())
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def installed(platform: Platform) -> Done:
    return pvbus("up", "--example", "platform", "--once", cwd=platform.folder)


def test_once_ends_when_all_installs_are_ready(installed: Done) -> None:
    """The exit code is 0, and the last line counts eleven installs."""
    assert installed.code == 0, installed.out + installed.err
    assert f"installs {len(INSTALLED)}/{len(INSTALLED)} ready" in installed.out
    assert "Traceback" not in installed.err


def test_a_second_start_writes_nothing(platform: Platform, installed: Done) -> None:
    """`up --once` on converged data ends with 0, and no object was written."""
    before = platform.written()
    again = pvbus("up", "--example", "platform", "--once", cwd=platform.folder)
    assert again.code == 0, again.out + again.err
    assert platform.written() == before


def test_without_its_bus_the_lock_is_read_from_the_cluster(platform: Platform, installed: Done) -> None:
    """All is ready again. No object is gone or new, none that a package brings was written, and no install or
    revision but its status."""
    before, specs = platform.written(), platform.generations()
    platform.empty_bus()
    again = pvbus("up", "--example", "platform", "--once", cwd=platform.folder)
    assert again.code == 0, again.out + again.err
    assert f"installs {len(INSTALLED)}/{len(INSTALLED)} ready" in again.out
    after = platform.written()
    events = {
        key for key in after if key.startswith("/Event ")
    }  # establish reports once more what is installed
    assert after.keys() - events == before.keys() - events
    moved = {key for key in after if key not in events and after[key] != before[key] and key != "last"}
    assert {key for key in moved if not key.startswith(PACKAGING)} == set()
    changed = {
        key
        for key, generation in platform.generations().items()
        if key not in events and specs[key] != generation
    }
    assert changed <= {"pkg.crossplane.io/PackageLock /lock"}


def test_a_day_with_a_platform(tmp_path: Path) -> None:
    """Each step says what it proves."""
    platform = Platform(tmp_path, kubectl_or_skip())
    with platform.up() as up:
        each_package_has_the_version_that_all_others_leave(platform, up)
        an_upgrade_moves_those_that_it_needs_and_no_other(platform, up)
        what_a_person_deletes_comes_back(platform, up)
        a_user_activates_and_goes_back(platform, up)
        one_of_two_packages_with_the_same_object_is_refused(platform, up)
        a_tag_that_moves_is_a_new_revision(platform, up)
        of_two_that_come_together_one_wins_whole(platform, up)
        what_was_created_for_a_removed_install_goes_with_its_objects(platform, up)
        assert up.end() == 0, up.output
        assert "Traceback" not in up.output


def each_package_has_the_version_that_all_others_leave(platform: Platform, up: Running) -> None:
    """By range, by digest, by an override, by what is there; users' installs and created ones."""
    platform.until_installed(INSTALLED, up)
    assert {name for name, each in platform.installs().items() if is_created(each)} == CREATED
    found = platform.brought()
    for name in ("networks.network", "zones.dns", "routes.ingress", "issuers.certs"):
        assert f"CustomResourceDefinition/{name}.example.dev" in found
    assert found["ConfigMap/metrics"]["data"] == {"interval": "30s"}
    assert found["ConfigMap/certs"]["data"] == {"days": "90"}
    assert "CompositeResourceDefinition/baskets.rival.example.dev" not in found


def an_upgrade_moves_those_that_it_needs_and_no_other(platform: Platform, up: Running) -> None:
    """Revision 2 is active in three packages; the objects of the others are not written."""
    before = platform.brought()
    platform.patch("configuration", "shop", {"package": platform.image("shop", "v1.1.0")})
    platform.until_installed(UPGRADED, up)
    for package in ("shop", "cluster", "network"):
        assert platform.revisions(package) == {1: "Inactive", 2: "Active"}, package
    for package in ("database", "dns", "sizes", "legacy"):
        assert platform.revisions(package) == {1: "Active"}, package
    old, new = (platform.revision("shop", number)["metadata"]["name"] for number in (1, 2))
    after = platform.brought()
    assert owners_of(after["Composition/shops"]) == {old: False, new: True}
    assert owners_of(after["Composition/shops-express"]) == {new: True}
    networks = after["CustomResourceDefinition/networks.network.example.dev"]
    assert "mtu" in json.dumps(networks["spec"])
    moved = {key for key in before if version(before[key]) != version(after[key])}
    assert moved == {
        "Composition/shops",
        "CompositeResourceDefinition/shops.platform.example.dev",
        "Composition/clusters",
        "CompositeResourceDefinition/clusters.platform.example.dev",
        "CustomResourceDefinition/networks.network.example.dev",
    }


def version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def a_user_activates_and_goes_back(platform: Platform, up: Running) -> None:
    """With Manual the new revision waits, the user's choice is active, and an old one can be it again."""
    spec = {"revisionActivationPolicy": "Manual", "revisionHistoryLimit": 0}
    platform.patch("configuration", "shop", {**spec, "package": platform.image("shop", "v1.2.0")})
    platform.until(lambda: len(platform.revisions("shop")) == 3, up)
    assert platform.revisions("shop") == {1: "Inactive", 2: "Active", 3: "Inactive"}
    assert sizes(platform) == [2, 8]
    activate(platform, platform.revision("shop", 3))
    platform.until(lambda: platform.versions().get("shop") == "v1.2.0", up)
    platform.until(lambda: sizes(platform) == [3, 12], up)
    first = platform.revision("shop", 2)
    activate(platform, first)
    platform.until(lambda: sizes(platform) == [2, 8], up)
    platform.until(lambda: active_of(platform, "shop") == [first["metadata"]["name"]], up)
    assert max(platform.revisions("shop")) == 5  # one more than the highest with each activation


def activate(platform: Platform, revision: Object) -> None:
    platform.patch("configurationrevision", revision["metadata"]["name"], {"desiredState": "Active"})


def active_of(platform: Platform, package: str) -> list[str]:
    found = {number: platform.revision(package, number) for number in platform.revisions(package)}
    return [each["metadata"]["name"] for each in found.values() if each["spec"]["desiredState"] == "Active"]


def sizes(platform: Platform) -> list[int]:
    """Return what the Composition `shops` says, which differs in each version."""
    (step,) = platform.brought()["Composition/shops"]["spec"]["pipeline"]
    return [step["input"]["spec"]["small"], step["input"]["spec"]["large"]]


def one_of_two_packages_with_the_same_object_is_refused(platform: Platform, up: Running) -> None:
    """The one that comes second changes nothing, brings nothing, and names the owner of the object."""
    before, versions = platform.brought(), platform.versions()
    rival = {**RIVAL, "spec": {"package": platform.image("rival", "v1.0.0")}}
    platform.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(rival))
    platform.until(lambda: "shop" in reason_of(platform, "rival"), up)
    assert "shops" in reason_of(platform, "rival")
    platform.until(lambda: "SyncPackage" in platform.kubectl("describe", "configuration", "rival"), up)
    shown = pvbus("conditions", "configuration/rival", "--not-ready", "-o", "json", cwd=platform.folder)
    events = [json.loads(line) for line in shown.out.splitlines()]
    assert {event["condition"]["type"] for event in events} == {"Installed", "Healthy"}, shown.err
    assert all("shops" in event["condition"]["message"] for event in events)
    assert platform.revisions("rival") == {}
    assert platform.brought() == before
    assert platform.versions() == versions
    platform.kubectl("delete", "configuration", "rival", "--timeout=60s")
    assert platform.brought() == before


def reason_of(platform: Platform, package: str) -> str:
    """Return the messages of the conditions that are not True."""
    install = platform.installs()[package]
    found = [name for name, status in conditions_of(install).items() if status != "True"]
    return " ".join(message_of(install, name) for name in found)


def a_tag_that_moves_is_a_new_revision(platform: Platform, up: Running) -> None:
    """A person moves the tag of `legacy`; its new content is revision 2 without a change of any manifest."""
    clone = platform.folder / "clone"
    git(platform.folder, "clone", "--quiet", str(platform.repository), str(clone))
    definition = clone / "legacy" / "definition.yaml"
    definition.write_text(definition.read_text().replace("[small, large]", "[small, medium, large]"))
    publish(clone, "legacy/v0.1.0")
    platform.until(lambda: platform.revisions("legacy") == {1: "Inactive", 2: "Active"}, up)
    platform.until(lambda: "medium" in json.dumps(platform.brought()[REPORTS]["spec"]), up)


def of_two_that_come_together_one_wins_whole(platform: Platform, up: Running) -> None:
    """Both bring the same two objects, in the opposite order, and are applied in one request each at once."""
    clone = platform.folder / "clone"
    for name, order in (("pa", ("one", "two")), ("pb", ("two", "one"))):
        (clone / name).mkdir()
        (clone / name / "crossplane.yaml").write_text(yaml.safe_dump({**META, "metadata": {"name": name}}))
        objects = [{**COMPOSITION, "metadata": {"name": each, "labels": {"by": name}}} for each in order]
        (clone / name / "compositions.yaml").write_text(yaml.safe_dump_all(objects))
    publish(clone, "pa/v1.0.0", "pb/v1.0.0")
    both = [
        {**RIVAL, "metadata": {"name": each}, "spec": {"package": platform.image(each, "v1.0.0")}}
        for each in ("pa", "pb")
    ]
    platform.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(both))
    platform.until(lambda: len({"pa", "pb"} & platform.versions().keys()) == 1, up)
    (winner,) = {"pa", "pb"} & platform.versions().keys()
    (loser,) = {"pa", "pb"} - {winner}
    platform.until(lambda: winner in reason_of(platform, loser), up)
    found = platform.brought()
    for each in ("one", "two"):
        assert found[f"Composition/{each}"]["metadata"]["labels"]["by"] == winner
    assert platform.revisions(winner) == {1: "Active"}
    assert platform.revisions(loser) == {}


def what_was_created_for_a_removed_install_goes_with_its_objects(platform: Platform, up: Running) -> None:
    """Of both families, as the annotation says. What others brought stays, written by nobody."""
    before = platform.brought()
    for kind, name in (("packageinstall", "portal"), ("configuration", "shop")):
        platform.kubectl("annotate", kind, name, "pvbus.dev/dependency-removal=delete")
        platform.kubectl("delete", kind, name, "--timeout=60s")
    platform.until(lambda: platform.installs().keys() == {"legacy", "pa", "pb"}, up)
    left = {REPORTS, "Composition/one", "Composition/two"}
    platform.until(
        lambda: not {key for key in platform.brought() if key not in left and is_packaged(key)}, up
    )
    after = platform.brought()
    assert {key: version(after[key]) for key in left} == {key: version(before[key]) for key in left}


def is_packaged(key: str) -> bool:
    """Return whether a package brought an object, and not the example itself or pvbus."""
    kind, _, name = key.partition("/")
    return kind != "CustomResourceDefinition" or name.endswith(".example.dev")


META = {"apiVersion": "meta.pkg.crossplane.io/v1", "kind": "Configuration"}
COMPOSITION = {
    "apiVersion": "apiextensions.crossplane.io/v1",
    "kind": "Composition",
    "spec": {"compositeTypeRef": {"apiVersion": "example.dev/v1", "kind": "Thing"}},
}


def publish(clone: Path, *tags: str) -> None:
    """Commit what has changed, and give it these tags, whatever they named before."""
    person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    git(clone, "add", "--all")
    git(clone, *person, "commit", "--quiet", "--message", f"Publish {', '.join(tags)}")
    for tag in tags:
        git(clone, "tag", "--force", tag)
    git(clone, "push", "--quiet", "--force", "origin", "HEAD", *tags)


REPORTS = "CompositeResourceDefinition/reports.legacy.example.dev"
