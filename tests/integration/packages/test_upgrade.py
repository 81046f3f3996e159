"""The upgrade task: a new upstream revision merged into a published package, and inject that asks for it."""

import json
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.layout import parse_annotations
from pvbus.core.merge.conflicts import CONFLICTS
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Object
from tests.integration.apiserver.client import eventually
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    NAMESPACE,
    World,
    clone_of,
    git,
    push_files,
    refs,
    revision,
    tree,
)
from tests.integration.packages.test_inject_return import (
    ASKED,
    FIRST,
    NO_ERRORS,
    VARIANTS,
    approve,
    injecting,
)
from tests.integration.packages.test_server import RESOURCES, REVISIONS

NEXT = CONFIG.replace("size: small", "size: large\n  colour: red")
SECOND = "edge.web.packagevariant-2"


def upgrade_of(local: str, old: str = "blue.app.v1", new: str = "blue.app.v2", **more: str) -> Object:
    names = {"oldUpstreamRef": old, "newUpstreamRef": new, "localPackageRevisionRef": local}
    return {"type": "upgrade", "upgrade": {field: {"name": name} for field, name in names.items()} | more}


def publish_second(blueprints: Path, settings: str = NEXT) -> str:
    """Publish revision 2 of the blueprint by hand."""
    files = {"app/Kptfile": KPTFILE.format(name="app"), "app/settings.yaml": settings, "app/new.txt": "new\n"}
    return push_files(blueprints, files, tag="app/v2")


