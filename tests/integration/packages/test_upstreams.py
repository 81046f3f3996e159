"""Clones of packages in git repositories that are not registered."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import gitcommand, programs
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    StoreWorld,
    bare,
    clone_of,
    git,
    push_files,
    put_secret,
    refs,
    revision,
    running,
    tree,
)
from tests.integration.packages.test_upgrade import upgrade_of
from tests.tools.certificate import make_certificate
from tests.tools.gitserver import GitServer, git_server


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """The key store of the server, and the certificate of its authority."""
    return make_certificate(tmp_path)


@pytest.fixture
def server(blueprints: Path, certified: tuple[Path, Path]) -> Iterator[GitServer]:
    with git_server(blueprints.parent, keystore=certified[0]) as server:
        yield server


@pytest.fixture
async def edged(
    blueprints: Path, edge: Path, certified: tuple[Path, Path], tmp_path: Path
) -> AsyncIterator[StoreWorld]:
    """A world with only the deployment repository registered, and the server's password in a Secret."""
    async with running(tmp_path / "data", local_folders=(str(blueprints.parent),)) as world:
        await world.add_repository("edge", edge, deployment=True)
        await put_secret(world, "right-password", **{"ca.crt": certified[1].read_text()})
        yield world


def at(repo: str, ref: str = "app/v1", directory: str = "app", **more: Any) -> Object:
    location = {"repo": repo, "ref": ref, "directory": directory, "secretRef": {"name": "login"}} | more
    return {"type": "clone", "clone": {"upstreamRef": {"type": "git", "git": location}}}


UPSTREAM = """\
upstream:
  type: git
  git:
    repo: {repo}
    directory: app
    ref: app/v1
upstreamLock:
  type: git
  git:
    repo: {repo}
    directory: app
    ref: app/v1
    commit: {commit}
"""


async def test_a_package_is_cloned_by_its_address_and_records_it(
    edged: StoreWorld, server: GitServer, blueprints: Path, edge: Path
) -> None:
    repo = server.url("blue%20prints.git")
    commit = git(blueprints, "rev-parse", "app/v1")
    push_files(blueprints, {"app/settings.yaml": "later: true\n"})
    draft = await edged.create(revision("edge", "web", "ws", at(repo)))
    assert draft["spec"]["tasks"] == [at(repo)]
    lock = {"repo": repo, "directory": "app", "ref": "app/v1", "commit": commit}
    assert draft["status"]["upstreamLock"] == {"type": "git", "git": lock}
    files = tree(edge, "drafts/web/ws", "web")
    assert UPSTREAM.format(repo=repo, commit=commit) in files["Kptfile"]
    assert files["Kptfile"].startswith("# The blueprint's own remark.\n")
    assert "metadata: # kpt-merge: /web\n  name: web\n" in files["Kptfile"]
    assert "metadata: # kpt-merge: example/settings" in files["settings.yaml"]
    assert 'upstream-identifier: "|ConfigMap|example|settings"' in files["settings.yaml"]
    assert "later" not in files["settings.yaml"]
    assert "package-path: web" in files["package-context.yaml"]
    message = git(edge, "log", "-1", "--format=%B", "drafts/web/ws")
    assert message.startswith("Creating new revision by cloning\n")
    assert f"Clone of {repo} app@app/v1 (commit {commit[:12]})\n" in message
    assert "right-password" not in message


async def test_a_ref_is_a_tag_a_branch_or_a_commit(
    edged: StoreWorld, server: GitServer, blueprints: Path
) -> None:
    git(blueprints, "branch", "topic", "main")
    before = git(blueprints, "rev-parse", "topic")
    head = push_files(blueprints, {"app/settings.yaml": CONFIG.replace("small", "large")})
    meant = {"v1": before, "main": head, "topic": before, "refs/tags/app/v1": before, head: head}
    for number, (ref, wanted) in enumerate(meant.items()):
        task = at(server.url("blue%20prints.git"), ref)
        draft = await edged.create(revision("edge", f"web-{number}", "ws", task))
        assert draft["status"]["upstreamLock"]["git"]["commit"] == wanted, ref
        settings = (await edged.files(f"edge.web-{number}.ws"))["spec"]["resources"]["settings.yaml"]
        assert ("size: large" in settings) == (wanted == head)


