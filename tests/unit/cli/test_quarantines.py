"""`pvbus rollout quarantines` and `release`: what they show, write and refuse."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.main import run
from pvbus.cli.quarantines import still_covering
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.ports.cluster import Resource
from tests.unit.core.promotion.promoting import quarantine

SERVED = Resource("promotion.pvbus.dev", "v1alpha1", "Quarantine", "quarantines", namespaced=True)
SIX: dict[str, Any] = {"upstreams": [{"revision": "blueprints/web@v6"}], "message": "it leaks memory"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    (tmp_path / "kubeconfig").write_text("")
    found = MemoryCluster([quarantine("web-v6", **SIX)], now=lambda: "2026-01-01T00:00:00Z")
    found.serve(SERVED)

    async def connect(*_: Any, **__: Any) -> MemoryCluster:
        return found

    monkeypatch.setattr(HttpCluster, "connect", connect)
    return found


def call(folder: Path, *words: str) -> int:
    return run(["rollout", *words, "--kubeconfig", str(folder / "kubeconfig")])


def test_a_quarantine_is_listed_until_a_person_releases_it_with_a_reason(
    cluster: MemoryCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, "quarantines") == 0
    shown = capsys.readouterr().out
    assert "default/web-v6" in shown
    assert "blueprints/web@v6" in shown
    assert call(tmp_path, "release", "default/web-v6", "--reason", "false alarm") == 0
    stored = cluster.peek(QUARANTINE, "default", "web-v6")
    assert stored is not None
    assert stored["spec"]["released"]["reason"] == "false alarm"
    assert stored["spec"]["released"]["at"]
    assert stored["spec"]["upstreams"] == SIX["upstreams"]
    assert call(tmp_path, "release", "default/web-v6", "--reason", "again") == 0
    assert "released already" in capsys.readouterr().out
    assert call(tmp_path, "quarantines") == 0
    assert "nothing is quarantined" in capsys.readouterr().out
    assert call(tmp_path, "quarantines", "--all") == 0
    assert "false alarm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        (SIX, True),
        (SIX | {"sets": ["web"]}, True),
        ({"upstreams": [{"revision": "blueprints/web@v7"}]}, False),
        (SIX | {"released": {"reason": "false alarm"}}, False),
    ],
)
def test_a_release_names_the_quarantines_that_still_cover_the_same(
    cluster: MemoryCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    other: dict[str, Any],
    *,
    is_named: bool,
) -> None:
    cluster.put(quarantine("web-9-1", **other))
    assert call(tmp_path, "release", "default/web-v6", "--reason", "false alarm") == 0
    assert ("stays quarantined by web-9-1" in capsys.readouterr().out) is is_named


def test_quarantines_of_other_sets_or_contents_cover_nothing_of_each_other() -> None:
    def made(name: str, **spec: Any) -> Quarantine:
        return msgspec.convert(quarantine(name, **spec), Quarantine)

    ended = made("a", contents=["d1", "d2"], sets=["web"])
    assert still_covering(ended, [ended, made("b", contents=["d2"]), made("c", contents=["d3"])]) == ["b"]
    assert still_covering(ended, [made("b", contents=["d2"], sets=["db"])]) == []
    train = {"combinations": [{"upstreams": ["p/a@v1", "p/b@v1"]}]}
    assert still_covering(made("a", **train), [made("b", **train), made("c", **SIX)]) == ["b"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("release", "default/web-v6", "--reason", " "), 2),
        (("release", "a/b/web-v6", "--reason", "x"), 2),
        (("release", "default/web-v7", "--reason", "x"), 1),
    ],
)
def test_no_quarantine_ends_without_a_reason_or_by_a_wrong_name(
    cluster: MemoryCluster, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    assert call(tmp_path, *words) == code
    stored = cluster.peek(QUARANTINE, "default", "web-v6")
    assert stored is not None
    assert "released" not in stored["spec"]
