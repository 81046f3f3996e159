"""From a draft to a deleted revision: what the API shows and what plain git sees."""

import asyncio
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.layout import LATEST_LABEL, parse_annotations
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Kind, Object
from tests.integration.packages.support import StoreWorld, clone_of, git, refs, revision, tree


async def test_a_clone_becomes_a_rendered_draft_on_a_branch_of_its_own(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))

    assert draft["metadata"]["name"] == "edge.app-1.ws"
    assert draft["spec"]["lifecycle"] == "Draft"
    assert draft["spec"]["tasks"] == [clone_of("blue.app.v1")]
    assert refs(edge) == ["refs/heads/drafts/app-1/ws"]
    files = tree(edge, "drafts/app-1/ws", "app-1")
    assert "app: example" in files["settings.yaml"]
    assert "# kept" in files["settings.yaml"]
    assert "# kpt-merge: example/settings" in files["settings.yaml"]
    assert files["Kptfile"].startswith("# The blueprint's own remark.\n")
    assert "name: app-1" in files["Kptfile"]
    assert (await fleet.files("edge.app-1.ws"))["spec"]["resources"] == files
    conditions = {item["type"]: item["status"] for item in draft["status"]["conditions"]}
    assert conditions == {"Rendered": "True"}


async def test_an_approval_is_answered_after_the_objects_that_follow_from_it(
    fleet: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly they are written."""
    proposed = await fleet.update(
        await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))), lifecycle="Proposed"
    )
    put = fleet.objects.put

    async def slowly(kind: Kind, obj: Object) -> Object:
        if obj["metadata"]["name"] == "edge.app-1.main":
            await asyncio.sleep(0.3)
        return await put(kind, obj)

    monkeypatch.setattr(fleet.objects, "put", slowly)
    await fleet.update(proposed, lifecycle="Published", subresource="approval")
    assert fleet.revision("edge.app-1.main") is not None


async def test_the_lock_of_a_clone_names_the_upstreams_commit(fleet: StoreWorld, blueprints: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    assert draft["status"]["upstreamLock"] == {
        "type": "git",
        "git": {
            "repo": str(blueprints),
            "directory": "app",
            "ref": "app/v1",
            "commit": git(blueprints, "rev-parse", "app/v1"),
        },
    }


async def test_the_branch_itself_can_be_cloned_and_its_lock_is_the_branchs_commit(
    fleet: StoreWorld, blueprints: Path
) -> None:
    placeholder = fleet.present("blue.app.main")
    assert placeholder["spec"]["revision"] == -1
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.main")))
    lock = draft["status"]["upstreamLock"]["git"]
    assert (lock["ref"], lock["commit"]) == ("refs/heads/main", git(blueprints, "rev-parse", "main"))


async def test_a_deployment_repository_gets_its_package_context_from_scratch(fleet: StoreWorld) -> None:
    await fleet.create(revision("edge", "site/app-1", "ws", clone_of("blue.app.v1")))
    resources = (await fleet.files("edge.site.app-1.ws"))["spec"]["resources"]
    assert resources["package-context.yaml"].endswith("data:\n  name: app-1\n  package-path: site/app-1\n")


async def test_a_blueprint_repository_keeps_what_the_upstream_has_of_a_package_context(
    fleet: StoreWorld,
) -> None:
    await fleet.create(revision("blue", "copy", "ws", clone_of("blue.app.v1")))
    assert "package-context.yaml" not in (await fleet.files("blue.copy.ws"))["spec"]["resources"]


async def test_a_change_of_lifecycle_reads_no_yaml(
    fleet: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand drafts may be proposed at once, and reading a Kptfile costs more than the rest."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    texts: list[str] = []
    parse = editor.parse

    def counted(text: str) -> tuple[editor.Document, ...]:
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(editor, "parse", counted)
    proposed = await fleet.update(draft, lifecycle="Proposed")
    assert texts == []
    returned = await fleet.update(proposed, subresource="approval", lifecycle="Draft")
    assert (proposed["spec"]["lifecycle"], returned["spec"]["lifecycle"]) == ("Proposed", "Draft")
    assert texts == []
    gated = await fleet.update(returned, readinessGates=[{"conditionType": "example.org/Done"}])
    assert gated["spec"]["readinessGates"] == [{"conditionType": "example.org/Done"}]
    assert texts


async def test_approval_merges_the_draft_into_the_branch_and_tags_it(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")), user="ada")
    published = await fleet.publish(draft)

    assert published["spec"]["lifecycle"] == "Published"
    assert published["spec"]["revision"] == 1
    assert published["spec"]["workspaceName"] == "ws"
    assert published["metadata"]["uid"] == draft["metadata"]["uid"]
    assert published["metadata"]["labels"] == {LATEST_LABEL: "true"}
    assert refs(edge) == ["refs/heads/main", "refs/tags/app-1/v1"]
    assert git(edge, "rev-parse", "main") == git(edge, "rev-parse", "app-1/v1")
    notes = parse_annotations(git(edge, "log", "-1", "--format=%B", "main"))
    assert [(note.package, note.workspace_name, note.revision) for note in notes] == [("app-1", "ws", "1")]
    placeholder = await fleet.until(lambda: fleet.revision("edge.app-1.main"))
    assert placeholder["spec"]["revision"] == -1
    assert LATEST_LABEL not in placeholder["metadata"].get("labels", {})


async def test_the_second_revision_takes_the_number_and_the_label_of_the_newest(fleet: StoreWorld) -> None:
    first = await fleet.publish(await fleet.create(revision("edge", "app-1", "one", clone_of("blue.app.v1"))))
    edit = {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.one"}}}
    second = await fleet.publish(await fleet.create(revision("edge", "app-1", "two", edit)))
    assert (first["spec"]["revision"], second["spec"]["revision"]) == (1, 2)
    assert second["metadata"]["labels"] == {LATEST_LABEL: "true"}
    await fleet.until(
        lambda: LATEST_LABEL not in (fleet.present("edge.app-1.one")["metadata"].get("labels") or {})
    )


async def test_a_rejected_proposal_is_a_draft_again(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    proposed = await fleet.update(draft, lifecycle="Proposed")
    assert refs(edge) == ["refs/heads/proposed/app-1/ws"]
    assert git(edge, "rev-parse", "proposed/app-1/ws") == commit
    rejected = await fleet.update(proposed, lifecycle="Draft", subresource="approval")
    assert rejected["spec"]["lifecycle"] == "Draft"
    assert refs(edge) == ["refs/heads/drafts/app-1/ws"]


async def test_a_published_revision_goes_only_after_its_deletion_was_proposed(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    published = await fleet.publish(draft)
    with pytest.raises(StatusError) as refused:
        await fleet.delete("edge.app-1.ws")
    assert refused.value.code == 403

    proposed = await fleet.update(published, lifecycle="DeletionProposed")
    assert "refs/heads/deletionProposed/app-1/v1" in refs(edge)
    retained = await fleet.update(proposed, lifecycle="Published")
    assert "refs/heads/deletionProposed/app-1/v1" not in refs(edge)
    await fleet.update(retained, lifecycle="DeletionProposed")
    await fleet.delete("edge.app-1.ws")

    assert refs(edge) == ["refs/heads/main"]
    assert tree(edge, "main", "app-1")


async def test_deleting_the_placeholder_takes_the_folder_off_the_branch(
    fleet: StoreWorld, edge: Path
) -> None:
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))))
    placeholder = await fleet.until(lambda: fleet.revision("edge.app-1.main"))
    await fleet.update(placeholder, lifecycle="DeletionProposed")
    await fleet.delete("edge.app-1.main")
    assert git(edge, "ls-tree", "--name-only", "main") == ""
    assert "refs/tags/app-1/v1" in refs(edge)


async def test_deleting_a_draft_removes_its_branch(fleet: StoreWorld, edge: Path) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    await fleet.delete("edge.app-1.ws")
    assert refs(edge) == []
    assert fleet.revision("edge.app-1.ws") is None


async def test_a_revision_that_others_were_cloned_from_stays(fleet: StoreWorld) -> None:
    source = await fleet.publish(await fleet.create(revision("blue", "base", "ws")))
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.base.ws")))
    await fleet.update(source, lifecycle="DeletionProposed")
    with pytest.raises(StatusError, match=r"referenced as upstream by: edge\.app-1\.ws") as refused:
        await fleet.delete("blue.base.ws")
    assert refused.value.code == 403


@pytest.mark.parametrize(
    ("start", "target", "subresource"),
    [
        ("Draft", "Published", ""),
        ("Draft", "Published", "approval"),
        ("Draft", "DeletionProposed", ""),
        ("Draft", "Proposed", "approval"),
        ("Proposed", "Published", ""),
        ("Published", "Draft", ""),
        ("Published", "Proposed", "approval"),
        ("Draft", "Ready", ""),
    ],
)
async def test_other_ways_of_a_lifecycle_are_refused(
    fleet: StoreWorld, edge: Path, start: str, target: str, subresource: str
) -> None:
    obj = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    if start != "Draft":
        obj = await fleet.update(obj, lifecycle="Proposed")
    if start == "Published":
        obj = await fleet.update(obj, lifecycle="Published", subresource="approval")
    before = refs(edge)
    with pytest.raises(StatusError) as refused:
        await fleet.update(obj, lifecycle=target, subresource=subresource)
    assert refused.value.code == 422
    assert refs(edge) == before


async def test_labels_and_owners_are_the_objects_own_and_make_no_commit(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await fleet.create(
        revision("edge", "app-1", "ws", clone_of("blue.app.v1"), labels={"a": "b"}, finalizers=["x/y"])
    )
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}
    changed = {**draft, "metadata": {**draft["metadata"], "labels": {"c": "d"}, "ownerReferences": [owner]}}
    updated = await fleet.update(changed)
    assert updated["metadata"]["labels"] == {"c": "d"}
    assert updated["metadata"]["ownerReferences"] == [owner]
    assert updated["metadata"]["finalizers"] == ["x/y"]
    assert git(edge, "rev-parse", "drafts/app-1/ws") == commit


async def test_conditions_gates_and_package_metadata_are_written_into_the_kptfile(fleet: StoreWorld) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    renders = len(fleet.renders)
    ready = {"type": "Checked", "status": "True", "reason": "Ok", "message": "fine"}
    updated = await fleet.update(
        {**draft, "status": {**draft["status"], "conditions": [ready]}},
        readinessGates=[{"conditionType": "Checked"}],
    )
    assert {item["type"] for item in updated["status"]["conditions"]} == {"Checked", "Rendered"}
    assert updated["spec"]["readinessGates"] == [{"conditionType": "Checked"}]
    assert updated["metadata"]["resourceVersion"] != draft["metadata"]["resourceVersion"]
    assert len(fleet.renders) == renders + 1, "gates are an input of the pipeline"

    labelled = await fleet.update(updated, packageMetadata={"labels": {"team": "a"}})
    assert labelled["spec"]["packageMetadata"]["labels"] == {"team": "a", "app": "example"}
    assert "team: a" in (await fleet.files("edge.app-1.ws"))["spec"]["resources"]["Kptfile"]
    again = await fleet.update(labelled, packageMetadata={"labels": {"team": "a"}})
    assert again["metadata"]["resourceVersion"] == labelled["metadata"]["resourceVersion"]
    assert len(fleet.renders) == renders + 2, "the pipeline has made this of these inputs before"


async def test_a_condition_alone_does_not_run_the_pipeline(fleet: StoreWorld) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    renders = len(fleet.renders)
    conditions = [*draft["status"]["conditions"], {"type": "Checked", "status": "True"}]
    updated = await fleet.update({**draft, "status": {**draft["status"], "conditions": conditions}})
    assert {item["type"] for item in updated["status"]["conditions"]} == {"Checked", "Rendered"}
    assert len(fleet.renders) == renders


async def test_nobody_but_the_server_sets_the_latest_label(fleet: StoreWorld) -> None:
    with pytest.raises(StatusError) as refused:
        await fleet.create(revision("edge", "app-1", "ws", labels={LATEST_LABEL: "true"}))
    assert refused.value.code == 422


@pytest.mark.parametrize(
    ("package", "workspace", "code"),
    [("App", "ws", 422), ("app", "W S", 422), ("a//b", "ws", 422), ("app", "", 422), ("-", "ws", 422)],
)
async def test_bad_names_are_refused(fleet: StoreWorld, package: str, workspace: str, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        await fleet.create(revision("edge", package, workspace))
    assert refused.value.code == code


async def test_creating_twice_or_inside_another_package_is_refused_with_porchs_words(
    fleet: StoreWorld,
) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    for package, workspace, words in (
        ("app-1", "ws", "workspaceNames must be unique"),
        ("app-1", "other", "`clone` cannot create a new revision"),
        ("app-1/inner", "ws", "overlaps with the existing package"),
    ):
        with pytest.raises(StatusError, match=words) as refused:
            await fleet.create(revision("edge", package, workspace, clone_of("blue.app.v1")))
        assert refused.value.code == 500


async def test_a_folder_can_be_a_package_once_those_inside_it_are_gone(fleet: StoreWorld) -> None:
    inner = [revision("edge", f"site/rack/{name}", "ws", clone_of("blue.app.v1")) for name in ("a", "b")]
    outer = revision("edge", "site", "ws", clone_of("blue.app.v1"))
    await fleet.create(inner[0])
    await fleet.create(inner[1])
    await fleet.create(revision("edge", "site-2", "ws", clone_of("blue.app.v1")))
    for name in ("a", "b"):
        with pytest.raises(StatusError, match=f'existing package "site/rack/{name}": packages cannot be nes'):
            await fleet.create(outer)
        await fleet.delete(f"edge.site.rack.{name}.ws")
    await fleet.create(outer)
    with pytest.raises(StatusError, match='existing package "site": packages cannot be nested'):
        await fleet.create(inner[0])


async def test_a_package_from_nothing_has_the_three_files_of_init(fleet: StoreWorld) -> None:
    init = {"type": "init", "init": {"description": "mine", "keywords": ["k"], "site": "http://s"}}
    await fleet.create(revision("edge", "fresh", "ws", init))
    resources = (await fleet.files("edge.fresh.ws"))["spec"]["resources"]
    assert sorted(resources) == ["Kptfile", "README.md", "package-context.yaml"]
    assert "description: mine" in resources["Kptfile"]
