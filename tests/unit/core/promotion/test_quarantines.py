"""Quarantines: what they cover, and that nothing of it is proposed, approved or restored."""

import json
from typing import Any

import msgspec
import pytest

from pvbus.core.api.quarantines import QuarantinedUpstream, QuarantineRelease, QuarantineSpec
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.records import APPROVALS, POLICIES, VARIANTS, SyncMarker
from pvbus.core.promotion.protocol.quarantines import Content, covers
from pvbus.core.variants.revisions.content import content_digest, source_digest
from tests.unit.core.promotion.approving import NEW, OLD, V1, V2, ReleaseWorld, planned
from tests.unit.core.promotion.promoting import FILES, KEY, PromoteWorld, draft, quarantine, variant
from tests.unit.core.promotion.rolling import Bench
from tests.unit.core.promotion.stepping import Fleet
from tests.unit.core.promotion.test_candidates import policy, proposal, published, rows, world_of

V5, V6, V7 = (f"blueprints/web@v{number}" for number in (5, 6, 7))
UPSTREAM = {
    "Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n",
    "a.yaml": "bad: 1\n",
}
SPEC: dict[str, Any] = {"upstreams": [{"revision": V6, "good": V5}], "message": "attempt 3 failed"}
SIX = QuarantineSpec(upstreams=(QuarantinedUpstream(revision=V6, files="six", good=V5),), sets=("web",))


def follower(number: int = 6, **metadata: Any) -> dict[str, Any]:
    """Return a variant that follows an upstream revision."""
    owner = {"kind": "PackageVariantSet", "name": "web", "uid": "uid-s"}
    spec = {"upstream": {"repo": "blueprints", "package": "web", "revision": number}}
    return {**variant(ownerReferences=[owner], **metadata), "spec": spec}


def upstream(number: int = 6) -> dict[str, Any]:
    """Return the PackageRevision of an upstream revision."""
    found = published(f"blueprints.web.v{number}", number, ownerReferences=[])
    found["spec"] |= {"repository": "blueprints", "workspaceName": f"v{number}"}
    return found


def made_of(revision: dict[str, Any], ref: str) -> dict[str, Any]:
    """Record the upstream of a revision, as the package server does."""
    revision["status"]["upstreamLock"] = {"git": {"directory": "web", "ref": ref}}
    return revision


@pytest.mark.parametrize(
    ("content", "is_covered"),
    [
        pytest.param(Content("web", V6, "six"), True, id="the revision"),
        pytest.param(Content("web", V6, "other"), True, id="20 its tag on other files"),
        pytest.param(Content("web", V7, "six"), True, id="19 its files under another name"),
        pytest.param(Content("web", V7, "seven"), False, id="17 a newer revision"),
        pytest.param(Content("web", "blueprints/web@fix", "fix"), False, id="18 an older or fix-branch one"),
        pytest.param(Content("web", V7, ""), True, id="files that cannot be read"),
        pytest.param(Content("web", "blueprints/db@v1", ""), False, id="such files of another package"),
        pytest.param(Content("web", V7, None), False, id="files that are not compared"),
        pytest.param(Content("db", V6, "six"), False, id="another set"),
    ],
)
def test_a_quarantine_covers_a_revision_by_name_and_by_its_files(content: Content, is_covered: bool) -> None:
    assert covers(SIX, content) is is_covered


def test_a_quarantine_of_contents_leaves_the_upstream_revision_alone() -> None:
    """21: a change of configuration alone failed, and the fleet runs that upstream revision."""
    spec = QuarantineSpec(contents=("bad",))
    assert covers(spec, Content("web", V6, "six", "bad"))
    assert not covers(spec, Content("web", V6, "six", "good"))
    assert not covers(spec, Content("web", V6, "six", ""))


def test_a_released_quarantine_covers_nothing() -> None:
    spec = QuarantineSpec(upstreams=SIX.upstreams, released=QuarantineRelease(reason="false alarm"))
    assert not covers(spec, Content("web", V6, "six"))


def test_the_digest_of_an_upstream_leaves_out_its_origin_and_status() -> None:
    """19: one content under two revisions has one digest."""
    origin = "upstream:\n  git:\n    ref: v6\nupstreamLock:\n  git:\n    ref: v6\nstatus:\n  conditions: []\n"
    other = {**UPSTREAM, "Kptfile": UPSTREAM["Kptfile"] + origin}
    assert source_digest(UPSTREAM) == source_digest(other)
    assert source_digest(UPSTREAM) != source_digest({**UPSTREAM, "a.yaml": "bad: 2\n"})
    assert content_digest(UPSTREAM) != content_digest(other)


