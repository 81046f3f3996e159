"""A deployment repository of many package revisions, made by git's own fast-import.

Every package has one published revision, a tag, and so its folder on the branch; every second one has an open
draft, too: a fleet in the middle of a rollout. Commits have the messages that Porch writes.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: {name}
upstream:
  type: git
  git:
    repo: https://example.org/blueprints.git
    directory: app
    ref: app/v1
upstreamLock:
  type: git
  git:
    repo: https://example.org/blueprints.git
    directory: app
    ref: app/v1
    commit: 0123456789abcdef0123456789abcdef01234567
info:
  description: a variant
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap:
      app: {name}
"""

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: app
spec:
  replicas: {replicas}
  template:
    spec:
      containers:
      - name: app
        image: example.org/app:v1
"""


def package_name(number: int) -> str:
    return f"app-{number:05}"


def revisions_of(packages: int) -> int:
    """Return how many package revisions `make` makes: tag and branch of each package, and the drafts."""
    return 2 * packages + packages // 2


def make_bare(path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(path)], check=True)


def make(remote: Path, packages: int) -> None:
    """Make a bare repository with so many packages."""
    make_bare(remote)
    stream = "".join(_stream(packages)).encode()
    subprocess.run(["git", "fast-import", "--quiet"], cwd=remote, input=stream, check=True)
    subprocess.run(["git", "pack-refs", "--all"], cwd=remote, check=True)


def make_drafts(remote: Path, packages: int) -> None:
    """Make a bare repository with so many packages, each with only the draft `packagevariant-1`."""
    make_bare(remote)
    stream = "".join(_drafts(packages)).encode()
    subprocess.run(["git", "fast-import", "--quiet"], cwd=remote, input=stream, check=True)
    subprocess.run(["git", "pack-refs", "--all"], cwd=remote, check=True)


def _drafts(packages: int) -> Iterator[str]:
    yield _commit("refs/heads/main", 0, "Initial commit: Creating main branch\n")
    yield "M 100644 inline README.md\ndata 17\nCreated by bench\n\n\n"
    for number in range(packages):
        name = package_name(number)
        task = '{"type":"clone","clone":{"upstreamRef":{"upstreamRef":{"name":"blueprints.app.v1"}}}}'
        note = f'{{"package":"{name}","workspaceName":"packagevariant-1","revision":"0","task":{task}}}'
        message = f"Creating new revision by cloning\n\n\nkpt:{note}\n"
        ref = f"refs/heads/drafts/{name}/packagevariant-1"
        yield _commit(ref, number, message, "from refs/heads/main\n")
        yield _files(name, 1)


def _stream(packages: int) -> Iterator[str]:
    for number in range(packages):
        name = package_name(number)
        task = '{"type":"clone","clone":{"upstreamRef":{"upstreamRef":{"name":"blueprints.app.v1"}}}}'
        note = f'{{"package":"{name}","workspaceName":"packagevariant-1","revision":"1","task":{task}}}'
        yield _commit("refs/heads/main", number, f"Approving package revision {name}/1\n\nkpt:{note}\n")
        yield _files(name, 2)
        yield f"reset refs/tags/{name}/v1\nfrom refs/heads/main\n\n"
    for number in range(0, packages - 1, 2):
        name, ref = package_name(number), f"refs/heads/drafts/{package_name(number)}/packagevariant-2"
        edit = f'{{"type":"edit","edit":{{"sourceRef":{{"name":"deploy.{name}.packagevariant-1"}}}}}}'
        note = f'{{"package":"{name}","workspaceName":"packagevariant-2","revision":"0","task":{edit}}}'
        message = f"Creating new revision by copying previous revision\n\n\nkpt:{note}\n"
        yield _commit(ref, packages + number, message, "from refs/heads/main\n")
        yield _files(name, 3)


def _commit(ref: str, number: int, message: str, parent: str = "") -> str:
    committer = f"committer bench <bench@example.org> {1_767_225_600 + number} +0000\n"
    return f"commit {ref}\n{committer}data {len(message.encode())}\n{message}\n{parent}"


def _files(name: str, replicas: int) -> str:
    files = {"Kptfile": KPTFILE.format(name=name), "deployment.yaml": DEPLOYMENT.format(replicas=replicas)}
    return (
        "".join(
            f"M 100644 inline {name}/{path}\ndata {len(text.encode())}\n{text}\n"
            for path, text in files.items()
        )
        + "\n"
    )


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
