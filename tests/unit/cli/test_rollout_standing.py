"""A rehearsal of a change by file, from where the rollout is: what stays as planned, who goes together."""

from typing import Any

import pytest

from pvbus.cli.rolloutdocument import document_of
from pvbus.cli.rolloutmoves import laid_over
from pvbus.cli.rolloutrows import Rows
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from tests.unit.cli.test_rollout import policy, revision, set_of, variant

Object = dict[str, Any]
NOW = 1_000_000.0
KEY = Key("default", "edge")
RELEASE = "example.com/release"
OPT_IN = "config.porch.kpt.dev/auto-lifecycle-mgmt"


def owned(name: str, number: int, lifecycle: str) -> Object:
    found = revision(name, number=number, lifecycle=lifecycle)
    found["metadata"]["ownerReferences"] = [{"kind": "PackageVariant", "name": name, "uid": f"uid-{name}"}]
    return found


def test_with_finish_a_planned_proposal_goes_out_before_what_a_file_brings() -> None:
    """Wave 2 has still to be approved. The new revision has an attempt of its own."""
    objects = [policy(onNewRevision="Finish", waves=[{"count": 1}, {"percent": 100}]), set_of(2)]
    rows, targets = {}, {}
    for position, name in enumerate("ab"):
        moved = variant(name)
        moved["spec"]["upstream"]["revision"] = 2
        is_first = not position
        published = owned(name, 2 if is_first else 1, "Published")
        objects += [moved, published, *([] if is_first else [owned(name, 2, "Proposed")])]
        planned = revision(name, number=2)["metadata"]["name"]
        targets[name] = Target(
            target=name,
            revision=planned,
            digest=f"{name}2",
            attempt=1,
            wave=position + 1,
            position=position,
            state=TargetState.PROVEN if is_first else TargetState.PLANNED,
            is_frozen=True,
            upstream="blueprints/web@v2",
            source="blueprints/web@v2",
        )
        rows[name] = CandidateRow(
            uid=f"uid-{name}",
            revision="" if is_first else planned,
            digest="" if is_first else f"{name}2",
            is_proposed=not is_first,
            is_current=is_first,
            published=published["metadata"]["name"],
            published_digest=f"{name}{2 if is_first else 1}",
            published_source=f"blueprints/web@v{2 if is_first else 1}",
            is_good=True,
            upstream="blueprints/web@v2",
            source="" if is_first else "blueprints/web@v2",
        )
    started = Rollout(state=RolloutState.ROLLING, attempt=1, wave=2, is_started=True, sizes=(1, 1))
    after = laid_over(objects, [set_of(3)])
    document = document_of(after, NOW, rows={KEY: Rows(started, targets, rows)})["policies"][0]
    assert [wave["approved"] for wave in document["waves"]] == [[], ["b"]]
    assert [wave["approved"] for wave in document["then"][0]["waves"]] == [["a"], ["b"]]
    (waits,) = (each for each in document["leftOut"] if each["reason"] == "WaitsForRollout")
    assert waits["target"] == "b"
    assert waits["message"].endswith("stays as planned until attempt 1 is over, and this comes after it")


