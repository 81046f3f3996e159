"""A fleet whose blueprint publishes: `pvbus up` makes upgrade drafts, and `pvbus explain` shows conflicts."""

import asyncio
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET, VARIANT
from pvbus.ports.cluster import Kind, Object
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import (
    CLUSTERS,
    FILES,
    PACKAGES,
    REVISION,
    Client,
    edit_locally,
    name_of,
    publish,
    write_manifests,
)
from tests.tools.sshsigning import public_text

CLUSTER = Kind("fleet.example.dev", "Cluster")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def test_every_variant_gets_an_upgrade_draft_with_its_local_edit(tmp_path: Path) -> None:
    """The set's revision rises once for all: upstream's change, local edits, and one conflict explained."""
    write_manifests(tmp_path)
    key = Ed25519PrivateKey.generate()
    signers = f"alice {public_text(key)}"
    with running("up", "manifests", cwd=tmp_path, PVBUS_PLAN_SIGNERS=signers) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            client = Client(cluster)
            await edit_locally(client)
            for package in PACKAGES:
                await client.approve(name_of(package, 1))
            published = pvbus("wait", "default/web", "--for", "published", cwd=tmp_path)
            assert published.out == "PackageVariantSet default/web at generation 1 is published\n"
            publish(tmp_path / "repositories" / "blueprints.git", tmp_path / "clone")
            await until_known(client, "blueprints.web.v2")
            await follow_by_plan(client, tmp_path, key)
            ready = pvbus("wait", "default/web", cwd=tmp_path)
            assert ready.out == "PackageVariantSet default/web at generation 2 is ready\n"
            drafts = pvbus("wait", "default/web", "--for", "published", "--timeout", "0", cwd=tmp_path)
            assert f"0 of {CLUSTERS} published; PackageRevision default/" in drafts.err
            for package in PACKAGES:
                draft = await client.until_there(name_of(package, 2))
                (task,) = draft["spec"]["tasks"]
                assert task["type"] == "upgrade"
                assert task["upgrade"]["newUpstreamRef"]["name"] == "blueprints.web.v2"
                assert draft["status"]["upstreamLock"]["git"]["ref"] == "web/v2"
                before = (await client.get(FILES, name_of(package, 1)))["spec"]["resources"]
                after = (await client.get(FILES, name_of(package, 2)))["spec"]["resources"]
                changed = {path for path in before if before[path] != after[path]}
                assert changed == {"Kptfile", "deployment.yaml"}
                assert after.keys() - before.keys() == {"budget.yaml"}
                assert f"namespace: {package}" in after["budget.yaml"]  # rendered
                lines = before["deployment.yaml"].splitlines()
                gone = [line for line in lines if line not in after["deployment.yaml"].splitlines()]
                assert len(gone) == 1
                assert "image:" in gone[0]
                conflicts = draft["metadata"]["annotations"].get("pvbus.dev/upgrade-conflicts", "")
                assert ("web:1.0.1" in conflicts) is (package == PACKAGES[0])
            said = pvbus("explain", f"default/web-edge-asia-{PACKAGES[0]}", cwd=tmp_path)
            assert (
                f"conflict of the upgrade in {name_of(PACKAGES[0], 2)}: deployment.yaml, Deployment "
                f"{PACKAGES[0]}/web, spec.template.spec.containers[name=web].image: is upstream's "
                "'registry.example.dev/web:2.0.0'; here it was changed from "
                "'registry.example.dev/web:1.0.0' to 'registry.example.dev/web:1.0.1'"
            ) in said.out
            await upgrade_from_a_draft(client, tmp_path)
            await edit_without_a_plan(client, tmp_path)
            assert up.end() == 0
        finally:
            await cluster.close()


async def until_known(client: Client, name: str) -> None:
    """Wait for a published PackageRevision: a plan knows what the API server knows."""
    for _ in range(300):
        if await client.get(REVISION, name) is not None:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{name} is not there")