# ------------------------------------------------------------ proposals and candidates


def test_a_draft_of_a_quarantined_revision_is_not_proposed_and_says_each_way_on() -> None:
    """25: a joiner gets nothing, and its draft names release, another revision, and the last good one."""
    world = PromoteWorld(draft(), follower())
    world.quarantines = [quarantine("web-3-1", sets=["web"], **SPEC)]
    world.settle()
    assert world.server.moves == []
    assert world.verdict.reason == "Quarantined"
    for words in (
        "quarantine web-3-1 covers it (attempt 3 failed)",
        "follow another upstream revision",
        f"go back to the last good revision {V5}: kubectl patch -n default packagevariantset web ",
        "pvbus rollout release default/web-3-1 --reason TEXT",
    ):
        assert words in world.verdict.message
    world.quarantines = [quarantine("web-3-1", sets=["web"], released={"reason": "false alarm"}, **SPEC)]
    world.settle()
    assert world.server.moves == ["Proposed"]


@pytest.mark.parametrize(
    ("of", "ref", "spec", "moves"),
    [
        pytest.param(7, "", SPEC, ["Proposed"], id="17 the next revision is free"),
        pytest.param(7, "web/v6", SPEC, [], id="17 a draft that has not moved on"),
        pytest.param(6, "web/v7", SPEC, [], id="a lock that says another one than its Ready variant follows"),
        pytest.param(6, "", SPEC | {"sets": ["db"]}, ["Proposed"], id="another set"),
        pytest.param(6, "", {"contents": [content_digest(FILES)]}, [], id="21 its own content"),
        pytest.param(6, "", {"contents": ["other"]}, ["Proposed"], id="21 other content"),
    ],
)
def test_a_draft_is_judged_by_the_upstream_that_it_is_made_of(
    of: int, ref: str, spec: Any, moves: list[str]
) -> None:
    world = PromoteWorld(made_of(draft(), ref) if ref else draft(), follower(of))
    world.quarantines = [quarantine(**spec)]
    world.settle()
    assert world.server.moves == moves


def moved_to(number: int, *, is_ready: bool) -> dict[str, Any]:
    """Return the variant after it was told to follow a revision. is_ready: whether inject has done that."""
    ready = {
        "status": "True" if is_ready else "False",
        "reason": "NoErrors" if is_ready else "UpstreamChanged",
    }
    return follower(number, generation=3, ready={"observedGeneration": 3, **ready})


@pytest.mark.parametrize("proposed_by", ["promote", "hand"])
@pytest.mark.parametrize("restarted", [False, True])
def test_another_lock_in_a_draft_brings_it_out_of_no_quarantine(*, proposed_by: str, restarted: bool) -> None:
    """Whoever may edit the draft may write it. What inject made of it counts, also when inject finds the
    lock wrong and cannot mend it, as the draft is proposed by then."""
    world = PromoteWorld(made_of(draft(), "web/v6"), follower())
    world.policies, world.quarantines = [policy()], [quarantine(sets=["web"], **SPEC)]
    world.settle()
    if restarted:
        world.restart()
    assert world.server.revision is not None
    world.server.change(lambda obj: obj.update(made_of(obj, "web/v5")))
    world.settle()
    assert world.verdict.reason == "Quarantined"
    if proposed_by == "hand":
        world.move("Proposed")
        world.variant = moved_to(6, is_ready=False)
    world.settle()
    assert not rows(world)["web"].is_proposed
    world.variant = moved_to(5, is_ready=False)
    world.settle()
    assert not rows(world)["web"].is_proposed, "inject has not made it of the last good one yet"
    world.variant = moved_to(5, is_ready=True)
    world.settle()
    assert rows(world)["web"].is_proposed


def test_the_same_files_under_the_next_revision_are_not_proposed() -> None:
    """19: the upstream is read once for each version of it."""
    world = PromoteWorld(draft(), follower(7))
    world.server.published = [upstream(7)]
    world.server.files_of = {"blueprints.web.v7": UPSTREAM}
    bad = [{"revision": V6, "files": source_digest(UPSTREAM)}]
    world.quarantines = [quarantine(upstreams=bad)]
    world.settle()
    assert world.verdict.reason == "Quarantined"
    assert world.server.gets.count("PackageRevisionResources") == 1
    world.restart()
    world.server.unreadable = {"blueprints.web.v7"}
    world.settle()
    assert world.verdict.reason == "Quarantined", "what cannot be compared does not go out"
    world.server.unreadable = set()
    world.server.files_of = {"blueprints.web.v7": {**UPSTREAM, "a.yaml": "good: 1\n"}}
    world.restart()
    world.settle()
    assert world.server.moves == ["Proposed"]


