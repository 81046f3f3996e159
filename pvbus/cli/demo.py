"""`pvbus demo`: a story told with the example fleet, each command printed and run."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import click

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.datafolder import DEFAULT, DataPaths, held
from pvbus.cli.examples import day2
from pvbus.cli.examples.fleet import CLUSTERS_PER_REGION, CLUSTERS_PER_REGION_MAX
from pvbus.core.errors import PermanentError, TransientError, UsageError

OWN = ".pvbus-day2"
TOOLS = ("git", "kubectl", "sed")
START_SECONDS_MAX = 600.0
LINES_MAX = 12  # of a command's output
PVBUS = 'pvbus() { "$PVBUS_PYTHON" -P -m pvbus.cli "$@"; }\n'
"""The printed commands call this pvbus, whichever is on PATH."""


@click.command(
    short_help="Tell a day with the example fleet.",
    epilog="""\b
Examples:
  pvbus demo day2 --pause               waits for Enter before each step
  pvbus demo day2 --data /tmp/fleet     in a fresh data folder
  pvbus demo day2 --data /tmp/small --clusters 10

Exit codes: 0 told, 1 a step failed, or this fleet had its day already, 2 bad usage.
""",
)
@click.argument("story", type=click.Choice(["day2"]))
@click.option("--data", help=f"Data folder of `pvbus up`. [default: {DEFAULT} if it runs there, else {OWN}]")
@click.option("--pause", is_flag=True, help="Wait for Enter before each step.")
@click.option(
    "--clusters",
    type=click.IntRange(6, CLUSTERS_PER_REGION_MAX),
    help=f"In each region of a fleet that is started.  [default: {CLUSTERS_PER_REGION}]",
)
def demo(story: str, data: str | None, pause: bool, clusters: int | None) -> None:
    """Tell a day with the example fleet, in steps: each command is printed, run, and its outcome measured.

    \b
    day2: edits, publishing, a new revision of the blueprint, upgrades, a conflict, one region first, a
    cluster that goes and comes back, and a slip that the guard holds.

    It uses the fleet that runs in the data folder (`make run`). If none runs there, it starts one in a data
    folder of its own, and ends it.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UsageError(f"not on PATH: {', '.join(missing)}; the commands of the story need them")
    folder = DataPaths(Path(data or DEFAULT))
    runs = _is_running(folder)
    if not runs and data is None:
        data, folder = OWN, DataPaths(Path(OWN))
        runs = _is_running(folder)
    if runs and clusters:
        raise UsageError(f"--clusters is for a fleet that is started, and one runs in {folder.root}")
    asyncio.run(_demo(folder, data or DEFAULT, pause, None if runs else clusters or CLUSTERS_PER_REGION))


def _is_running(folder: DataPaths) -> bool:
    if not folder.lock.exists():
        return False
    try:
        with held(folder):
            return False
    except PermanentError as exc:
        if exc.reason != "DataInUse":
            raise
        return True


async def _demo(folder: DataPaths, data: str, pause: bool, clusters: int | None) -> None:
    if clusters is None:
        await _tell(folder, data, pause)
        return
    async with _started(folder, data, clusters):
        await _tell(folder, data, pause)


@asynccontextmanager
async def _started(folder: DataPaths, data: str, clusters: int) -> AsyncIterator[None]:
    """Run `pvbus up` with the example fleet, and end it. Raises PermanentError if it ends by itself."""
    folder.make()
    arguments = ["up", "--data", data, "--example", "fleet", "--clusters", str(clusters)]
    click.echo(f"$ pvbus {shlex.join(arguments)}   # in the background")
    log = folder.root / "day2.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "pvbus.cli", *arguments, stdout=stream, stderr=stream
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while b" ready, variants" not in log.read_bytes():
            if process.returncode is not None or time.monotonic() > deadline:
                raise PermanentError(f"pvbus up did not start; {log} says why")
            await asyncio.sleep(day2.LOOK_SECONDS)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _tell(folder: DataPaths, data: str, pause: bool) -> None:
    cluster = await HttpCluster.connect(folder.kubeconfig)
    try:
        fleet = day2.Fleet(cluster)
        if await day2.was_told(fleet):
            raise PermanentError(
                f"the fleet in {folder.root} has packages that are no first drafts, so its second day is not "
                "the first: choose a fresh folder, such as pvbus demo day2 --data .pvbus-again",
                reason="Told",
            )
        seconds = await fleet.until(lambda: day2.is_settled(fleet), "not every variant is ready")
        click.echo(f"now: {await fleet.size()} variants are ready, after {seconds:.0f} s")
        options = "" if data == DEFAULT else f" --data {shlex.quote(data)}"
        work = shlex.quote(str(Path(data) / "day2-work"))
        blueprints = shlex.quote(str(Path(data) / "example" / "blueprints.git"))
        click.echo(f"$ export KUBECONFIG={shlex.quote(str(folder.kubeconfig))}")
        for number, step in enumerate(day2.steps(options, blueprints, work), 1):
            await _do(fleet, number, step, _environment(folder), pause)
    except TransientError as exc:
        raise TransientError(f"the API server does not answer ({exc}): does pvbus up still run?") from exc
    finally:
        await cluster.close()


def _environment(folder: DataPaths) -> Mapping[str, str]:
    return {**os.environ, "KUBECONFIG": str(folder.kubeconfig), "PVBUS_PYTHON": sys.executable}


async def _do(
    fleet: day2.Fleet, number: int, step: day2.Step, environment: Mapping[str, str], pause: bool
) -> None:
    """Print a step, run its commands, wait for their effect and say it. Raises PermanentError."""
    click.echo(f"\n{number}. {step.title}")
    for line in step.commands.splitlines():
        click.echo(line if line.startswith("  ") else f"$ {line}")
    if pause:
        click.prompt("[Enter]", default="", show_default=False, prompt_suffix=" ")
    fleet.began = time.monotonic()
    code = await _run(PVBUS + step.commands, environment)
    if code not in step.codes:
        raise PermanentError(f"step {number} ended with code {code}; its output is above")
    click.echo(f"now: {await step.outcome(fleet)}")


async def _run(script: str, environment: Mapping[str, str]) -> int:
    """Run a script and show the first lines of its output; return its exit code."""
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        "sh", "-euc", script, stdout=pipe, stderr=both, env=environment
    )
    assert process.stdout is not None
    count = 0
    async for line in process.stdout:
        count += 1
        if count <= LINES_MAX:
            click.echo(f"  {line.decode(errors='replace').rstrip()}")
    if count > LINES_MAX:
        click.echo(f"  ... {count - LINES_MAX} lines more")
    return await process.wait()
