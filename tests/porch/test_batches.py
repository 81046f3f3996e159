"""Porch's own server reads what the package store has pushed in batches as the package store does."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.pushing import is_unguarded
from pvbus.ports.cluster import Object
from tests.integration.packages.support import NAMESPACE, StoreWorld, git, running
from tests.porch.batches import AGAIN, FIRST, NEXT, ROLLBACK, BatchedFleet
from tests.porch.programs import WITHOUT_TELEMETRY, Porch
from tests.porch.server import PorchServer, porch_server
from tests.porch.test_porch import porch as porch
from tests.tools.realcluster import RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.xdist_group("porch"),
]

MAIN = "main"
LEFT = {
    ("api", FIRST): (1, "DeletionProposed"),
    ("api", NEXT): (2, "Published"),
    ("api", ROLLBACK): (3, "Published"),
    ("api", MAIN): (-1, "Published"),
    ("db", NEXT): (2, "Published"),
    ("db", ROLLBACK): (3, "Published"),
    ("db", MAIN): (-1, "Published"),
    ("web", NEXT): (2, "Published"),
    ("web", AGAIN): (3, "Published"),
    ("web", MAIN): (-1, "Published"),
    ("cache", FIRST): (1, "Published"),
    ("cache", NEXT): (0, "Proposed"),
    ("cache", MAIN): (-1, "DeletionProposed"),
    ("queue", FIRST): (1, "Published"),
    ("queue", MAIN): (-1, "Published"),
    ("proxy", FIRST): (0, "Proposed"),
    ("sites/berlin/dns", FIRST): (1, "Published"),
    ("sites/berlin/dns", NEXT): (2, "Published"),
    ("sites/berlin/dns", MAIN): (-1, "Published"),
    ("sites/oslo/ntp", FIRST): (1, "Published"),
    ("sites/oslo/ntp", NEXT): (0, "Draft"),
    ("sites/oslo/ntp", MAIN): (-1, "Published"),
}
"""Number and lifecycle of each revision that the story leaves."""

APPROVALS = 15


class Reading(NamedTuple):
    """What somebody reads in the repositories, by the names of the revisions.

    revisions: what `_shown` returns
    files: the specs of their PackageRevisionResources
    placeholders: the commits of the revisions that are folders of the branch
    """

    revisions: dict[str, Object]
    files: dict[str, Object]
    placeholders: dict[str, str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of(DEFINITIONS)


@pytest.fixture(scope="module")
def server(
    cluster: RealCluster, porch: Porch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PorchServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WITHOUT_TELEMETRY.items():
            patch.setenv(name, value)
        with porch_server(cluster, porch, tmp_path_factory.mktemp("server")) as server:
            yield server


@pytest.mark.parametrize(
    ("name", "directory", "has_hook"),
    [("plain", "", False), ("folder", "live/eu", False), ("hook", "", True)],
    ids=["a repository without hooks", "packages in a folder", "a repository with a hook"],
)
async def test_porchs_server_reads_batches_as_the_package_store_does(
    name: str,
    directory: str,
    has_hook: bool,
    server: PorchServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every revision and all its files; so does another package store, which knows git alone.

    A repository without a hook gets its proposals without a push of git.
    """
    async with running(tmp_path / "data") as world:
        fleet = BatchedFleet(world, tmp_path / "git", name, directory)
        if has_hook:
            fleet.add_hook()
        await fleet.begin()
        fleet.note_pushes(monkeypatch)
        await fleet.live()
        _assert_made_in_batches(fleet, has_hook=has_hook)
        ours = await _read(world)
        _assert_left(fleet, ours)
        for repository in fleet.repositories:
            await asyncio.to_thread(server.register, repository)
        theirs = _read_by(server, {each["metadata"]["name"] for each in fleet.repositories})
    assert _differences(theirs, ours) == {}
    _assert_same_folders(fleet, ours, theirs)
    async with running(tmp_path / "anew") as anew:
        await fleet.register_with(anew)
        without_memory = await _read(anew)
    assert _differences(without_memory, ours) == {}


def _assert_made_in_batches(fleet: BatchedFleet, *, has_hook: bool) -> None:
    """Git itself says how many pushes there were, and whether `git push` moved a proposal."""
    moves = fleet.reflog("refs/heads/main")
    assert len(moves) == sum("refs/heads/main" in push for push in fleet.pushes)
    titles = git(fleet.remote, "log", "--first-parent", "--format=%s", "main").splitlines()
    assert sum(title.startswith("Approving package revision") for title in titles) == APPROVALS
    assert len(moves) * 3 <= APPROVALS
    proposal = fleet.ref(layout.PROPOSALS, "proxy", FIRST)
    assert fleet.reflog(proposal) == ["push" if has_hook else "", "push"]  # the second one is a person's
    assert is_unguarded(fleet.remote) is not has_hook
    if has_hook:
        assert fleet.noted_by_hook() == fleet.pushes


