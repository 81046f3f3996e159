"""The upgrade task: a new upstream revision merged into a published package, and inject that asks for it."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.layout import parse_annotations
from pvbus.controlplane.packages.resources import ResourcesKind
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.effects import Create, Update
from pvbus.core.kernel.records import RESULTS
from pvbus.core.variants.following import FOLLOW
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Object
from pvbus.runtime.reconcile.effects import perform
from tests.integration.apiserver.client import Api, eventually
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    NAMESPACE,
    StoreWorld,
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
    ServedWorld,
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
async def published(fleet: StoreWorld, blueprints: Path) -> StoreWorld:
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
    published: StoreWorld, blueprints: Path, edge: Path
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


SETTERS_KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: app
pipeline:
  mutators:
  - image: set-namespace:v0.4.1
    configMap: {namespace: here}
  - image: apply-setters:v0.2.0
    configMap: {region: north, size: "3"}
"""


def settings(name: str, **data: str) -> str:
    lines = "".join(f"  {field}: {value}\n" for field, value in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: example\ndata:\n{lines}"


async def test_what_only_the_pipeline_has_made_is_no_conflict(fleet: StoreWorld, blueprints: Path) -> None:
    """Upstream removes fields, and objects; of each, one that only the pipeline has changed, and one that a
    person has changed, too."""
    setter = "nowhere # kpt-set: ${region}"
    before = {
        "Kptfile": SETTERS_KPTFILE,
        "values.yaml": settings("values", region=setter, size="1 # kpt-set: ${size}", mine="a", rest="b"),
        "gone.yaml": settings("gone", region=setter),
        "edited.yaml": settings("edited", region=setter, mine="a"),
    }
    push_files(blueprints, {f"app/{path}": text for path, text in before.items()}, tag="app/v5")
    await fleet.until(lambda: fleet.revision("blue.app.v5"))
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v5")))
    files = await fleet.files("edge.app-1.ws")
    texts = files["spec"]["resources"]
    assert "region: north" in texts["values.yaml"]
    changed = {
        path: texts[path].replace("mine: a", "mine: edited") for path in ("values.yaml", "edited.yaml")
    }
    await fleet.put(files, changed)
    await fleet.publish(fleet.present("edge.app-1.ws"))

    after = {"app/Kptfile": SETTERS_KPTFILE, "app/values.yaml": settings("values", rest="b")}
    for path in ("gone.yaml", "edited.yaml"):
        (blueprints.parent / f"clone-of-{blueprints.name}" / "app" / path).unlink()
    push_files(blueprints, after, tag="app/v6")
    await fleet.until(lambda: fleet.revision("blue.app.v6"))
    draft = await fleet.create(
        revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws", old="blue.app.v5", new="blue.app.v6"))
    )

    merged = (await fleet.files("edge.app-1.next"))["spec"]["resources"]
    found = json.loads(draft["metadata"]["annotations"][CONFLICTS])
    assert {(one["file"], one.get("field", "")) for one in found} == {
        ("values.yaml", "data.mine"),
        ("edited.yaml", ""),
    }
    assert editor.values(merged["values.yaml"])[0]["data"] == {"rest": "b"}
    assert "gone.yaml" not in merged
    assert "mine: edited" in merged["edited.yaml"]


async def test_the_commit_of_an_upgrade_is_as_porchs(published: StoreWorld, edge: Path) -> None:
    await published.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    message = git(edge, "log", "-1", "--format=%B", "drafts/app-1/next")
    assert message.startswith("Upgrading revision\n\n")
    assert "Upgrade of edge.app-1.ws from blue.app.v1 to blue.app.v2 (revision 2, commit " in message
    (note,) = parse_annotations(message)
    assert (note.package, note.workspace_name, note.revision) == ("app-1", "next", "0")
    assert note.task == upgrade_of("edge.app-1.ws")
    assert git(edge, "rev-parse", "drafts/app-1/next~1") == git(edge, "rev-parse", "main")


async def test_a_conflict_takes_upstreams_value_and_is_reported_on_the_revision(
    published: StoreWorld, blueprints: Path
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
    published: StoreWorld, strategy: str, data: dict[str, str], own: bool
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


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("fast-forward", "files have been modified: Kptfile, own.txt, settings.yaml;"),
        ("ours", "strategy 'ours' is none of resource-merge"),
    ],
)
async def test_a_strategy_that_cannot_merge_a_package_refuses_it(
    published: StoreWorld, strategy: str, words: str
) -> None:
    task = upgrade_of("edge.app-1.ws", strategy=strategy)
    with pytest.raises(StatusError, match=words) as refused:
        await published.create(revision("edge", "app-1", "next", task))
    assert refused.value.code == 422


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
    ],
)
async def test_a_wrong_upgrade_is_refused_and_leaves_nothing(
    published: StoreWorld, edge: Path, task: Object, words: str
) -> None:
    await published.create(
        revision("edge", "app-1", "draft", {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}})
    )
    before = refs(edge)
    with pytest.raises(StatusError, match=words) as refused:
        await published.create(revision("edge", "app-1", "next", task))
    assert refused.value.code == 500
    assert refs(edge) == before


