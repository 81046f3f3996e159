"""PackageRevisionResources: reading, writing, and when the pipeline runs."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.content import RENDER_IDEMPOTENT
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.resources import PUSH_ON_FAILURE
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.controlplane.packages.store import TRIED
from pvbus.core.api.packages import RENDER_REMARKS
from pvbus.core.errors import TransientError
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import IS_LATER, SURVIVES
from pvbus.core.kernel.tasks import Task
from pvbus.core.variants.revisions.content import content_digest
from pvbus.ports.cluster import Object
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

DEFERRED = {DEFER_RENDER: "true"}
RENDERED = {"type": "Rendered", "status": "True", "reason": "RenderSuccess"}

# Not idempotent: each run puts one more `-x` behind the name.
GROWING = """\
apiVersion: fn.kpt.dev/v1alpha1
kind: ApplyReplacements
metadata:
  name: grow
  annotations:
    config.kubernetes.io/local-config: "true"
replacements:
- source:
    kind: ConfigMap
    name: settings
    fieldPath: data.suffix
  targets:
  - select:
      kind: Widget
    fieldPaths:
    - spec.name
    options:
      delimiter: "-"
      index: 99
"""
WIDGET = """\
apiVersion: example.com/v1
kind: Widget
metadata:
  name: w
spec:
  name: base
"""
GROWING_KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: grow
pipeline:
  mutators:
  - image: apply-replacements:v0.1.1
    configPath: grow.yaml
"""
UNKNOWN_KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: unknown
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap: {app: a}
  - image: example.com/nobody/knows:v1
"""


@pytest.fixture
async def growing(fleet: StoreWorld, blueprints: Path) -> StoreWorld:
    """Adds the package `grow`, whose pipeline changes what it made itself."""
    files = {"Kptfile": GROWING_KPTFILE, "grow.yaml": GROWING, "w.yaml": WIDGET}
    files["settings.yaml"] = CONFIG.replace("size: small", "suffix: x")
    push_files(blueprints, {f"grow/{path}": text for path, text in files.items()}, tag="grow/v1")
    await fleet.until(lambda: fleet.revision("blue.grow.v1"))
    return fleet


async def test_an_update_commits_the_rendered_files_and_answers_with_them(
    fleet: StoreWorld, edge: Path
) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    before = await fleet.files("edge.app-1.ws")
    assert before["metadata"]["resourceVersion"] == draft["metadata"]["resourceVersion"]

    after = await fleet.put(before, {"more.yaml": CONFIG.replace("settings", "more"), "settings.yaml": None})

    assert "settings.yaml" not in after["spec"]["resources"]
    assert "app: example" in after["spec"]["resources"]["more.yaml"]
    assert tree(edge, "drafts/app-1/ws", "app-1") == after["spec"]["resources"]
    current = fleet.present("edge.app-1.ws")
    assert after["metadata"]["resourceVersion"] == current["metadata"]["resourceVersion"]
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    assert current["status"]["selfLock"]["git"]["commit"] == git(edge, "rev-parse", "drafts/app-1/ws")
    assert after["status"]["renderStatus"]["error"] == ""


async def test_an_update_that_changes_nothing_makes_no_commit_and_runs_nothing(
    fleet: StoreWorld, edge: Path
) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    before, renders = await fleet.files("edge.app-1.ws"), len(fleet.renders)
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    after = await fleet.put(before, {})
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert git(edge, "rev-parse", "drafts/app-1/ws") == commit
    assert len(fleet.renders) == renders


@pytest.mark.parametrize(
    ("policy", "answer", "stored"),
    [
        ("", "", True),
        ("false", "Package NOT pushed to remote", False),
        ("true", "Package pushed to remote", True),
    ],
)
async def test_what_an_update_does_whose_pipeline_fails_can_be_chosen(
    fleet: StoreWorld, edge: Path, policy: str, answer: str, stored: bool
) -> None:
    """Porch's annotation: without it, an update stores the files and reports the failure in a condition."""
    annotations = {PUSH_ON_FAILURE: policy} if policy else {}
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"), annotations=annotations))
    before = await fleet.files("edge.app-1.ws")
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    change = fleet.put(before, {"Kptfile": UNKNOWN_KPTFILE})
    if answer:
        with pytest.raises(StatusError, match=f"{answer}.*nobody/knows") as refused:
            await change
        assert refused.value.code == 500
    else:
        assert "nobody/knows" in (await change)["status"]["renderStatus"]["error"]
    assert (git(edge, "rev-parse", "drafts/app-1/ws") != commit) is stored
    assert ("nobody/knows" in tree(edge, "drafts/app-1/ws", "app-1")["Kptfile"]) is stored
    conditions = fleet.present("edge.app-1.ws")["status"]["conditions"]
    assert conditions[0]["status"] == ("False" if stored else "True")

    mended = await fleet.put(await fleet.files("edge.app-1.ws"), {"Kptfile": KPTFILE.format(name="app")})
    assert mended["status"]["renderStatus"]["error"] == ""