async def edit_without_a_plan(client: Client, folder: Path) -> None:
    """A set that has asked for signed plans holds what an editor makes of it, and cannot be freed by one."""

    def edit(found: Object) -> None:
        found["spec"]["upstream"]["revision"] = 1
        del found["metadata"]["annotations"]["pvbus.dev/require-plan"]

    await client.edit(SET, "web", edit)
    words = ""
    for _ in range(100):
        conditions = (await client.get(SET, "web"))["status"]["conditions"]
        words = next((c["message"] for c in conditions if c["reason"] == "PlanRequired"), "")
        if words:
            break
        await asyncio.sleep(0.2)
    assert "needs a signed plan: it was changed since its plan was signed" in words
    variant = await client.get(VARIANT, f"web-edge-asia-{PACKAGES[0]}")
    assert variant["spec"]["upstream"]["revision"] == 2
    asked = pvbus("explain", "--set", "default/web", cwd=folder)
    assert "needs a signed plan" in asked.out


async def follow_by_plan(client: Client, folder: Path, key: Ed25519PrivateKey) -> None:
    """Let the set follow revision 2 by a signed plan; a moved input stops a later one."""
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (folder / "key").chmod(0o600)
    wanted = await client.get(SET, "web")
    change = {key: wanted[key] for key in ("apiVersion", "kind", "spec")}
    needs = {"pvbus.dev/require-plan": "alice"}
    change["metadata"] = {"name": "web", "namespace": "default", "annotations": needs}
    change["spec"]["upstream"]["revision"] = 2
    (folder / "change.json").write_text(json.dumps(change))
    asked = ("plan", "--data", ".pvbus", "-f", "change.json", "--out", "plan.json")
    made = pvbus(*asked, cwd=folder)
    assert made.code == 0, made.err
    assert "in plan.json" in made.err
    assert "readiness gate" in made.err or "approval: 4" in made.err
    signed = pvbus("sign", "plan.json", "--key", "key", cwd=folder)
    assert signed.code == 0, signed.err
    refused = pvbus("apply", "plan.json", cwd=folder)
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    done = pvbus("apply", "plan.json", "--yes", cwd=folder)
    assert done.code == 0, done.out + done.err
    assert "applied: everything is as the plan announced" in done.out
    mark = (await client.get(SET, "web"))["metadata"]["annotations"]["pvbus.dev/applied-plan"]
    lines = [json.loads(line) for line in (folder / ".pvbus" / "plans.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["began", "ended"]
    assert mark.startswith(f"{lines[0]['plan'][:12]} by {lines[0]['user']} at ")
    assert "is applied already" in pvbus("apply", "plan.json", "--yes", cwd=folder).out
    done = pvbus("apply", "plan.json", "--replan", cwd=folder)
    assert (done.code, "has no writes: nothing is left to do" in done.out) == (0, True), done.out
    await client.edit(CLUSTER, "asia-01", lambda found: found["metadata"]["labels"].update(new="yes"))
    moved = pvbus("apply", "plan.json", "--yes", cwd=folder)
    assert moved.code == 4
    assert "Cluster default/asia-01: was changed" in moved.err
    again = pvbus("apply", "plan.json", "--replan", cwd=folder)
    assert again.code == 4
    assert "12 of 12 writes of the plan are done already" in again.out
    assert "no longer: " not in again.out


async def upgrade_from_a_draft(client: Client, folder: Path) -> None:
    """A blueprint that is being written: its variant is published, and then the blueprint changes and is."""
    upstream, first, second = "blueprints.notes.v1", name_of("notes", 1), name_of("notes", 2)
    task = {"type": "init", "init": {"description": "notes"}}
    at = {"repository": "blueprints", "packageName": "notes", "workspaceName": "v1", "tasks": [task]}
    await client.create(REVISION, spec=at)
    ends = {
        "upstream": {"repo": "blueprints", "package": "notes", "workspaceName": "v1"},
        "downstream": {"repo": "edge-asia", "package": "notes"},
    }
    await client.create(VARIANT, "notes", spec=ends)
    assert pvbus("wait", "default/notes", cwd=folder).code == 0
    await client.approve(first)
    note = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: note\ndata:\n  text: new\n"
    await client.edit(FILES, upstream, lambda found: found["spec"]["resources"].update({"note.yaml": note}))
    await client.approve(upstream)
    draft = await client.until_there(second)
    assert draft["spec"]["tasks"][0]["type"] == "upgrade"
    assert draft["status"]["upstreamLock"]["git"]["ref"] == "notes/v1"
    assert "text: new" in (await client.get(FILES, second))["spec"]["resources"]["note.yaml"]
    assert pvbus("wait", "default/notes", cwd=folder).code == 0