async def test_files_that_are_no_text_keep_their_bytes(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
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
    fleet: StoreWorld, blueprints: Path
) -> None:
    """The placeholder has gone on since; the lock names what was cloned."""
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.main"))))
    publish_second(blueprints)
    await fleet.until(lambda: fleet.revision("blue.app.v2"))
    await fleet.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws", old="blue.app.main")))
    files = (await fleet.files("edge.app-1.next"))["spec"]["resources"]
    assert editor.values(files["settings.yaml"])[0]["data"] == {"size": "large", "colour": "red"}


async def test_the_upstream_of_an_upgrade_cannot_be_deleted(published: StoreWorld) -> None:
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


class Life:
    """One variant `v` of blueprint `app` in package `web`, on the real store."""

    def __init__(self, api: Api, world: ServedWorld, edge: Path) -> None:
        self.api, self.world, self.edge = api, world, edge

    async def start(self, *, follow: str = "", **upstream: Any) -> None:
        wanted = {"repo": "blue", "package": "app", "revision": 1} | upstream
        metadata = {**ASKED["metadata"], "annotations": {FOLLOW: follow} if follow else {}}
        asked = {**ASKED, "metadata": metadata, "spec": {**ASKED["spec"], "upstream": wanted}}
        await self.api.create(VARIANTS, asked)
        await self.world.converge()

    async def draft_upstream(self) -> None:
        copy = {"type": "edit", "edit": {"sourceRef": {"name": "blue.app.v1"}}}
        await self.api.create(REVISIONS, revision("blue", "app", "trial", copy))

    async def follow(self, **upstream: Any) -> None:
        name = f"blue.{upstream.get('package', 'app')}.v{upstream['revision']}"
        await eventually(lambda: self.has(name))
        await self.api.patch(f"{VARIANTS}/v", {"spec": {"upstream": upstream}})
        await self.world.converge()

    async def has(self, name: str) -> bool:
        return await self.api.code(f"{REVISIONS}/{name}") == 200

    async def edit(self, old: str, new: str, name: str = FIRST, file: str = "settings.yaml") -> None:
        files = await self.api.get(f"{RESOURCES}/{name}")
        texts = files["spec"]["resources"]
        assert old in texts[file]
        texts[file] = texts[file].replace(old, new)
        assert (await self.api.call("PUT", f"{RESOURCES}/{name}", files)).code == 200
        await self.world.converge()

    async def move(self, lifecycle: str, name: str = FIRST) -> None:
        await self.api.patch(f"{REVISIONS}/{name}", {"spec": {"lifecycle": lifecycle}})
        await self.world.converge()

    async def conflicts(self, name: str = FIRST) -> list[Object]:
        found = await self.api.get(f"{REVISIONS}/{name}")
        reported: list[Object] = json.loads(found["metadata"].get("annotations", {}).get(CONFLICTS, "[]"))
        return reported

    async def lock(self, name: str = FIRST) -> str:
        found = await self.api.get(f"{REVISIONS}/{name}")
        return str(found["status"]["upstreamLock"]["git"]["ref"])

    def data(self, workspace: str = "packagevariant-1") -> Object:
        files = tree(self.edge, f"drafts/web/{workspace}", "web")
        data: Object = editor.values(files["settings.yaml"])[0]["data"]
        return data

    def drafts(self) -> list[str]:
        return [name.removeprefix("refs/heads/drafts/web/") for name in refs(self.edge) if "/drafts/" in name]

    def condition(self, kind: str = "Ready") -> tuple[str, str, str]:
        conditions = self.world.last_result().conditions
        return next(((c.status, c.reason, c.message) for c in conditions if c.type == kind), ("", "", ""))

    async def writes_nothing(self) -> None:
        """A restart, and one more attempt, leave git as it is."""
        before = git(self.edge, "for-each-ref")
        self.world.restart()
        self.world.controller.load(RESULTS, 0, f"{NAMESPACE}/v", None)
        await self.world.converge()
        assert git(self.edge, "for-each-ref") == before


