"""`pvbus up --promote`: drafts are proposed by themselves, on the embedded server, as a person meets it."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import VARIANT
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import ACKNOWLEDGED_PREFIX, AUTO_LIFECYCLE, PROPOSED_CONTENT
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import (
    CLUSTERS,
    FILES,
    PACKAGES,
    REVISION,
    SECONDS_MAX,
    Client,
    name_of,
    write_manifests,
)
from tests.integration.packages.support import CONFIG
from tests.integration.packages.test_validators import CHECK, FINDING, TYPE, VALIDATOR, with_validators

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
NAME = name_of(PACKAGES[0], 1)
VARIANT_NAME = f"web-edge-asia-{PACKAGES[0]}"
GATE = "example.dev/IPAllocated"
SPECIALIZER = {
    "apiVersion": "promotion.pvbus.dev/v1alpha1",
    "kind": "PackageSpecializer",
    "metadata": {"name": "ipam", "namespace": "default"},
    "spec": {"conditionTypes": [GATE], "deadlineSeconds": 86_400},
}


class Story:
    """A person and a program.

    name: the revision that is written
    explained: what `pvbus explain` is asked; `explains` waits until the answer has these words
    """

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder = folder
        self.client = client
        self.name = NAME
        self.explained = [f"default/{VARIANT_NAME}"]

    async def explains(self, words: str) -> None:
        said = ""
        for _ in range(SECONDS_MAX):
            done = await asyncio.to_thread(pvbus, "explain", *self.explained, cwd=self.folder)
            said = done.out
            if words in said:
                return
        raise AssertionError(f"{words!r} is not explained:\n{said}")

    async def change(
        self, *, annotations: Any = (), conditions: Sequence[Mapping[str, str]] = (), **spec: Any
    ) -> None:
        """Write the revision, whatever others write meanwhile: annotations (None removes one), a condition of
        a type, and fields of its spec."""

        def edit(revision: Any) -> None:
            meta, status = revision["metadata"], revision["status"]
            changed = {**(meta.get("annotations") or {}), **dict(annotations)}
            meta["annotations"] = {key: text for key, text in changed.items() if text is not None}
            types = {each["type"] for each in conditions}
            others = [each for each in status.get("conditions", ()) if each["type"] not in types]
            status["conditions"] = [*others, *conditions]
            revision["spec"] |= spec

        await self.client.edit(REVISION, self.name, edit)

    async def becomes(self, lifecycle: str) -> Any:
        for _ in range(SECONDS_MAX * 5):
            revision = await self.client.get(REVISION, self.name)
            if revision["spec"]["lifecycle"] == lifecycle:
                return revision["metadata"].get("annotations") or {}
            await asyncio.sleep(0.2)
        raise AssertionError(f"{self.name} does not become {lifecycle}")


HAND = "edge-asia.hand.v1"
BY_HAND: dict[str, Any] = {
    "repository": "edge-asia",
    "packageName": "hand",
    "workspaceName": "v1",
    "lifecycle": "Draft",
    "readinessGates": [{"conditionType": GATE}],
    "tasks": [{"type": "init", "init": {"description": "made by hand"}}],
}


async def make_by_hand(folder: Path, client: Client) -> None:
    """A draft that no variant owns is served by the same rules, and a person approves it."""
    await client.create(REVISION, spec=BY_HAND)
    story = Story(folder, client)
    story.name, story.explained = HAND, ["packagerevision", HAND]
    await story.explains("no PackageVariant has it, and it is not opted in: kubectl annotate packagerevision")
    await story.change(annotations={AUTO_LIFECYCLE: "true"})
    await story.explains("promotion: GateNotMet: unmet readiness gates: example.dev/IPAllocated")
    await story.change(conditions=[{"type": GATE, "status": "True"}])
    await story.explains("promotion: NotOpened: PackageSpecializer default/ipam has not acknowledged it yet")
    await story.change(annotations={f"{ACKNOWLEDGED_PREFIX}ipam": HAND})
    assert PROPOSED_CONTENT in await story.becomes("Proposed")
    await story.explains("promotion: Proposed: it waits for the approval of a person, as no rollout has it")


async def test_a_draft_is_acknowledged_gated_proposed_rejected_and_proposed_again(tmp_path: Path) -> None:
    write_manifests(tmp_path)
    (tmp_path / "manifests" / "specializer.yaml").write_text(yaml.safe_dump(SPECIALIZER))
    with running("up", "manifests", "--promote", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            story = Story(tmp_path, Client(cluster))
            variant = await story.client.get(VARIANT, VARIANT_NAME)
            variant["metadata"]["annotations"] = {AUTO_LIFECYCLE: "true"}
            await story.client.put(VARIANT, variant)
            await story.explains("PackageSpecializer default/ipam has not acknowledged it yet")

            present = (await story.client.get(REVISION, NAME))["spec"].get("readinessGates", ())
            gates = [*present, {"conditionType": GATE}]  # inject puts back what it needs: other content
            await story.change(annotations={f"{ACKNOWLEDGED_PREFIX}ipam": NAME}, readinessGates=gates)
            await story.change(conditions=[{"type": GATE, "status": "True"}])
            assert PROPOSED_CONTENT in await story.becomes("Proposed")

            await story.change(lifecycle="Draft")
            await story.explains("Rejected: this content was proposed before")
            await story.change(annotations={PROPOSED_CONTENT: None})
            await story.becomes("Proposed")
            await story.client.put(REVISION, await published(story.client), "approval")
            others = [await story.client.get(REVISION, name_of(package, 1)) for package in PACKAGES[1:]]
            assert {each["spec"]["lifecycle"] for each in others} == {"Draft"}
            await make_by_hand(tmp_path, story.client)
            assert up.end() == 0
        finally:
            await cluster.close()


async def test_a_draft_is_not_proposed_before_its_validator_passes(tmp_path: Path) -> None:
    """A gate that no person and no program serves, but a function of the package's own pipeline."""
    write_manifests(tmp_path)
    with running("up", "manifests", "--promote", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            story = Story(tmp_path, Client(cluster))
            files = await story.client.get(FILES, NAME)
            resources = files["spec"]["resources"]
            kptfile = yaml.safe_load(with_validators(resources["Kptfile"], VALIDATOR))
            kptfile.setdefault("info", {})["readinessGates"] = [{"conditionType": TYPE}]
            resources |= {"Kptfile": yaml.safe_dump(kptfile), "check.yaml": CHECK, "settings.yaml": CONFIG}
            await story.client.put(FILES, files)
            variant = await story.client.get(VARIANT, VARIANT_NAME)
            variant["metadata"]["annotations"] = {AUTO_LIFECYCLE: "true"}
            await story.client.put(VARIANT, variant)
            await story.explains(f"unmet readiness gates: {TYPE} ({FINDING})")
            with pytest.raises(PermanentError, match=re.escape(f"unmet readiness gates: {TYPE} ({FINDING})")):
                await story.change(lifecycle="Proposed")

            files = await story.client.get(FILES, NAME)
            files["spec"]["resources"]["settings.yaml"] = CONFIG.replace("size: small", "size: big")
            await story.client.put(FILES, files)
            assert PROPOSED_CONTENT in await story.becomes("Proposed")
            assert up.end() == 0
        finally:
            await cluster.close()


async def published(client: Client) -> Any:
    revision = await client.get(REVISION, NAME)
    revision["spec"]["lifecycle"] = "Published"
    return revision
