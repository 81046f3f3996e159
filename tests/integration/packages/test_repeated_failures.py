"""A failure that stays is in the log a few times, not once per retry, and the store recovers by itself."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from pvbus.controlplane.apiserver.store import StoreError
from pvbus.controlplane.packages.gitrepo import BareMirror
from pvbus.telemetry.repeats import Repeats
from tests.integration.packages.support import KPTFILE, StoreWorld, push_files, running


def shown(lines: list[Any]) -> list[Any]:
    """Return the lines that a running process would write: the log leaves repetitions out."""
    repeats, found = Repeats(), []
    for line in lines:
        with suppress(structlog.DropEvent):
            found.append(repeats.process(None, "error", dict(line)))
    return found


async def test_a_full_disk_is_logged_once_per_repository(
    tmp_path: Path, blueprints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", fetch_seconds=0.05) as world:
        await world.add_repository("blue", blueprints)
        attempts = 0
        put, change = world.objects.put, world.objects.change

        async def full(*arguments: Any, **named: Any) -> Any:
            nonlocal attempts
            attempts += 1
            raise StoreError("no space left on device" + "x" * 100_000)

        with capture_logs() as lines:
            monkeypatch.setattr(world.objects, "put", full)
            monkeypatch.setattr(world.objects, "change", full)
            push_files(blueprints, {"more/Kptfile": KPTFILE.format(name="more")})
            await world.until(lambda: attempts > 15)
            monkeypatch.setattr(world.objects, "put", put)
            monkeypatch.setattr(world.objects, "change", change)
            await world.until(lambda: world.revision("blue.more.main"))
            await world.until(lambda: world.condition("blue")["status"] == "True")
        errors = shown([line for line in lines if line["log_level"] == "error"])
        assert [line["event"] for line in errors] == ["repository pass failed"]
        assert len(str(errors[0]["error"])) < 1_100
        assert errors[0]["repository"] == "blue"


async def test_a_pass_that_fails_shows_in_the_condition_and_goes_away(
    fleet: StoreWorld, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = BareMirror.fetch

    def broken(mirror: BareMirror) -> None:
        if "edge" in mirror.url:
            raise RuntimeError("unexpected")
        fetch(mirror)

    monkeypatch.setattr(BareMirror, "fetch", broken)
    await fleet.until(lambda: fleet.condition("edge")["status"] == "False")
    assert "RuntimeError" in fleet.condition("edge")["message"]
    push_files(fleet_blueprints(edge), {"more/Kptfile": KPTFILE.format(name="more")})
    await fleet.until(lambda: fleet.revision("blue.more.main"))
    assert fleet.condition("blue")["status"] == "True"
    monkeypatch.setattr(BareMirror, "fetch", fetch)
    await fleet.until(lambda: fleet.condition("edge")["status"] == "True")


def fleet_blueprints(edge: Path) -> Path:
    return edge.with_name("blue prints.git")