@pytest.fixture
async def life(tmp_path: Path, blueprints: Path, edge: Path) -> AsyncIterator[Life]:
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        yield Life(api, world, edge)


async def test_a_changed_upstream_is_merged_into_the_open_draft(life: Life, blueprints: Path) -> None:
    """Local edits stay, upstream's value is taken where both changed, and a person resolves that."""
    await life.start()
    await life.edit("size: small", "size: tiny\n  mine: '1'  # ours")
    publish_second(blueprints)
    await life.follow(revision=2)
    assert life.condition() == NO_ERRORS
    assert life.drafts() == ["packagevariant-1"]
    assert life.data() == {"size": "large", "mine": "1", "colour": "red"}
    assert "mine: '1'  # ours" in tree(life.edge, "drafts/web/packagevariant-1", "web")["settings.yaml"]
    assert "new.txt" in tree(life.edge, "drafts/web/packagevariant-1", "web")
    assert await life.lock() == "app/v2"
    log = git(life.edge, "log", "-1", "--format=%b", "drafts/web/packagevariant-1")
    assert f"Cause: PackageVariant {NAMESPACE}/v: upgrade to blue.app.v2" in log
    (conflict,) = await life.conflicts()
    assert (conflict["field"], conflict["local"], conflict["new"]) == ("data.size", "tiny", "large")
    status, reason, message = life.condition("UpgradeConflict")
    assert (status, reason) == ("True", "BothChanged")
    assert f"the upgrade of {FIRST} left one conflict" in message
    assert "settings.yaml ConfigMap example/settings data.size" in message
    assert f"`pvbus diff {NAMESPACE}/v`" in message
    await life.writes_nothing()

    await life.edit("size: large", "size: huge")
    assert await life.conflicts() == []
    assert life.condition("UpgradeConflict")[:2] == ("False", "NoConflict")
    await life.writes_nothing()


@pytest.mark.parametrize("change", ["upgrade", "edit"])
async def test_a_new_draft_cannot_be_proposed_before_inject_has_saved_it(
    life: Life, blueprints: Path, change: str
) -> None:
    """Inject dies right after it has created the draft: until another one saves it, nobody can propose it."""
    await life.start()
    await approve(life.api, FIRST)
    publish_second(blueprints)
    await eventually(lambda: life.has("blue.app.v2"))
    asked: Object = {"upstream": {"repo": "blue", "package": "app", "revision": 2}}
    if change == "edit":
        asked = {"packageContext": {"data": {"region": "north"}}}
    await life.api.patch(f"{VARIANTS}/v", {"spec": asked})
    await life.world.observed()
    steps = life.world.controller.reconcile(0, f"{NAMESPACE}/v", 0.0)
    effect = next(steps)
    while not isinstance(effect, Create):
        effect = steps.send(await perform(life.world.cluster, effect))
    await perform(life.world.cluster, effect)
    steps.close()
    draft = await life.api.get(f"{REVISIONS}/{SECOND}")
    (rendered,) = (each for each in draft["status"]["conditions"] if each["type"] == "Rendered")
    assert (rendered["status"], rendered["reason"]) == ("Unknown", "Deferred")
    proposal = {**draft, "spec": {**draft["spec"], "lifecycle": "Proposed"}}
    assert (await life.api.call("PUT", f"{REVISIONS}/{SECOND}", proposal)).code == 422

    life.world.restart()
    await life.world.converge()
    draft = await life.api.get(f"{REVISIONS}/{SECOND}")
    (rendered,) = (each for each in draft["status"]["conditions"] if each["type"] == "Rendered")
    assert rendered["status"] == "True"
    assert "annotations" not in draft["metadata"]
    await life.writes_nothing()


