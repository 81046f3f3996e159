"""The process of the package store is killed in the middle of a push to a remote, and starts again."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from pvbus.core.kernel.keys import APPROVE_TOGETHER
from pvbus.ports.cluster import Object
from tests.integration.apiserver.client import Api, eventually
from tests.integration.packages.support import NAMESPACE, bare, git, refs, repository, revision
from tests.integration.packages.test_server import REPOSITORIES, REVISIONS
from tests.tools.gitserver import git_server

pytestmark = pytest.mark.long

SERVE = """
import asyncio, pathlib, sys
from tests.integration.packages.test_server import serving

async def main():
    async with serving(pathlib.Path(sys.argv[1])) as served:
        print(served.server.url, served.server.token, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""

GIT = """#!/bin/sh
# Kills its parent before or after refs move at the next remote, as $KILL/when says, once.
when=$(cat "$KILL/when" 2>/dev/null)
case "$1" in push|update-ref) rm -f "$KILL/when";; *) when=;; esac
[ "$when" = before ] && kill -9 $PPID && exit 1
{git} "$@"
code=$?
[ "$when" = after ] && kill -9 $PPID
exit $code
"""


class Store:
    """A store in a process of its own, which can be made to die."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = folder / "bin" / "git"
        program.parent.mkdir()
        program.write_text(GIT.replace("{git}", str(shutil.which("git"))))
        program.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "KILL": str(folder),
        }

    def die(self, when: str) -> None:
        """Kill the process `before` or `after` the next push."""
        (self._folder / "when").write_text(when)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Api]:
        command = [sys.executable, "-c", SERVE, str(self._folder / "data")]
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            url, token = (await process.stdout.readline()).decode().split()
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
                yield Api(session, url)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def found(api: Api, name: str, lifecycle: str) -> Object:
    """Wait until a revision has a lifecycle."""
    seen: list[Object] = []

    async def reached() -> bool:
        if await api.code(f"{REVISIONS}/{name}") != 200:
            return False
        seen.append(await api.get(f"{REVISIONS}/{name}"))
        return bool(seen[-1]["spec"]["lifecycle"] == lifecycle)

    await eventually(reached)
    return seen[-1]


async def set_lifecycle(api: Api, obj: Object, lifecycle: str, subresource: str = "") -> Object:
    changed = {**obj, "spec": {**obj["spec"], "lifecycle": lifecycle}}
    reply = await api.call("PUT", f"{REVISIONS}/{obj['metadata']['name']}{subresource}", changed)
    assert reply.code == 200, reply.body
    return dict(reply.body)


async def approve(api: Api, obj: Object) -> None:
    await set_lifecycle(api, obj, "Published", "/approval")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_push_is_done_or_not_but_never_lost_or_done_twice(tmp_path: Path, when: str) -> None:
    edge = bare(tmp_path / "git" / "edge.git")
    store = Store(tmp_path)
    labels = {"team": "net"}
    wanted = revision("edge", "app", "ws", labels=labels)
    with git_server(edge.parent) as server:
        server.password = ""
        async with store.running() as api:
            await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            await api.create(REPOSITORIES, repository("edge", server.url("edge.git")))
            store.die(when)
            with suppress(aiohttp.ClientError):
                await api.create(REVISIONS, wanted)
                raise AssertionError("it lives")
        assert refs(edge) == ([] if when == "before" else ["refs/heads/drafts/app/ws"])
        async with store.running() as api:
            if when == "before":
                assert await api.code(f"{REVISIONS}/edge.app.ws") == 404
                await api.create(REVISIONS, wanted)
            draft = await found(api, "edge.app.ws", "Draft")
            assert draft["metadata"]["labels"] == labels
            draft = await set_lifecycle(api, draft, "Proposed")
            store.die(when)
            with suppress(aiohttp.ClientError):
                await approve(api, draft)
                raise AssertionError("it lives")
        done = ["refs/heads/main", "refs/tags/app/v1"]
        assert refs(edge) == (["refs/heads/proposed/app/ws"] if when == "before" else done)
        async with store.running() as api:
            if when == "before":
                await approve(api, await found(api, "edge.app.ws", "Proposed"))
            published = await found(api, "edge.app.ws", "Published")
            assert published["spec"]["revision"] == 1
            assert published["metadata"]["labels"] == labels | {"kpt.dev/latest-revision": "true"}
            assert refs(edge) == done
            titles = git(edge, "log", "--first-parent", "--format=%s", "main").splitlines()
            assert titles.count("Approving package revision app/1") == 1
        git(edge, "fsck", "--strict")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_approvals_that_go_together_are_all_published_or_none(tmp_path: Path, when: str) -> None:
    edge = bare(tmp_path / "git" / "edge.git")
    store, packages = Store(tmp_path), ("db", "web")
    names = ",".join(f"edge.{package}.ws" for package in packages)

    async def approve_all(api: Api) -> None:
        proposals = [await found(api, f"edge.{package}.ws", "Proposed") for package in packages]
        named = [
            {**obj, "metadata": {**obj["metadata"], "annotations": {APPROVE_TOGETHER: names}}}
            for obj in proposals
        ]
        await asyncio.gather(*(approve(api, obj) for obj in named))

    async with store.running() as api:
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await api.create(REPOSITORIES, repository("edge", edge))
        for package in packages:
            draft = await api.create(REVISIONS, revision("edge", package, "ws"))
            await set_lifecycle(api, draft, "Proposed")
        store.die(when)
        with suppress(aiohttp.ClientError):
            await approve_all(api)
            raise AssertionError("it lives")
    tags = [ref for ref in refs(edge) if "tags" in ref]
    assert tags == ([] if when == "before" else ["refs/tags/db/v1", "refs/tags/web/v1"])
    async with store.running() as api:
        if when == "before":
            await approve_all(api)
        for package in packages:
            assert (await found(api, f"edge.{package}.ws", "Published"))["spec"]["revision"] == 1
    git(edge, "fsck", "--strict")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_update_has_all_of_its_parts_or_none(tmp_path: Path, when: str) -> None:
    """A proposed deletion, who proposed it, and the owner who gives the revision up are one update."""
    edge = bare(tmp_path / "git" / "edge.git")
    store = Store(tmp_path)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"}
    async with store.running() as api:
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await api.create("/api/v1/namespaces/fleet/configmaps", {"metadata": {"name": "owner"}})
        owner["uid"] = (await api.get("/api/v1/namespaces/fleet/configmaps/owner"))["metadata"]["uid"]
        await api.create(REPOSITORIES, repository("edge", edge))
        wanted = revision("edge", "app", "ws", ownerReferences=[owner], finalizers=["example.com/f"])
        draft = await api.create(REVISIONS, wanted)
        await approve(api, await set_lifecycle(api, draft, "Proposed"))
        published = await api.get(f"{REVISIONS}/edge.app.ws")
        annotations = {"pvbus.dev/deletion-proposed-by": "me"}
        changed = {**published["metadata"], "annotations": annotations, "ownerReferences": []}
        store.die(when)
        with suppress(aiohttp.ClientError):
            await set_lifecycle(api, {**published, "metadata": changed}, "DeletionProposed")
            raise AssertionError("it lives")
    is_marked = "refs/heads/deletionProposed/app/v1" in refs(edge)
    assert is_marked == (when == "after")
    async with store.running() as api:
        metadata = (await found(api, "edge.app.ws", "DeletionProposed" if is_marked else "Published"))[
            "metadata"
        ]
        assert metadata.get("annotations") == (annotations if is_marked else None)
        assert metadata.get("ownerReferences", []) == ([] if is_marked else [owner])
        assert metadata["finalizers"] == ["example.com/f"]