async def test_a_pipeline_that_is_not_idempotent_runs_once_for_a_deferred_draft(
    growing: StoreWorld, edge: Path
) -> None:
    draft = await growing.create(
        revision("edge", "grow-1", "ws", clone_of("blue.grow.v1"), annotations={**DEFERRED, "mine": "x"})
    )
    assert growing.renders == []
    assert draft["status"]["conditions"][0]["status"] == "Unknown"
    with pytest.raises(StatusError, match="has not been rendered yet") as refused:
        await growing.update(draft, lifecycle="Proposed")
    assert refused.value.code == 422

    rendered = await growing.put(await growing.files("edge.grow-1.ws"), {})

    assert len(growing.renders) == 1
    assert "name: base-x\n" in rendered["spec"]["resources"]["w.yaml"]
    current = growing.present("edge.grow-1.ws")
    assert current["metadata"]["annotations"] == {"mine": "x"}
    assert current["status"]["conditions"][:-1] == [RENDERED]
    again = await growing.put(await growing.files("edge.grow-1.ws"), {})
    assert len(growing.renders) == 1
    assert again["spec"]["resources"] == rendered["spec"]["resources"]
    assert (await growing.update(current, lifecycle="Proposed"))["spec"]["lifecycle"] == "Proposed"


async def test_the_warning_of_a_second_run_is_of_the_store_and_not_of_the_package(
    growing: StoreWorld, edge: Path
) -> None:
    """It survives a restart and other edits, no client can write it, and a better render takes it off."""
    draft = await growing.create(revision("edge", "grow-1", "ws", clone_of("blue.grow.v1")))
    assert draft["status"]["conditions"][0] == RENDERED
    warning = draft["status"]["conditions"][1]
    assert (warning["type"], warning["status"]) == (RENDER_IDEMPOTENT, "False")
    assert "would change w.yaml again" in warning["message"]

    mine = {"type": "Mine", "status": "True"}
    conditions = [RENDERED, {**warning, "status": "True"}, mine]
    edited = await growing.update({**draft, "status": {**draft["status"], "conditions": conditions}})
    assert edited["status"]["conditions"] == [RENDERED, mine, warning]
    await growing.restart()
    await growing.until(lambda: growing.ready("edge"))
    files = await growing.files("edge.grow-1.ws")
    assert growing.present("edge.grow-1.ws")["status"]["conditions"][-1] == warning
    assert RENDER_IDEMPOTENT not in str(files["spec"]["resources"])

    stable = files["spec"]["resources"]["grow.yaml"].replace('delimiter: "-"', 'delimiter: "+"')
    stable = stable.replace("index: 99", "index: 0")
    await growing.put(files, {"grow.yaml": stable})
    (signed, rendered) = growing.present("edge.grow-1.ws")["status"]["conditions"]
    assert (signed["reason"], rendered) == ("InputsChanged", RENDERED)