GATED = KPTFILE + "info:\n  readinessGates:\n"


async def test_gates_and_labels_of_an_upgrade_are_merged(life: Life, blueprints: Path) -> None:
    """Upstream removes one and adds one, and a person has added one, in the package."""

    def publish(number: int, gates: list[str], labels: str) -> None:
        info = GATED + "".join(f"  - conditionType: {gate}\n" for gate in gates)
        kptfile = info.format(name="app").replace("  name: app\n", f"  name: app\n  labels:\n{labels}", 1)
        push_files(blueprints, {"app/Kptfile": kptfile}, tag=f"app/v{number}")

    publish(2, ["stays", "goes"], "    tier: low\n    old: 'yes'\n")
    await eventually(lambda: life.has("blue.app.v2"))
    await life.start(revision=2)
    await life.edit(
        "  - conditionType: goes\n", "  - conditionType: goes\n  - conditionType: mine\n", file="Kptfile"
    )
    await life.edit("    tier: low\n", "    tier: low\n    own: 'yes'\n", file="Kptfile")
    met = [{"type": gate, "status": "True"} for gate in ("stays", "goes", "mine")]
    await life.api.patch(f"{REVISIONS}/{FIRST}/status", {"status": {"conditions": met}})
    await approve(life.api, FIRST)
    publish(3, ["stays", "comes"], "    tier: high\n")
    await life.follow(repo="blue", package="app", revision=3)
    spec = (await life.api.get(f"{REVISIONS}/{SECOND}"))["spec"]
    assert {gate["conditionType"] for gate in spec["readinessGates"]} == {"stays", "comes", "mine"}
    labels = {"tier": "high", "own": "yes", "app": "example"}  # the last one is the pipeline's
    assert spec["packageMetadata"]["labels"] == labels


async def test_a_proposed_revision_is_rebased_once_it_is_rejected(life: Life, blueprints: Path) -> None:
    await life.start()
    await life.edit("size: small", "size: small\n  mine: '1'")
    publish_second(blueprints)
    await life.move("Proposed")
    before = git(life.edge, "for-each-ref")
    await life.follow(revision=2)
    assert git(life.edge, "for-each-ref") == before
    status, reason, message = life.condition()
    assert (status, reason) == ("False", "UpstreamChanged")
    assert f'the upstream is now blue.app.v2, but "{FIRST}" is Proposed: reject it' in message
    await life.move("Draft")
    assert life.condition() == NO_ERRORS
    assert life.data() == {"size": "large", "mine": "1", "colour": "red"}

    await life.follow(revision=1)  # the mind is changed: back to the former one
    assert life.condition() == NO_ERRORS
    assert life.data() == {"size": "small", "mine": "1"}
    assert await life.lock() == "app/v1"
    assert life.drafts() == ["packagevariant-1"]


async def test_another_upstream_package_is_merged_with_the_one_before_as_base(
    life: Life, blueprints: Path
) -> None:
    """Also for a published package, whose upgrade names a revision of another package."""
    files = {"other/Kptfile": KPTFILE.format(name="other"), "other/settings.yaml": NEXT}
    push_files(blueprints, files, tag="other/v1")
    await life.start()
    await life.edit("size: small", "size: small\n  mine: '1'")
    await life.follow(package="other", revision=1)
    assert life.condition() == NO_ERRORS
    assert (await life.lock(), life.data()["colour"], life.data()["mine"]) == ("other/v1", "red", "1")
    await approve(life.api, FIRST)
    await life.follow(package="app", revision=1)
    assert life.condition() == NO_ERRORS
    assert life.data("packagevariant-2") == {"size": "small", "mine": "1"}