async def test_a_package_at_the_root_and_an_annotated_tag(
    edged: StoreWorld, server: GitServer, edge: Path
) -> None:
    remote = bare(server.folder / "root.git")
    commit = push_files(remote, {"Kptfile": KPTFILE.format(name="root"), "deep/a.yaml": CONFIG})
    git(remote, "tag", "--annotate", "--message", "first", "v1")
    draft = await edged.create(revision("edge", "web", "ws", at(server.url("root.git"), "v1", "/")))
    assert draft["status"]["upstreamLock"]["git"]["commit"] == commit
    files = tree(edge, "drafts/web/ws", "web")
    assert "    directory: /\n" in files["Kptfile"]
    assert "deep/a.yaml" in files


async def test_many_clones_of_a_commit_fetch_it_once(
    edged: StoreWorld, server: GitServer, certified: tuple[Path, Path], edge: Path
) -> None:
    repo = server.url("blue%20prints.git")
    await edged.create(revision("edge", "first", "ws", at(repo)))
    fetches = sum("git-upload-pack" in asked for asked in server.asked)
    names = [f"web-{number}" for number in range(6)]
    await asyncio.gather(*(edged.create(revision("edge", name, "ws", at(repo))) for name in names))
    assert len(refs(edge)) == 7
    # Each asks for the refs, in two requests and a refused one; no commit is fetched again.
    assert sum("git-upload-pack" in asked for asked in server.asked) - fetches <= 3 * len(names)
    await put_secret(edged, "wrong-password", **{"ca.crt": certified[1].read_text()})
    with pytest.raises(StatusError, match="does not accept the credentials") as refused:
        await edged.create(revision("edge", "last", "ws", at(repo)))
    assert refused.value.code == 500
    assert not list((edged.data / "upstreams").iterdir())


REFUSALS: list[tuple[Object, int, str]] = [
    ({"ref": "v9"}, 500, r'no branch or tag "app/v9" or "v9": correct clone\.upstreamRef\.git\.ref'),
    ({"ref": "0" * 40}, 500, "does not have this commit, or gives none by its hash"),
    ({"ref": ""}, 400, r"git\.ref: Required value: a branch, a tag or a commit"),
    ({"ref": "a b"}, 400, r"git\.ref: is not a valid branch name"),
    ({"ref": "*"}, 400, r"git\.ref: is not a valid branch name"),
    ({"directory": "ap"}, 500, r"there is no such directory; its packages are app"),
    ({"directory": "docs", "ref": "main"}, 500, "no Kptfile in this directory; its packages are app"),
    ({"directory": "../x"}, 400, r"git\.directory: .* is not a path inside"),
    ({"repo": "{url}/none.git"}, 500, "there is no git repository at this address"),
    ({"repo": "{folder}/none.git", "secretRef": None}, 500, "there is no git repository at this address"),
    ({"repo": "{folder}/none.git"}, 400, r"git\.secretRef: a Secret is used by https or ssh only"),
    ({"repo": "http://127.0.0.1:9/x.git"}, 400, r"git\.secretRef: a Secret is used by https or ssh only"),
    (
        {"repo": "https://127.0.0.1:9/x.git"},
        500,
        r"cannot reach the remote: check the address and the network \(",
    ),
    ({"repo": "http://joe:pw@127.0.0.1:9/x.git"}, 400, "must not contain a password"),
    ({"repo": "ext::sh -c id"}, 400, "helper programs"),
    ({"repo": "-x"}, 400, "must be a path or URL"),
    ({"repo": ""}, 400, r"git\.repo: Required value"),
    ({"repo": 3}, 400, r"clone\.upstreamRef: Expected `str`"),
    ({"secretRef": {"name": "other"}}, 500, r'Secret "other" of clone\.upstreamRef\.git\.secretRef'),
    ({"secretRef": None}, 500, "cannot trust the remote's certificate"),
]
NO_LOCATION: list[tuple[Object, int, str]] = [
    ({"type": "oci", "oci": {"image": "x"}}, 501, "only packages in git can be cloned"),
    ({}, 400, r"name a PackageRevision in upstreamRef\.name, or a package in git"),
]


