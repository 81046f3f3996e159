"""Functions in a container engine: the arguments, the protocol, and what fails. The engine is a fake."""

import json
import sys
from pathlib import Path

import pytest

from pvbus.controlplane.packages.functions import container
from pvbus.controlplane.packages.functions.container import command_of, engine_of, run_container
from pvbus.controlplane.packages.functions.item import FunctionOutput
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.errors import PermanentError, TransientError, UsageError
from tests.unit.packages.support import config_map, items

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: b # why\n"
IMAGE = "docker.io/x/my-fn:v1"
COMMON = [
    "--rm",
    "--interactive",
    "--pull=missing",
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp:rw,nosuid,nodev,size=268435456",
    "--user=65534:65534",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--memory=2147483648",
    "--memory-swap=2147483648",
    "--cpus=1",
    "--pids-limit=256",
]


class FakeEngine:
    """An engine on PATH that records its arguments and runs a program in place of a container."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        self._folder = folder

    def install(self, name: str, program: str) -> None:
        path = self._folder / name
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time, yaml\n"
            f"with open({str(self._calls)!r}, 'a') as calls: calls.write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"if sys.argv[1] == 'rm': sys.exit()\n{program}\n"
        )
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()]


SET_FIELD = """
given = yaml.safe_load(sys.stdin)
given["items"][0]["data"]["a"] = given["functionConfig"]["data"]["value"]
print("working", file=sys.stderr)
json.dump(given, sys.stdout)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return FakeEngine(tmp_path)


def run(engine: str = "docker", *, timeout_seconds: float = 30.0) -> FunctionOutput:
    return run_container(engine, IMAGE, items(OBJECT), config_map(value="c"), timeout_seconds=timeout_seconds)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("podman", ["--http-proxy=false", "--log-driver=none"]),
        ("docker", ["--log-driver=none"]),
        ("nerdctl", []),
    ],
)
def test_the_arguments_of_each_engine(name: str, own: list[str]) -> None:
    assert command_of(name, IMAGE, "n") == [name, "run", "--name=n", *COMMON, *own, "--", IMAGE]


@pytest.mark.parametrize("name", container.ENGINES)
def test_a_function_runs_in_each_engine(engine: FakeEngine, name: str) -> None:
    engine.install(name, SET_FIELD)
    (changed,) = run(name).items
    assert changed.text == OBJECT.replace("a: b", "a: c")
    (call,) = engine.calls
    assert call[0] == "run"
    assert call[-2:] == ["--", IMAGE]


@pytest.mark.parametrize(
    "image",
    [
        "--privileged",
        "-v/:/host",
        "a b",
        "a;b",
        "",
        "a/../b",
        "a:~1.2",
        "A/B",
        "a@sha256:12",
        "a:" + "x" * 200,
        "a" * 600,
        "x\n--privileged",
        "x\n",
    ],
)
def test_what_is_no_image_never_reaches_the_engine(image: str) -> None:
    with pytest.raises(PermanentError, match="not an image that a container engine can run"):
        command_of("docker", image, "n")


@pytest.mark.parametrize(
    "image",
    [
        "a",
        "a:v1",
        "gcr.io/kpt-fn/a:v0.1.5@sha256:" + "0" * 64,
        "localhost:5000/a/b_c",
        "ghcr.io/x/a-b.c:1.0-x_Y",
        "REG.example.com/a",
    ],
)
def test_every_image_of_a_registry_is_accepted(image: str) -> None:
    assert command_of("docker", image, "n")[-1] == image


def test_an_image_without_registry_is_of_kpts_catalog(engine: FakeEngine) -> None:
    engine.install("docker", SET_FIELD)
    run_container("docker", "my-fn:v1", items(OBJECT), config_map(value="c"), timeout_seconds=30)
    assert engine.calls[0][-1] == "ghcr.io/kptdev/krm-functions-catalog/my-fn:v1"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit('went wrong')", "exit code 1: went wrong"),
        ("print('{')", "the output is not a ResourceList"),
        ("time.sleep(60)", "did not end within 1 s and was killed"),
    ],
)
def test_a_function_that_fails_in_its_container(engine: FakeEngine, program: str, message: str) -> None:
    engine.install("docker", program)
    with pytest.raises(PermanentError, match=message):
        run(timeout_seconds=1)


def test_a_container_is_removed_after_the_time_limit(engine: FakeEngine) -> None:
    """The end of the client ends no container of a daemon."""
    engine.install("docker", "time.sleep(60)")
    with pytest.raises(PermanentError, match="was killed"):
        run(timeout_seconds=1)
    started, removed = engine.calls
    name = next(each for each in started if each.startswith("--name=")).removeprefix("--name=")
    assert removed == ["rm", "--force", name]


def test_an_engine_that_cannot_start_the_container_is_tried_again_later(engine: FakeEngine) -> None:
    engine.install("docker", "print('Cannot connect to the Docker daemon', file=sys.stderr); sys.exit(125)")
    with pytest.raises(TransientError, match=rf"docker cannot run {IMAGE}: Cannot connect"):
        run()
    engine.remove("docker")
    with pytest.raises(TransientError, match="cannot start docker: No such file"):
        run()


def test_an_engine_is_chosen_that_is_there(engine: FakeEngine) -> None:
    with pytest.raises(UsageError, match="PVBUS_FUNCTION_ENGINE=auto: podman or docker or nerdctl is not on"):
        engine_of("auto")
    engine.install("nerdctl", "")
    assert engine_of("auto") == "nerdctl"
    with pytest.raises(UsageError, match="docker is not on PATH"):
        FunctionRegistry(engine="docker")