@pytest.mark.parametrize("added", ["a gate", "a question"])
async def test_what_a_pipeline_that_is_not_idempotent_writes_anew_voids_what_was_signed(
    growing: StoreWorld, added: str
) -> None:
    """Gates and questions are inputs of the pipeline, and no content."""
    draft = await growing.create(revision("edge", "grow-1", "ws", clone_of("blue.grow.v1")))
    signed = await growing.update(sign(draft))
    annotations = signed["spec"]["packageMetadata"]["annotations"]
    asked = tasks.with_task(annotations, "Certified", Task(question="Is it licensed?"))
    spec: dict[str, Any] = {
        "a gate": {"readinessGates": [{"conditionType": "Certified"}]},
        "a question": {"packageMetadata": {"annotations": {**annotations, **asked}}},
    }
    void = certified(await growing.update(signed, **spec[added]))
    assert (void["status"], void["reason"]) == ("Unknown", "NotReproducible")
    assert void["message"].endswith(": w.yaml")


async def test_what_the_signer_lets_survive_is_what_a_pipeline_may_write_anew(growing: StoreWorld) -> None:
    wish = {"annotations": {SURVIVES: '{"Certified": ["w.yaml#/spec/name"]}'}}
    draft = await growing.create(revision("edge", "grow-1", "ws", clone_of("blue.grow.v1")))
    signed = await growing.update(sign(await growing.update(draft, packageMetadata=wish)))
    before = (await growing.files("edge.grow-1.ws"))["spec"]["resources"]["w.yaml"]
    gated = await growing.update(signed, readinessGates=[{"conditionType": "Certified"}])
    assert (await growing.files("edge.grow-1.ws"))["spec"]["resources"]["w.yaml"] != before
    assert certified(gated)["status"] == "True"


def sign(obj: Object) -> Object:
    conditions = [*obj["status"]["conditions"], {"type": "Certified", "status": "True"}]
    return {**obj, "status": {**obj["status"], "conditions": conditions}}


def certified(obj: Object) -> dict[str, str]:
    return next(each for each in obj["status"]["conditions"] if each["type"] == "Certified")


async def test_how_functions_ran_is_remarked_on_the_revision(fleet: StoreWorld) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"), annotations={"mine": "x"}))
    before = await fleet.files("edge.app-1.ws")
    newer = before["spec"]["resources"]["Kptfile"].replace("set-labels:v0.2", "set-labels:v9.1")
    await fleet.put(before, {"Kptfile": newer})
    annotations = fleet.present("edge.app-1.ws")["metadata"]["annotations"]
    assert annotations.keys() == {"mine", RENDER_REMARKS}
    assert "set-labels:v9.1 runs as version" in annotations[RENDER_REMARKS]
    await fleet.put(await fleet.files("edge.app-1.ws"), {"Kptfile": before["spec"]["resources"]["Kptfile"]})
    assert fleet.present("edge.app-1.ws")["metadata"]["annotations"] == {"mine": "x"}


async def test_a_render_that_can_run_later_is_refused_for_now_and_changes_nothing(
    fleet: StoreWorld, edge: Path
) -> None:
    """A container engine or function runner that is away is no fault of the package."""
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    before = await fleet.files("edge.app-1.ws")
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    fleet.render_error = TransientError("function runner x:1 cannot be reached: refused")
    with pytest.raises(StatusError, match="function runner x:1 cannot be reached") as refused:
        await fleet.put(before, {"settings.yaml": None})
    assert (refused.value.code, refused.value.retry_after_seconds) == (503, 5)
    with pytest.raises(StatusError, match="cannot be rendered now"):
        await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1")))
    assert fleet.revision("edge.app-2.ws") is None
    assert git(edge, "rev-parse", "drafts/app-1/ws") == commit
    fleet.render_error = None
    await fleet.put(before, {"settings.yaml": None})


async def test_sending_the_source_again_gives_what_was_made_of_it(growing: StoreWorld, edge: Path) -> None:
    await growing.create(revision("edge", "grow-1", "ws", clone_of("blue.grow.v1"), annotations=DEFERRED))
    source = await growing.files("edge.grow-1.ws")
    rendered = await growing.put(source, {})
    commit = git(edge, "rev-parse", "drafts/grow-1/ws")
    source["metadata"]["resourceVersion"] = rendered["metadata"]["resourceVersion"]
    again = await growing.put(source, {})
    assert again["spec"]["resources"] == rendered["spec"]["resources"]
    assert git(edge, "rev-parse", "drafts/grow-1/ws") == commit
    assert len(growing.renders) == 1


