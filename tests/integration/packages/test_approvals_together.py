"""Approvals that go together are one change of git: all of them, or none. Others of one push go alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import together
from pvbus.core.kernel.keys import APPROVE_TOGETHER
from pvbus.ports.cluster import Object
from tests.integration.packages.support import StoreWorld, bare, clone_of, git, refs, revision
from tests.integration.packages.test_faults import refuse

NAMES = ("edge.api.ws", "edge.db.ws", "edge.web.ws")
PROPOSALS = ["refs/heads/proposed/api/ws", "refs/heads/proposed/db/ws", "refs/heads/proposed/web/ws"]


async def propose(world: StoreWorld, package: str, repository: str = "edge") -> Object:
    draft = await world.create(revision(repository, package, "ws", clone_of("blue.app.v1")))
    return await world.update(draft, lifecycle="Proposed")


@pytest.fixture
async def train(fleet: StoreWorld) -> StoreWorld:
    """Three proposals."""
    for package in ("api", "db", "web"):
        await propose(fleet, package)
    return fleet


async def approve(world: StoreWorld, name: str, *names: str) -> Object:
    """Approve a proposal. names: of those that are approved together"""
    obj = world.present(name)
    annotations = {**obj["metadata"].get("annotations", {}), APPROVE_TOGETHER: ",".join(names)}
    asked = {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
    return await world.update(asked, lifecycle="Published", subresource="approval")


async def refused(world: StoreWorld, name: str, *names: str) -> StatusError:
    with pytest.raises(StatusError) as refusal:
        await approve(world, name, *names)
    return refusal.value


def lifecycles(world: StoreWorld) -> set[str]:
    return {world.present(name)["spec"]["lifecycle"] for name in NAMES}


async def test_members_wait_for_the_last_one_and_are_published_by_one_push(
    train: StoreWorld, edge: Path
) -> None:
    hook, pushes = edge / "hooks" / "post-receive", edge / "pushes"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho push >>{pushes}\n")
    hook.chmod(0o755)
    first = [asyncio.create_task(approve(train, name, *NAMES)) for name in NAMES[:2]]
    await asyncio.sleep(0.1)
    assert set(PROPOSALS) <= set(refs(edge))
    assert not any(task.done() for task in first)
    await approve(train, NAMES[2], *NAMES)
    for task in first:
        obj = await task
        assert obj["spec"]["lifecycle"] == "Published"
        assert APPROVE_TOGETHER not in obj["metadata"].get("annotations", {})
    assert pushes.read_text().split() == ["push"]
    assert [name for name in refs(edge) if "tags" in name] == [
        f"refs/tags/{package}/v1" for package in ("api", "db", "web")
    ]
    git(edge, "fsck", "--strict")


async def test_a_member_whose_mates_do_not_come_gives_up_and_may_come_again(
    train: StoreWorld, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "WAIT_SECONDS", 0.05)
    error = await refused(train, NAMES[0], *NAMES[:2])
    assert (error.code, "edge.db.ws, not yet asked for" in str(error)) == (409, True)
    assert refs(edge) == PROPOSALS
    monkeypatch.undo()
    await asyncio.gather(*(approve(train, name, *NAMES[:2]) for name in NAMES[:2]))
    assert {"refs/tags/api/v1", "refs/tags/db/v1"} <= set(refs(edge))


async def test_a_member_that_a_check_refuses_leaves_none_published(train: StoreWorld, edge: Path) -> None:
    gate: dict[str, Any] = {"readinessGates": [{"conditionType": "ip"}]}
    draft = await train.create(revision("edge", "gated", "ws", clone_of("blue.app.v1")))
    gated = await train.update(draft, **gate)
    proposed = {
        **gated,
        "metadata": {**gated["metadata"], "annotations": {"pvbus.dev/override-gates": "a test"}},
    }
    await train.update(proposed, lifecycle="Proposed")
    names = ("edge.gated.ws", *NAMES[:2])
    before = refs(edge)
    waiting = [asyncio.create_task(refused(train, name, *names)) for name in NAMES[:2]]
    await asyncio.sleep(0.1)
    error = await refused(train, "edge.gated.ws", *names)
    assert error.code != 409
    for task in waiting:
        refusal = await task
        assert refusal.code == 409
        assert "edge.gated.ws, which is approved together with it, is refused" in str(refusal)
    assert refs(edge) == before


async def test_a_member_that_the_remote_refuses_leaves_none_published_and_others_go(
    train: StoreWorld, edge: Path
) -> None:
    await propose(train, "bystander")
    refuse(edge, "tags/db")
    outcomes = await asyncio.gather(
        *(refused(train, name, *NAMES) for name in NAMES),
        approve(train, "edge.bystander.ws"),
    )
    assert ["hook declined" in str(error) for error in outcomes[:3]] == [True] * 3
    assert [name for name in refs(edge) if "tags" in name] == ["refs/tags/bystander/v1"]
    assert lifecycles(train) == {"Proposed"}
    (edge / "hooks" / "pre-receive").unlink()
    await asyncio.gather(*(approve(train, name, *NAMES) for name in NAMES))
    assert lifecycles(train) == {"Published"}


async def test_a_member_that_somebody_pushes_to_meanwhile_leaves_none_published(
    train: StoreWorld, edge: Path
) -> None:
    """The push of all fails, and what is built anew on the moved refs has one member that conflicts."""
    waiting = [asyncio.create_task(refused(train, name, *NAMES)) for name in NAMES[:2]]
    await asyncio.sleep(0.1)
    git(edge, "update-ref", "refs/heads/proposed/db/ws", git(edge, "rev-parse", "proposed/web/ws"))
    errors = [await refused(train, NAMES[2], *NAMES), *[await task for task in waiting]]
    assert {error.code for error in errors} == {409}
    assert not [name for name in refs(edge) if "tags" in name]


async def test_a_member_of_another_repository_is_refused_in_words(train: StoreWorld, tmp_path: Path) -> None:
    await train.add_repository("far", bare(tmp_path / "far.git"), deployment=True)
    await propose(train, "app", "far")
    error = await refused(train, NAMES[0], NAMES[0], "far.app.ws")
    assert error.code == 422
    assert "far.app.ws is in repository far, not in edge" in str(error)
    assert lifecycles(train) == {"Proposed"}


@pytest.mark.parametrize(
    ("mate", "words"),
    [("edge.draft.ws", "which is not proposed"), ("edge.none.ws", "which is not there")],
)
async def test_a_member_that_cannot_be_approved_holds_the_others(
    train: StoreWorld, mate: str, words: str
) -> None:
    await train.create(revision("edge", "draft", "ws", clone_of("blue.app.v1")))
    error = await refused(train, NAMES[0], NAMES[0], mate)
    assert (error.code, words in str(error)) == (409, True)


async def test_a_member_that_is_published_already_is_not_waited_for(train: StoreWorld, edge: Path) -> None:
    await approve(train, NAMES[0])
    await asyncio.gather(*(approve(train, name, *NAMES) for name in NAMES[1:]))
    assert lifecycles(train) == {"Published"}


async def test_a_client_that_goes_away_counts_no_more(train: StoreWorld, edge: Path) -> None:
    gone = asyncio.create_task(approve(train, NAMES[0], *NAMES[:2]))
    await asyncio.sleep(0.1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    mate = asyncio.create_task(approve(train, NAMES[1], *NAMES[:2]))
    await asyncio.sleep(0.1)
    assert refs(edge) == PROPOSALS
    await approve(train, NAMES[0], *NAMES[:2])
    await mate
    assert {"refs/tags/api/v1", "refs/tags/db/v1"} <= set(refs(edge))


async def test_of_many_approvals_in_one_push_those_that_are_refused_are_told_and_the_others_go(
    train: StoreWorld, edge: Path
) -> None:
    """One is refused by the store's own check of the ref, one by the remote."""
    refuse(edge, "tags/db")
    theirs = git(edge, "rev-parse", "proposed/web/ws")
    for number in range(4):
        await propose(train, f"more-{number}")
    git(edge, "update-ref", "refs/heads/proposed/more-3/ws", theirs)
    others = [f"edge.more-{number}.ws" for number in range(3)]
    outcomes = await asyncio.gather(
        *(approve(train, name) for name in (NAMES[0], NAMES[1], "edge.more-3.ws", *others)),
        return_exceptions=True,
    )
    errors = {number: outcome for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)}
    assert set(errors) == {1, 2}
    assert "tags/db/v1 is frozen" in str(errors[1])
    assert "modified" in str(errors[2])
    tags = [name for name in refs(edge) if "tags" in name]
    assert tags == [f"refs/tags/{package}/v1" for package in ("api", "more-0", "more-1", "more-2")]