@pytest.mark.parametrize("after", ["Draft", "Published"])
async def test_a_draft_upstream_that_moves_on_is_merged_from_the_commit_that_was_cloned(
    life: Life, blueprints: Path, after: str
) -> None:
    await life.draft_upstream()
    await life.start(revision=0, workspaceName="trial", follow="saves" if after == "Draft" else "")
    await life.edit("size: small", "size: small\n  mine: '1'")
    await life.edit("size: small", "size: big", name="blue.app.trial")
    if after == "Published":
        assert life.data()["size"] == "small"
        await approve(life.api, "blue.app.trial")
        await life.world.converge()
    assert (life.condition(), life.drafts()) == (NO_ERRORS, ["packagevariant-1"])
    assert life.data() == {"size": "big", "mine": "1"}
    assert await life.conflicts() == []
    await life.writes_nothing()


async def test_a_branch_that_moves_on_is_merged_from_the_commit_that_was_cloned(
    life: Life, blueprints: Path
) -> None:
    async def push(old: str, new: str) -> None:
        """No tag names the commit."""
        commit = push_files(blueprints, {"app/settings.yaml": CONFIG.replace(old, new)})

        async def seen() -> bool:
            lock = (await life.api.get(f"{REVISIONS}/blue.app.main"))["status"]["selfLock"]
            return bool(lock["git"]["commit"] == commit)

        await eventually(seen)

    await push("size: small", "size: small\n  plain: '1'")
    await life.start(revision=0, workspaceName="main")
    await life.edit("size: small", "size: small\n  mine: '1'")
    await push("size: small", "size: big\n  plain: '1'")
    await life.world.converge()
    assert (life.condition(), life.data()) == (NO_ERRORS, {"size": "big", "mine": "1", "plain": "1"})


@pytest.mark.parametrize("after", ["Draft", "Published"])
async def test_a_published_package_of_a_draft_upstream_is_upgraded(life: Life, after: str) -> None:
    """From the commit that was cloned, by an upgrade task, or to a draft by an edit and a merge."""
    await life.draft_upstream()
    await life.start(revision=0, workspaceName="trial", follow="saves" if after == "Draft" else "")
    await life.edit("size: small", "size: small\n  mine: '1'")
    await approve(life.api, FIRST)
    await life.edit("size: small", "size: big", name="blue.app.trial")
    if after == "Published":
        assert (life.condition(), life.drafts()) == (NO_ERRORS, [])
        await approve(life.api, "blue.app.trial")
        await life.world.converge()
    assert (life.condition(), life.drafts()) == (NO_ERRORS, ["packagevariant-2"])
    assert life.data("packagevariant-2") == {"size": "big", "mine": "1"}
    assert await life.conflicts(SECOND) == []
    ref = "drafts/app/trial" if after == "Draft" else "app/v2"
    assert await life.lock(SECOND) == ref
    await life.writes_nothing()


