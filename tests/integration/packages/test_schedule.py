"""When a Repository is synced in full: by its schedule, and once at a requested time; its status says so."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.timing import FullSyncs
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    becomes,
    git,
    push_files,
    repository,
    running,
)
from tests.tools.gitserver import git_server


async def change(world: StoreWorld, **sync: str) -> None:
    """Set spec.sync of the Repository, as a client does."""
    stored = world.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert stored is not None
    spec = {**stored["spec"], "sync": sync}
    metadata = {**stored["metadata"], "generation": stored["metadata"]["generation"] + 1}
    await world.objects.update(
        REPOSITORY, world.store.repositories, {**stored, "spec": spec, "metadata": metadata}
    )


async def ask(world: StoreWorld, when: datetime) -> str:
    text = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    await change(world, runOnceAt=text)
    return text


def status(world: StoreWorld) -> dict[str, Any]:
    stored = world.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert stored is not None
    return dict(stored["status"])


@pytest.mark.parametrize("ahead_seconds", [-60, 2])
async def test_a_sync_is_done_once_when_it_is_asked_for(
    tmp_path: Path, blueprints: Path, ahead_seconds: int
) -> None:
    async with running(tmp_path / "data", fetch_seconds=600.0, poll_seconds=600.0) as world:
        await world.add_repository("blue", blueprints)
        push_files(blueprints, {"more/Kptfile": KPTFILE.format(name="more")})
        assert world.revision("blue.more.main") is None
        asked = await ask(world, datetime.now(UTC) + timedelta(seconds=ahead_seconds))
        await world.until(lambda: world.revision("blue.more.main"))
        await world.until(lambda: status(world).get("observedRunOnceAt") == asked)
        push_files(blueprints, {"third/Kptfile": KPTFILE.format(name="third")})
        await world.restart()
        await world.until(lambda: world.revision("blue.third.main"))
        assert status(world)["observedRunOnceAt"] == asked


async def test_a_sync_of_a_remote_that_is_away_is_done_when_it_is_back(
    tmp_path: Path, blueprints: Path
) -> None:
    async with running(tmp_path / "data", fetch_seconds=2.0, poll_seconds=600.0) as world:
        await world.add_repository("blue", blueprints)
        away = blueprints.rename(blueprints.with_name("away.git"))
        asked = await ask(world, datetime.now(UTC) - timedelta(seconds=60))
        await world.until(lambda: world.condition("blue")["status"] == "False")
        assert "observedRunOnceAt" not in status(world)
        away.rename(blueprints)
        await world.until(lambda: status(world).get("observedRunOnceAt") == asked)
        assert world.condition("blue")["status"] == "True"


def package(name: str) -> dict[str, str]:
    return {f"{name}/Kptfile": KPTFILE.format(name=name)}


async def test_a_schedule_says_when_a_url_is_read(tmp_path: Path, blueprints: Path) -> None:
    """Nothing else reads it meanwhile, and the status has the last and the next time."""
    git(blueprints, "tag", "more/v1", "main")
    with git_server(blueprints.parent) as server:
        server.password = ""
        async with running(tmp_path / "data", fetch_seconds=0.1, poll_seconds=0.1) as world:
            url = server.url("blue%20prints.git")
            await world.add_repository("blue", url, sync={"schedule": "0 3 * * *"})
            before = status(world)
            following = datetime.fromisoformat(before["nextFullSyncTime"])
            assert (following.hour, following.minute) == (3, 0)
            assert (
                timedelta() < following - datetime.fromisoformat(before["lastFullSyncTime"]) <= timedelta(1)
            )
            asked = len(server.asked)
            push_files(blueprints, package("more"))
            await world.restart()
            await world.until(lambda: world.revision("blue.more.main"))
            assert status(world) | {"gitCommitHash": "", "packageCount": 0} == before | {
                "gitCommitHash": "",
                "packageCount": 0,
            }, "a start reads all, but is no sync of the schedule"
            asked = len(server.asked)
            push_files(blueprints, package("third"))
            await change(world, schedule="@every 1s")
            await world.until(lambda: world.revision("blue.third.main"))
            first = await world.until(lambda: status(world)["lastFullSyncTime"] > before["lastFullSyncTime"])
            assert first
            assert len(server.asked) > asked
            push_files(blueprints, package("fourth"))
            await world.until(lambda: world.revision("blue.fourth.main"))
            seen = status(world)
            gap = (datetime.fromisoformat(seen[f"{key}FullSyncTime"]) for key in ("last", "next"))
            last, following = gap
            assert following - last == timedelta(seconds=1)


async def test_a_bad_schedule_is_refused_and_a_stored_one_is_named(
    world: StoreWorld, blueprints: Path
) -> None:
    bad = repository("blue", blueprints, sync={"schedule": "0 25 * * *"})
    with pytest.raises(
        StatusError, match=r"spec\.sync\.schedule: hour '25' is not between 0 and 23"
    ) as refused:
        await world.objects.create(REPOSITORY, world.store.repositories, bad)
    assert refused.value.code == 422
    await world.objects.put(REPOSITORY, bad)
    await world.until(lambda: world.ready("blue"))
    await becomes(world, "blue", "False", "spec.sync.schedule: hour '25' is not between")
    with pytest.raises(StatusError, match="hour '24' is not"):
        await change(world, schedule="0 24 * * *")
    await change(world, schedule="0 23 * * *")
    await becomes(world, "blue", "True", "Repository Ready")
    assert status(world)["nextFullSyncTime"].endswith("T23:00:00Z")
    soon = await ask(world, datetime.now(UTC) + timedelta(minutes=5))
    await world.until(lambda: status(world)["nextFullSyncTime"] == soon)


NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


def stored(last: str = "", once: str = "", observed: str = "") -> Object:
    return {
        "spec": {"sync": {"runOnceAt": once} if once else {}},
        "status": {"lastFullSyncTime": last, "observedRunOnceAt": observed},
    }


@pytest.mark.parametrize(
    ("schedule", "obj", "seconds"),
    [
        ("", stored(), 0),
        ("", stored("2026-03-01T12:00:00Z"), 3570),
        ("", stored("2026-03-01T10:00:00Z"), 0),
        ("0 13 * * *", stored("2026-03-01T12:00:00Z"), 3570),
        ("0 13 * * *", stored("2026-02-28T12:00:00Z"), 0),  # it was missed while nobody ran
        ("0 13 * * *", stored("2026-03-01T12:00:00Z", "2026-03-01T12:01:00+00:00"), 30),
        ("0 13 * * *", stored("2026-03-01T12:00:00Z", "2026-03-01T11:01:00Z"), 0),
        ("0 13 * * *", stored("2026-03-01T12:00:00Z", "2026-03-01T11:01:00Z", "2026-03-01T11:01:00Z"), 3570),
        ("0 13 * * *", stored("2026-03-01T12:00:00Z", "tomorrow"), 3570),
        ("0 13 * * *", stored("2026-03-01T12:00:00Z", "2026-03-02T11:01:00Z"), 3570),
    ],
)
def test_when_the_next_full_sync_is_due(schedule: str, obj: Object, seconds: float) -> None:
    times = FullSyncs(schedule, obj)
    assert times.seconds_left(obj, NOW) == seconds
    assert times.begin(obj, NOW) == (seconds == 0)


def test_a_full_sync_that_failed_is_left_to_the_retries() -> None:
    obj = stored("2026-03-01T10:00:00Z", "2026-03-01T12:00:00Z")
    times = FullSyncs("", obj)
    assert times.begin(obj, NOW)
    assert times.seconds_left(obj, NOW) is None
    assert times.begin(obj, NOW), "a retry is a full sync, too"
    assert times.status(obj)["lastFullSyncTime"] == "2026-03-01T10:00:00Z"
    times.note_success(NOW)
    assert times.status(obj) == {
        "lastFullSyncTime": "2026-03-01T12:00:30Z",
        "nextFullSyncTime": "2026-03-01T13:00:30Z",
        "observedRunOnceAt": "2026-03-01T12:00:00Z",
    }


@pytest.mark.parametrize("schedule", ["", "*/5 * * * *"])
def test_a_clock_that_jumps_neither_stops_full_syncs_nor_repeats_them(schedule: str) -> None:
    """Set back by an hour, the last one is in the future: one is done, and the next by the new clock."""
    times = FullSyncs(schedule, obj := stored("2026-03-01T12:00:00Z"))
    for now in (NOW - timedelta(hours=1), NOW + timedelta(hours=1)):
        assert times.seconds_left(obj, now) == 0
        assert times.begin(obj, now)
        times.note_success(now)
        seconds = times.seconds_left(obj, now)
        assert seconds is not None
        assert 0 < seconds <= 3600
        assert not times.begin(obj, now)
