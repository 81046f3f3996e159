"""Templates of Carvel's packages by programs that run: Helm itself, and what holds of any program.

ytt and kbld come as no module that a build here could fetch: of these two only the commands are tested, in
`tests/unit/core/platform/establish/test_templating.py`.
"""

import asyncio
import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.core.errors import PROGRAM_MISSING, PermanentError
from pvbus.core.kernel.effects import Execute, Executed, Get
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.fetching import Brought, fetch_content
from pvbus.core.platform.establish.templating import Setting
from pvbus.runtime.reconcile import programs
from pvbus.runtime.reconcile.effects import perform
from tests.kit.deciding import drive_live
from tests.tools import helm

pytestmark = pytest.mark.timeout(900)  # Helm may have to be built

CHART = {
    "chart/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n",
    "chart/values.yaml": "size: 1\ncolour: red\n",
    "chart/crds/thing.yaml": (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        "metadata: {name: things.x.org}\n"
    ),
    "chart/templates/map.yaml": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\n"
        "  namespace: {{ .Release.Namespace }}\n"
        'data: {size: "{{ .Values.size }}", colour: {{ .Values.colour }}}\n'
    ),
}
SETTING = Setting("web", "team", "system:serviceaccount:team:installer", ("mine",))


async def fetched(files: dict[str, str], template: list[Any], **values: str) -> Brought:
    """Render inline files. values: of the install's Secret."""
    fetch = [{"inline": {"paths": files}}]
    package = {"spec": {"template": {"spec": {"fetch": fetch, "template": template}}}}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}

    async def answer(effect: Any) -> Any:
        if isinstance(effect, Get):
            return {"data": data}
        assert isinstance(effect, Execute)
        return await programs.execute(effect)

    return await drive_live(fetch_content(package, SETTING), answer)


@pytest.fixture
def with_helm(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = helm.find_or_build()
    except helm.HelmUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    monkeypatch.setenv("PATH", f"{found.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("with_helm")
async def test_helm_renders_a_chart_with_the_values_of_the_install() -> None:
    """The Secret of the install counts before the package's values; definitions come along; a chart that
    fails is refused with Helm's words."""
    template = [{"helmTemplate": {"path": "chart", "namespace": "shop"}}]
    found = await fetched(CHART, template, **{"values.yaml": "size: 3\n"})
    assert [each["kind"] for each in found.objects] == ["CustomResourceDefinition", "ConfigMap"]
    settings = found.objects[1]
    assert settings["metadata"] == {"name": "web", "namespace": "shop"}
    assert (settings["data"], found.gaps) == ({"size": "3", "colour": "red"}, ())
    broken = {**CHART, "chart/templates/map.yaml": '{{ required "set colour" .Values.hue }}'}
    with pytest.raises(RefusedError, match=r"helm ended with 1.*set colour") as refusal:
        await fetched(broken, template)
    assert refusal.value.reason == "TemplateFailed"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH for programs of a test."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PVBUS_KAFKA_PASSWORD", "secret")
    return tmp_path


def write(folder: Path, text: str) -> None:
    program = folder / "ytt"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


async def test_a_program_sees_its_files_and_its_input_and_nothing_of_ours(tools: Path) -> None:
    write(tools, 'cat; cat "$1"; env; echo "failed" >&2; exit 3')
    done = await programs.execute(
        Execute("ytt", ("package/a.yml",), {"package/a.yml": b"file\n"}, b"given\n")
    )
    assert (done.code, done.err, done.out.startswith(b"given\nfile\n")) == (3, b"failed\n", True)
    assert b"PVBUS" not in done.out
    assert b"secret" not in done.out


@pytest.mark.parametrize("path", ["../x.yml", "/x.yml", "a/../../x.yml"])
async def test_a_file_outside_of_the_folder_is_refused(tools: Path, path: str) -> None:
    """A key of a Secret or a path of a package is what somebody wrote."""
    write(tools, "true")
    with pytest.raises(PermanentError, match="path"):
        await programs.execute(Execute("ytt", (), {path: b""}))


def await_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


async def test_a_program_that_does_not_end_is_killed(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the end of our own work, so that a service stops at once."""
    write(tools, f"touch {tools}/begun; sleep 100 & wait")
    monkeypatch.setattr(programs, "SECONDS_MAX", 0.3)
    with pytest.raises(PermanentError, match=r"did not end within 0.3 s"):
        await programs.execute(Execute("ytt", (), {}))
    monkeypatch.setattr(programs, "SECONDS_MAX", 100.0)
    (tools / "begun").unlink()
    running = asyncio.create_task(programs.execute(Execute("ytt", (), {})))
    await asyncio.to_thread(await_file, tools / "begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 30)


async def test_a_program_that_is_not_there_has_its_own_reason(tools: Path) -> None:
    with pytest.raises(PermanentError, match="PATH has no program kbld-of-nobody") as error:
        await programs.execute(Execute("kbld-of-nobody", (), {}))
    assert error.value.reason == PROGRAM_MISSING
    write(tools, "echo kind: A")
    assert await programs.execute(Execute("ytt", (), {})) == Executed(0, b"kind: A\n", b"")


async def test_the_ends_of_programs_are_counted(tools: Path) -> None:
    def ended(outcome: str) -> float:
        labels = {"program": "ytt", "outcome": outcome}
        return REGISTRY.get_sample_value("pvbus_programs_total", labels) or 0.0

    before = ended("done"), ended("permanent")
    write(tools, "true")
    await perform(MemoryCluster(now=str), Execute("ytt", (), {}))
    with pytest.raises(PermanentError, match="path"):
        await perform(MemoryCluster(now=str), Execute("ytt", (), {"../x": b""}))
    assert (ended("done"), ended("permanent")) == (before[0] + 1, before[1] + 1)
