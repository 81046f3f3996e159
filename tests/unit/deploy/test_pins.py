"""What an installation and its checks are made of is named by content: a name, somebody can move."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.tools.installation import CHECKOUT

WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.y*ml"))
DOCKERFILES = sorted((CHECKOUT / "deploy").rglob("*Dockerfile*"))
COMPOSE = CHECKOUT / "compose.yaml"
COMMIT = r"[0-9a-f]{40}"
DIGEST = r"@sha256:[0-9a-f]{64}"


def unpinned_actions(workflow: str) -> Iterator[str]:
    """Yield each action that is not named by a commit, with its release in a comment."""
    for used in re.findall(r"^[ -]*\buses: *(.*)$", workflow, re.M):
        if not used.startswith("./") and not re.fullmatch(rf"[\w.-]+(/[\w.-]+)+@{COMMIT} # v[\d.]+", used):
            yield used


def unpinned_bases(dockerfile: str) -> Iterator[str]:
    """Yield each base image that is not named by its digest; stages of the same file are none."""
    froms = re.findall(r"^FROM +(?:--\S+ +)*(\S+)(?: +AS +(\S+))?", dockerfile, re.M | re.I)
    copied = re.findall(r"^COPY +--from=(\S+)", dockerfile, re.M | re.I)
    stages = {stage for _, stage in froms}
    yield from (
        base
        for base in (*(base for base, _ in froms), *copied)
        if base not in stages and base != "scratch" and not re.search(f"{DIGEST}$", base)
    )


def test_every_action_is_named_by_its_commit() -> None:
    assert WORKFLOWS
    assert [used for file in WORKFLOWS for used in unpinned_actions(file.read_text())] == []


def test_every_base_image_is_named_by_its_digest() -> None:
    assert DOCKERFILES
    assert [base for file in DOCKERFILES for base in unpinned_bases(file.read_text())] == []


def test_every_image_of_others_in_the_compose_file_is_named_by_its_digest() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()
    images = {service["image"] for service in services}
    built = {service["image"] for service in services if "build" in service}
    assert [image for image in images - built if not re.search(f"{DIGEST}$", image)] == []


@pytest.mark.parametrize(
    "used",
    ["a/b@v4", "a/b@main", f"a/b@{'0' * 40}", f"a/b@{'0' * 39} # v1", "docker://alpine:3", "a/b"],
)
def test_an_action_by_tag_would_be_seen(used: str) -> None:
    """So would a commit whose release nobody can read."""
    assert list(unpinned_actions(f"steps:\n- uses: {used}\n")) == [used]


@pytest.mark.parametrize(
    ("dockerfile", "bases"),
    [
        ("FROM python:3.11\n", ["python:3.11"]),
        (f"FROM --platform=linux/amd64 a@sha256:{'0' * 64} AS made\nFROM made\n", []),
        (f"FROM a@sha256:{'0' * 64}\nCOPY --from=b:1 /b /b\n", ["b:1"]),
    ],
)
def test_a_base_image_by_tag_would_be_seen(dockerfile: str, bases: list[str]) -> None:
    assert list(unpinned_bases(dockerfile)) == bases


def test_the_image_runs_as_nobody_special_and_has_nothing_that_builds() -> None:
    """Python's packages come from the lock alone, as wheels by hash; no compiler is installed."""
    dockerfile = (CHECKOUT / "deploy" / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", dockerfile, re.M)[-1] == "pvbus"
    (debian,) = re.findall(r"apt-get install -y --no-install-recommends ([^\\\n]*)", dockerfile)
    assert debian.split() == ["git", "tini"]
    assert re.findall(r"^RUN .*\bpip\b", dockerfile, re.M) == []
    assert "RUN python requirements/install.py run\n" in dockerfile
    installer = (CHECKOUT / "requirements" / "install.py").read_text()
    assert '"--require-hashes", "--only-binary", ":all:", "--no-deps"' in installer


@pytest.mark.parametrize("lock", ["run", "dev"])
def test_every_package_of_a_lock_has_a_hash(lock: str) -> None:
    """And one version."""
    text = (CHECKOUT / "requirements" / f"{lock}.lock").read_text()
    lines = [
        line for line in text.replace("\\\n", " ").splitlines() if line and not line.lstrip().startswith("#")
    ]
    assert [line for line in lines if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_may_only_read(workflow: Path) -> None:
    """It keeps no credential in the checkout, where tests could read it, and takes no secret."""
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in document[True]  # YAML 1.1 reads `on` as true
    assert "secrets." not in workflow.read_text()
    for job in document["jobs"].values():
        assert "permissions" not in job
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize(
    ("schema", "file"),
    [("github-workflows", ".github/workflows/ci.yaml"), ("dependabot", ".github/dependabot.yml")],
)
def test_the_files_of_the_forge_are_valid(schema: str, file: str) -> None:
    """They follow the published schemas."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", file]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hooks_run_nothing_but_what_is_locked() -> None:
    """Each is a command of `.venv`; none is fetched from another repository."""
    (repository,) = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repository["hooks"])