async def test_taking_the_deferral_off_renders_at_once(growing: StoreWorld) -> None:
    draft = await growing.create(
        revision("edge", "grow-1", "ws", clone_of("blue.grow.v1"), annotations=DEFERRED)
    )
    updated = await growing.update({**draft, "metadata": {**draft["metadata"], "annotations": {}}})
    assert updated["status"]["conditions"][0]["status"] == "True"
    assert len(growing.renders) == 1


async def test_a_deferral_survives_a_restart(growing: StoreWorld) -> None:
    await growing.create(revision("edge", "grow-1", "ws", clone_of("blue.grow.v1"), annotations=DEFERRED))
    await growing.restart()
    rendered = await growing.put(await growing.files("edge.grow-1.ws"), {})
    assert "name: base-x\n" in rendered["spec"]["resources"]["w.yaml"]
    again = await growing.put(await growing.files("edge.grow-1.ws"), {})
    assert len(growing.renders) == 1
    assert again["spec"]["resources"] == rendered["spec"]["resources"]


async def test_a_package_whose_pipeline_cannot_run_is_kept_but_not_published(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    push_files(blueprints, {"unknown/Kptfile": UNKNOWN_KPTFILE, "unknown/c.yaml": CONFIG}, tag="unknown/v1")
    await fleet.until(lambda: fleet.revision("blue.unknown.v1"))
    draft = await fleet.create(revision("edge", "u-1", "ws", clone_of("blue.unknown.v1")))

    condition = draft["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Rendered",
        "False",
        "RenderFailed",
    )
    assert "example.com/nobody/knows:v1" in condition["message"]
    assert "pipeline.mutators[1]" in condition["message"]
    with pytest.raises(StatusError, match=r"example\.com/nobody/knows:v1") as refused:
        await fleet.update(draft, lifecycle="Proposed")
    assert refused.value.code == 422

    changed = await fleet.put(await fleet.files("edge.u-1.ws"), {"c.yaml": CONFIG.replace("small", "big")})
    assert "example.com/nobody/knows:v1" in changed["status"]["renderStatus"]["error"]
    assert "size: big" in tree(edge, "drafts/u-1/ws", "u-1")["c.yaml"]

    retained = changed["spec"]["resources"]["Kptfile"]
    without = retained[: retained.index("  - image: example.com")] + retained[retained.index("upstream:") :]
    await fleet.put(await fleet.files("edge.u-1.ws"), {"Kptfile": without})
    assert fleet.present("edge.u-1.ws")["status"]["conditions"][0]["status"] == "True"
    await fleet.publish(fleet.present("edge.u-1.ws"))
    assert "refs/tags/u-1/v1" in refs(edge)


async def test_a_failed_draft_is_rendered_again_once_its_function_is_there(
    fleet: StoreWorld, blueprints: Path, edge: Path
) -> None:
    """Each start with other functions tries once; one that cannot reach a function runner does not count."""
    push_files(blueprints, {"unknown/Kptfile": UNKNOWN_KPTFILE, "unknown/c.yaml": CONFIG}, tag="unknown/v1")
    await fleet.until(lambda: fleet.revision("blue.unknown.v1"))
    await fleet.create(revision("edge", "u-1", "ws", clone_of("blue.unknown.v1")))
    commit = git(edge, "rev-parse", "drafts/u-1/ws")
    tried = fleet.data / TRIED

    async def restart_with(registry: FunctionRegistry) -> None:
        fleet.registry = registry
        fleet.options = msgspec.structs.replace(fleet.options, functions=registry.digest)
        fleet.renders.clear()
        await fleet.restart()

    without = FunctionRegistry({})
    await restart_with(without)
    await fleet.until(lambda: tried.exists() and tried.read_text() == without.digest)
    assert len(fleet.renders) == 1
    await restart_with(without)
    assert "c.yaml" in (await fleet.files("edge.u-1.ws"))["spec"]["resources"]
    assert fleet.renders == []
    assert git(edge, "rev-parse", "drafts/u-1/ws") == commit

    mapped = FunctionRegistry({"knows": "cat"}, isolated=False)
    fleet.render_error = TransientError("the function runner is away")
    await restart_with(mapped)
    await fleet.until(lambda: len(fleet.renders) == 1)
    fleet.render_error = None
    await restart_with(mapped)
    await fleet.until(lambda: fleet.present("edge.u-1.ws")["status"]["conditions"][0]["status"] == "True")
    message = git(edge, "log", "-1", "--format=%B", "drafts/u-1/ws")
    assert "Cause: the functions of the package store changed" in message
    await fleet.until(lambda: tried.read_text() == mapped.digest)


async def test_a_client_cannot_take_the_failure_off_the_kptfile(fleet: StoreWorld, blueprints: Path) -> None:
    push_files(blueprints, {"unknown/Kptfile": UNKNOWN_KPTFILE}, tag="unknown/v1")
    await fleet.until(lambda: fleet.revision("blue.unknown.v1"))
    draft = await fleet.create(revision("edge", "u-1", "ws", clone_of("blue.unknown.v1")))
    good = {"type": "Rendered", "status": "True", "reason": "Trust", "message": "me"}
    updated = await fleet.update({**draft, "status": {**draft["status"], "conditions": [good]}})
    assert updated["status"]["conditions"][0]["status"] == "False"
    text = (await fleet.files("edge.u-1.ws"))["spec"]["resources"]["Kptfile"].replace('"False"', '"True"')
    await fleet.put(await fleet.files("edge.u-1.ws"), {"Kptfile": text})
    assert fleet.present("edge.u-1.ws")["status"]["conditions"][0]["status"] == "False"


async def test_a_stale_version_is_a_conflict_and_changes_nothing(fleet: StoreWorld, edge: Path) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    stale = await fleet.files("edge.app-1.ws")
    await fleet.put(stale, {"note.txt": "first"})
    commit = git(edge, "rev-parse", "drafts/app-1/ws")
    with pytest.raises(StatusError, match="the object has been modified") as refused:
        await fleet.put(stale, {"note.txt": "second"})
    assert refused.value.code == 409
    assert git(edge, "rev-parse", "drafts/app-1/ws") == commit


async def test_two_updates_at_once_of_one_revision_are_not_both_done(fleet: StoreWorld) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    current = await fleet.files("edge.app-1.ws")
    outcomes = await asyncio.gather(
        fleet.put(current, {"a.txt": "a"}), fleet.put(current, {"b.txt": "b"}), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, StatusError)]
    assert [error.code for error in refused] == [409]


