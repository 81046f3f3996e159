"""What is done in the rows of the fault table: each deed makes a fault and says what came of it.

A deed returns `Told`: the words somebody gets who looks at the named place, and everything that was lost
or done although it must not be. Where a fault can be taken back, the deed does so and waits until all is
well again; what does not heal counts as lost.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.ports.cluster import Object
from tests.e2e.faults.world import (
    CONFIG_MAP,
    CONTEXT,
    KPTFILE,
    REPOSITORY,
    REVISION,
    SET,
    VARIANT,
    NamespaceWorld,
    branches,
    commit,
    git,
    refuse_pushes,
)
from tests.tools.installation import Installation, NotReadyError, pvbus
from tests.tools.ports import free_ports

SITES = {"objectSelector": {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": {"site": "yes"}}}
SETTINGS = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n"
DRAFT = "drafts/a/packagevariant-1"
LISTED: Object = {"repositories": [{"name": "edge", "packageNames": ["a"]}]}


class Reported(NamedTuple):
    """text: what is said; lost: what should have stayed, or should not be."""

    text: str
    lost: tuple[str, ...] = ()


def missing(wanted: set[str], present: set[str], what: str) -> tuple[str, ...]:
    return tuple(f"{what} {name}" for name in sorted(wanted - present))


def failed(holds: bool, what: str) -> tuple[str, ...]:
    return () if holds else (what,)


# ------------------------------------------------------------------ input


async def manifest_refused(world: NamespaceWorld, text: str) -> Reported:
    """`pvbus up FILE` on a folder of its own, with a good object in front of the bad document."""
    file = world.folder / "manifests.yaml"
    good = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good"}, "data": {"a": "b"}}
    file.write_text(f"{yaml.safe_dump(good)}---\n{text}")
    done = await asyncio.to_thread(pvbus, "up", file, "--data", world.folder / "data", "--once")
    return Reported(done.stderr, failed(done.returncode == 2, f"exit code 2, it is {done.returncode}"))


async def body_refused(world: NamespaceWorld, body: str) -> Reported:
    """POST of YAML text to the API server, which must store nothing."""
    before = await world.names(SET)
    context = yaml.safe_load(world.installation.kubeconfig.read_text())
    server, user = context["clusters"][0]["cluster"]["server"], context["users"][0]["user"]
    path = f"/apis/config.porch.kpt.dev/v1alpha2/namespaces/{world.namespace}/packagevariantsets"
    headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/yaml"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server}{path}?fieldValidation=Strict", data=body.encode(), ssl=False) as answer,
    ):
        text = f"{answer.status} {(await answer.json())['message']}"
    return Reported(text, missing(before, await world.names(SET), "set"))


async def set_stalls(world: NamespaceWorld, spec: Mapping[str, Any]) -> Reported:
    """A set with this spec beside a good one: only it stalls, and makes nothing."""
    name = "bad"
    await world.create(SET, name, spec=spec)
    text = await world.reported(SET, name, r"Stalled=True \(ValidationError\).*")
    made = await world.names(VARIANT)
    return Reported(text, tuple(f"made {variant}" for variant in made if variant.startswith(f"{name}-")))


async def expression_breaks(world: NamespaceWorld, expression: str) -> Reported:
    """A set with three variants is edited: its expression is bad from now on, and its variants stay."""
    await world.blueprints()
    await world.edge()
    many = {f"k{number}": "" for number in range(10_000)}
    await world.create(CONFIG_MAP, "site-0", labels={"site": "yes"}, annotations=many)
    await world.create(CONFIG_MAP, "site-1", labels={"site": "yes"}, annotations=many)
    good = {"repo": "edge", "packageExpr": "target.name"}
    await world.make_set("s", {**SITES, "template": {"downstream": good}}, LISTED)
    await world.variants_ready("s-edge-a", "s-edge-site-0", "s-edge-site-1")
    bad = {"repo": "edge", "packageExpr": expression}
    await world.patch(SET, "s", {"spec": {"targets": [{**SITES, "template": {"downstream": bad}}, LISTED]}})
    text = await world.reported(SET, "s", r"Stalled=True")
    await asyncio.sleep(1.0)  # longer than the delay of removals
    wanted = {"s-edge-a", "s-edge-site-0", "s-edge-site-1"}
    return Reported(text, missing(wanted, await world.names(VARIANT), "variant"))


# ------------------------------------------------------------------ selectors


async def nothing_selected(world: NamespaceWorld) -> Reported:
    """A selector that matches nothing from the start: no error, but it is said."""
    await world.blueprints()
    await world.make_set("s", SITES)
    text = await world.reported(SET, "s", r"Ready=True.*TargetsApplied=")
    return Reported(text)


async def suddenly_nothing(world: NamespaceWorld) -> Reported:
    """A slip of the pen in a selector: every variant is held, `explain` says how to go on."""
    await world.blueprints()
    await world.sites(14, site="yes")
    await world.make_set("s", SITES)
    wanted = {f"s-site-{number}-base" for number in range(14)}
    await world.until(lambda: _has(world, wanted))
    typo = {"objectSelector": {**SITES["objectSelector"], "matchLabels": {"site": "yse"}}}
    await world.patch(SET, "s", {"spec": {"targets": [typo]}})
    return await _held_until_confirmed(world, wanted)


async def suddenly_everything(world: NamespaceWorld) -> Reported:
    """A selector that loses its labels adds variants; putting it right holds their removal."""
    await world.blueprints()
    await world.sites(16)
    await world.create(CONFIG_MAP, "chosen", labels={"site": "yes"})
    await world.make_set("s", SITES)
    await world.until(lambda: _has(world, {"s-chosen-base"}))
    everything = {"objectSelector": {"apiVersion": "v1", "kind": "ConfigMap"}}
    await world.patch(SET, "s", {"spec": {"targets": [everything]}})
    extra = {f"s-site-{number}-base" for number in range(16)}
    await world.until(lambda: _has(world, extra))
    await world.patch(SET, "s", {"spec": {"targets": [SITES]}})
    reported = await _held_until_confirmed(world, extra)
    return reported._replace(
        lost=reported.lost + missing({"s-chosen-base"}, await world.names(VARIANT), "variant")
    )


async def _held_until_confirmed(world: NamespaceWorld, held: set[str]) -> Reported:
    """Nothing goes before the command that `explain` gives was followed; then exactly this goes."""
    conditions = await world.reported(SET, "s", r"DeletionHeld=True.*confirm-deletion=")
    await asyncio.sleep(1.0)
    lost = missing(held, await world.names(VARIANT), "held variant")
    explained = await asyncio.to_thread(
        pvbus, "explain", f"{world.namespace}/{min(held)}", "--data", world.installation.data
    )
    token = explained.stdout.partition("pvbus.dev/confirm-deletion=")[2][:16]
    await world.patch(SET, "s", {"metadata": {"annotations": {"pvbus.dev/confirm-deletion": token}}})
    try:
        await world.until(lambda: _has_none(world, held))
    except TimeoutError:
        lost += (f"nothing: {token!r} was not taken as a confirmation",)
    return Reported(f"{conditions}\n{explained.stdout}", lost)


async def _has(world: NamespaceWorld, wanted: set[str]) -> bool:
    return wanted <= await world.names(VARIANT)


async def _has_none(world: NamespaceWorld, unwanted: set[str]) -> bool:
    return not unwanted & await world.names(VARIANT)


# ------------------------------------------------------------------ repositories


async def _one_draft(world: NamespaceWorld) -> Path:
    """A set with one variant, whose draft is in git."""
    await world.blueprints()
    remote = await world.edge()
    await world.make_set("s", LISTED)
    await world.variants_ready("s-edge-a")
    return remote


async def _new_set(world: NamespaceWorld, target: Object = LISTED) -> None:
    """A second set, which wants what cannot be had at the moment."""
    await world.make_set("t", {"repositories": [{"name": "edge", "packageNames": ["b"]}]})


async def repository_vanishes(world: NamespaceWorld) -> Reported:
    """The Repository object is deleted, and comes back."""
    remote = await _one_draft(world)
    draft = git(remote, "rev-parse", DRAFT)
    await world.delete(REPOSITORY, "edge")
    text = await world.reported(VARIANT, "s-edge-a", r'Ready=False.*no Repository named "edge"')
    lost = missing({"s-edge-a"}, await world.names(VARIANT), "variant")
    lost += missing({DRAFT}, set(branches(remote)), "branch")
    await world.register("edge", remote, deployment=True)
    return Reported(text, lost + await _as_before(world, remote, draft))


async def _as_before(world: NamespaceWorld, remote: Path, draft: str) -> tuple[str, ...]:
    """Once the fault is over: ready, and the same draft, not a second one."""
    ready = await world.reported(VARIANT, "s-edge-a", r"^Ready=True|\nReady=True")
    lost = failed("Ready=True" in ready, f"readiness: {ready}")
    drafts = [name for name in branches(remote) if name.startswith("drafts/a/")]
    if drafts != [DRAFT] or git(remote, "rev-parse", DRAFT) != draft:
        lost += (f"the draft: there are {drafts}",)
    owned = [name for name in await world.names(REVISION) if name.startswith("edge.a.")]
    return lost + failed(owned == ["edge.a.packagevariant-1"], f"the draft's object: {owned}")


async def upstream_vanishes(world: NamespaceWorld) -> Reported:
    """The Repository of the blueprints is deleted: what was made of them stays."""
    remote = await _one_draft(world)
    draft = git(remote, "rev-parse", DRAFT)
    await world.delete(REPOSITORY, "blueprints")
    text = await world.reported(SET, "s", r"Stalled=True \(UpstreamNotFound\)")
    await asyncio.sleep(1.0)
    lost = missing({"s-edge-a"}, await world.names(VARIANT), "variant")
    await world.register("blueprints", world.folder / "blueprints.git")
    return Reported(text, lost + await _as_before(world, remote, draft))


async def remote_is_down(world: NamespaceWorld) -> Reported:
    """A variant whose repository nobody serves waits, and says for what; its neighbour is made."""
    await world.blueprints()
    await world.edge()
    (port,) = free_ports(1)
    await world.register("far", f"http://127.0.0.1:{port}/far.git")
    downstreams = [{"name": "far", "packageNames": ["a"]}, {"name": "edge", "packageNames": ["b"]}]
    await world.make_set("s", {"repositories": downstreams})
    repository = await world.reported(REPOSITORY, "far", r"Ready=False.*cannot reach the remote")
    variant = await world.reported(VARIANT, "s-far-a", r"Ready=False.*cannot reach the remote")
    await world.variants_ready("s-edge-b")
    return Reported(f"{repository}\nvariant: {variant}")


async def remote_moves_away(world: NamespaceWorld) -> Reported:
    """The folder of a repository is renamed, and put back."""
    remote = await _one_draft(world)
    draft = git(remote, "rev-parse", DRAFT)
    remote.rename(remote.with_name("elsewhere"))
    text = await world.reported(REPOSITORY, "edge", r"Ready=False")
    lost = missing({"s-edge-a"}, await world.names(VARIANT), "variant")
    lost += missing({"edge.a.packagevariant-1"}, await world.names(REVISION), "draft's object")
    remote.with_name("elsewhere").rename(remote)
    healed = await world.reported(REPOSITORY, "edge", r"Ready=True")
    lost += failed("Ready=True" in healed, f"the Repository: {healed}")
    return Reported(text, lost + await _as_before(world, remote, draft))


async def push_refused(world: NamespaceWorld) -> Reported:
    """A hook of the remote takes no pushes for a while."""
    remote = await _one_draft(world)
    draft = git(remote, "rev-parse", DRAFT)
    hook = refuse_pushes(remote, "frozen until Monday")
    await _new_set(world)
    text = await world.reported(VARIANT, "t-edge-b", r"Ready=False.*frozen until Monday")
    lost = failed("drafts/b/packagevariant-1" not in branches(remote), "nothing: there is a branch")
    hook.unlink()
    healed = await world.reported(VARIANT, "t-edge-b", r"Ready=True")
    lost += failed("Ready=True" in healed, f"the draft that was refused: {healed}")
    drafts = [name for name in branches(remote) if name.startswith("drafts/b/")]
    lost += failed(drafts == ["drafts/b/packagevariant-1"], f"one draft, there are {drafts}")
    return Reported(text, lost + await _as_before(world, remote, draft))


async def remote_moved_under_us(world: NamespaceWorld) -> Reported:
    """Somebody pushes to the draft and to main while the set changes: all three changes are there."""
    remote = await _one_draft(world)
    commit(remote, DRAFT, {"a/by-hand.txt": "mine"})
    commit(remote, "main", {"notes.txt": "mine"})
    template = {"packageContext": {"data": {"colour": "blue"}}}
    await world.patch(SET, "s", {"spec": {"targets": [{**LISTED, "template": template}]}})

    async def arrived() -> bool:
        return "colour: blue" in git(remote, "show", f"{DRAFT}:a/package-context.yaml")

    lost: tuple[str, ...] = ()
    try:
        await world.until(arrived)
    except TimeoutError:
        lost = ("the change of the set",)
    text = await world.reported(VARIANT, "s-edge-a", r"Ready=True")
    files = set(git(remote, "ls-tree", "--name-only", f"{DRAFT}:a").split())
    lost += missing({"by-hand.txt", "Kptfile"}, files, "file")
    lost += missing({"notes.txt"}, set(git(remote, "ls-tree", "--name-only", "main").split()), "file on main")
    drafts = [name for name in branches(remote) if name.startswith("drafts/")]
    return Reported(text, lost + failed(drafts == [DRAFT], f"one draft, there are {drafts}"))


async def upstream_tag_moves(world: NamespaceWorld) -> Reported:
    """A set follows the tag `stable`, which its author moves; a person has edited the draft meanwhile."""
    upstream = {"repo": "blueprints", "package": "base", "workspaceName": "stable"}
    blueprints = await world.blueprints()
    first = git(blueprints, "rev-parse", "main").strip()
    git(blueprints, "update-ref", "refs/tags/base/stable", first)
    remote = await world.edge()
    await world.until(lambda: world.get(REVISION, "blueprints.base.stable"))
    await world.make_set("s", LISTED, upstream=upstream)
    await world.variants_ready("s-edge-a")
    commit(remote, DRAFT, {"a/by-hand.txt": "mine"})
    moved = commit(blueprints, "main", {"base/settings.yaml": f"{SETTINGS}data:\n  size: large\n"})
    git(blueprints, "update-ref", "refs/tags/base/stable", moved)

    async def arrived() -> bool:
        return "settings.yaml" in git(remote, "ls-tree", "--name-only", f"{DRAFT}:a").split()

    await world.until(arrived)
    text = await world.reported(VARIANT, "s-edge-a", r"Ready=True")
    files = set(git(remote, "ls-tree", "--name-only", f"{DRAFT}:a").split())
    return Reported(text, missing({"by-hand.txt", "Kptfile", "settings.yaml"}, files, "file"))


async def no_kptfile(world: NamespaceWorld) -> Reported:
    """A tagged folder that is no package is said to be none, where the repository is looked at."""
    remote = await world.blueprints()
    commit(remote, "main", {"raw/settings.yaml": SETTINGS}, tag="raw/v1")
    upstream = {"repo": "blueprints", "package": "raw", "revision": 1}
    await world.create(SET, "s", spec={"upstream": upstream, "targets": [LISTED]})
    stalled = await world.reported(SET, "s", r"UpstreamNotFound.*raw/1")
    repository = await world.reported(REPOSITORY, "blueprints", r"Kptfile")
    await world.patch(SET, "s", {"metadata": {"labels": {"looked": "at"}}})
    commit(remote, "main", {"raw/Kptfile": KPTFILE, "raw/package-context.yaml": CONTEXT}, tag="raw/v2")
    await world.edge()
    await world.patch(SET, "s", {"spec": {"upstream": {**upstream, "revision": 2}}})
    await world.variants_ready("s-edge-a")
    return Reported(f"{stalled}\n{repository}")


async def broken_kptfile(world: NamespaceWorld) -> Reported:
    """A Kptfile that is no YAML cannot be cloned; the other package of the repository can."""
    remote = await world.blueprints()
    await world.edge()
    commit(remote, "main", {"bad/Kptfile": "kind: [Kptfile\n"}, tag="bad/v1")
    upstream = {"repo": "blueprints", "package": "bad", "revision": 1}
    await world.create(SET, "s", spec={"upstream": upstream, "targets": [LISTED]})
    await _new_set(world)
    text = await world.reported(VARIANT, "s-edge-a", r"Ready=False.*yaml")
    await world.variants_ready("t-edge-b")
    return Reported(text)


# ------------------------------------------------------------------ processes


@asynccontextmanager
async def own_installation(world: NamespaceWorld, name: str) -> AsyncIterator[Installation]:
    made = Installation(world.folder / name)
    try:
        yield made
    finally:
        made.kill()


async def second_up(world: NamespaceWorld) -> Reported:
    """`pvbus up` on a data folder that is in use: the first goes on."""
    await world.create(CONFIG_MAP, "before")
    done = await asyncio.to_thread(pvbus, "up", "--data", world.installation.data)
    lost = missing({"before"}, await world.names(CONFIG_MAP), "object")
    lost += failed(done.returncode == 1, f"exit code 1, it is {done.returncode}")
    return Reported(done.stderr, lost + failed(world.installation.is_running, "the first pvbus up"))


async def port_in_use(world: NamespaceWorld) -> Reported:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = await asyncio.to_thread(pvbus, "up", "--data", world.folder / "data", "--port", str(port))
    return Reported(done.stderr, failed(done.returncode == 1, f"exit code 1, it is {done.returncode}"))


async def disk_full_at_start(world: NamespaceWorld) -> Reported:
    """No file may grow beyond 100 kB; with more room the same folder works."""
    async with own_installation(world, "data") as own:
        own.start(file_bytes_max=100_000)
        code = await asyncio.to_thread(own.wait_ended)
        text = own.output
        lost = failed(code == 1, f"exit code 1, it is {code}")
        own.start()
        try:
            await asyncio.to_thread(own.wait_ready)
        except NotReadyError as exc:
            lost += (f"the folder: {exc}",)
        return Reported(text, lost)


async def disk_full_while_running(world: NamespaceWorld) -> Reported:
    """Files stop growing in the middle of the work: writes are refused, answered ones are kept."""
    async with own_installation(world, "data") as own:
        own.start(file_bytes_max=3_000_000)
        await asyncio.to_thread(own.wait_ready)
        answered, text = await _fill(own)
        own.kill()
        text += own.output
        own.start()
        await asyncio.to_thread(own.wait_ready)
        cluster = await HttpCluster.connect(own.kubeconfig)
        try:
            found = await NamespaceWorld(own, cluster, "default", world.folder).names(CONFIG_MAP)
        finally:
            await cluster.close()
        return Reported(text, missing(answered, found, "answered object"))


async def _fill(own: Installation) -> tuple[set[str], str]:
    """Write until that fails; returns what was answered, and the words of the failure."""
    cluster = await HttpCluster.connect(own.kubeconfig)
    filled = NamespaceWorld(own, cluster, "default", own.data)
    answered: set[str] = set()
    try:
        for number in range(500):
            await filled.create(CONFIG_MAP, f"big-{number}", data={"text": "x" * 50_000})
            answered.add(f"big-{number}")
    except PvbusError as exc:
        return answered, f"{exc}\n"
    finally:
        await cluster.close()
    return answered, "everything could be written"


async def killed(world: NamespaceWorld) -> Reported:
    """kill -9 of everything; what was answered before is there after the next start."""
    remote = await _one_draft(world)
    draft = git(remote, "rev-parse", DRAFT)
    await world.create(CONFIG_MAP, "answered")
    world.installation.kill()
    world.installation.start()
    await asyncio.to_thread(world.installation.wait_ready)
    lost = missing({"answered"}, await world.names(CONFIG_MAP), "object")
    return Reported(world.installation.output, lost + await _as_before(world, remote, draft))


async def api_server_dies(world: NamespaceWorld) -> Reported:
    """The API server's process alone is killed: `up` ends, and says so."""
    await world.create(CONFIG_MAP, "answered")
    world.installation.kill_child()
    code = await asyncio.to_thread(world.installation.wait_ended)
    text = world.installation.output
    world.installation.start()
    await asyncio.to_thread(world.installation.wait_ready)
    lost = missing({"answered"}, await world.names(CONFIG_MAP), "object")
    return Reported(text, lost + failed(code == 1, f"exit code 1, it is {code}"))


async def refused_write(world: NamespaceWorld, spec: Mapping[str, Any]) -> Reported:
    """What the schema does not allow is refused by the API server itself."""
    try:
        await world.create(SET, "bad", spec=spec)
    except PermanentError as exc:
        return Reported(str(exc), tuple(f"nothing: {name} was stored" for name in await world.names(SET)))
    return Reported("it was accepted", (json.dumps(spec),))
