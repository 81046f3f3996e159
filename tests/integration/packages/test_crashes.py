"""The store ends at each point of a change: after the restart all of the change is there, or nothing of it.

A crash is a copy of everything that outlives the process, taken at that point: the objects, the data folder
and the remote. `test_kills` kills real processes.
"""

import asyncio
import copy
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import repository as packages_repository
from pvbus.controlplane.packages.gitcommand import Failure, GitError
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.ports.cluster import Object
from tests.integration.packages.support import NAMESPACE, StoreWorld, clone_of, git, refs, revision, running
from tests.kit.objects import MemoryObjects

BEFORE, PUSHED, STORED = "before", "pushed", "stored"
POINTS = (BEFORE, PUSHED, STORED)
NAME = "edge.app.ws"
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1", "controller": True}


class Moment(NamedTuple):
    """What outlives a crash."""

    objects: dict[Any, Object]
    version: int
    folder: Path


class Crashes:
    """Takes the moments of a world's changes, and starts another world from one of them."""

    def __init__(self, world: StoreWorld, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.moments: dict[str, Moment] = {}
        self._folder = folder
        self._monkeypatch = monkeypatch

    async def during(self, act: Callable[[], Awaitable[object]]) -> None:
        """Take the moments of one change."""
        push = BareMirror.push

        def watched(mirror: BareMirror, *arguments: Any) -> None:
            self._take(BEFORE)
            push(mirror, *arguments)
            self._take(PUSHED)

        with self._monkeypatch.context() as patched:
            patched.setattr(BareMirror, "push", watched)
            await act()
        self._take(STORED)

    def _take(self, point: str) -> None:
        saved = self._folder / f"moment {len(self.moments)}"
        for name in ("data", "git"):
            shutil.copytree(self._folder / name, saved / name, symlinks=True)
        objects = self.world.objects
        self.moments[point] = Moment(copy.deepcopy(objects._objects), objects._version, saved)

    async def restart(self, point: str, until: Callable[[], bool] | None = None) -> None:
        """Begin again from a moment. until: by default, the remotes were read."""
        await self.world.store.stop()
        moment = self.moments[point]
        for name in ("data", "git"):
            self._replace(moment, name)
        objects = MemoryObjects()
        objects._objects, objects._version = copy.deepcopy(moment.objects), moment.version
        self.world.objects = objects
        self.world.options = StoreOptions(poll_seconds=0.05, fetch_seconds=0.2)
        self.world.store = self.world.new_store()
        await self.world.store.start()
        await self.world.until(until or self.is_synced)

    def land(self, point: str) -> None:
        """Make the remote what it was at a moment: a push of the process that ended is done only now."""
        self._replace(self.moments[point], "git")

    def _replace(self, moment: Moment, name: str) -> None:
        shutil.rmtree(self._folder / name)
        shutil.copytree(moment.folder / name, self._folder / name, symlinks=True)

    def is_synced(self) -> bool:
        return (NAMESPACE, "edge") in self.world.store.syncs and not self.sync._compare_all

    @property
    def sync(self) -> RepositorySync:
        return self.world.store.syncs[NAMESPACE, "edge"]


@pytest.fixture
async def crashes(tmp_path: Path, blueprints: Path, edge: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async with running(tmp_path / "data", poll_seconds=60, fetch_seconds=60) as world:
        await world.add_repository("blue", blueprints)
        await world.add_repository("edge", edge, deployment=True)
        yield Crashes(world, tmp_path, monkeypatch)


async def draft(world: StoreWorld) -> Object:
    wanted = revision(
        "edge", "app", "ws", clone_of("blue.app.v1"), ownerReferences=[OWNER], labels={"a": "1"}
    )
    return await world.create(wanted)


async def create_deferred(world: StoreWorld) -> Object:
    wanted = revision("edge", "app", "ws", clone_of("blue.app.v1"), annotations={DEFER_RENDER: "true"})
    return await world.create(wanted)


async def propose_draft(world: StoreWorld) -> Object:
    return await world.update(await draft(world), lifecycle="Proposed")


async def publish_draft(world: StoreWorld) -> Object:
    return await world.publish(await draft(world))


async def propose_deletion(world: StoreWorld) -> Object:
    marked = with_metadata(await publish_draft(world), annotations={"by": "me"}, finalizers=["example.com/f"])
    return await world.update(marked, lifecycle="DeletionProposed")


async def placeholder(world: StoreWorld) -> Object:
    await publish_draft(world)
    return world.present("edge.app.main")


def with_metadata(obj: Object, **fields: Any) -> Object:
    return {**obj, "metadata": {**obj["metadata"], **fields}}


METADATA: Object = {"labels": {"b": "2"}, "annotations": {"by": "me"}, "finalizers": ["example.com/f"]}


class Case(NamedTuple):
    """first: makes the revision; the change sets metadata and spec fields of it."""

    first: Callable[[StoreWorld], Awaitable[Object]]
    metadata: Object
    spec: Object
    subresource: str = ""


CASES = {
    "propose": Case(draft, METADATA, {"lifecycle": "Proposed"}),
    "reject": Case(propose_draft, METADATA, {"lifecycle": "Draft"}),
    "approve": Case(propose_draft, {}, {"lifecycle": "Published"}, "approval"),
    "propose-deletion": Case(
        publish_draft,
        METADATA | {"labels": {"kpt.dev/latest-revision": "true"}},
        {"lifecycle": "DeletionProposed"},
    ),
    "propose-deletion-and-disown": Case(
        publish_draft, {"ownerReferences": [], "annotations": {"by": "me"}}, {"lifecycle": "DeletionProposed"}
    ),
    "propose-deletion-of-the-folder": Case(placeholder, METADATA, {"lifecycle": "DeletionProposed"}),
    "publish-again": Case(
        propose_deletion, {"annotations": {}, "finalizers": []}, {"lifecycle": "Published"}
    ),
    "content": Case(draft, METADATA, {"packageMetadata": {"labels": {"tier": "gold"}}}),
    "content-and-propose": Case(
        draft, METADATA, {"packageMetadata": {"labels": {"tier": "gold"}}, "lifecycle": "Proposed"}
    ),
    "gates": Case(draft, METADATA, {"readinessGates": [{"conditionType": "Checked"}]}),
    "render": Case(create_deferred, METADATA, {}),
}


def shown(world: StoreWorld, name: str) -> Object | None:
    """Return a revision without its version."""
    found = world.revision(name)
    if found is None:
        return None
    metadata = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
    return {**found, "metadata": metadata}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_after_a_crash_an_update_is_done_or_not(
    crashes: Crashes, edge: Path, case: Case, point: str
) -> None:
    """Lifecycle, content and metadata are of before, or of after; git and the object agree."""
    world = crashes.world
    first = await case.first(world)
    name = first["metadata"]["name"]
    before, refs_before = shown(world, name), refs(edge)
    wanted = with_metadata(first, **case.metadata)
    await crashes.during(lambda: world.update(wanted, subresource=case.subresource, **case.spec))
    after, refs_after = shown(world, name), refs(edge)
    assert before != after

    await crashes.restart(point)
    assert shown(world, name) == (before if point == BEFORE else after)
    assert refs(edge) == (refs_before if point == BEFORE else refs_after)
    if point == BEFORE:
        changed = with_metadata(world.present(name), **case.metadata)
        await world.update(changed, subresource=case.subresource, **case.spec)
        assert without_times(shown(world, name)) == without_times(after)


def without_times(obj: Object | None) -> object:
    """Return what two runs of a change have in common."""
    assert obj is not None
    status = {key: value for key, value in obj["status"].items() if key in ("conditions", "upstreamLock")}
    metadata = {key: value for key, value in obj["metadata"].items() if key != "creationTimestamp"}
    return {**obj, "metadata": metadata, "status": status}


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_crash_a_creation_is_done_or_not(crashes: Crashes, edge: Path, point: str) -> None:
    world = crashes.world
    await crashes.during(lambda: draft(world))
    after = shown(world, NAME)
    await crashes.restart(point)
    assert shown(world, NAME) == (None if point == BEFORE else after)
    assert refs(edge) == ([] if point == BEFORE else ["refs/heads/drafts/app/ws"])


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_crash_a_deletion_is_done_or_not(crashes: Crashes, edge: Path, point: str) -> None:
    world = crashes.world
    await world.update(
        with_metadata(await publish_draft(world), annotations={"by": "me"}), lifecycle="DeletionProposed"
    )
    before, refs_before = shown(world, NAME), refs(edge)
    await crashes.during(lambda: world.delete(NAME))
    await crashes.restart(point)
    assert shown(world, NAME) == (before if point == BEFORE else None)
    assert refs(edge) == (refs_before if point == BEFORE else ["refs/heads/main"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_a_push_that_lands_after_the_restart_brings_its_metadata(crashes: Crashes, case: Case) -> None:
    """A kill of the store does not end a push that the remote has begun."""
    world = crashes.world
    first = await case.first(world)
    name = first["metadata"]["name"]
    before = shown(world, name)
    wanted = with_metadata(first, **case.metadata)
    await crashes.during(lambda: world.update(wanted, subresource=case.subresource, **case.spec))
    after = shown(world, name)
    await crashes.restart(BEFORE)
    assert shown(world, name) == before
    crashes.land(PUSHED)
    await world.until(lambda: shown(world, name) != before)
    assert shown(world, name) == after


async def test_a_creation_that_lands_after_the_restart_has_its_owner(crashes: Crashes) -> None:
    world = crashes.world
    await crashes.during(lambda: draft(world))
    after = shown(world, NAME)
    await crashes.restart(BEFORE)
    crashes.land(PUSHED)
    await world.until(lambda: world.revision(NAME))
    assert shown(world, NAME) == after


def with_file(obj: Object, text: str) -> Object:
    files = {**obj["spec"]["resources"], "note.txt": text}
    return {**obj, "spec": {**obj["spec"], "resources": files}}


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_crash_files_are_all_there_or_none(crashes: Crashes, point: str) -> None:
    """An update of files has no metadata; that of the revision stays."""
    world = crashes.world
    metadata = (await draft(world))["metadata"]
    changed = with_file(await world.files(NAME), "text\n")
    await crashes.during(lambda: world.store.resources.update(changed, user=""))
    await crashes.restart(point)
    assert ("note.txt" in (await world.files(NAME))["spec"]["resources"]) == (point != BEFORE)
    found = world.present(NAME)["metadata"]
    assert {key: found[key] for key in ("labels", "ownerReferences")} == {
        key: metadata[key] for key in ("labels", "ownerReferences")
    }


@pytest.mark.parametrize("pushed", [True, False])
async def test_an_update_whose_answer_was_lost_is_done_or_not(
    crashes: Crashes, monkeypatch: pytest.MonkeyPatch, pushed: bool
) -> None:
    """Until the remote answers again nobody writes the object: that would lose the update's metadata."""
    world = crashes.world
    first = await draft(world)
    before, gone = shown(world, NAME), GitError(Failure.UNREACHABLE, "the line is cut")
    push, fetch, cut = BareMirror.push, BareMirror.fetch, True

    def lost(mirror: BareMirror, *arguments: Any) -> None:
        if pushed:
            push(mirror, *arguments)
        raise gone

    def fetched(mirror: BareMirror) -> None:
        if cut:
            raise gone
        fetch(mirror)

    monkeypatch.setattr(BareMirror, "fetch", fetched)
    with monkeypatch.context() as patched:
        patched.setattr(BareMirror, "push", lost)
        with pytest.raises(StatusError, match="the line is cut"):
            await world.update(with_metadata(first, **METADATA), lifecycle="Proposed")
    await world.until(lambda: world.condition("edge")["message"] == "the line is cut")
    later = with_metadata(first, annotations={"later": "yes"})
    files = with_file(await world.files(NAME), "text\n")
    for request in (
        world.update(later),
        world.delete(NAME),
        world.store.resources.update(files, user=""),
    ):
        with pytest.raises(StatusError, match=r"was interrupted, and whether .*the line is cut") as refused:
            await request
        assert (refused.value.code, refused.value.retry_after_seconds) == (503, 5)
    assert shown(world, NAME) == before

    cut = False
    await world.until(lambda: world.condition("edge")["status"] == "True")
    changed = world.present(NAME)
    assert changed["spec"]["lifecycle"] == ("Proposed" if pushed else "Draft")
    if pushed:
        assert changed["metadata"].items() >= METADATA.items()
    else:
        assert shown(world, NAME) == before
    await world.update(with_metadata(changed, annotations={"later": "yes"}))
    assert world.present(NAME)["metadata"]["annotations"] == {"later": "yes"}


async def test_a_refused_update_leaves_no_metadata_for_others(crashes: Crashes, edge: Path) -> None:
    """Someone else does later, by hand, what the update was to do: its metadata does not come with that."""
    world = crashes.world
    first = await publish_draft(world)
    hook = edge / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(StatusError, match="hook"):
        await world.update(with_metadata(first, annotations={"by": "me"}), lifecycle="DeletionProposed")
    hook.unlink()
    world.options = StoreOptions(poll_seconds=0.05, fetch_seconds=0.2)
    await world.restart()
    git(edge, "branch", "deletionProposed/app/v1", "app/v1")
    await world.until(lambda: world.present(NAME)["spec"]["lifecycle"] == "DeletionProposed")
    assert world.present(NAME)["metadata"].get("annotations") is None


async def test_an_update_whose_client_goes_away_has_all_its_parts(
    crashes: Crashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = crashes.world
    first = await draft(world)
    push, begun, allowed = BareMirror.push, threading.Event(), threading.Event()

    def slow(mirror: BareMirror, *arguments: Any) -> None:
        begun.set()
        allowed.wait(20)
        push(mirror, *arguments)

    monkeypatch.setattr(BareMirror, "push", slow)
    request = asyncio.create_task(world.update(with_metadata(first, **METADATA), lifecycle="Proposed"))
    await world.until(begun.is_set)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    allowed.set()
    await world.until(lambda: world.present(NAME)["spec"]["lifecycle"] == "Proposed")
    assert world.present(NAME)["metadata"].items() >= METADATA.items()


@pytest.mark.parametrize("point", [BEFORE, PUSHED])
async def test_a_request_right_after_the_restart_loses_nothing(
    crashes: Crashes, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It waits until the remote was read. If the interrupted change is there, the request is to try again."""
    world = crashes.world
    first = await draft(world)
    await crashes.during(lambda: world.update(with_metadata(first, **METADATA), lifecycle="Proposed"))
    fetch, allowed = BareMirror.fetch, threading.Event()
    monkeypatch.setattr(BareMirror, "fetch", lambda mirror: (allowed.wait(20), fetch(mirror)))
    await crashes.restart(point, until=lambda: (NAMESPACE, "edge") in world.store.syncs)
    later = with_metadata(first, annotations={"later": "yes"})
    request = asyncio.create_task(world.update(later))
    await asyncio.sleep(0.1)
    assert not request.done()
    allowed.set()
    if point == PUSHED:
        with pytest.raises(StatusError, match="completed just now: try again"):
            await request
        changed = world.present(NAME)
        assert changed["spec"]["lifecycle"] == "Proposed"
        assert changed["metadata"].items() >= METADATA.items()
    else:
        assert (await request)["metadata"]["annotations"] == {"later": "yes"}


async def test_an_update_that_was_stored_is_not_done_again(
    crashes: Crashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the crash its note is there still, and its metadata was changed since."""
    monkeypatch.setattr(packages_repository, "LATER_SECONDS", 60.0)  # the note stays
    world = crashes.world
    first = await publish_draft(world)

    async def both() -> None:
        done = await world.update(
            with_metadata(first, annotations={"by": "me"}), lifecycle="DeletionProposed"
        )
        await world.update(with_metadata(done, annotations={"by": "you"}))

    await crashes.during(both)
    assert NAME in crashes.sync.journal.names()
    await crashes.restart(STORED)
    assert world.present(NAME)["metadata"]["annotations"] == {"by": "you"}
    assert crashes.sync.journal.names() == []


async def test_the_removal_of_the_last_finalizer_needs_no_push_of_its_own(crashes: Crashes) -> None:
    """The revision is removed from git next, so its lifecycle is not changed there before."""
    world = crashes.world
    first = with_metadata(await propose_draft(world), deletionTimestamp="2026-01-01T00:00:00Z")
    last = await world.store.package_revisions.on_update(
        first, {**first, "spec": {**first["spec"], "lifecycle": "Draft"}}, subresource="", user=""
    )
    assert last == first
