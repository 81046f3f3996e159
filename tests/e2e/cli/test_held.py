"""A relabelling that would remove too much: held, explained, and let go when somebody confirms it."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from pvbus.cli.examples import fleet
from tests.e2e.cli.command import git, pvbus

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

GONE = 70  # of 200: above 30 %


def test_removals_are_held_until_confirmed(tmp_path: Path) -> None:
    """`--once` ends with 1 and names the set; explain gives the command; its annotation removes exactly
    those variants and their drafts."""
    first = pvbus("up", "--example", "fleet", "--once", cwd=tmp_path)
    assert first.code == 0, first.out + first.err
    manifests = fleet.make(tmp_path / ".pvbus" / "example")
    clusters = [m.object for m in manifests if m.object["kind"] == "Cluster"]
    chosen = [c for c in clusters if c["metadata"]["labels"]["stage"] == "production"][:GONE]
    relabelled = [
        {**c, "metadata": {**c["metadata"], "labels": {**c["metadata"]["labels"], "stage": "retired"}}}
        for c in chosen
    ]
    (tmp_path / "retired.yaml").write_text(yaml.safe_dump_all(relabelled))
    held = pvbus("up", "retired.yaml", "--once", cwd=tmp_path)
    assert held.code == 1, held.out + held.err
    assert "PackageVariantSet default/web: DeletionHeld" in held.out
    assert "variants 200/200 ready" in held.out

    document = msgspec.json.decode(pvbus("explain", "--set", "default/web", "-o", "json", cwd=tmp_path).out)
    names = {f"web-edge-{c['metadata']['labels']['region']}-{c['metadata']['name']}-web" for c in chosen}
    assert set(document["held"]["variants"]) == names
    assert document["children"] == {"present": 200 - GONE, "held": GONE}
    one = pvbus("explain", f"default/{min(names)}", cwd=tmp_path)
    assert document["held"]["confirm"] in one.out
    assert "its removal is held" in one.out

    token = re.search(r"pvbus\.dev/confirm-deletion=([0-9a-f]+) ", document["held"]["confirm"])
    assert token is not None
    web = next(m.object for m in manifests if m.object["kind"] == "PackageVariantSet")
    web["metadata"]["annotations"] = {"pvbus.dev/confirm-deletion": token[1]}
    (tmp_path / "confirmed.yaml").write_text(yaml.safe_dump(web))
    done = pvbus("up", "confirmed.yaml", "--once", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert f"variants {200 - GONE}/{200 - GONE} ready" in done.out
    left = sum(
        len(
            git(
                tmp_path / ".pvbus" / "example" / f"edge-{region}.git", "branch", "--list", "drafts/*"
            ).split()
        )
        for region in fleet.REGIONS
    )
    assert left == 200 - GONE
