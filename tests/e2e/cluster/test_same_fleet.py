"""The example fleet ends alike on a real API server with the aggregated package store as on the embedded one.

Each PackageVariantSet, PackageVariant with its conditions, PackageRevision and file is the same, but for what
has to differ: uids, versions, times, ids of commits, the folders of the git repositories, the server's notes
on who set which field, and the number of packages at the last look at a repository. The run on the real
server also shows how `make run-cluster ARGS=--once` ends.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apiserver import control_plane
from pvbus.runtime.process.settings import ApiServerConfig
from tests.e2e.cli.command import environment
from tests.e2e.cluster.test_run_cluster import kubectl as kubectl
from tests.e2e.cluster.test_run_cluster import run_cluster
from tests.tools.runcluster import objects_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]

SECONDS_MAX = 600
OWN = ("uid", "resourceVersion", "creationTimestamp", "managedFields")
"""Of an object's metadata: what differs between any two servers."""
PATTERNS = (
    (re.compile(r"\b[0-9a-f]{40}\b"), "<commit>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z\b"), "<time>"),
    (re.compile(r'"packageCount": \d+'), '"packageCount": 0'),
    (re.compile(r"\S*/example/(?=(?:blueprints|edge-\w+)\.git)"), "<folder>/"),
)

Objects = dict[str, list[dict[str, Any]]]


def comparable(objects: Objects) -> dict[str, str]:
    """Return the text of each object, by kind and name."""
    found = {}
    for kind, items in objects.items():
        for item in items:
            metadata = {key: value for key, value in item["metadata"].items() if key not in OWN}
            text = json.dumps({**item, "metadata": metadata}, indent=1, sort_keys=True)
            for pattern, stand_in in PATTERNS:
                text = pattern.sub(stand_in, text)
            found[f"{kind} {metadata['namespace']}/{metadata['name']}"] = text
    return found


async def on_the_embedded_server(data: Path) -> Objects:
    """Return the objects that `pvbus up` has left in a data folder."""
    async with control_plane(data, 0, ApiServerConfig()) as address:
        cluster = await HttpCluster.connect(address.kubeconfig)
        try:
            return await objects_of(cluster)
        finally:
            await cluster.close()


@pytest.fixture(scope="module")
def ended(kubectl: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Objects]:
    """What `make run-cluster ARGS=--once` has printed in the end, and the objects that there were then."""
    folder = tmp_path_factory.mktemp("real")
    dump = folder / "real.json"
    with run_cluster(folder, "--once", "--timeout", str(SECONDS_MAX), "--dump", str(dump)) as running:
        assert running.process.wait(SECONDS_MAX) == 0, running.output
        return running.output, json.loads(dump.read_text())


def test_once_ends_by_itself_with_a_summary(ended: tuple[str, Objects]) -> None:
    """All 200 variants and their drafts are made with a create each, and all are ready."""
    text, _ = ended
    assert re.search(r"^all ready after [\d.]+ s: PackageVariants: 200, ready: 200$", text, re.M), text
    assert "\n  200 packagevariants: create\n" in text
    assert "\n  200 packagerevisions: create\n" in text
    assert "refused" not in text


def test_the_fleet_ends_alike_on_both_servers(ended: tuple[str, Objects], tmp_path: Path) -> None:
    """Each of the 200 variants, its draft and all files of it, and the conditions of everything."""
    real = comparable(ended[1])
    data = tmp_path / "embedded"
    done = subprocess.run(
        [sys.executable, "-m", "pvbus.cli", "up", "--example", "fleet", "--once", "--data", str(data)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    embedded = comparable(asyncio.run(on_the_embedded_server(data)))
    assert real.keys() == embedded.keys()
    assert Counter(name.partition(" ")[0] for name in real) == {
        "PackageVariantSet": 1,
        "PackageVariant": 200,
        "Repository": 5,
        "PackageRevision": 202,
        "PackageRevisionResources": 202,
    }
    for name, text in real.items():
        assert text == embedded[name], name
