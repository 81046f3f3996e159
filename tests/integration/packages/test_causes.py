"""What git and the Repository's status say to people: who a draft was made for, and that a sync was done."""

from pathlib import Path

from tests.integration.packages.support import (
    StoreWorld,
    clone_of,
    git,
    revision,
)

OWNER = {
    "apiVersion": "config.porch.kpt.dev/v1alpha1",
    "kind": "PackageVariant",
    "name": "web-edge",
    "uid": "u",
    "controller": True,
}


def message(remote: Path, ref: str) -> list[str]:
    return git(remote, "log", "-1", "--format=%B", ref).splitlines()


async def test_commits_of_drafts_name_variant_and_cause_and_still_read_as_porchs(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await fleet.create(
        revision("edge", "app-1", "ws", clone_of("blue.app.v1"), ownerReferences=[OWNER])
    )
    lines = message(edge, "drafts/app-1/ws")
    assert lines[0] == "Creating new revision by cloning"
    commit = fleet.present("blue.app.v1")["status"]["selfLock"]["git"]["commit"]
    assert f"Clone of blue.app.v1 (revision 1, commit {commit[:12]})" in lines
    assert "For PackageVariant fleet/web-edge" in lines
    await fleet.put(await fleet.files("edge.app-1.ws"), {"b.txt": "b", "a.txt": "a"})
    lines = message(edge, "drafts/app-1/ws")
    assert lines[0] == "Render a.txt and 1 more file"
    assert "Change of a.txt, b.txt" in lines
    assert "For PackageVariant fleet/web-edge" in lines
    await fleet.publish(fleet.present("edge.app-1.ws"))
    await fleet.create(
        revision("edge", "app-1", "ws2", {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}})
    )
    assert message(edge, "drafts/app-1/ws2")[2].startswith("Edit of edge.app-1.ws (revision 1, commit ")
    await fleet.create(revision("edge", "new", "ws", {"type": "init", "init": {}}))
    assert message(edge, "drafts/new/ws")[2] == "New package"
    await fleet.restart()
    await fleet.until(lambda: fleet.revision("edge.app-1.ws2"))
    assert fleet.present("edge.app-1.ws")["spec"]["tasks"] == draft["spec"]["tasks"]
    assert fleet.present("edge.app-1.ws2")["spec"]["tasks"][0]["type"] == "edit"


async def test_a_package_cloned_from_a_branch_has_a_lock_that_discovery_can_read(fleet: StoreWorld) -> None:
    """porchctl takes what is behind the last slash of the ref, and fails for all where there is none."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.main")))
    assert draft["status"]["upstreamLock"]["git"]["ref"] == "refs/heads/main"
    text = (await fleet.files("edge.app-1.ws"))["spec"]["resources"]["Kptfile"]
    assert "ref: main\n" in text
    released = await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1")))
    assert released["status"]["upstreamLock"]["git"]["ref"] == "app/v1"
