"""The five services as processes, each as a user of its own with the rights that `--acls` prints."""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apply import apply
from pvbus.cli.examples import fleet
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.topics import SERVICES
from pvbus.ports.cluster import Kind
from pvbus.runtime.process.kafka_access import OPERATOR
from tests.integration.kafka.access import PASSWORD, Guarded
from tests.tools.installation import environment, pvbus
from tests.tools.kafka import tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

CLUSTERS_PER_REGION = 2
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
PATIENCE_SECONDS = 180.0


class Process:
    """A command of ours, whose output goes to a file."""

    def __init__(self, log: Path, *command: str, settings: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(settings),
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Return the first group of what it printed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.output)) is None:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)
        return found[1]

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running_processes() -> Iterator[list[Process]]:
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def give_rights(bus: str, folder: Path) -> None:
    """Run the script that `pvbus topics --acls` prints, as a shell runs it."""
    script = folder / "kafka-acls.sh"
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in tool("AclCommand")) + ' "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    printed = pvbus("topics", "--acls", "--bus", bus)
    assert printed.returncode == 0, printed.stderr
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e"],
        input=printed.stdout,
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def login(guarded: Guarded, prefix: str, role: str, folder: Path) -> dict[str, str]:
    """Return the settings of a process that is a user with this role."""
    secret = folder / "password"
    secret.write_text(f"{PASSWORD}\n")
    settings = guarded.settings(prefix, role)
    assert settings.tls is not None
    return {
        "PVBUS_BUS": f"kafka://{settings.bootstrap[0]}/{prefix}",
        "PVBUS_KAFKA_TLS": "true",
        "PVBUS_KAFKA_CA_FILE": settings.tls.ca_file,
        "PVBUS_KAFKA_SASL": "scram-sha-512",
        "PVBUS_KAFKA_USERNAME": f"pvbus-{role}",
        "PVBUS_KAFKA_PASSWORD_FILE": str(secret),
    }


async def apply_fleet(kubeconfig: Path, folder: Path) -> None:
    cluster = await HttpCluster.connect(kubeconfig)
    chosen = [
        each
        for each in fleet.make(folder)
        if each.object["kind"] != "Cluster"
        or int(each.object["metadata"]["name"].rpartition("-")[2]) <= CLUSTERS_PER_REGION
    ]
    await apply(cluster, chosen)
    await cluster.close()


async def wait_until_ready(kubeconfig: Path, count: int, services: list[Process]) -> None:
    """Wait until so many variants are ready, and conditions say so."""
    cluster = await HttpCluster.connect(kubeconfig)
    resource = await cluster.resource(VARIANT)
    assert resource is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        items = (await cluster.list(resource, "default")).items
        conditions = [each for obj in items for each in (obj.get("status") or {}).get("conditions", ())]
        if sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions) == count:
            break
        assert time.monotonic() < deadline, [service.output[-3000:] for service in services]
        await asyncio.sleep(0.5)
    await cluster.close()


async def test_services_under_their_own_users(guarded: Guarded, tmp_path: Path) -> None:
    """With the rights as printed, and topics made by the operator, a fleet gets ready; nobody is refused."""
    prefix = f"acl-{secrets.token_hex(4)}"
    give_rights(f"kafka://{guarded.cluster.bootstrap}/{prefix}", tmp_path)
    operator = login(guarded, prefix, OPERATOR, tmp_path)
    created = pvbus("topics", "--create", settings=operator)
    assert created.returncode == 0, created.stdout + created.stderr
    with running_processes() as processes:
        server = Process(
            tmp_path / "apiserver.log",
            "-m",
            "pvbus.cli",
            "apiserver",
            "--data",
            str(tmp_path / "data"),
            settings={},
        )
        processes.append(server)
        kubeconfig = Path(server.wait_for(r"export KUBECONFIG=(\S+)"))
        services = []
        for name in SERVICES:
            settings = login(guarded, prefix, name, tmp_path) | {"PVBUS_KUBECONFIG": str(kubeconfig)}
            service = Process(tmp_path / f"{name}.log", "-m", f"services.{name}", settings=settings)
            services.append(service)
            processes.append(service)
        await apply_fleet(kubeconfig, tmp_path)
        await wait_until_ready(kubeconfig, CLUSTERS_PER_REGION * len(fleet.REGIONS), services)
        for command in ("topics", "lag"):
            shown = pvbus(command, settings=operator)
            assert shown.returncode == 0, shown.stdout + shown.stderr
        assert [service.end() for service in services] == [0] * len(services)
    for role in (*SERVICES, OPERATOR):
        assert guarded.used(prefix, role)
        assert guarded.denied(prefix, role) == []