async def test_only_drafts_take_files(fleet: StoreWorld) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    await fleet.update(draft, lifecycle="Proposed")
    with pytest.raises(StatusError, match="package must be Draft") as refused:
        await fleet.put(await fleet.files("edge.app-1.ws"), {"a.txt": "a"})
    assert refused.value.code == 500


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Kptfile": None}, "needs a Kptfile"),
        ({"../out.yaml": "a: b"}, "not a path inside"),
        ({"/etc/x": "a"}, "not a path inside"),
        ({"a/.git/config": "x"}, "not a path inside"),
        ({"a": "x", "a/b": "y"}, "file and a folder"),
        ({"": "x"}, "not a path inside"),
    ],
)
async def test_files_that_are_no_package_are_refused(
    fleet: StoreWorld, changes: dict[str, Any], words: str
) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    with pytest.raises(StatusError, match=words) as refused:
        await fleet.put(await fleet.files("edge.app-1.ws"), changes)
    assert refused.value.code == 422


async def test_a_kptfile_that_is_no_yaml_is_kept_and_blocks_proposing(fleet: StoreWorld) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    after = await fleet.put(await fleet.files("edge.app-1.ws"), {"Kptfile": "a: [b\n"})
    assert after["spec"]["resources"]["Kptfile"] == "a: [b\n"
    assert after["status"]["renderStatus"]["error"]
    with pytest.raises(StatusError, match="not rendered"):
        await fleet.update(fleet.present("edge.app-1.ws"), lifecycle="Proposed")


