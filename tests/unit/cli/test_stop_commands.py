"""`pvbus rollout stop` and `lift`: what they write, wait for, show and refuse."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from pvbus.cli.stops import FORMER_MAX, lines_of, with_entry
from pvbus.core.api.stops import RolloutStop, RolloutStopSpec, RolloutStopStatus, StopEntry, StopLift
from pvbus.core.kernel.objectrows import STOP
from pvbus.ports.cluster import Resource

SERVED = Resource("promotion.pvbus.dev", "v1alpha1", "RolloutStop", "rolloutstops", namespaced=True)


class Cluster(MemoryCluster):
    """confirms: the partitions whose release confirms what is written, of two."""

    confirms: tuple[str, ...] = ("0", "1")

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        found = await super().get(resource, namespace, name)
        if found is not None and resource.kind == STOP.kind:
            generation = found["metadata"].get("generation", 0)
            confirmed = dict.fromkeys(self.confirms, generation)
            found = {**found, "status": {"partitions": 2, "confirmed": confirmed}}
        return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "kubeconfig").write_text("")
    served = Cluster([], now=lambda: "2026-01-01T00:00:00Z")
    served.serve(SERVED)

    async def connect(*_: Any, **__: Any) -> Cluster:
        return served

    monkeypatch.setattr(HttpCluster, "connect", connect)
    return served


def call(folder: Path, *words: str) -> int:
    return run(["rollout", *words, "--kubeconfig", str(folder / "kubeconfig")])


def entries(cluster: Cluster, namespace: str = "default") -> list[dict[str, Any]]:
    stored = cluster.peek(STOP, namespace, "fleet")
    assert stored is not None
    found: list[dict[str, Any]] = stored["spec"]["entries"]
    return found


def test_two_people_stop_with_their_reasons_and_it_ends_when_the_last_entry_is_lifted(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, "stop", "--all", "--reason", "payments are down") == 0
    assert call(tmp_path, "stop", "--all", "--reason", "bad release", "--let-roll-backs") == 0
    shown = capsys.readouterr().out
    assert "each of 2 partitions of release keeps it" in shown
    assert [(each["name"], each["reason"], each.get("letRollBacks")) for each in entries(cluster)] == [
        ("1", "payments are down", None),
        ("2", "bad release", True),
    ]
    assert len(asyncio.run(cluster.list(SERVED)).items) == 1, "one object"
    assert call(tmp_path, "lift", "default/fleet", "--reason", "over") == 1
    shown = capsys.readouterr().err
    assert "several entries" in shown
    assert "payments are down" in shown
    assert call(tmp_path, "lift", "default/fleet", "1", "--reason", "over") == 0
    assert "rollouts stay stopped by somebody" in capsys.readouterr().out
    assert call(tmp_path, "lift", "default/fleet", "--reason", "fixed") == 0
    assert "rollouts go on" in capsys.readouterr().out
    assert [each["lifted"]["reason"] for each in entries(cluster)] == ["over", "fixed"]


def test_where_pvbus_sees_some_namespaces_the_object_is_in_the_one_that_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert call(tmp_path, "stop", "--all", "--reason", "x", "-n", "team-a") == 0
    assert call(tmp_path, "stop", "--all", "--reason", "y", "-n", "team-a") == 0
    assert [each["reason"] for each in entries(cluster, "team-a")] == ["x", "y"]
    assert cluster.peek(STOP, "default", "fleet") is None


def test_the_command_fails_unless_each_release_confirms(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.confirms = ("0",)
    assert call(tmp_path, "stop", "--all", "--reason", "x", "--timeout", "0.3") == 1
    shown = capsys.readouterr()
    assert "pvbus rollout lift default/fleet 1" in shown.out, "it is written, and how to lift it is said"
    assert "release of the partitions 1 has not confirmed" in shown.err
    assert "pvbus lag release" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("stop", "--reason", "x"), 2, "--all"),
        (("stop", "--all", "--reason", " "), 2, "say why"),
        (("lift", "default/fleet", "--reason", "x"), 1, "no RolloutStop default/fleet"),
        (("lift", "pvs", "fleet", "--reason", "x"), 2, "takes no PackageVariantSet"),
    ],
)
def test_nothing_stops_or_goes_on_without_a_reason_or_by_a_wrong_name(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    assert call(tmp_path, *words) == code
    assert said in capsys.readouterr().err
    assert cluster.peek(STOP, "default", "fleet") is None


def test_an_entry_that_is_lifted_already_is_not_lifted_again(cluster: Cluster, tmp_path: Path) -> None:
    assert call(tmp_path, "stop", "--all", "--reason", "x") == 0
    assert call(tmp_path, "lift", "default/fleet", "1", "--reason", "x") == 0
    assert call(tmp_path, "lift", "default/fleet", "1", "--reason", "x") == 1


def test_the_object_stays_small_and_forgets_no_entry_that_lasts() -> None:
    spec = RolloutStopSpec(entries=(StopEntry(name="1", reason="it lasts"),))
    for number in range(3 * FORMER_MAX):
        spec = with_entry(spec, StopEntry(reason=str(number), lifted=StopLift(reason="over")))
    assert len(spec.entries) <= FORMER_MAX + 2
    assert [each.reason for each in spec.lasting] == ["it lasts"]
    assert len({each.name for each in spec.entries}) == len(spec.entries)


def test_what_is_shown_says_what_is_not_confirmed() -> None:
    spec = RolloutStopSpec(entries=(StopEntry(name="1", reason="down", by="ann"),))
    first, then = lines_of([RolloutStop(spec=spec)])
    assert first == "ALL ROLLOUTS ARE STOPPED (rollbacks, too, not confirmed by release) by ann: down"
    assert "pvbus rollout lift" in then
    meta = msgspec.structs.replace(RolloutStop().metadata, generation=2)
    status = RolloutStopStatus(partitions=2, confirmed={"0": 2, "1": 1})
    assert "1 partition to confirm" in next(
        iter(lines_of([RolloutStop(metadata=meta, spec=spec, status=status)]))
    )
