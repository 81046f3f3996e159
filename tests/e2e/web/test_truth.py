"""The page and the API server say the same of every variant, after each of thirty changes."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET, VARIANT
from tests.e2e.cli.command import Running, pvbus, running
from tests.e2e.cli.small_fleet import (
    CLUSTERS,
    PACKAGES,
    Client,
    edit_locally,
    follow_second_revision,
    name_of,
    write_manifests,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS_MAX = 90
FIRST = f"default/web-edge-asia-{PACKAGES[0]}"


def expected(variant: Any) -> tuple[str, str] | None:
    """Return state and reason as kubectl's conditions say; None while they are of an earlier generation."""
    conditions = {each["type"]: each for each in (variant.get("status") or {}).get("conditions") or []}
    ready, generation = conditions.get("Ready"), variant["metadata"]["generation"]
    if ready is None or ready.get("observedGeneration", 0) < generation:
        return None
    needs = conditions.get("AttentionNeeded", {"status": "False"})
    reason = needs["reason"] if needs["status"] == "True" else ready["reason"]
    for type_, state in (
        ("OnHold", "on hold"),
        ("Stalled", "stalled"),
        ("AttentionNeeded", "needs attention"),
    ):
        if conditions.get(type_, {}).get("status") == "True":
            return state, reason
    return ("ready" if ready["status"] == "True" else "working"), reason


def on_page(server: Running) -> dict[str, tuple[str, str]]:
    base, _, token = server.wait_for("web page: ").partition("web page: ")[2].strip().partition("/?token=")
    request = urllib.request.Request(f"{base}/api/v1/variants", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {each["name"]: (each["state"], each["reason"]) for each in json.load(answer)["items"]}


async def until_alike(client: Client, server: Running, states: set[str]) -> None:
    """Wait until the API server has these states, of the newest generations, and the page has the same."""
    deadline, live, page = time.monotonic() + SECONDS_MAX, {}, {}
    while time.monotonic() < deadline:
        owner = await client.get(SET, "web")
        live = {each["metadata"]["name"]: expected(each) for each in await client.items(VARIANT)}
        observed = {c["type"]: c.get("observedGeneration", 0) for c in owner["status"]["conditions"]}
        is_current = observed.get("Ready", 0) >= owner["metadata"]["generation"]
        try:
            page = await asyncio.to_thread(on_page, server)
        except urllib.error.HTTPError:  # it reads the bus
            page = {}
        if is_current and page == live and {state for state, _ in page.values()} == states:
            return
        await asyncio.sleep(0.2)
    assert (page, {state for state, _ in page.values()}) == (live, states)


async def test_the_page_says_what_the_api_server_says(tmp_path: Path) -> None:
    """Template changes, holds, a conflict, its resolution and undo, and a restart: alike thirty times."""
    write_manifests(tmp_path)
    count = 0
    with running("up", "manifests", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            client = Client(cluster)

            async def change_labels(number: int) -> None:
                def label(owner: Any) -> None:
                    owner["spec"]["targets"][0]["template"].setdefault("labels", {})["n"] = str(number)

                await client.edit(SET, "web", label)

            async def alike(*states: str) -> None:
                nonlocal count
                await until_alike(client, up, set(states))
                count += 1

            for number in range(10):
                await change_labels(number)
                await alike("ready")
            for verb in ("hold", "unhold") * 2:
                assert pvbus(verb, "--set", "default/web", cwd=tmp_path).code == 0
                await alike("on hold" if verb == "hold" else "ready")
            for verb in ("hold", "unhold") * 4:
                assert pvbus(verb, FIRST, cwd=tmp_path).code == 0
                await alike("ready", *(["on hold"] if verb == "hold" else []))
            await edit_locally(client)
            for package in PACKAGES:
                await client.approve(name_of(package, 1))
            await follow_second_revision(client, tmp_path)
            await alike("ready", "needs attention")
            for number in range(10, 14):
                await change_labels(number)
                await alike("ready", "needs attention")
            listed = json.loads(pvbus("conflicts", "list", "-o", "json", cwd=tmp_path).out)
            (group,) = listed["groups"]
            taken = pvbus(*("conflicts", "take", "local", group["id"], "--yes", "-o", "json"), cwd=tmp_path)
            assert taken.code == 0, taken.out + taken.err
            await alike("ready")
            undone = pvbus(*("conflicts", "undo", json.loads(taken.out)["resolution"], "--yes"), cwd=tmp_path)
            assert undone.code == 0, undone.out + undone.err
            await alike("ready", "needs attention")
        finally:
            await cluster.close()
        assert up.end() == 0
    with running("up", cwd=tmp_path) as again:
        again.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            await until_alike(Client(cluster), again, {"ready", "needs attention"})
            count += 1
        finally:
            await cluster.close()
        assert again.end() == 0
    assert count == 30
