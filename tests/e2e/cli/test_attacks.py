"""A running `up` that somebody attacks: what it keeps to itself, and what it does not follow."""

import asyncio
import base64
import os
import re
import ssl
import time
import urllib.request
from pathlib import Path

from pvbus.core.kernel.records import OBJECTS
from tests.e2e.cli.command import Running, pvbus, running
from tests.tools.marked import MARK, malformed
from tests.tools.marked import answers as answers_to

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


def _attack(up: Running, url: str) -> None:
    """Send malformed requests with secrets to each port."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    api = up.wait_for("API server: ").rpartition(":")[2]
    page = up.wait_for("web page: ").rpartition(":")[2].partition("/")[0]
    for port, path, context in (
        (api, "/api/v1/namespaces/default/secrets", unverified),
        (page, "/api/fleet", None),
        (url.rpartition(":")[2], "/state", None),
    ):
        asyncio.run(answers_to(int(port), malformed([path]), context))


def _processes(up: Running) -> list[Path]:
    """Return the folders in /proc of `up` and its children."""
    pid = up.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path("/proc", number) for number in (str(pid), *children)]


def _tokens(data: Path) -> set[bytes]:
    """Return the tokens of a data folder: the administrator's, the services', the page's."""
    files = ("kubeconfig", "services.kubeconfig", "web.json")
    return {
        token
        for name in files
        for token in re.findall(rb'token"?: ?"?([\w-]{20,})', (data / name).read_bytes())
    }


def test_secrets_stay_where_they_are_and_links_are_not_followed(tmp_path: Path) -> None:
    """With the loosest umask and planted links: no content of a Secret, and nothing of malformed requests, on
    the bus, in logs, metrics or /state; no token in an argument or a variable; every file is private, no
    process writes a core file; what a link names is untouched."""
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
            _attack(up, url)
            limits = [path.read_text() for path in _processes(up) for path in [path / "limits"]]
            shown = [(path / name).read_bytes() for path in _processes(up) for name in ("cmdline", "environ")]
            tokens = _tokens(data)
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
    assert MARK not in up.output + rows
    assert not any(MARK.encode() in content for content in (*files.values(), *answers))
    assert "Error handling request" not in up.output
    assert len(tokens) >= 3
    assert not any(token in text for token in tokens for text in shown)
    assert len(limits) >= 2
    assert all(re.search(r"^Max core file size +0 ", text, re.MULTILINE) for text in limits)
    assert loose == []
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not (data / "kubeconfig").is_symlink()
    assert not (data / "applied.json").is_symlink()
