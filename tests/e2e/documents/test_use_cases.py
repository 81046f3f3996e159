"""The use cases of the document come out as it says, all at once, with `pvbus up --once`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cli.command import REPOSITORY, git, pvbus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BLOCKS = re.findall(
    r"^```yaml\n# (packages/|manifests/|result: )([^\n]+)\n(.*?)^```$",
    (REPOSITORY / "docs" / "use-cases.md").read_text(),
    re.M | re.S,
)
REPOSITORIES = """
apiVersion: config.porch.kpt.dev/v1alpha1
kind: Repository
metadata: {{name: {name}, namespace: default}}
spec: {{type: git, {more} git: {{repo: {folder}/git/{name}.git, branch: main, createBranch: true}}}}
"""
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {name}\n"


def _publish(folder: Path) -> None:
    """Make the repository of the blueprints, with revision 1 of each package."""
    work = folder / "work"
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main", "git/blueprints.git")
    git(folder, "clone", "--quiet", "git/blueprints.git", "work")
    for kind, path, text in BLOCKS:
        if kind == "packages/":
            file = work / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            (file.parent / "Kptfile").write_text(KPTFILE.format(name=file.parent.name))
    git(work, "add", "-A")
    git(
        work,
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@example.dev",
        "commit",
        "--quiet",
        "-m",
        "Add packages",
    )
    tags = [f"{package.name}/v1" for package in work.iterdir() if (package / "Kptfile").is_file()]
    for tag in tags:
        git(work, "tag", tag)
    git(work, "push", "--quiet", "origin", "HEAD:main", *tags)


def _missing(wanted: Any, present: Any, path: str = "") -> list[str]:
    """Return what of a result is not in a file."""
    if isinstance(wanted, Mapping) and isinstance(present, Mapping):
        return [
            line
            for key, value in wanted.items()
            for line in _missing(value, present.get(key), f"{path}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(present, list) and len(wanted) == len(present):
        return [
            line for n, value in enumerate(wanted) for line in _missing(value, present[n], f"{path}[{n}]")
        ]
    return [] if wanted == present else [f"{path}: {present!r}, not {wanted!r}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "git").mkdir()
    (folder / "manifests").mkdir()
    _publish(folder)
    for name in ("deploy", "staging", "production"):
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", f"git/{name}.git")
    pair = [
        REPOSITORIES.format(name=n, folder=folder, more=m)
        for n, m in (("blueprints", ""), ("deploy", "deployment: true,"))
    ]
    (folder / "manifests" / "repositories.yaml").write_text("---".join(pair))
    for kind, path, text in BLOCKS:
        if kind == "manifests/":
            (folder / "manifests" / path).write_text(text.replace("./git/", f"{folder}/git/"))
    done = pvbus("up", "manifests", "--once", cwd=folder)
    assert done.code == 0, done.out + done.err
    return folder


@pytest.mark.parametrize(
    ("where", "text"), [(path, text) for kind, path, text in BLOCKS if kind == "result: "]
)
def test_the_draft_has_what_the_document_says(folder: Path, where: str, text: str) -> None:
    path, _, repository = where.partition(" of ")
    package = path.partition("/")[0]
    bare = folder / "git" / f"{repository or 'deploy'}.git"
    file = git(bare, "show", f"drafts/{package}/packagevariant-1:{path}")
    wanted, present = list(yaml.safe_load_all(text)), list(yaml.safe_load_all(file))
    assert _missing(wanted, present) == []


def test_what_a_validator_refuses_is_told(folder: Path) -> None:
    """A variant that does not add the label is not ready, and the message is the script's."""
    text = (folder / "manifests" / "external.yaml").read_text()
    text = re.sub(r"    - image: \S+set-labels.*\n.*\n", "", text)
    text = text.replace("name: proxy", "name: bare").replace(
        "repo: deploy, package: proxy", "repo: deploy, package: bare"
    )
    (folder / "bare.yaml").write_text(text)
    done = pvbus("up", "bare.yaml", "--once", cwd=folder)
    assert done.code == 1
    assert "its Pods have no label chargeback-code" in done.out + done.err


def test_there_are_the_five_of_the_design_document() -> None:
    manifests = [path for kind, path, _ in BLOCKS if kind == "manifests/"]
    assert manifests == [
        "external.yaml",
        "tenants.yaml",
        "regions.yaml",
        "clusters.yaml",
        "environments.yaml",
    ]