def test_two_quarantines_both_hold_until_the_last_one_ends() -> None:
    """27: the union counts, whichever policy has the target."""
    world = PromoteWorld(draft(), follower())
    world.quarantines = [quarantine("a", policy="first", **SPEC), quarantine("b", policy="second", **SPEC)]
    world.settle()
    assert "quarantine a" in world.verdict.message
    assert "quarantine b" in world.verdict.message
    world.quarantines = world.quarantines[1:]
    world.settle()
    assert "quarantine a" not in world.verdict.message
    assert world.verdict.reason == "Quarantined"


def test_a_quarantine_lasts_without_its_policy() -> None:
    """28: it has its own scope, and needs no policy."""
    world = PromoteWorld(draft(), follower())
    world.quarantines = [quarantine(policy="gone", sets=["web"], **SPEC)]
    world.settle()
    assert world.verdict.reason == "Quarantined"


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (SyncMarker(state="unavailable", epoch=2, message="quarantines is forbidden"), "QuarantinesUnknown"),
        (SyncMarker(state="unavailable", epoch=2, message='no matches for kind "Quarantine"'), "Proposing"),
    ],
)
def test_nothing_is_proposed_while_it_is_not_known_what_is_quarantined(
    marker: SyncMarker, reason: str
) -> None:
    world = PromoteWorld(draft(), follower())
    world.markers[str(QUARANTINE)] = marker
    world.observe()
    world.run(world.promote)
    assert world.verdict.reason == reason


def test_promote_waits_for_the_list_of_quarantines() -> None:
    world = PromoteWorld(draft(), follower())
    world.markers[str(QUARANTINE)] = SyncMarker(state="syncing", epoch=2)
    world.settle()
    outcome = world.run(world.promote)
    assert outcome is not None
    assert outcome.waiting == ("the list of Quarantines",)


def test_a_proposal_that_becomes_quarantined_stays_and_is_no_candidate() -> None:
    """30: a person may have proposed it, so its verdict says what holds it."""
    world = world_of(policy(), revision=draft(lifecycle="Proposed"), of=follower())
    world.quarantines = [quarantine("web-3-1", **SPEC)]
    world.settle()
    row = rows(world)["web"]
    assert (row.is_proposed, row.reason, row.source) == (False, "Quarantined", V6)
    assert V5 in row.message
    assert world.verdict.reason == "ProposedByHand"
    assert "quarantine web-3-1 covers it" in world.verdict.message
    assert world.server.moves == []
    world.quarantines = []
    world.settle()
    assert rows(world)["web"].is_proposed


def test_a_candidate_shows_what_it_is_made_of_and_that_it_runs_a_quarantined_revision() -> None:
    """22: where it was proven it stays."""
    old = made_of(published(), "web/v6")
    world = world_of(policy(), revision=made_of(proposal(), "web/v7"), of=follower(7), old=[old])
    world.server.published.append(upstream(7))
    world.server.files_of["blueprints.web.v7"] = UPSTREAM
    world.quarantines = [quarantine("web-3-1", **SPEC)]
    world.settle()
    row = rows(world)["web"]
    assert (row.source, row.published_source, row.runs) == (V7, V6, "web-3-1")
    assert row.files == source_digest(UPSTREAM)
    assert row.is_proposed


# ------------------------------------------------------------ rollout


@pytest.mark.parametrize(
    ("runs", "good"),
    [
        pytest.param("", ("v2", "d0", V6), id="the published one"),
        pytest.param("web-3-1", ("v1", "old0", V5), id="the one before, as that is quarantined"),
    ],
)
def test_what_a_rollback_restores_is_not_quarantined(runs: str, good: tuple[str, ...]) -> None:
    """23: v7 follows on v6, which was proven, and is quarantined since."""
    fleet = Fleet(targets=1)
    fleet.seen["t0"] = fleet.seen["t0"]._replace(source=V6, published_source=V5)
    fleet.go().publish("t0")
    fleet.change("t0", revision="v3", digest="new", is_proposed=True, published_source=V6, runs=runs)
    row = fleet.rows["t0"]
    assert (row.attempt, row.good, row.good_digest, row.good_source) == (2, *good)


def test_nothing_is_restored_where_only_a_quarantined_revision_was() -> None:
    """23: no former revision is known, so the target will be stranded."""
    fleet = Fleet(targets=1)
    fleet.seen["t0"] = fleet.seen["t0"]._replace(published_source=V6, runs="web-3-1")
    assert fleet.go().rows["t0"].good == ""


# ------------------------------------------------------------ release