@pytest.mark.parametrize(
    ("own", "waves"), [({}, [["a"]]), ({OPT_IN: "false"}, []), ({OPT_IN: "true"}, [["a"]])]
)
@pytest.mark.parametrize("is_finishing", [False, True], ids=["file", "finish"])
def test_a_draft_has_what_its_variant_gives_it(
    own: dict[str, str], waves: list[list[str]], is_finishing: bool
) -> None:
    """Its own annotation comes before the variant's, and its labels are selected."""
    moved = variant("a")
    moved["spec"] |= {"annotations": own, "labels": {"ring": "one"}}
    if waves and own:
        moved["metadata"]["annotations"] = {}
    selector = {"matchLabels": {"ring": "one"}}
    spec: Object = {"revisions": {"selector": selector}, "waves": [{"percent": 100}]}
    objects = [set_of(1), moved, owned("a", 1, "Published")]
    objects[-1]["metadata"]["labels"] = {"ring": "one"}
    if not is_finishing:
        document = document_of([policy(**spec), *laid_over(objects, [set_of(2)])], NOW)["policies"][0]
        assert [wave["approved"] for wave in document["waves"] if wave["approved"]] == waves
        return
    moved["spec"]["upstream"] = {"repo": "blueprints", "package": "web", "revision": 3}
    planned = owned("a", 2, "Proposed")
    planned["metadata"]["labels"] = {"ring": "one"}
    names = {"revision": planned["metadata"]["name"], "digest": "a2", "source": "blueprints/web@v2"}
    target = Target(
        target="a", attempt=1, wave=1, position=0, is_frozen=True, upstream="blueprints/web@v2", **names
    )
    row = CandidateRow(
        uid="uid-a",
        is_proposed=True,
        published=objects[-1]["metadata"]["name"],
        upstream="blueprints/web@v3",
        **names,
    )
    started = Rollout(state=RolloutState.ROLLING, attempt=1, wave=1, is_started=True, sizes=(1,))
    rows = {KEY: Rows(started, {"a": target}, {"a": row})}
    after = [policy(onNewRevision="Finish", **spec), *objects, planned]
    document = document_of(after, NOW, rows=rows)["policies"][0]
    assert [wave["approved"] for wave in document["waves"]] == [["a"]]
    assert [wave["approved"] for then in document["then"] for wave in then["waves"]] == waves


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({}, "NotRendered: no image"),
        ({"pvbus.dev/hold": "true"}, "OnHold: it is on hold: pvbus unhold default/a"),
    ],
)
def test_a_plan_says_of_a_canary_what_promote_says(annotations: dict[str, str], said: str) -> None:
    """That the variant is not ready says less. A hold that a file has is newer."""
    moved = variant("a", **annotations)
    moved["status"]["conditions"][0] |= {"status": "False", "reason": "RenderFailed"}
    objects = [policy(canaries=["a"]), moved, owned("a", 1, "Draft")]
    objects += [variant("b"), owned("b", 1, "Proposed")]
    row = CandidateRow(uid="uid-a", reason="NotRendered", message="no image", upstream="blueprints/web@v1")
    rows = {KEY: Rows(Rollout(), {}, {"a": row})}
    (words,) = document_of(objects, NOW, rows=rows)["policies"][0]["waitsFor"]
    assert words.startswith(f"its canaries (CanaryNotReady): canary a: {said}; ")


def of_set(name: str, set_name: str, number: int) -> Object:
    found = variant(name)
    found["metadata"]["ownerReferences"][0]["name"] = set_name
    found["spec"]["upstream"] = {"repo": "blueprints", "package": set_name, "revision": number}
    return found


def upstream(package: str, number: int, release: str) -> Object:
    found = revision(package, number=number, lifecycle="Published")
    found["metadata"] |= {"name": f"blueprints.{package}.v{number}", "annotations": {RELEASE: release}}
    found["spec"] |= {"repository": "blueprints", "packageName": package, "revision": number}
    return found


@pytest.mark.parametrize(("releases", "approved"), [(("7", "7"), [["db-1", "web-1"]]), (("7", "8"), [])])
def test_a_train_by_file_goes_with_what_its_upstream_revisions_say(
    releases: tuple[str, str], approved: list[list[str]]
) -> None:
    members = {"mode": "InOrder", "annotation": RELEASE, "members": [{"set": "db"}, {"set": "web"}]}
    objects, changes = [policy(train=members, waves=[{"percent": 100}])], []
    for set_name, release in zip(("db", "web"), releases, strict=True):
        name = f"{set_name}-1"
        objects += [of_set(name, set_name, 1), owned(name, 1, "Published"), upstream(set_name, 2, release)]
        changes.append(of_set(name, set_name, 2))
    document = document_of(laid_over(objects, changes), NOW)["policies"][0]
    assert [wave["approved"] for wave in document["waves"] if wave["approved"]] == approved
    assert ("waits" in str(document["waitsFor"])) is not bool(approved)
