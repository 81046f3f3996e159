"""`pvbus plan` and `pvbus export` against a running `pvbus up`, as a person calls them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cli.command import pvbus, running
from tests.e2e.plan.world import make_repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n"
CONFIG = "config.porch.kpt.dev"


def repository(folder: Path, name: str) -> dict[str, object]:
    git = {"repo": str(folder / f"{name}.git"), "branch": "main"}
    return {
        "apiVersion": f"{CONFIG}/v1alpha1",
        "kind": "Repository",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "git", "content": "Package", "deployment": name == "edge", "git": git},
    }


def packages(*names: str) -> dict[str, object]:
    return {
        "apiVersion": f"{CONFIG}/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blue", "package": "web", "revision": 1},
            "targets": [{"repositories": [{"name": "edge", "packageNames": list(names)}]}],
        },
    }


def test_a_plan_against_a_live_system_and_its_export(tmp_path: Path) -> None:
    """The plan names what a change leads to, an export gives the same answer, and neither writes anything."""
    make_repository(tmp_path, "blue", {"web/v1": {"Kptfile": KPTFILE}})
    make_repository(tmp_path, "edge")
    before = [repository(tmp_path, "blue"), repository(tmp_path, "edge"), packages("one")]
    (tmp_path / "before.yaml").write_text(yaml.safe_dump_all(before))
    (tmp_path / "change.yaml").write_text(yaml.safe_dump(packages("one", "two")))
    pvbus("up", "before.yaml", "--data", "d", "--port", "0", "--once", cwd=tmp_path)
    done = pvbus("plan", "--data", "d", cwd=tmp_path)
    assert done.code == 1
    assert done.err.count("check that it runs") == 1
    with running("up", "--data", "d", "--port", "0", cwd=tmp_path) as up:
        up.wait_for("variants 1/1 ready")
        nothing = pvbus("plan", "--data", "d", "--check", cwd=tmp_path)
        assert (nothing.code, nothing.out) == (0, "Plan: no changes.\n"), nothing.err
        assert pvbus("export", "--data", "d", "-o", "live.json", cwd=tmp_path).code == 0
        live = pvbus("plan", "--data", "d", "-f", "change.yaml", "-o", "json", "--check", cwd=tmp_path)
        assert live.code == 3, live.err
        away = pvbus("plan", "-f", "live.json", "-f", "change.yaml", "-o", "json", "--check", cwd=tmp_path)
        assert away.code == 3, away.err
        assert (
            writes(live.out)
            == writes(away.out)
            == ["PackageRevision", "PackageRevisionResources", "PackageVariant"]
        )
        shown = pvbus("plan", "--data", "d", "-f", "change.yaml", "--render", cwd=tmp_path)
        assert "create PackageVariant default/web-edge-two: a target of PackageVariantSet web" in shown.out
        assert "+++ b/package-context.yaml" in shown.out
        gone = pvbus("plan", "--data", "d", "--delete", "packagevariantset/default/web", cwd=tmp_path)
        assert "delete PackageVariant default/web-edge-one by the garbage collector" in gone.out
        again = pvbus("plan", "--data", "d", "--check", cwd=tmp_path)
        assert (again.code, again.out) == (0, "Plan: no changes.\n")
        undo_the_change(tmp_path)


def undo_the_change(folder: Path) -> None:
    """Apply the change and take it back by the history: the plan is shown, and nothing is written unasked."""

    def call(*words: str, code: int = 0) -> str:
        done = pvbus(*words, "--data", "d", cwd=folder)
        assert done.code == code, done.err
        return done.out + done.err

    def revisions() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(call("history", "pvs/web", "-o", "json"))["revisions"]
        return found

    assert "first that is kept" in call("history", "packagevariantset/web")
    assert "only ever had this spec" in call("undo", "pvs/web", "--yes", code=1)
    call("plan", "-f", "change.yaml", "--out", "p.json")
    call("apply", "p.json", "--yes")
    assert "packageNames: (1 items) -> (2 items)" in call("history", "web")
    asked = call("undo", "pvs/web", code=2)
    assert "delete PackageVariant default/web-edge-two" in asked
    assert "add --yes" in asked
    assert [each["isCurrent"] for each in revisions()] == [False, True]
    assert "revision 7 of PackageVariantSet default/web is not kept; those that are: 1, 2" in call(
        "undo", "pvs/web", "--to-revision", "7", "--yes", code=1
    )
    assert "the spec of revision 1 again" in call("undo", "pvs/web", "--yes", "--reason", "too many")
    call("wait", "pvs/web")
    (*_, last) = revisions()
    assert (last["revision"], last["isCurrent"]) == (3, True)
    assert last["why"].endswith(": too many")
    assert "of revision 1 already" in call("undo", "pvs/web", "--to-revision", "1", "--yes")
    assert "- one\n" in call("history", "web", "--revision", "3")


def test_a_policy_gets_its_former_waves_again(tmp_path: Path) -> None:
    """The undo shows the fields that change and what the next rollout would do, and writes what it showed."""
    make_repository(tmp_path, "blue", {"web/v1": {"Kptfile": KPTFILE}})
    make_repository(tmp_path, "edge")
    objects = [repository(tmp_path, "blue"), repository(tmp_path, "edge"), packages("one"), waves(100)]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects))
    (tmp_path / "slower.yaml").write_text(yaml.safe_dump(waves(10, 100)))

    def call(*words: str, code: int = 0) -> str:
        done = pvbus(*words, "--data", "d", cwd=tmp_path)
        assert done.code == code, done
        return done.out + done.err

    def percents(revision: int) -> str:
        return call("history", "rolloutpolicy/web", "--revision", str(revision))

    with running("up", "all.yaml", "--data", "d", "--port", "0", "--promote", cwd=tmp_path) as up:
        up.wait_for("variants 1/1 ready")
        call("propose", "--set", "default/web")
        call("plan", "-f", "slower.yaml", "--out", "p.json")
        call("apply", "p.json", "--yes")
        asked = call("undo", "rolloutpolicy/web", code=2)
        assert "spec.waves: (2 items) -> (1 items)" in asked
        assert "rollout default/web: 1 targets in waves of 1" in asked
        assert "add --yes" in asked
        assert "percent: 10\n" in percents(2)
        undone = call("undo", "rolloutpolicy/web", "--yes", "--reason", "too slow")
        assert (
            "RolloutPolicy default/web has the spec of revision 1 again; see: pvbus rollout status" in undone
        )
        assert "revision 1 already" in call("undo", "rolloutpolicy/web", "--to-revision", "1", "--yes")


def waves(*percents: int) -> dict[str, object]:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "revisions": {"set": "web"},
            "approval": "Manual",
            "waves": [{"percent": percent} for percent in percents],
        },
    }


def writes(document: str) -> list[str]:
    return sorted(action["kind"] for action in json.loads(document)["actions"])


def test_a_data_folder_that_is_none(tmp_path: Path) -> None:
    """The message says how to get a live system."""
    done = pvbus("plan", "--data", "nowhere", cwd=tmp_path)
    assert done.code == 2
    assert "start it first: pvbus up --data nowhere" in done.err
