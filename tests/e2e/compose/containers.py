"""compose.yaml without containers: its commands as processes of this machine, in the files of the image.

Names and ports of the containers' network become loopback's and free ones; paths, folders of the test: what a
service mounts is a folder for each volume, and a path that it does not mount is not there. What is left as it
stands is what is to be shown: commands, settings, mounts, health checks, and how long an end may take.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.tools.installation import CHECKOUT
from tests.tools.kafka import _java
from tests.tools.ports import free_ports

HEALTHY_SECONDS_MAX = 90.0


def image(target: Path) -> Path:
    """Make a folder of what the Dockerfile copies, and nothing else."""
    target.mkdir()
    for source, location in re.findall(
        r"^COPY (\S+) (\S+)$", (CHECKOUT / "deploy/Dockerfile").read_text(), re.MULTILINE
    ):
        if (CHECKOUT / source).is_dir():
            shutil.copytree(
                CHECKOUT / source, target / location, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(CHECKOUT / source, target / location)
    return target


class Compose:
    """The services of a compose file, started as processes. A context manager: all are killed at its end."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.services: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
        self.broker_port, controller_port, self.api_port, *self._health_ports = free_ports(
            3 + len(self.services)
        )
        self._ports = {
            "9092": self.broker_port,
            "9093": controller_port,
            "6443": self.api_port,
        }
        self._folder = folder
        self.data = self.volume("data")
        self._image = image(folder / "image")
        self._logs: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Compose":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def volume(self, name: str) -> Path:
        """Return the folder that is a named volume; every mount of it is the same one."""
        folder = self._folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # Translation

    def _outside(self, service: str, text: str) -> str:
        """Return a value of the file as it is outside of a container."""
        for path, folder in self._mounts(service).items():
            text = re.sub(rf"(?<![\w/]){path}(?=/|$|')", str(folder), text)
        text = text.replace("kafka:9092", "127.0.0.1:9092")
        health = self._health_ports[sorted(self.services).index(service)]
        for inside, port in {**self._ports, "9090": health}.items():
            text = re.sub(rf"\b{inside}\b", str(port), text)
        return text

    def _mounts(self, service: str) -> dict[str, Path]:
        """Return the folder of each path that a service mounts, and of one that holds such paths alone."""
        named = [volume.split(":") for volume in self.services[service].get("volumes", ())]
        mounts = {path: self.volume(name) for name, path, *_ in named}
        accounts = self._folder / "accounts"
        for path, folder in mounts.items():
            if path.startswith("/accounts/"):
                accounts.mkdir(exist_ok=True)
                link = accounts / path.removeprefix("/accounts/")
                if not link.is_symlink():
                    link.symlink_to(folder)
        return mounts | ({"/accounts": accounts} if accounts.exists() and "/data" in mounts else {})

    def command(self, service: str, words: Sequence[str]) -> list[str]:
        """Return a command with this Python in the place of the image's."""
        program, *arguments = words
        known = {"python": [sys.executable], "pvbus": [sys.executable, "-m", "pvbus.cli"]}
        outside = [self._outside(service, word) for word in arguments]
        if "--advertise" in outside:
            outside[outside.index("--advertise") + 1] = "localhost"
        return [*known[program], *outside]

    def environment(self, service: str) -> dict[str, str]:
        own = self.services[service].get("environment", {})
        retained = {
            name: value for name, value in os.environ.items() if not name.startswith(("PVBUS_", "KUBE"))
        }
        given = {name: self._outside(service, value) for name, value in own.items()}
        return {**retained, "PYTHONPATH": str(self._image), **given}

    def broker_properties(self) -> dict[str, str]:
        """Return what Kafka's image makes of KAFKA_* variables: `KAFKA_A_B` is the property `a.b`."""
        own = self.services["kafka"]["environment"]
        return {
            name.removeprefix("KAFKA_").lower().replace("_", "."): self._outside("kafka", value)
            for name, value in own.items()
            if name.startswith("KAFKA_")
        }

    # Life

    def start_kafka(self) -> None:
        """Do what the image of Kafka does at its start: format the folder, run the broker."""
        properties = self._folder / "server.properties"
        lines = [f"{name}={value}" for name, value in self.broker_properties().items()]
        properties.write_text("\n".join(lines) + "\n", encoding="utf-8")
        cluster = self.services["kafka"]["environment"]["CLUSTER_ID"]
        tool = _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        subprocess.run(tool, check=True, capture_output=True, timeout=120)
        self._start("kafka", _java("kafka.Kafka", str(properties)))

    def start(self, service: str) -> None:
        self._start(service, self.command(service, self.services[service]["command"]))

    def _start(self, service: str, command: list[str]) -> None:
        self._logs[service] = self._folder / f"{service}.log"
        with self._logs[service].open("wb") as log:
            self.processes[service] = subprocess.Popen(
                command, cwd=self._workdir(service), env=self.environment(service), stdout=log, stderr=log
            )

    def _workdir(self, service: str) -> Path:
        """Return the folder that a service begins in: the image's /data, which is a volume in any case."""
        return self._mounts(service).get("/data") or self.volume(f"work-{service}")

    def wait_healthy(self, service: str) -> None:
        """Run the service's health check until it ends with 0."""
        kind, *words = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while True:
            check = subprocess.run(
                self.command(service, words), env=self.environment(service), capture_output=True, check=False
            )
            if check.returncode == 0:
                return
            assert self.processes[service].poll() is None, self.log(service)
            assert time.monotonic() < deadline, check.stderr.decode()[-500:] + self.log(service)
            time.sleep(0.5)

    def stop(self, service: str) -> int:
        """End a service as `docker compose stop` does; return its code. Raises TimeoutExpired."""
        seconds = self.services[service]["stop_grace_period"]
        process = self.processes.pop(service)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=float(seconds.removesuffix("s")))

    def log(self, service: str) -> str:
        return self._logs[service].read_text(errors="replace")[-3000:]
