"""What resolve asks of sources, and when."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.packagerows import ContentRow
from tests.unit.core.platform.resolve.world import REGISTRY, ResolveWorld, digest_of, started

AWS, NET = f"{REGISTRY}/aws", f"{REGISTRY}/network"
SECRET = "crossplane-system/login"


def installed(**spec: Any) -> ResolveWorld:
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.install("aws", f"{AWS}:v1.0.0", **spec)
    world.run()
    return world


def test_a_moved_tag_makes_a_revision_after_the_interval() -> None:
    world = installed()
    first = world.active("aws")
    second = world.registry.publish(AWS, "v1.0.0", salt="moved")
    world.run()
    assert world.active("aws") == first
    world.pass_time(400)
    assert world.active("aws") == second
    assert [each.revision for each in world.row("aws").revisions] == [1, 2]


def test_while_a_new_tag_is_read_the_row_is_a_decision_on_the_generation_before() -> None:
    """Its conditions would else be taken for those of what is asked for now."""
    world = installed()
    before = world.row("aws").generation
    key = world.install("aws", f"{AWS}:v9.9.9")
    world.run()
    assert (world.row("aws").status, world.row("aws").generation) == ("locked", before)
    world.registry.publish(AWS, "v9.9.9")
    world.pass_time(400)
    assert world.row("aws").generation == world.objects[key]["metadata"]["generation"]


def test_looking_again_at_the_same_content_changes_no_lock() -> None:
    world = installed()
    before, pulls = dict(world.lock), len(world.registry.pulls)
    world.pass_time(400)
    world.pass_time(400)
    assert world.registry.observations.count(AWS) >= 3
    assert world.lock == before
    assert len(world.registry.pulls) == pulls


def test_a_manual_policy_keeps_the_active_revision_until_a_user_activates_the_new_one() -> None:
    world = installed(revisionActivationPolicy="Manual")
    row = world.row("aws")
    assert [each.is_active for each in row.revisions] == [False]
    assert row.reason == "AwaitsActivation"
    world.activate(row.revisions[0])
    assert world.active("aws") == row.revisions[0].digest
    second = world.registry.publish(AWS, "v1.1.0", salt="new")
    world.install("aws", f"{AWS}:v1.1.0", revisionActivationPolicy="Manual")
    world.run()
    assert world.active("aws") == row.revisions[0].digest
    assert world.row("aws").version == "v1.0.0"
    new = world.row("aws").revisions[-1]
    assert new.digest == second
    world.activate(new)
    assert world.active("aws") == second
    assert world.row("aws").version == "v1.1.0"


def test_an_old_revision_can_be_activated_again_and_stays_so() -> None:
    world = installed(revisionHistoryLimit=0)
    old = world.row("aws").revisions[0]
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.install("aws", f"{AWS}:v1.1.0", revisionHistoryLimit=0)
    world.run()
    assert world.active("aws") != old.digest
    world.activate(world.row("aws").revisions[0])
    assert world.active("aws") == old.digest
    assert [each.revision for each in world.row("aws").revisions] == [2, 3]
    world.pass_time(400)
    assert world.active("aws") == old.digest


def test_a_refused_pull_is_tried_again_at_once_with_another_secret_for_the_same_content() -> None:
    world = started()
    digest = world.registry.publish(AWS, "v1.0.0")
    world.registry.refusing[AWS] = SECRET
    world.install("aws", f"{AWS}:v1.0.0")
    world.run()
    row = world.row("aws")
    assert row.status == "waiting"
    assert "not allowed" in row.message
    world.install("aws", f"{AWS}:v1.0.0", packagePullSecrets=[{"name": "login"}])
    world.run()
    assert world.active("aws") == digest
    assert [each.revision for each in world.row("aws").revisions] == [1]


def test_a_source_that_says_no_is_told_in_its_words_without_a_tag_and_as_a_dependency() -> None:
    """That no package is known would send people to look for a wrong name."""
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.refusing[AWS] = SECRET
    need = {"provider": AWS, "version": ">=v1.0.0"}
    world.registry.publish(NET, "v1.0.0", kind="Configuration", depends=(need,))
    world.install("aws", AWS)
    world.run()
    assert f"you want {AWS}, but {AWS} cannot be read: not allowed" in world.row("aws").message
    world.remove("aws")
    world.install("net", f"{NET}:v1.0.0", "Configuration")
    world.run()
    words = f"needs {AWS} >=v1.0.0, but {AWS} cannot be read: not allowed"
    assert words in world.row("net", "Configuration").message
    world.registry.refusing.clear()
    world.pass_time(400)
    assert world.row("net", "Configuration").status == "locked"


def test_that_newer_versions_could_not_be_read_is_told_beside_the_known_ones() -> None:
    world = installed()
    world.registry.refusing[AWS] = SECRET
    world.pass_time(400)
    need = {"provider": AWS, "version": ">=v9.0.0"}
    world.registry.publish(NET, "v1.0.0", kind="Configuration", depends=(need,))
    world.install("net", f"{NET}:v1.0.0", "Configuration")
    world.run()
    assert "(it cannot be read now: not allowed" in world.row("net", "Configuration").message


def test_failures_are_repeated_more_and_more_seldom() -> None:
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.down.add(AWS)
    world.install("aws", f"{AWS}:v1.0.0")
    world.run()
    waits = []
    for _ in range(12):
        waits.append(max(world.timers.values()) - world.now)
        world.pass_time(waits[-1])
    assert all(later > 1.5 * sooner for sooner, later in pairwise(waits[:6]))
    assert 240 <= waits[-1] <= 330
    world.registry.down.clear()
    world.pass_time(waits[-1] + 100)
    assert world.row("aws").status == "locked"


def test_a_source_that_fails_for_a_moment_changes_nothing_that_is_locked() -> None:
    world = installed()
    before = dict(world.lock)
    world.registry.down.add(AWS)
    for _ in range(5):
        world.pass_time(400)
    assert world.lock == before


def test_a_mistyped_tag_is_told_and_leaves_what_is_installed() -> None:
    """The present version stays, and the row says what is waited for until the tag is right again."""
    world = installed()
    before = world.row("aws")
    world.install("aws", f"{AWS}:v9.9.9")
    world.run()
    row = world.row("aws")
    assert (row.status, row.reason) == ("locked", "Waiting")
    assert row.message == f"waits for the tag v9.9.9, which {AWS} does not have"
    assert (row.version, row.revisions) == (before.version, before.revisions)
    world.install("aws", f"{AWS}:v1.0.0")
    world.run()
    assert (world.row("aws").reason, world.row("aws").message) == ("", "")
    assert world.row("aws").revisions == before.revisions


def test_a_version_that_comes_later_is_installed_and_no_longer_waited_for() -> None:
    world = installed()
    world.install("aws", f"{AWS}:v1.1.0")
    world.run()
    assert world.row("aws").reason == "Waiting"
    second = world.registry.publish(AWS, "v1.1.0", salt="new")
    world.pass_time(400)
    assert world.active("aws") == second
    assert world.row("aws").reason == ""


def test_an_upgrade_that_has_to_be_read_first_writes_no_row_for_the_wait() -> None:
    """What comes by itself in a moment is not worth a write, and each upgrade has it."""
    world = installed()
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.install("aws", f"{AWS}:v1.1.0")
    seen = [world.row("aws").reason]
    while world.dirty:
        world.step(world.dirty.popleft())
        seen.append(world.row("aws").reason)
    assert world.row("aws").version == "v1.1.0"
    assert set(seen) == {""}


def test_only_what_can_be_chosen_is_pulled() -> None:
    world = started()
    for number in range(30):
        world.registry.publish(AWS, f"v1.{number}.0", salt=str(number))
    world.registry.publish(NET, "v1.0.0", depends=({"provider": AWS, "version": ">=1.0.0"},))
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    assert world.row("acme-aws").version == "v1.29.0"
    assert len(world.registry.pulls) == 2


def test_a_version_whose_content_is_broken_is_passed_over() -> None:
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.broken.add(world.registry.publish(AWS, "v1.1.0", salt="new"))
    world.registry.publish(NET, "v1.0.0", depends=({"provider": AWS, "version": ">=1.0.0"},))
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    assert world.row("acme-aws").version == "v1.0.0"
    defects = [each.defect for each in world.sources.values() if isinstance(each, ContentRow)]
    assert "the image has no layer" in defects


def test_a_content_that_is_missing_fails_only_what_needs_it() -> None:
    """Both need a content of one repository by its digest. What fails has its own error in its message."""
    world = started()
    present, missing = world.registry.publish(AWS, "v1.0.0"), digest_of("missing")
    for name, digest in (("broken", missing), ("good", present)):
        depends = (
            {"apiVersion": "pkg.crossplane.io/v1", "kind": "Provider", "package": AWS, "version": digest},
        )
        world.registry.publish(f"{REGISTRY}/{name}", "v1.0.0", depends=depends)
        world.install(name, f"{REGISTRY}/{name}:v1.0.0")
    world.run()
    assert (world.row("good").status, world.row("broken").status) == ("locked", "refused")
    assert world.active("acme-aws") == present
    assert (
        f"{missing} cannot be installed: cannot be pulled: there is no such image"
        in world.row("broken").message
    )
    assert world.source(AWS).refusals.keys() == {missing}


def test_what_nobody_asks_for_is_forgotten() -> None:
    world = installed()
    assert world.sources
    key = next(iter(world.lock))
    world.remove(key)
    world.run()
    assert world.lock == {}
    assert world.sources == {}


def test_a_restart_asks_and_writes_nothing() -> None:
    world = installed()
    asked, steps = len(world.registry.observations), len(world.steps)
    world.begin()
    world.sync()
    world.run()
    assert len(world.registry.observations) == asked
    assert [step for step in world.steps[steps:] if step[0].topic != "pvbus.watches"] == []


def test_a_lost_lock_is_read_from_the_cluster_before_anything_is_written() -> None:
    world = installed(revisionHistoryLimit=0)
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.install("aws", f"{AWS}:v1.1.0", revisionHistoryLimit=0)
    world.run()
    before = world.row("aws")
    for each in before.revisions:
        world.put_revision(each)
    world.lock, world.sources, world.steps = {}, {}, []
    world.begin()
    world.run()
    assert world.lock == {}, "no list of the cluster is complete yet"
    world.sync()
    world.run()
    after = world.row("aws")
    assert after.revisions == before.revisions
    first = next(put.row for step in world.steps for put in step if put.topic == "pvbus.lock")
    assert {each.digest for each in first.revisions} == {each.digest for each in before.revisions}  # type: ignore[union-attr]


def test_an_install_is_not_ended_while_its_kind_is_not_listed() -> None:
    world = installed()
    before = dict(world.lock)
    world.sync("unavailable")
    world.remove(next(iter(world.lock)))
    world.run()
    assert world.lock == before


def test_every_row_can_be_read_back() -> None:
    world = installed()
    for row in (*world.lock.values(), *world.sources.values()):
        assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row


GIT = "git+file:///srv/p.git//pa"


@pytest.mark.parametrize("package", [f"{GIT}?ref=pa/v1.0.0", f"{GIT}?ref=v1.0.0", f"{GIT}:v1.0.0"])
def test_a_ref_of_git_is_the_version_that_is_installed(package: str) -> None:
    """Not the highest tag of the folder, in any spelling."""
    world = started()
    first = world.registry.publish(GIT, "v1.0.0")
    world.registry.publish(GIT, "v3.0.0", salt="new")
    world.install("pa", package)
    world.run()
    assert (world.active("pa"), world.row("pa").version) == (first, "v1.0.0")


def test_a_wrong_ref_of_git_is_refused_by_field() -> None:
    world = started()
    world.registry.publish(GIT, "v3.0.0")
    world.install("pa", f"{GIT}?tag=v1.0.0")
    world.run()
    assert (world.row("pa").status, world.active("pa")) == ("broken", "")
    assert "spec.package" in world.row("pa").message


def test_an_install_by_tag_and_digest_has_the_version_of_its_tag() -> None:
    """Ranges of others are met by it."""
    world = started()
    first = world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(AWS, "v1.5.0", salt="new")
    need = {"provider": AWS, "version": ">=v1.0.0"}
    world.registry.publish(NET, "v1.0.0", kind="Configuration", depends=(need,))
    world.install("aws", f"{AWS}:v1.0.0@{first}")
    world.install("net", f"{NET}:v1.0.0", "Configuration")
    world.run()
    assert (world.row("aws").version, world.row("net", "Configuration").status) == ("v1.0.0", "locked")
    assert world.active("aws") == first


@pytest.mark.parametrize("name", [f"{AWS}:v1.0.0", f"{AWS}@{digest_of('x')}", f"{GIT}?ref=v1.0.0"])
def test_a_version_in_the_name_of_a_dependency_is_refused(name: str) -> None:
    """Another version than it names would be installed for it."""
    world = started()
    for source in (AWS, GIT):
        world.registry.publish(source, "v1.0.0")
        world.registry.publish(source, "v3.0.0", salt="new")
    world.registry.publish(NET, "v1.0.0", kind="Configuration", depends=({"provider": name},))
    world.install("net", f"{NET}:v1.0.0", "Configuration")
    world.run()
    row = world.row("net", "Configuration")
    assert row.status == "broken"
    assert "as `version`" in row.message


def test_a_rollback_under_automatic_stays_and_is_reported() -> None:
    """Until the spec changes, or a user activates what it asks for: no moved tag and no restart ends it."""
    world = installed()
    first = world.row("aws").revisions[0]
    second = world.registry.publish(AWS, "v2.0.0", salt="second")
    world.install("aws", f"{AWS}:v2.0.0")
    world.run()
    assert world.active("aws") == second
    (old,) = [each for each in world.row("aws").revisions if each.digest == first.digest]
    world.activate(old)
    row = world.row("aws")
    assert (world.active("aws"), row.status, row.reason) == (first.digest, "locked", "RolledBack")
    assert "was activated by hand and stays: activate aws-" in row.message
    moved = world.registry.publish(AWS, "v2.0.0", salt="moved")
    world.pass_time(400)
    assert world.active("aws") == first.digest
    assert {each.digest for each in world.row("aws").revisions} >= {first.digest, moved}
    world.begin()
    world.sync()
    world.run()
    assert (world.active("aws"), world.row("aws").reason) == (first.digest, "RolledBack")
    third = world.registry.publish(AWS, "v3.0.0", salt="third")
    world.install("aws", f"{AWS}:v3.0.0")
    world.run()
    world.pass_time(400)
    assert (world.active("aws"), world.row("aws").reason) == (third, "")


def test_an_activation_of_what_the_spec_asks_for_ends_a_rollback() -> None:
    world = installed(revisionHistoryLimit=0)
    first = world.active("aws")
    second = world.registry.publish(AWS, "v2.0.0", salt="second")
    world.install("aws", f"{AWS}:v2.0.0", revisionHistoryLimit=0)
    world.run()
    for digest, reason in ((first, "RolledBack"), (second, "")):
        (wanted,) = [each for each in world.row("aws").revisions if each.digest == digest]
        world.activate(wanted)
        assert (world.active("aws"), world.row("aws").reason) == (digest, reason)
    moved = world.registry.publish(AWS, "v2.0.0", salt="moved")
    world.pass_time(400)
    assert world.active("aws") == moved


@pytest.mark.parametrize("package", [f"{AWS}:v1.0.1", "mirror.example.org/acme/aws:v1.0.0"])
def test_another_name_of_the_same_content_is_followed(package: str) -> None:
    """Another tag, or another address: the revision stays the same one, and has the new name."""
    world = started()
    for source in (AWS, "mirror.example.org/acme/aws"):
        for tag in ("v1.0.0", "v1.0.1"):
            world.registry.tags.setdefault(source, {})[tag] = world.registry.publish(AWS, "v1.0.0")
    key = world.install("aws", f"{AWS}:v1.0.0")
    world.run()
    (before,) = world.row("aws").revisions
    world.put_revision(before)
    world.install("aws", package)
    world.run()
    row = world.row("aws")
    (after,) = row.revisions
    assert (after.name, after.revision, after.is_active) == (before.name, 1, True)
    assert f"{after.source}:{after.version}" == package
    assert f"{row.package}:{row.version}" == package
    assert key in world.lock
