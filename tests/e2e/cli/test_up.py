"""`pvbus up` and its parts: own manifests, orders to end, and everything that can be wrong at the start."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import Running, environment, pvbus, running
from tests.kit.cluster import resource_of

INVENTORY = """\
apiVersion: v1
kind: Namespace
metadata:
  name: fleet
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: site
  namespace: fleet
  labels: {kind: site}
data:
  size: small
"""
SET = """\
apiVersion: config.porch.kpt.dev/v1alpha2
kind: PackageVariantSet
metadata:
  name: sites
  namespace: fleet
spec:
  upstream: {repo: blueprints, package: web, revision: 1}
  targets:
  - objectSelector:
      apiVersion: v1
      kind: ConfigMap
      matchLabels: {kind: site}
    template:
      downstream: {repo: edge}
"""


def metrics_url(up: Running) -> str:
    return up.wait_for("metrics and health: ").rpartition(" ")[2]


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.read().decode()


def test_nothing_to_do_is_ready(tmp_path: Path) -> None:
    """Without any set or variant `--once` ends with 0."""
    done = pvbus("up", "--once", cwd=tmp_path)
    assert done.code == 0, done.out + done.err


def test_stalled_says_which_why_and_what_to_do(tmp_path: Path) -> None:
    """A set whose upstream nobody has ends `--once` with 1, names it and the command to look closer."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "a-set.yaml").write_text(SET)
    (tmp_path / "manifests" / "z-inventory.yaml").write_text(INVENTORY)
    done = pvbus("up", "manifests", "--once", "--timeout", "60", cwd=tmp_path)
    assert done.code == 1
    assert "stalled: " in done.out
    assert "PackageVariantSet fleet/sites: " in done.out
    assert "see: pvbus explain --set fleet/sites" in done.out
    explained = pvbus("explain", "--set", "fleet/sites", cwd=tmp_path)
    assert explained.code == 0
    assert "Ready=False" in explained.out


def test_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    """SIGTERM and SIGINT end `up` with 0, the child too; the port is kept, health is told meanwhile."""
    ports = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with running("up", cwd=tmp_path) as up:
            url = metrics_url(up)
            deadline = time.monotonic() + 30
            while True:
                try:
                    assert get(url.replace("/metrics", "/readyz"))[1].count(": ready") == 5
                    break
                except urllib.error.HTTPError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            assert get(url.replace("/metrics", "/healthz")) == (200, "ok\n")
            while 'pvbus_consumer_lag_records{partition="0",topic="pvbus.sets"} 0.0' not in get(url)[1]:
                assert time.monotonic() < deadline
                time.sleep(0.1)  # who is ready reads in a moment what was written since
            ports.append(up.wait_for("API server: "))
            assert up.end(number) == 0, up.output
            assert "Traceback" not in up.output
    assert ports[0] == ports[1]


