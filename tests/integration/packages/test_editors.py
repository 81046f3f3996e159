"""Whose edits a draft has, as git says, and what may not delete them."""

from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.garbage import USER as GARBAGE_COLLECTOR
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages.layout import CAUSE, FUNCTIONS_CHANGED
from pvbus.core.kernel.keys import DELETE_EDITS, EDITED_BY
from tests.integration.packages.support import (
    NAMESPACE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    refs,
    revision,
)

WORKSPACE = "packagevariant-1"
DRAFT = f"edge.web.{WORKSPACE}"
BRANCH = f"drafts/web/{WORKSPACE}"
INJECT = f"PackageVariant {NAMESPACE}/v: first render"


OWNER = {"kind": "PackageVariant", "name": "v", "uid": "u", "controller": True}


async def create_draft(fleet: StoreWorld) -> None:
    clone = clone_of("blue.app.v1")
    await fleet.create(revision("edge", "web", WORKSPACE, clone, ownerReferences=[OWNER]))


async def save(fleet: StoreWorld, text: str, user: str, cause: str = "") -> None:
    files = await fleet.files(DRAFT)
    files["metadata"]["annotations"] = {CAUSE: cause} if cause else {}
    await fleet.put(files, {"a.txt": text}, user=user)


def editors(fleet: StoreWorld, name: str = DRAFT) -> str | None:
    return (fleet.present(name)["metadata"].get("annotations") or {}).get(EDITED_BY)


async def test_people_are_named_until_the_draft_is_published_and_programs_never(
    fleet: StoreWorld, edge: Path
) -> None:
    await create_draft(fleet)
    await save(fleet, "1", "pvbus-admin", cause=INJECT)
    await save(fleet, "2", "system:serviceaccount:ci:bot")
    await save(fleet, "3", "", cause=FUNCTIONS_CHANGED)
    assert editors(fleet) is None
    assert "Edit by system:serviceaccount:ci:bot" in git(edge, "log", "--format=%b", BRANCH)
    await save(fleet, "4", "ann")
    await save(fleet, "5", "pvbus-admin", cause=INJECT)
    await save(fleet, "6", "system:admin", cause="my own words")
    assert editors(fleet) == "system:admin, ann"
    present = fleet.present(DRAFT)
    await fleet.update({**present, "metadata": {**present["metadata"], "annotations": {}}})
    assert editors(fleet) == "system:admin, ann", "only git decides"
    await fleet.restart()
    await fleet.until(lambda: fleet.revision(DRAFT))
    assert editors(fleet) == "system:admin, ann"
    published = await fleet.publish(fleet.present(DRAFT))
    assert EDITED_BY not in (published["metadata"].get("annotations") or {})


@pytest.mark.parametrize("branch", [BRANCH, "drafts/new/ws"], ids=["onto a draft", "as a new draft"])
async def test_who_pushes_with_git_is_a_person(fleet: StoreWorld, edge: Path, branch: str) -> None:
    """The words of a commit message that git wrote decide nothing: anybody may write them."""
    await create_draft(fleet)
    directory = branch.split("/")[1]
    kptfile = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: new}\n"
    files = {f"{directory}/b.txt": "b", f"{directory}/Kptfile": kptfile}
    push_files(edge, files, branch=branch, message=f"Mine\n\nCause: {INJECT}")
    name = branch.replace("drafts", "edge").replace("/", ".")
    await fleet.until(lambda: fleet.revision(name) and editors(fleet, name) == "person@example.com")


async def test_a_draft_that_a_person_made_is_the_persons(fleet: StoreWorld) -> None:
    await fleet.create(revision("edge", "web", "mine", clone_of("blue.app.v1")), user="ann")
    assert editors(fleet, "edge.web.mine") == "ann"


async def test_the_garbage_collector_may_not_take_what_people_wrote(fleet: StoreWorld) -> None:
    await create_draft(fleet)
    await save(fleet, "1", "ann")

    async def delete(user: str) -> None:
        hooks, present = fleet.store.package_revisions, fleet.present(DRAFT)
        await fleet.objects.delete(PACKAGE_REVISION, hooks, present, user=user)

    with pytest.raises(StatusError, match="it has edits of ann, which go with no owner") as refused:
        await delete(GARBAGE_COLLECTOR)
    assert refused.value.code == 409
    present = fleet.present(DRAFT)
    await fleet.update(
        {**present, "metadata": {**present["metadata"], "annotations": {DELETE_EDITS: "true"}}}
    )
    await delete(GARBAGE_COLLECTOR)
    assert fleet.revision(DRAFT) is None


async def test_what_was_pushed_a_moment_ago_is_not_deleted_unseen(fleet: StoreWorld, edge: Path) -> None:
    """Whoever decided to delete the draft has not seen the push: only the second request may do it."""
    await create_draft(fleet)
    push_files(edge, {"web/b.txt": "b"}, branch=BRANCH)
    with pytest.raises(StatusError) as refused:
        await fleet.delete(DRAFT)
    assert refused.value.code == 409
    assert f"refs/heads/{BRANCH}" in refs(edge)
    await fleet.until(lambda: editors(fleet))
    await fleet.delete(DRAFT)
    assert f"refs/heads/{BRANCH}" not in refs(edge)