async def test_what_is_wrong_with_an_address_is_said(
    edged: StoreWorld, server: GitServer, blueprints: Path, edge: Path
) -> None:
    push_files(blueprints, {"docs/readme.md": "hello\n"})
    tasks = []
    for change, code, message in REFUSALS:
        if isinstance(change.get("repo"), str):
            repo = change["repo"].format(url=server.url("")[:-1], folder=server.folder)
            change = {**change, "repo": repo}
        tasks.append((at(**{"repo": server.url("blue%20prints.git"), **change}), code, message))
    for reference, code, message in NO_LOCATION:
        tasks.append(({"type": "clone", "clone": {"upstreamRef": reference}}, code, message))
    for task, code, message in tasks:
        with pytest.raises(StatusError, match=message) as refused:
            await edged.create(revision("edge", "web", "ws", task))
        assert refused.value.code == code, message
    assert refs(edge) == []


async def test_a_commit_that_is_too_large_is_given_up(
    edged: StoreWorld, blueprints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitcommand, "UPSTREAM_LIMITS", programs.Limits(1 << 30, 100 * 1024))
    noise = "".join(f"{number * number:x}\n" for number in range(60_000))
    push_files(blueprints, {"big.txt": noise})
    with pytest.raises(StatusError, match="more than 102400 packed bytes") as refused:
        await edged.create(revision("edge", "web", "ws", at(str(blueprints), "main", secretRef=None)))
    assert refused.value.code == 500


async def test_a_package_cloned_by_address_is_upgraded_once_its_repository_is_registered(
    edged: StoreWorld, server: GitServer, blueprints: Path, edge: Path
) -> None:
    repo = server.url("blue%20prints.git")
    draft = await edged.create(revision("edge", "web", "ws", at(repo)))
    await edged.publish(draft)
    push_files(blueprints, {"app/settings.yaml": CONFIG.replace("size: small", "size: large")}, tag="app/v2")
    with pytest.raises(StatusError, match=r'old upstream package revision "fleet/blue\.app\.v1" not found'):
        await edged.create(revision("edge", "web", "next", upgrade_of("edge.web.ws")))
    await edged.add_repository("blue", repo, git={"secretRef": {"name": "login"}})
    await edged.until(lambda: edged.revision("blue.app.v2"))
    upgraded = await edged.create(revision("edge", "web", "next", upgrade_of("edge.web.ws")))
    assert upgraded["status"]["upstreamLock"]["git"]["ref"] == "app/v2"
    assert "size: large" in tree(edge, "drafts/web/next", "web")["settings.yaml"]
    assert await edged.create(revision("edge", "by-name", "ws", clone_of("blue.app.v1")))


async def test_a_remote_that_hangs_does_not_hold_up_the_shutdown(edged: StoreWorld) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    asked = asyncio.Event()
    async with await asyncio.start_server(never, "127.0.0.1", 0) as hanging:
        port = hanging.sockets[0].getsockname()[1]
        task = at(f"http://127.0.0.1:{port}/x.git", secretRef=None)
        request = asyncio.create_task(edged.create(revision("edge", "web", "ws", task)))
        await asyncio.wait_for(asked.wait(), 10)
        async with asyncio.timeout(10):
            await edged.store.stop()
            with pytest.raises(StatusError):
                await request