def _assert_left(fleet: BatchedFleet, found: Reading) -> None:
    """The story has left what it should, so there is something to compare."""
    edge = fleet.repositories[1]["metadata"]["name"]
    left = {
        (spec["packageName"], spec["workspaceName"]): (spec.get("revision", 0), spec["lifecycle"])
        for spec in (each["spec"] for each in found.revisions.values())
        if spec["repository"] == edge
    }
    assert left == LEFT
    assert {task["type"] for each in found.revisions.values() for task in each["spec"].get("tasks", ())} == {
        "clone",
        "edit",
        "upgrade",
    }


def _differences(theirs: Reading, ours: Reading) -> dict[str, tuple[object, object]]:
    """Return the parts of revisions and of their files that two readings do not share, by name and part."""
    parts = [
        {
            f"{kind} {name} {part}": value
            for kind, objects in (("revision", reading.revisions), ("files", reading.files))
            for name, obj in objects.items()
            for part, value in obj.items()
        }
        for reading in (theirs, ours)
    ]
    keys = parts[0].keys() | parts[1].keys()
    pairs = {key: (parts[0].get(key), parts[1].get(key)) for key in sorted(keys)}
    return {key: (left, right) for key, (left, right) in pairs.items() if left != right}


def _assert_same_folders(fleet: BatchedFleet, ours: Reading, theirs: Reading) -> None:
    """A placeholder is of the branch's head for Porch, and of the commit at which its folder was new for us.

    Both have the same folder.
    """
    assert ours.placeholders.keys() == theirs.placeholders.keys()
    heads = {git(each, "rev-parse", "main") for each in (fleet.remote, fleet.blueprints)}
    assert set(theirs.placeholders.values()) == heads
    for name, commit in ours.placeholders.items():
        package = ours.revisions[name]["spec"]["packageName"]
        is_edge = ours.revisions[name]["spec"]["repository"] == fleet.repositories[1]["metadata"]["name"]
        remote = fleet.remote if is_edge else fleet.blueprints
        folder = layout.join(fleet.directory, package) if is_edge else package
        git(remote, "merge-base", "--is-ancestor", commit, theirs.placeholders[name])
        trees = [git(remote, "rev-parse", f"{each}:{folder}") for each in (commit, theirs.placeholders[name])]
        assert trees[0] == trees[1], name


async def _read(world: StoreWorld) -> Reading:
    """Read what the package store shows."""
    found = world.objects.list(PACKAGE_REVISION, NAMESPACE)
    return _reading(found, [await world.files(each["metadata"]["name"]) for each in found])


def _read_by(server: PorchServer, repositories: set[str]) -> Reading:
    """Read what Porch's server shows of some Repositories."""
    revisions, files = (
        [each for each in server.objects(plural, NAMESPACE) if each["spec"]["repository"] in repositories]
        for plural in ("packagerevisions", "packagerevisionresources")
    )
    for each in revisions:
        assert each["metadata"]["resourceVersion"] == each["status"]["selfLock"]["git"]["commit"]
    return _reading(revisions, files)


def _reading(revisions: Iterable[Object], files: Iterable[Object]) -> Reading:
    found = {each["metadata"]["name"]: each for each in revisions}
    return Reading(
        {name: _shown(each) for name, each in found.items()},
        {each["metadata"]["name"]: each["spec"] for each in files},
        {
            name: each["status"]["selfLock"]["git"]["commit"]
            for name, each in found.items()
            if _is_placeholder(each)
        },
    )


def _shown(revision: Object) -> Object:
    """Return what a PackageRevision says that comes from git.

    Of the metadata only names, uid and the label of the latest revision do; Porch's resourceVersion is its
    commit, and its creationTimestamp is when it has read the revision first. Porch writes null for no time,
    and an empty packageMetadata. The commit of a placeholder is compared by itself.
    """
    metadata = revision["metadata"]
    spec, status = (
        {key: value for key, value in revision[part].items() if value not in (None, {})}
        for part in ("spec", "status")
    )
    if _is_placeholder(revision):
        lock = {**status["selfLock"]["git"], "commit": ""}
        status = {**status, "selfLock": {**status["selfLock"], "git": lock}}
    return {
        **{key: revision[key] for key in ("apiVersion", "kind")},
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid")},
        "latest": (metadata.get("labels") or {}).get(layout.LATEST_LABEL),
        "spec": spec,
        "status": status,
    }


def _is_placeholder(revision: Object) -> bool:
    return bool(revision["spec"].get("revision") == layout.PLACEHOLDER_REVISION)
