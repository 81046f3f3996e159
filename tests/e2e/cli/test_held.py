"""Removals of the example fleet that are too many at once: held, explained, confirmed or taken back."""

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET, VARIANT
from pvbus.examples import fleet
from pvbus.ports.cluster import Kind, Object
from tests.e2e.cli.command import SECONDS_MAX, git, pvbus, running
from tests.integration.apiserver.client import eventually
from tests.kit.cluster import resource_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("held"),
]

CLUSTER = Kind("fleet.example.dev", "Cluster")
GONE = 70  # of 200: above 30 %
QUIET_SECONDS = 6.0  # longer than removals wait for others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `pvbus up --example fleet --once` ended."""
    made = tmp_path_factory.mktemp("fleet")
    first = pvbus("up", "--example", "fleet", "--once", cwd=made)
    assert first.code == 0, first.out + first.err
    yield made
    shutil.rmtree(made)


class Live:
    """The objects of a running fleet."""

    def __init__(self, cluster: HttpCluster) -> None:
        self._cluster = cluster

    async def all(self, kind: Kind) -> list[Object]:
        resource = await resource_of(self._cluster, kind)
        return list((await self._cluster.list(resource)).items)

    async def uids(self) -> dict[str, str]:
        """Return the living variants."""
        metas = [obj["metadata"] for obj in await self.all(VARIANT)]
        return {meta["name"]: meta["uid"] for meta in metas if not meta.get("deletionTimestamp")}

    async def label(self, stages: dict[str, str]) -> None:
        """Do what `kubectl label` does, one Cluster after the other."""
        resource = await resource_of(self._cluster, CLUSTER)
        for name, stage in stages.items():
            await self._cluster.patch(resource, "default", name, {"metadata": {"labels": {"stage": stage}}})

    async def conditions(self) -> dict[str, Object]:
        """Return the conditions of the set that are true."""
        (web,) = await self.all(SET)
        return {one["type"]: one for one in web["status"]["conditions"] if one["status"] == "True"}

    async def held(self) -> str:
        """Return the token that the set shows, "" while there is none."""
        held = (await self.conditions()).get("DeletionHeld", {"message": ""})
        token = re.search(r"pvbus\.dev/confirm-deletion=([0-9a-f]+)", held["message"])
        return token[1] if token is not None else ""


def test_a_label_mistyped_on_all_clusters_deletes_nothing(folder: Path) -> None:
    """As `kubectl label clusters --all stage=prodd --overwrite` does it: every variant stays, one token
    stands for all of them, one command shows them; labels that are put right again are all that it takes."""
    data = folder / ".pvbus"

    async def accident() -> None:
        cluster = await HttpCluster.connect(data / "kubeconfig")
        live = Live(cluster)
        before = await live.uids()
        stages = {
            obj["metadata"]["name"]: obj["metadata"]["labels"]["stage"] for obj in await live.all(CLUSTER)
        }
        drafts = drafts_of(folder)
        await live.label(dict.fromkeys(stages, "prodd"))

        async def has_token() -> bool:
            return bool(await live.held())

        await eventually(has_token, SECONDS_MAX)
        tokens = {await live.held()}
        await asyncio.sleep(QUIET_SECONDS)
        tokens.add(await live.held())
        shown = await asyncio.to_thread(pvbus, "confirm", "default/web", "--show", cwd=folder)
        assert shown.code == 0, shown.err
        assert f"{len(before)} deletions of default/web are held" in shown.out
        assert all(f"default/{name} " in shown.out for name in before)
        assert len(tokens) == 1
        assert await live.uids() == before

        await live.label(stages)

        async def is_ready() -> bool:
            conditions = await live.conditions()
            return "Ready" in conditions and "DeletionHeld" not in conditions

        await eventually(is_ready, SECONDS_MAX)
        await asyncio.sleep(QUIET_SECONDS)
        nothing = await asyncio.to_thread(pvbus, "confirm", "default/web", "--show", cwd=folder)
        assert (nothing.code, nothing.err) == (1, "default/web: nothing is held\n")
        assert await is_ready()
        assert await live.uids() == before
        assert drafts_of(folder) == drafts
        await cluster.close()

    with running("up", cwd=folder) as up:
        up.wait_for("sets 1/1 ready")
        asyncio.run(accident())
        assert up.end() == 0, up.output


def drafts_of(folder: Path) -> dict[str, str]:
    """Return the drafts in the repositories of each region, with their commits."""
    repositories = {region: folder / ".pvbus" / "example" / f"edge-{region}.git" for region in fleet.REGIONS}
    return {
        region: git(repository, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/drafts")
        for region, repository in repositories.items()
    }


def test_removals_are_held_until_confirmed(folder: Path) -> None:
    """`--once` ends with 1 and names the set; explain gives the command; its annotation removes exactly
    those variants and their drafts."""
    manifests = fleet.make(folder / ".pvbus" / "example")
    clusters = [m.object for m in manifests if m.object["kind"] == "Cluster"]
    chosen = [c for c in clusters if c["metadata"]["labels"]["stage"] == "production"][:GONE]
    relabelled = [
        {**c, "metadata": {**c["metadata"], "labels": {**c["metadata"]["labels"], "stage": "retired"}}}
        for c in chosen
    ]
    (folder / "retired.yaml").write_text(yaml.safe_dump_all(relabelled))
    held = pvbus("up", "retired.yaml", "--once", cwd=folder)
    assert held.code == 1, held.out + held.err
    assert "PackageVariantSet default/web: DeletionHeld" in held.out
    assert "variants 200/200 ready" in held.out

    document = msgspec.json.decode(pvbus("explain", "--set", "default/web", "-o", "json", cwd=folder).out)
    names = {f"web-edge-{c['metadata']['labels']['region']}-{c['metadata']['name']}-web" for c in chosen}
    assert set(document["held"]["variants"]) == names
    assert document["children"] == {"present": 200 - GONE, "held": GONE}
    one = pvbus("explain", f"default/{min(names)}", cwd=folder)
    assert document["held"]["confirm"] in one.out
    assert "its removal is held" in one.out

    token = re.search(r"pvbus\.dev/confirm-deletion=([0-9a-f]+) ", document["held"]["confirm"])
    assert token is not None
    web = next(m.object for m in manifests if m.object["kind"] == "PackageVariantSet")
    web["metadata"]["annotations"] = {"pvbus.dev/confirm-deletion": token[1]}
    (folder / "confirmed.yaml").write_text(yaml.safe_dump(web))
    done = pvbus("up", "confirmed.yaml", "--once", cwd=folder)
    assert done.code == 0, done.out + done.err
    assert f"variants {200 - GONE}/{200 - GONE} ready" in done.out
    drafts = drafts_of(folder).values()
    assert sum(len(refs.splitlines()) for refs in drafts) == 200 - GONE
