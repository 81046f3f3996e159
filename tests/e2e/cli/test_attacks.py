"""A running `up` that somebody attacks: what it keeps to itself, and what it does not follow."""

import base64
import os
import time
import urllib.request
from pathlib import Path

import pytest

from pvbus.core.records import OBJECTS
from tests.e2e.cli.command import pvbus, running

pytestmark = pytest.mark.timeout(180)

SENTINEL = "s3ntinel-that-is-nowhere-else"
MANIFESTS = f"""\
apiVersion: v1
kind: Secret
metadata:
  name: cluster-a
  namespace: default
  labels: {{type: cluster}}
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{{"stringData": {{"password": "{SENTINEL}"}}}}'
data: {{password: {base64.b64encode(SENTINEL.encode()).decode()}}}
---
apiVersion: config.porch.kpt.dev/v1alpha2
kind: PackageVariantSet
metadata: {{name: all, namespace: default}}
spec:
  upstream: {{repo: blueprints, package: web, revision: 1}}
  targets:
  - objectSelector: {{apiVersion: v1, kind: Secret, matchLabels: {{type: cluster}}}}
    template:
      downstream: {{repo: edge, packageExpr: "target.annotations['no.such/annotation']"}}
      injectors: [{{kind: Secret, name: cluster-a}}]
"""


def test_secrets_stay_where_they_are_and_links_are_not_followed(tmp_path: Path) -> None:
    """With the loosest umask and planted links: no content of a Secret on the bus, in logs, metrics or
    /state; every file is private; what a link names is untouched."""
    data = tmp_path / ".pvbus"
    data.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("kubeconfig", "applied.json"):
        (data / name).symlink_to(victim if name == "kubeconfig" else tmp_path / "nowhere")
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(MANIFESTS)
    former = os.umask(0)
    try:
        with running("up", manifests, "--log-level", "debug", cwd=tmp_path) as up:
            os.umask(former)
            url = up.wait_for("metrics and health: ").rpartition(" ")[2].removesuffix("/metrics")
            deadline = time.monotonic() + 90
            rows = ""
            while "cluster-a" not in rows:  # until it is observed
                assert time.monotonic() < deadline, up.output
                rows = pvbus("topics", OBJECTS, "-o", "json", cwd=tmp_path).out
            answers = []
            for page in ("/metrics", "/state", "/readyz"):
                with urllib.request.urlopen(url + page, timeout=10) as answer:
                    answers.append(answer.read())
            files = {path: path.read_bytes() for path in data.glob("bus.db*") if "process" not in path.name}
            loose = [
                str(path)
                for path in data.rglob("*")
                if path.lstat().st_mode & 0o077 and not (path.is_dir() or path.is_symlink())
            ]
            assert up.end() == 0, up.output
    finally:
        os.umask(former)
    for form in (SENTINEL.encode(), base64.b64encode(SENTINEL.encode())):
        for file, content in files.items():
            assert form not in content, file
        assert not any(form in answer for answer in answers)
        assert form.decode() not in rows + up.output
    assert loose == []
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not (data / "kubeconfig").is_symlink()
    assert not (data / "applied.json").is_symlink()