def test_a_signal_is_no_answer(tmp_path: Path) -> None:
    """A script that waits with `--once` is not told that all is ready because somebody ended the wait."""
    with running("up", "--once", "--example", "fleet", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ")
        assert up.end() == 1, up.output
        assert "all ready" not in up.output
        assert "Traceback" not in up.output


def test_it_starts_again_after_kill(tmp_path: Path) -> None:
    """`kill -9` leaves nothing that keeps the next start from working, and no process behind."""
    with running("up", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ")
        up.end(signal.SIGKILL)
    with running("up", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ", seconds=30)
        assert up.end() == 0


def test_when_the_api_server_dies_up_ends(tmp_path: Path) -> None:
    """The services do not go on without their API server: exit code 1, and why."""
    with running("up", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ")
        children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children")
        if not children.exists():
            listed = subprocess.run(["pgrep", "-P", str(up.process.pid)], capture_output=True, text=True)
            (child,) = listed.stdout.split()
        else:
            (child,) = children.read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert up.process.wait(60) == 1
        assert "the API server's process was killed by signal 9 (Killed)" in up.output


def test_port_in_use(tmp_path: Path) -> None:
    """A port that somebody has is an error that names it and says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = pvbus("up", "--once", "--port", port, cwd=tmp_path)
    assert done.code == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.err
    assert "--port" in done.err


def test_no_room_for_data(tmp_path: Path) -> None:
    """A full disk (a limit on file sizes stands in) is told before anything starts."""
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)); "
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "sys.argv = ['pvbus', 'up', '--once']; runpy.run_module('pvbus.cli', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=tmp_path,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "nothing can be written to the data folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["bus.db", "apiserver/objects.db"])
def test_damaged_data(tmp_path: Path, name: str) -> None:
    """A database that is none is an error that names the file."""
    file = tmp_path / ".pvbus" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database, and never was " * 200)
    done = pvbus("up", "--once", cwd=tmp_path)
    assert done.code == 1
    assert file.name in done.err
    assert "Traceback" not in done.err


def test_all_configuration_problems_at_once(tmp_path: Path) -> None:
    """Variables and the file are checked before anything starts; each problem is named. Exit code 2."""
    (tmp_path / "pvbus.yaml").write_text("removalsMax: many\nremovalMax: 3\n")
    done = pvbus(
        "up",
        "--once",
        cwd=tmp_path,
        PVBUS_CONFIG="pvbus.yaml",
        PVBUS_REMOVALS_SHARE="2",
        PVBUS_HEALTH_PORT="x",
    )
    assert done.code == 2
    for name in ("removalsMax", "removalMax", "PVBUS_REMOVALS_SHARE", "PVBUS_HEALTH_PORT"):
        assert name in done.err
    assert not (tmp_path / ".pvbus").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not valid YAML"),
        ("kind: ConfigMap\n", "has no apiVersion"),
        ("apiVersion: x.example.dev/v1\nkind: Thing\nmetadata: {name: a}\n", 'no kind "Thing"'),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'A b'}\n", "A b"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path: Path, text: str, words: str) -> None:
    """File, document and reason; nothing goes on after it. Exit code 2."""
    (tmp_path / "bad.yaml").write_text(text)
    done = pvbus("up", "bad.yaml", "--once", cwd=tmp_path)
    assert done.code == 2
    assert "bad.yaml" in done.err
    assert words in done.err


async def test_a_restart_takes_back_no_edits(tmp_path: Path) -> None:
    """What was edited and deleted with kubectl stays so at the next start, which says what it left alone."""
    manifests = tmp_path / "inventory.yaml"
    manifests.write_text(INVENTORY)

    async def act(patch: dict[str, Any] | None) -> dict[str, Any] | None:
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            resource = await resource_of(cluster, Kind("", "ConfigMap"))
            if patch is not None:
                await cluster.patch(resource, "fleet", "site", patch)
            return await cluster.get(resource, "fleet", "site")
        finally:
            await cluster.close()

    with running("up", manifests, cwd=tmp_path) as up:
        up.wait_for("manifests: 2 applied, 0 changed, 0 unchanged")
        await act({"data": {"size": "large"}})
        assert up.end() == 0, up.output
    manifests.write_text(INVENTORY + "---\n" + SET)
    with running("up", "inventory.yaml", cwd=tmp_path) as up:
        up.wait_for("manifests: 1 applied, 0 changed, 2 unchanged")
        found = await act(None)
        assert found is not None
        assert found["data"] == {"size": "large"}
        assert up.end() == 0, up.output
    with running("up", "inventory.yaml", "--reapply", cwd=tmp_path) as up:
        up.wait_for("manifests: 0 applied, 1 changed, 2 unchanged")
        assert up.end() == 0, up.output
    refused = pvbus("up", "--reapply", cwd=tmp_path)
    assert (refused.code, "--reapply needs what to apply" in refused.err) == (2, True)


def test_the_parts_as_processes_of_their_own(tmp_path: Path) -> None:
    """`pvbus apiserver`, `pvbus run` and `python -m services.render` make one installation."""
    with running("apiserver", cwd=tmp_path) as server:
        server.wait_for("export KUBECONFIG=")
        four = ("ingest", "unroll", "inject", "conditions")
        kubeconfig = tmp_path / ".pvbus" / "kubeconfig"
        with running(
            "run", *four, "--kubeconfig", kubeconfig, "--health-port", "0", cwd=tmp_path
        ) as services:
            services.wait_for("started")
            render = subprocess.Popen(
                [sys.executable, "-m", "services.render"],
                cwd=tmp_path,
                env=environment(PVBUS_KUBECONFIG=str(kubeconfig)),
                stderr=subprocess.PIPE,
                text=True,
            )
            assert render.stderr is not None
            assert '"started"' in render.stderr.readline()
            render.terminate()
            assert render.wait(30) == 0
            render.stderr.close()
            assert services.end() == 0, services.output
        assert server.end() == 0, server.output
