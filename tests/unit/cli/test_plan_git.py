"""A plan of files reads the upstream packages that are not among them from git, and writes nothing there."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pvbus.cli.plan import exit_code, plan
from pvbus.cli.plandocument import Document
from pvbus.cli.planinput import read_input
from pvbus.cli.planpreview import Request, Settings, plan_of_files
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.runtime.process.settings import UnrollConfig
from tests.e2e.plan.world import git, make_repository

HOW = Settings(UnrollConfig().limits, FunctionRegistry({}))
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n"
CONFIG = "config.porch.kpt.dev"


def repository(folder: Path, name: str, **git_fields: object) -> dict[str, object]:
    return {
        "apiVersion": f"{CONFIG}/v1alpha1",
        "kind": "Repository",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "git",
            "deployment": name == "edge",
            "git": {"repo": str(folder / f"{name}.git"), "branch": "main", **git_fields},
        },
    }


def variant(revision: int = 1) -> dict[str, object]:
    return {
        "apiVersion": f"{CONFIG}/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {"name": "own", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blue", "package": "web", "revision": revision},
            "downstream": {"repo": "edge", "package": "own"},
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_repository(tmp_path, "blue", {"web/v1": {"Kptfile": KPTFILE}, "other/v1": {"Kptfile": KPTFILE}})
    make_repository(tmp_path, "edge")
    return tmp_path


def planned(folder: Path, *objects: dict[str, object]) -> Document:
    (folder / "manifests.yaml").write_text(yaml.safe_dump_all(objects))
    return plan_of_files(Request(read_input([folder / "manifests.yaml"]), HOW)).document


def test_upstream_packages_are_read_from_the_git_of_the_repositories(folder: Path) -> None:
    """The first plan of manifests alone has the draft that `up` would make; the remotes stay as they were."""
    before = [git(folder / f"{name}.git", "for-each-ref") for name in ("blue", "edge")]
    document = planned(
        folder, repository(folder, "blue"), repository(folder, "edge", createBranch=True), variant()
    )
    assert document.get("errors", []) == []
    assert ("create", "edge.own.packagevariant-1") in [(a["verb"], a["name"]) for a in document["actions"]]
    assert "name: own" in document["packages"]["default/edge.own.packagevariant-1"]["Kptfile"]
    assert [git(folder / f"{name}.git", "for-each-ref") for name in ("blue", "edge")] == before


def test_a_revision_that_git_has_not_is_named(folder: Path) -> None:
    document = planned(folder, repository(folder, "blue"), repository(folder, "edge"), variant(7))
    (error,) = document["errors"]
    assert "revision 7 is neither in the files nor in the git of Repository default/blue" in error
    assert exit_code(document, check=False) == 1


def test_git_that_cannot_be_read_is_named_with_the_reason(folder: Path) -> None:
    blue = repository(folder, "blue")
    blue["spec"]["git"]["repo"] = str(folder / "nowhere.git")  # type: ignore[index]
    (error,) = planned(folder, blue, repository(folder, "edge"), variant())["errors"]
    assert "the git of Repository default/blue cannot be read" in error
    assert "nowhere.git" in error
    assert "pvbus export" in error


def test_a_deployment_repository_that_cannot_be_read_is_no_error(folder: Path) -> None:
    """It may not be there yet; only upstream packages are needed."""
    edge = repository(folder, "edge")
    edge["spec"]["git"]["repo"] = str(folder / "nowhere.git")  # type: ignore[index]
    document = planned(folder, repository(folder, "blue"), edge, variant())
    assert document.get("errors", []) == []
    assert document["actions"]


def test_a_repository_that_nobody_gave_is_asked_for(folder: Path) -> None:
    """The message says how to give what is missing."""
    (error,) = planned(folder, repository(folder, "edge"), variant())["errors"]
    assert "add Repository default/blue to them, whose git is then read" in error


def test_a_secret_that_is_missing_is_named(folder: Path) -> None:
    blue = repository(folder, "blue", repo="https://example.org/blue.git", secretRef={"name": "login"})
    (error,) = planned(folder, blue, repository(folder, "edge"), variant())["errors"]
    assert 'the Secret "login" of spec.git.secretRef does not exist' in error


def test_the_command_plans_a_folder_of_manifests(folder: Path) -> None:
    """As `pvbus --help` says it: exit code 0, with the summary on the first line."""
    objects = [repository(folder, "blue"), repository(folder, "edge", createBranch=True), variant()]
    (folder / "manifests").mkdir()
    (folder / "manifests" / "all.yaml").write_text(yaml.safe_dump_all(objects))
    done = CliRunner().invoke(plan, ["-f", str(folder / "manifests")])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Plan: ")
    assert "create PackageRevision default/edge.own.packagevariant-1" in done.stdout
