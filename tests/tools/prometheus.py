"""Runs the real Prometheus of Debian, which scrapes the metrics of a test each second."""

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.gomodules import cache_folder
from tests.tools.kafka import _detach
from tests.tools.ports import free_ports

START_SECONDS_MAX = 60.0
_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: test
  static_configs: [{{targets: ['{target}']}}]
"""


class PrometheusUnavailableError(Exception):
    """There is no Prometheus here; the text says what to install."""


def find() -> Path:
    """Return the program: that on PATH, else that in the cache folder."""
    if found := shutil.which("prometheus"):
        return Path(found)
    cached = cache_folder() / "promtool/usr/bin/prometheus"
    if cached.exists():
        return cached
    raise PrometheusUnavailableError(
        f"prometheus is neither on PATH nor {cached}: install Debian's package prometheus"
    )


def found_or_skipped() -> Path:
    """Return the program, or skip the test; in continuous integration, fail it."""
    try:
        return find()
    except PrometheusUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def running(program: Path, folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes `http://TARGET/metrics`, and yield its URL."""
    (folder / "prometheus.yml").write_text(_CONFIG.format(target=target))
    (port,) = free_ports(1)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_detach,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _await_ready(url, process, folder / "prometheus.log")
        yield url
    finally:
        process.kill()
        process.wait()


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not become ready:\n{log.read_text()[-2000:]}")