async def test_a_commit_that_cannot_be_read_leaves_each_difference_to_a_person(
    life: Life, blueprints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft upstream has moved on; the server gives no files of a commit, as Porch's does not."""

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(ResourcesKind, "_read_at", nothing)
    await life.draft_upstream()
    await life.start(revision=0, workspaceName="trial", follow="saves")
    assert (life.condition(), life.drafts()) == (NO_ERRORS, ["packagevariant-1"])
    await life.edit("size: small", "size: big", name="blue.app.trial")
    assert (life.condition(), life.data()) == (NO_ERRORS, {"size": "big"})
    (conflict,) = await life.conflicts()
    assert (conflict["field"], conflict["local"], conflict["new"]) == ("data.size", "small", "big")
    await life.writes_nothing()


async def test_a_persons_edit_during_the_rebase_is_not_lost(life: Life, blueprints: Path) -> None:
    """The write with the older version fails, and the next attempt merges the edit, too."""
    await life.start()
    publish_second(blueprints)
    await eventually(lambda: life.has("blue.app.v2"))
    await life.api.patch(f"{VARIANTS}/v", {"spec": {"upstream": {"revision": 2}}})
    await life.world.observed()
    steps = life.world.controller.reconcile(0, f"{NAMESPACE}/v", 0.0)
    effect = next(steps)
    while not isinstance(effect, Update):
        effect = steps.send(await perform(life.world.cluster, effect))
    assert effect.kind.kind == "PackageRevisionResources"
    await life.edit("size: small", "size: small\n  meanwhile: '1'")
    with pytest.raises(ConflictError):
        await perform(life.world.cluster, effect)
    await life.world.converge()
    assert life.data() == {"size": "large", "colour": "red", "meanwhile": "1"}
    assert life.condition() == NO_ERRORS


async def test_a_variant_of_what_no_package_may_have_is_stalled_until_upstream_is_corrected(
    life: Life, blueprints: Path
) -> None:
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    (clone / "app" / "out").symlink_to("../../x")
    publish_second(blueprints)
    await eventually(lambda: life.has("blue.app.v2"))
    await life.start(revision=2)
    status, reason, message = life.condition("Stalled")
    assert (status, reason) == ("True", "Invalid")
    assert "the symbolic link 'out' leads out of the package, to '../../x'" in message
    assert life.condition() == ("False", "Error", message)
    (clone / "app" / "out").unlink()
    push_files(blueprints, {}, tag="app/v3")
    await life.follow(revision=3)
    assert life.condition("Stalled")[0] == "False"
    assert life.condition() == NO_ERRORS


async def test_bytes_modes_and_links_arrive_in_a_rebase(life: Life, blueprints: Path, edge: Path) -> None:
    await life.start()
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    (clone / "app" / "logo.png").write_bytes(b"\x89PNG\xff\x00\xfe")
    (clone / "app" / "run.sh").write_text("#!/bin/sh\n")
    (clone / "app" / "run.sh").chmod(0o755)
    (clone / "app" / "link").symlink_to("run.sh")
    publish_second(blueprints)
    await life.follow(revision=2)
    assert life.condition() == NO_ERRORS
    for name in ("logo.png", "run.sh", "link"):
        shown = git(edge, "ls-tree", "drafts/web/packagevariant-1:web", name)
        assert shown
        assert shown == git(blueprints, "ls-tree", "app/v2:app", name)


async def test_a_range_of_versions_follows_what_is_published_in_it(life: Life, blueprints: Path) -> None:
    """A tag without a number is the base of the next merge, too."""
    await life.start(revision=0, workspaceName=">=1 <3")
    await life.edit("size: small", "size: small\n  mine: '1'")
    await approve(life.api, FIRST)
    for tag, size in (("v2", "two"), ("v2.4.0", "four"), ("v2.5.0", "five")):
        files = {
            "app/Kptfile": KPTFILE.format(name="app"),
            "app/settings.yaml": CONFIG.replace("small", size),
        }
        push_files(blueprints, files, tag=f"app/{tag}")
        await eventually(partial(life.has, f"blue.app.{tag}"))
        await life.world.converge()
        assert life.condition() == NO_ERRORS
        assert life.data("packagevariant-2") == {"size": size, "mine": "1"}
        assert await life.lock(SECOND) == f"app/{tag}"
    push_files(blueprints, {"app/settings.yaml": CONFIG.replace("small", "six")}, tag="app/v3")
    await eventually(lambda: life.has("blue.app.v3"))
    await life.writes_nothing()
    assert life.drafts() == ["packagevariant-2"]
    await life.api.patch(f"{VARIANTS}/v", {"spec": {"upstream": {"workspaceName": ">=1 <drei"}}})
    await life.world.converge()
    assert '">=1 <drei" is not a range of versions: "<drei"' in life.condition("Stalled")[2]