@pytest.fixture
async def published(fleet: World, blueprints: Path) -> World:
    """A clone of the first revision, published with a local edit, and a second revision upstream."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    files = await fleet.files("edge.app-1.ws")
    settings = files["spec"]["resources"]["settings.yaml"].replace("data:\n", "data:\n  mine: '1'  # ours\n")
    await fleet.put(files, {"settings.yaml": settings, "own.txt": "own\n"})
    draft = fleet.present("edge.app-1.ws")
    await fleet.publish(draft)
    publish_second(blueprints)
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    return fleet


async def test_an_upgrade_has_upstreams_change_and_the_local_one(
    published: World, blueprints: Path, edge: Path
) -> None:
    draft = await published.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))

    assert draft["spec"]["lifecycle"] == "Draft"
    assert draft["spec"]["tasks"] == [upgrade_of("edge.app-1.ws")]
    assert CONFLICTS not in draft["metadata"].get("annotations", {})
    files = tree(edge, "drafts/app-1/next", "app-1")
    settings = editor.values(files["settings.yaml"])[0]
    assert settings["data"] == {"mine": "1", "size": "large", "colour": "red"}
    assert settings["metadata"]["labels"] == {"app": "example"}  # rendered
    assert "mine: '1'  # ours" in files["settings.yaml"]
    assert "# kept" in files["settings.yaml"]
    assert "# kpt-merge: example/settings" in files["settings.yaml"]
    assert (files["own.txt"], files["new.txt"]) == ("own\n", "new\n")
    assert "name: app-1" in files["Kptfile"]
    assert "name: app-1" in files["package-context.yaml"]
    assert draft["status"]["upstreamLock"]["git"] == {
        "repo": str(blueprints),
        "directory": "app",
        "ref": "app/v2",
        "commit": git(blueprints, "rev-parse", "app/v2"),
    }
    conditions = {item["type"]: item["status"] for item in draft["status"]["conditions"]}
    assert conditions == {"Rendered": "True"}


async def test_the_commit_of_an_upgrade_is_as_porchs(published: World, edge: Path) -> None:
    await published.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    message = git(edge, "log", "-1", "--format=%B", "drafts/app-1/next")
    assert message.startswith("Upgrading revision\n\n")
    assert "Upgrade of edge.app-1.ws from blue.app.v1 to blue.app.v2 (revision 2, commit " in message
    (note,) = parse_annotations(message)
    assert (note.package, note.workspace_name, note.revision) == ("app-1", "next", "0")
    assert note.task == upgrade_of("edge.app-1.ws")
    assert git(edge, "rev-parse", "drafts/app-1/next~1") == git(edge, "rev-parse", "main")


async def test_a_conflict_takes_upstreams_value_and_is_reported_on_the_revision(
    published: World, blueprints: Path
) -> None:
    copy = await published.create(
        revision(
            "edge", "app-1", "edited", {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}}
        )
    )
    files = await published.files("edge.app-1.edited")
    text = files["spec"]["resources"]["settings.yaml"].replace("size: small", "size: tiny")
    await published.put(files, {"settings.yaml": text})
    copy = published.present("edge.app-1.edited")
    await published.publish(copy)
    draft = await published.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.edited")))

    settings = (await published.files("edge.app-1.next"))["spec"]["resources"]["settings.yaml"]
    assert editor.values(settings)[0]["data"]["size"] == "large"
    expected = {
        "file": "settings.yaml",
        "object": "ConfigMap example/settings",
        "field": "data.size",
        "old": "small",
        "local": "tiny",
        "new": "large",
    }
    assert json.loads(draft["metadata"]["annotations"][CONFLICTS]) == [expected]
    await published.restart()
    await published.until(lambda: published.revision("edge.app-1.next"))
    stored = published.present("edge.app-1.next")
    assert json.loads(stored["metadata"]["annotations"][CONFLICTS]) == [expected]


@pytest.mark.parametrize(
    ("strategy", "data", "own"),
    [
        ("resource-merge", {"mine": "1", "size": "large", "colour": "red"}, True),
        ("copy-merge", {"size": "large", "colour": "red"}, True),
        ("force-delete-replace", {"size": "large", "colour": "red"}, False),
    ],
)
async def test_each_strategy_has_its_own_result(
    published: World, strategy: str, data: dict[str, str], own: bool
) -> None:
    task = upgrade_of("edge.app-1.ws", strategy=strategy)
    await published.create(revision("edge", "app-1", "next", task))
    files = (await published.files("edge.app-1.next"))["spec"]["resources"]
    assert editor.values(files["settings.yaml"])[0]["data"] == data
    assert ("own.txt" in files) is own
    kptfile = editor.values(files["Kptfile"])[0]
    assert kptfile["metadata"]["name"] == "app-1"
    assert kptfile["upstreamLock"]["git"]["ref"] == "app/v2"
    assert "name: app-1" in files["package-context.yaml"]


async def test_fast_forward_refuses_a_package_that_was_changed(published: World) -> None:
    task = upgrade_of("edge.app-1.ws", strategy="fast-forward")
    with pytest.raises(
        StatusError, match=r"files have been modified: Kptfile, own.txt, settings.yaml;"
    ) as refused:
        await published.create(revision("edge", "app-1", "next", task))
    assert refused.value.code == 500


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"type": "upgrade", "upgrade": {}}, 'old upstream package revision "fleet/" not found'),
        (upgrade_of("edge.app-1.ws", old="blue.app.v9"), 'old upstream .* "fleet/blue.app.v9" not found'),
        (upgrade_of("edge.app-1.ws", new="blue.app.v9"), 'target upstream .* "fleet/blue.app.v9" not found'),
        (upgrade_of("edge.app-1.zz"), 'local package revision "fleet/edge.app-1.zz" not found'),
        (upgrade_of("edge.app-1.draft"), 'upgrade task must be published, "edge.app-1.draft" is not'),
        (
            upgrade_of("edge.app-1.ws", new="blue.app.main"),
            "target upstream revision may not be the placeholder package revision blue/blue.app.main",
        ),
        (
            upgrade_of("edge.app-1.main"),
            "local revision may not be the placeholder package revision edge/edge.app-1.main",
        ),
        (upgrade_of("blue.app.v1"), "must be from same package edge/app-1"),
        (upgrade_of("edge.app-1.ws", strategy="ours"), "strategy 'ours' is none of resource-merge"),
    ],
)
async def test_a_wrong_upgrade_is_refused_and_leaves_nothing(
    published: World, edge: Path, task: Object, words: str
) -> None:
    await published.create(
        revision("edge", "app-1", "draft", {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}})
    )
    before = refs(edge)
    with pytest.raises(StatusError, match=words) as refused:
        await published.create(revision("edge", "app-1", "next", task))
    assert refused.value.code == 500
    assert refs(edge) == before


async def test_files_that_are_no_text_keep_their_bytes(fleet: World, blueprints: Path, edge: Path) -> None:
    """Bytes that are no UTF-8 are merged as they are, not as they are shown."""
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))))
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    (clone / "app" / "logo.png").write_bytes(b"\x89PNG\xff\x00\xfe")
    publish_second(blueprints)
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    await fleet.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    ours, theirs = (
        git(remote, "rev-parse", f"{commit}/logo.png")
        for remote, commit in ((edge, "drafts/app-1/next:app-1"), (blueprints, "app/v2:app"))
    )
    assert ours == theirs


async def test_a_package_that_followed_the_branch_is_upgraded_from_the_commit_it_has(
    fleet: World, blueprints: Path
) -> None:
    """The placeholder has gone on since; the lock names what was cloned."""
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.main"))))
    publish_second(blueprints)
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    await fleet.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws", old="blue.app.main")))
    files = (await fleet.files("edge.app-1.next"))["spec"]["resources"]
    assert editor.values(files["settings.yaml"])[0]["data"] == {"size": "large", "colour": "red"}


async def test_the_upstream_of_an_upgrade_cannot_be_deleted(published: World) -> None:
    await published.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    second = published.present("blue.app.v2")
    await published.update(second, lifecycle="DeletionProposed")
    with pytest.raises(StatusError, match=r"referenced as upstream by: edge.app-1.next"):
        await published.delete("blue.app.v2")


async def test_a_variant_whose_upstream_rises_gets_one_upgrade_draft_with_the_local_edit(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    """The draft has both changes, a conflict is on the revision, and a second pass writes nothing."""
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        upstream = {"repo": "blue", "package": "app", "revision": 1}
        asked = {**ASKED, "spec": {**ASKED["spec"], "upstream": upstream}}
        await api.create(VARIANTS, asked)
        await world.converge()
        files = await api.get(f"{RESOURCES}/{FIRST}")
        texts = files["spec"]["resources"]
        texts["settings.yaml"] = texts["settings.yaml"].replace("size: small", "size: tiny\n  mine: '1'")
        assert (await api.call("PUT", f"{RESOURCES}/{FIRST}", files)).code == 200
        await approve(api, FIRST)
        publish_second(blueprints)

        async def found() -> bool:
            return await api.code(f"{REVISIONS}/blue.app.v2") == 200

        await eventually(found)

        await api.patch(f"{VARIANTS}/v", {"spec": {"upstream": {**upstream, "revision": 2}}})
        await world.converge()
        assert world.condition() == NO_ERRORS
        drafts = [name for name in refs(edge) if "/drafts/" in name]
        assert drafts == ["refs/heads/drafts/web/packagevariant-2"]
        draft = await api.get(f"{REVISIONS}/{SECOND}")
        assert draft["spec"]["tasks"] == [upgrade_of(FIRST, strategy="resource-merge")]
        after = tree(edge, "drafts/web/packagevariant-2", "web")
        data = editor.values(after["settings.yaml"])[0]["data"]
        assert data == {"size": "large", "mine": "1", "colour": "red"}
        (conflict,) = json.loads(draft["metadata"]["annotations"][CONFLICTS])
        assert (conflict["file"], conflict["field"]) == ("settings.yaml", "data.size")
        assert (conflict["old"], conflict["local"], conflict["new"]) == ("small", "tiny", "large")

        before = git(edge, "for-each-ref")
        world.dirty[f"{NAMESPACE}/v"] = None
        await world.converge()
        assert git(edge, "for-each-ref") == before
        assert world.condition() == NO_ERRORS