async def test_what_is_no_text_comes_through_a_clone_and_an_update_byte_for_byte(
    fleet: StoreWorld, blueprints: Path, edge: Path, tmp_path: Path
) -> None:
    push_files(blueprints, {"bin/Kptfile": KPTFILE.format(name="bin")})
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    (clone / "bin" / "logo.png").write_bytes(b"\x89PNG\xff\xfe\x00")
    (clone / "bin" / "run.sh").write_text("#!/bin/sh\n")
    (clone / "bin" / "run.sh").chmod(0o755)
    (clone / "bin" / "link").symlink_to("run.sh")
    push_files(blueprints, {}, tag="bin/v1")
    await fleet.until(lambda: fleet.revision("blue.bin.v1"))
    await fleet.create(revision("edge", "bin-1", "ws", clone_of("blue.bin.v1")))
    await fleet.put(await fleet.files("edge.bin-1.ws"), {"new.txt": "new"})

    def modes(remote: Path, where: str) -> dict[str, str]:
        lines = git(remote, "ls-tree", where).splitlines()
        return {line.split("\t")[1]: line.split("\t")[0] for line in lines}

    ours, theirs = modes(edge, "drafts/bin-1/ws:bin-1"), modes(blueprints, "bin/v1:bin")
    for name in ("logo.png", "run.sh", "link"):
        assert ours[name] == theirs[name]
    assert "new.txt" in ours


async def test_a_list_has_the_files_of_every_revision(fleet: StoreWorld) -> None:
    listed = await fleet.store.resources.list(NAMESPACE)
    assert {item["metadata"]["name"] for item in listed} == {"blue.app.v1", "blue.app.main"}
    assert all("settings.yaml" in item["spec"]["resources"] for item in listed)
    assert await fleet.store.resources.get(NAMESPACE, "blue.nothing.v1") is None


async def test_a_commit_says_whether_it_comes_after_the_revision_and_has_its_package(
    fleet: StoreWorld, edge: Path
) -> None:
    """In a shared repository HEAD moves with each package: evidence of a later commit counts for a revision
    whose package is the same there, and evidence of an earlier one never does."""
    published = await fleet.publish(
        await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    )
    name = published["metadata"]["name"]
    commit = fleet.present(name)["status"]["selfLock"]["git"]["commit"]
    other = await fleet.publish(await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1"))))
    later = fleet.present(other["metadata"]["name"])["status"]["selfLock"]["git"]["commit"]

    async def at(revision_name: str, oid: str) -> tuple[str, str] | None:
        commit_read = await fleet.store.resources.get(NAMESPACE, f"{revision_name}@{oid}")
        if commit_read is None:
            return None
        files = content_digest(commit_read["spec"]["resources"])
        return commit_read["metadata"]["annotations"][IS_LATER], files

    content = content_digest((await fleet.files(name))["spec"]["resources"])
    assert commit != later
    assert await at(name, commit) == ("true", content)
    assert await at(name, later) == ("true", content)
    assert await at(other["metadata"]["name"], commit) is None, "the package is not there yet"
    drafted = await fleet.create(
        revision("edge", "app-1", "ws2", {"type": "edit", "edit": {"sourceRef": {"name": name}}})
    )
    changed = await fleet.files(drafted["metadata"]["name"])
    await fleet.put(changed, {"settings.yaml": CONFIG.replace("small", "large")})
    second = await fleet.publish(fleet.present(drafted["metadata"]["name"]))
    head = fleet.present(second["metadata"]["name"])["status"]["selfLock"]["git"]["commit"]
    commit_read = await at(name, head)
    assert commit_read is not None
    assert (commit_read[0], commit_read[1] == content) == ("true", False), "another package is there now"
    earlier = await at(second["metadata"]["name"], commit)
    assert earlier == ("false", content)
