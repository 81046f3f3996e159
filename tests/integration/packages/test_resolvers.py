"""Two resolvers as programs: the second one begins when the condition of the first is True, also again."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cli.command import REPOSITORY, environment
from tests.integration.apiserver.client import Api
from tests.integration.packages.support import NAMESPACE, clone_of, git, revision
from tests.integration.packages.test_server import REVISIONS, Served, register, serving

PROGRAM = REPOSITORY / "examples" / "resolvers" / "resolver.py"
NAME = "edge.app-1.ws"
ORDER = {"pvbus.dev/condition-order": '{"Signed": ["Built"], "Deployed": ["Signed"]}'}
REFUSED = "Deployed is not set, as it comes after"
SECONDS_MAX = 90


@pytest.fixture
async def served(tmp_path: Path, blueprints: Path, edge: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data") as served:
        await register(served.api, blueprints, edge)
        draft = revision("edge", "app-1", "ws", clone_of("blue.app.v1"))
        draft["spec"]["readinessGates"] = [{"conditionType": "Signed"}, {"conditionType": "Deployed"}]
        await served.api.create(REVISIONS, draft)
        await served.api.patch(f"{REVISIONS}/{NAME}", {"spec": {"packageMetadata": {"annotations": ORDER}}})
        yield served


class Desk:
    """What a person sees and does. log: the types whose commands have begun, in order. errors: of both."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api, self.folder = api, folder
        self.log = folder / "log"
        self.log.touch()
        self.errors = folder / "errors"
        self.running: list[subprocess.Popen[str]] = []

    @property
    def begun(self) -> list[str]:
        return self.log.read_text().split()

    async def statuses(self) -> dict[str, str]:
        found = await self.api.get(f"{REVISIONS}/{NAME}")
        return {each["type"]: each["status"] for each in found["status"]["conditions"]}

    async def report(self, type_: str, status: str) -> None:
        """Set a condition as any other program does, whatever others write."""
        while True:
            obj = await self.api.get(f"{REVISIONS}/{NAME}")
            others = [each for each in obj["status"]["conditions"] if each["type"] != type_]
            obj["status"]["conditions"] = [*others, {"type": type_, "status": status}]
            if (await self.api.call("PUT", f"{REVISIONS}/{NAME}", obj)).code == 200:
                return

    async def until(self, **wanted: str) -> None:
        await self.sees(lambda statuses: wanted.items() <= statuses.items(), str(wanted))

    async def sees(self, is_so: Callable[[dict[str, str]], bool], words: str) -> None:
        for _ in range(SECONDS_MAX * 10):
            statuses = await self.statuses()
            if is_so(statuses):
                return
            assert all(each.poll() is None for each in self.running), self.errors.read_text()
            await asyncio.sleep(0.1)
        raise AssertionError(f"never {words}: {statuses}, {self.begun}, {self.errors.read_text()}")

    @contextmanager
    def resolver(self, type_: str, command: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a resolver of a type; its command notes the type in the log, and goes on with `command`."""
        pvbus = shlex.join([sys.executable, "-P", "-m", "pvbus.cli"])
        script = f"echo {type_} >> {shlex.quote(str(self.log))}; {command}"
        with self.errors.open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), f"{NAMESPACE}/{NAME}", type_, "sh", "-c", script],
                cwd=self.folder,
                env=environment(PVBUS=pvbus),
                stderr=errors,
                text=True,
                start_new_session=True,  # it is ended with the watch that it has started
            )
        self.running.append(process)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def commits(edge: Path) -> list[dict[str, str]]:
    """Return the conditions of each commit of the draft, the oldest first."""
    found = []
    for commit in git(edge, "rev-list", "--reverse", "drafts/app-1/ws").splitlines():
        kptfile = subprocess.run(
            ["git", "show", f"{commit}:app-1/Kptfile"], cwd=edge, capture_output=True, text=True, check=False
        ).stdout
        status: Any = (yaml.safe_load(kptfile) or {}).get("status") or {}
        found.append({each["type"]: each["status"] for each in status.get("conditions") or ()})
    return found


@pytest.mark.slow
async def test_the_second_resolver_is_engaged_only_while_the_condition_of_the_first_is_true(
    served: Served, tmp_path: Path, edge: Path
) -> None:
    """The order holds in each commit of the draft, whoever looks first, and when conditions turn back."""
    desk = Desk(served.api, tmp_path)
    (tmp_path / ".pvbus").symlink_to(tmp_path / "data" / "api")
    go = tmp_path / "go"
    waits = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.05; done"
    with (
        desk.resolver("Deployed", waits),
        desk.resolver("Signed", "true"),
    ):
        await desk.report("Built", "True")
        await desk.until(Signed="True")
        await desk.sees(lambda _: desk.begun == ["Signed", "Deployed"], "Deployed begins")

        await desk.report("Built", "False")  # while the command of Deployed runs: its answer is refused
        await desk.until(Signed="Unknown")
        go.touch()
        await desk.sees(lambda _: REFUSED in desk.errors.read_text(), REFUSED)
        assert "Deployed" not in await desk.statuses()

        await desk.report("Built", "True")
        await desk.until(Signed="True", Deployed="True")
        assert desk.begun == ["Signed", "Deployed"] * 2

        await desk.report("Built", "False")
        await desk.until(Signed="Unknown", Deployed="Unknown")
    history = commits(edge)
    for type_, before in (("Signed", "Built"), ("Deployed", "Signed")):
        turns = [b for a, b in zip([{}, *history], history, strict=False) if b.get(type_) != a.get(type_)]
        early = [each for each in turns if each[type_] == "True" and each.get(before) != "True"]
        assert not early, f"{type_} became True without {before}: {early}"
        assert any(each[type_] == "True" for each in turns)
    assert desk.begun == ["Signed", "Deployed"] * 2
