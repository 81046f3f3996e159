"""All services as processes, each as a user of its own with the rights that `--acls` prints."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.kernel.topics import ALL_SERVICES, PROMOTION
from pvbus.runtime.process.kafka_access import OPERATOR, WEB
from tests.e2e.cli.small_fleet import Client
from tests.e2e.proposing import Turns, apply_fleet, proposed_through_kills
from tests.integration.kafka.access import PASSWORD, Guarded
from tests.tools.installation import CHECKOUT, environment, pvbus
from tests.tools.kafka import java_command

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 180.0
TOOLS = CHECKOUT / "tests" / "tools"


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


NOTE_CALL = """#!/bin/sh
for word; do printf '\\0%s' "$word"; done >> "$CALLS"
echo >> "$CALLS"
"""
"""kafka-acls.sh that notes its arguments: a line for each call, a NUL before each argument."""


def give_rights(bus: str, folder: Path) -> None:
    """Run the script that `pvbus topics --acls` prints: in a shell, and then all of its calls in one Java."""
    script, calls = folder / "kafka-acls.sh", folder / "calls"
    script.write_text(NOTE_CALL)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    printed = pvbus("topics", "--acls", "--bus", bus)
    assert printed.returncode == 0, printed.stderr
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environ = {**environment(), "PATH": path, "CALLS": str(calls)}
    subprocess.run(["sh", "-e"], input=printed.stdout, env=environ, text=True, timeout=60, check=True)
    done = subprocess.run(
        java_command(str(TOOLS / "AclCommands.java"), str(calls)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Adding ACLs for resource") >= len(calls.read_text().splitlines()) > 20


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


def page(folder: Path, settings: Mapping[str, str]) -> Process:
    """Run `pvbus run web`, and wait until it knows the set of the fleet."""
    token = folder / "token"
    token.write_text(secrets.token_urlsafe(24))
    variables = {**settings, "PVBUS_WEB_TOKEN_FILE": str(token), "PVBUS_WEB_PORT": "0"}
    process = Process(folder / "web.log", "-m", "pvbus.cli", "run", "web", settings=variables)
    url = process.wait_for(r"web page: (http\S+/)")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(f"{url}?token={token.read_text()}", timeout=30) as answer:
        assert answer.status == 200
    with browser.open(f"{url}api/explain?kind=set&name=default/web", timeout=30) as answer:
        assert json.load(answer)["known"]
    return process


async def test_services_under_their_own_users(guarded: Guarded, tmp_path: Path) -> None:
    """The printed rights are enough: the fleet gets ready, and its drafts are proposed, though the services
    of promotion are killed. Kafka refuses no request."""
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
        services: dict[str, Process] = {}

        def start(*names: str) -> None:
            for name in names:
                settings = login(guarded, prefix, name, tmp_path) | {"PVBUS_KUBECONFIG": str(kubeconfig)}
                log = tmp_path / f"{name}.log"
                services[name] = Process(log, "-m", f"services.{name}", settings=settings)
                processes.append(services[name])

        start(*ALL_SERVICES)
        await propose(kubeconfig, tmp_path, services, lambda: start(*PROMOTION))
        services["web"] = page(tmp_path, login(guarded, prefix, WEB, tmp_path))
        processes.append(services["web"])
        for command in ("topics", "lag"):
            shown = pvbus(command, settings=operator)
            assert shown.returncode == 0, shown.stdout + shown.stderr
        assert {name: service.end() for name, service in services.items()} == dict.fromkeys(services, 0)
    for role in (*ALL_SERVICES, OPERATOR, WEB):
        assert guarded.used(prefix, role)
        assert guarded.denied(prefix, role) == []


async def propose(
    kubeconfig: Path, folder: Path, services: Mapping[str, Process], start: Callable[[], None]
) -> None:
    """Have the drafts of a fleet proposed; each becomes a proposal as often as it has to.

    start: starts the services of promotion again.
    """
    client = Client(await HttpCluster.connect(kubeconfig))
    try:
        await apply_fleet(client, folder)
        turns = Turns(client)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(turns.run())
            wanted = await proposed_through_kills(client, services, start)
            await turns.reach(wanted.total())
            watching.cancel()
        assert +turns.count == wanted
    finally:
        await client.cluster.close()
