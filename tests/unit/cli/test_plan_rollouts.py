"""`pvbus plan` says what rollouts make of its changes."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.live import Export
from pvbus.cli.plan import plan as _plan  # noqa: F401 - its modules are loaded before a test is timed
from pvbus.cli.planfile import PlanInputs
from pvbus.cli.planrollouts import rollout_lines, rollouts_after
from tests.unit.cli.test_rollout import policy, proven_by, revision, set_of, variant

Object = dict[str, Any]


def fleet(*held: str) -> list[Object]:
    """Return three variants of a set that run revision 1."""
    objects = [set_of(1)]
    for name in "abc":
        objects.append(variant(name, **({"pvbus.dev/hold": "true"} if name in held else {})))
        published = revision(name, number=1, lifecycle="Published")
        published["metadata"]["ownerReferences"] = [
            {"kind": "PackageVariant", "name": name, "uid": f"uid-{name}"}
        ]
        objects.append(published)
    return objects


def quarantine() -> Object:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": "web-1-1", "namespace": "default"},
        "spec": {"upstreams": [{"revision": "blueprints/web@v2"}], "sets": ["web"], "reason": "Test"},
    }


def text_of(live: list[Object], *changes: Object) -> str:
    inputs = PlanInputs(Export(items=live), (), changes, ())
    return "\n".join(rollout_lines(rollouts_after(inputs, None, None)))


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (
            [policy(waves=[{"count": 1, "hold": "10m"}, {"percent": 100}]), *fleet()],
            ["3 targets in waves of 1, 2; it passes hold 10m; ends Completed"],
        ),
        (
            [policy(approval="Manual", windows=[{"start": "00:00", "end": "24:00"}]), *fleet("b")],
            ["2 targets in waves of 1, 1", "only every day 00:00-24:00 UTC, a person", "1 OnHold, such as b"],
        ),
        ([policy(), quarantine(), *fleet()], ["approves nothing of this", "3 Quarantined, such as a"]),
        ([policy(canaries=["x"]), *fleet()], ["waits for its canaries (CanaryMissing): canary x"]),
        ([policy(waves=[{"percent": 5}]), *fleet()], ["approves nothing: spec.waves[0].percent"]),
        ([policy(**proven_by("'one'")), *fleet()], ["evidence EvidenceShared: Application one"]),
        (fleet(), []),
    ],
)
def test_a_plan_names_waves_gates_and_what_holds_its_changes(live: list[Object], words: list[str]) -> None:
    shown = text_of(live, set_of(2))
    assert all(each in shown for each in words), shown
    assert bool(words) == bool(shown)


def test_a_plan_without_a_change_of_revisions_says_nothing_of_rollouts() -> None:
    assert text_of([policy(), *fleet()], set_of(1)) == ""


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pvbus.cli.main import run
    from pvbus.cli.planinput import write_export
    from tests.unit.cli.test_rollout import write

    live = [{**each, "metadata": {**each["metadata"]}} for each in fleet()]
    for each in live:
        each.pop("status", None)
    (tmp_path / "live.json").write_text(write_export(Export(server="pvbus", items=[policy(), *live])))
    with pytest.raises(SystemExit):
        run(["plan", "-f", str(tmp_path / "live.json"), "-f", write(tmp_path / "set.yaml", set_of(2))])
    assert "rollout default/edge" in capsys.readouterr().out