def ordered(order: str = "approve", revision: str = V2, files: Any = None, **spec: Any) -> ReleaseWorld:
    """Return release with an order, and the revisions of upstream v5 and v6."""
    world = planned()
    world.variant |= {"spec": {**world.variant["spec"], **follower()["spec"]}}
    world.variant["metadata"]["ownerReferences"] = follower()["metadata"]["ownerReferences"]
    world.write(VARIANTS, KEY, msgspec.json.encode(world.variant))
    for name, ref in ((V1, "web/v5"), (V2, "web/v6")):
        git = {"git": {"directory": "web", "ref": ref}}
        world.package.revisions[name]["status"] = {"upstreamLock": git}
    if spec:
        world.quarantine("web-3-1", **spec)
    world.order(order, revision, NEW if files is None else files)
    return world


@pytest.mark.parametrize(
    ("spec", "is_approved"),
    [
        pytest.param({}, True, id="no quarantine"),
        pytest.param(SPEC, False, id="its upstream revision"),
        pytest.param(SPEC | {"sets": ["web"]}, False, id="of its set"),
        pytest.param(SPEC | {"sets": ["db"]}, True, id="of another set"),
        pytest.param({"contents": [content_digest(NEW)]}, False, id="its content"),
        pytest.param({"upstreams": [{"revision": V5, "files": "five"}]}, False, id="files that are unknown"),
        pytest.param(SPEC | {"released": {"reason": "false alarm"}}, True, id="released"),
    ],
)
def test_release_looks_right_before_it_publishes(spec: Any, is_approved: bool) -> None:
    world = ordered(**spec)
    outcome = world.run()
    assert world.package.lifecycles() == {V1: "Published", V2: "Published" if is_approved else "Proposed"}
    assert outcome is not None
    assert any("quarantine web-3-1 covers it" in each for each in outcome.waiting) is not is_approved


@pytest.mark.parametrize(
    ("files", "is_approved"),
    [
        pytest.param("six", True, id="17 other files, so a newer revision is free"),
        pytest.param("five", False, id="19 its files under another name"),
        pytest.param("", False, id="files that could not be read"),
    ],
)
def test_release_compares_the_files_that_the_order_names(files: str, is_approved: bool) -> None:
    world = ordered(upstreams=[{"revision": V5, "files": "five"}])
    world.order("approve", V2, NEW, files=files)
    world.run()
    assert (world.outcomes != ()) is is_approved


def test_an_order_names_the_files_that_its_revision_is_made_of() -> None:
    bench = Bench(1).candidate("t0", source=V6, files="six").go()
    order = json.loads(bench.rows[APPROVALS, "default/t0|web"])
    assert (order["order"], order["files"]) == ("approve", "six")


def test_an_order_goes_on_when_the_quarantine_ends() -> None:
    world = ordered(**SPEC)
    world.run()
    assert world.outcomes == ()
    world.write(POLICIES, okey(*QUARANTINE, "default", "web-3-1"), None)
    world.run()
    assert world.outcome == "done"


@pytest.mark.parametrize("order", ["approve", "restore"])
@pytest.mark.parametrize(
    ("state", "message", "words"),
    [
        ("syncing", "", "the list of Quarantines"),
        ("unavailable", "quarantines is forbidden", "quarantines is forbidden"),
        ("unavailable", 'no matches for kind "Quarantine"', "does not serve: apply its definition"),
    ],
)
def test_nothing_is_published_while_it_is_not_known_what_is_quarantined(
    order: str, state: str, message: str, words: str
) -> None:
    world = ordered(order, *((V1, OLD) if order == "restore" else (V2, NEW)))
    world.list_quarantines(state, message)
    outcome = world.run()
    assert outcome is not None
    assert words in outcome.waiting[0]
    assert world.package.writes == []


def test_an_order_is_taken_back_whatever_is_known_of_quarantines() -> None:
    world = ordered("withdraw", **SPEC)
    world.list_quarantines("syncing")
    world.run()
    assert world.outcome == "withdrawn"


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        pytest.param(SPEC, "done", id="what failed was another one"),
        pytest.param({"upstreams": [{"revision": V5}]}, "unrestored", id="23 its upstream revision"),
        pytest.param({"contents": [content_digest(OLD)]}, "unrestored", id="23 its content"),
    ],
)
def test_a_rollback_never_restores_what_is_quarantined(spec: Any, outcome: str) -> None:
    """23: the target is stranded then, and the reason is reported."""
    world = ordered("restore", V1, OLD, **spec)
    world.package.put(V2, "Published", NEW)
    world.run()
    assert world.outcome == outcome
    if outcome == "unrestored":
        assert f"{V1} must not go out again: quarantine web-3-1 covers it" in world.message
        assert world.package.writes == []
