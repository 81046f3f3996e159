"""`pvbus demo`: stories told with the example fleet, each command printed and run."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.datafolder import DEFAULT, DataPaths, held
from pvbus.cli.demos import day2, deploying, mishaps, rollout, story, surroundings, train
from pvbus.controlplane.packages.functions.starlark import require_interpreter
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.examples.fleet import CLUSTERS_PER_REGION, CLUSTERS_PER_REGION_MAX

ROLLOUT_CLUSTERS = 6
"""In each region: as few as show waves, so that each station is over when its clocks are."""
TOOLS = ("git", "kubectl", "sed")
START_SECONDS_MAX = 600.0
LINES_MAX = 12  # of a command's output
PVBUS = 'pvbus() { "$PVBUS_PYTHON" -P -m pvbus.cli "$@"; }\n'
"""The printed commands call this pvbus, whichever is on PATH."""


@click.command(
    short_help="Tell a story with the example fleet.",
    epilog="""\b
Examples:
  pvbus demo day2 --pause               waits for Enter before each step
  pvbus demo day2 --data /tmp/fleet     in a fresh data folder
  pvbus demo day2 --data /tmp/small --clusters 10
  pvbus demo rollout                    a canary that fails, a quarantine, a joiner, a train, waves
  pvbus demo rollout --station train    one station, and what it needs

Exit codes: 0 told, 1 a step failed, or this fleet had its story already, 2 bad usage.
""",
)
@click.argument("name", metavar="STORY", type=click.Choice(["day2", "rollout"]))
@click.option(
    "--data",
    help=f"Data folder of `pvbus up`. [default: of day2 {DEFAULT} if it runs there; else .pvbus-STORY]",
)
@click.option("--pause", is_flag=True, help="Wait for Enter before each step.")
@click.option(
    "--clusters",
    type=click.IntRange(6, CLUSTERS_PER_REGION_MAX),
    help=f"In each region of a fleet that is started.  [default: {CLUSTERS_PER_REGION}, "
    f"of rollout {ROLLOUT_CLUSTERS}]",
)
@click.option(
    "--station",
    "stations",
    multiple=True,
    type=click.Choice(list(rollout.STATIONS)),
    help="Tell only this station of rollout, and the stations that it needs. Repeatable.",
)
def demo(name: str, data: str | None, pause: bool, clusters: int | None, stations: tuple[str, ...]) -> None:
    """Tell a story with the example fleet, in steps: each command is printed, run, and its outcome measured.

    \b
    day2: edits, publishing, a new revision of the blueprint, upgrades, a conflict, one region first, a
    cluster that goes and comes back, and a slip that the guard holds.

    \b
    rollout: a policy approves what Applications shaped as Argo CD's prove, in these stations:
      canary      a bad revision reaches one cluster, whose Application lags, then fails: it is rolled back
      train       two packages of two sites go as one, in their order, and not one without the other
      quarantine  nobody gets the bad revision again, not even by hand
      joiner      a cluster that joins gets nothing of it
      gates       the next drafts wait for programs, a validator and a person
      waves       they go out in waves; in the second a metric turns bad, and all is rolled back
    It takes a minute and a half, and ends with code 1 if a station turns out otherwise.

    day2 uses the fleet that runs in the data folder (`make run`). If none runs there, it starts one in a data
    folder of its own, and ends it. rollout always does: it needs the services of promotion. Without the
    program prometheus on PATH its checks look at an object, and a person rolls back.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UsageError(f"not on PATH: {', '.join(missing)}; the commands of the story need them")
    if name == "rollout":
        require_interpreter()  # the story's validator is a script
        own = DataPaths(Path(data or f".pvbus-{name}"))
        if _is_running(own):
            raise UsageError(
                f"a fleet runs in {own.root}, and this story starts its own: choose a fresh --data"
            )
        _run_story(_rollout(own, pause, clusters or ROLLOUT_CLUSTERS, stations))
        return
    if stations:
        raise UsageError("--station is for the story rollout")
    folder = DataPaths(Path(data or DEFAULT))
    runs = _is_running(folder)
    if not runs and data is None:
        folder = DataPaths(Path(f".pvbus-{name}"))
        runs = _is_running(folder)
    if runs and clusters:
        raise UsageError(f"--clusters is for a fleet that is started, and one runs in {folder.root}")
    _run_story(_day2(folder, pause, None if runs else clusters or CLUSTERS_PER_REGION))


def _run_story(story_run: Coroutine[Any, Any, None]) -> None:
    """Run a story. SIGTERM and SIGHUP end it as Ctrl-C does, and with it all that it has started."""
    received: list[int] = []

    async def run_guarded() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        await story_run

    try:
        asyncio.run(run_guarded())
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None


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


async def _day2(folder: DataPaths, pause: bool, clusters: int | None) -> None:
    if clusters is None:
        await _tell(folder, day2.steps(*_places(folder)), pause)
        return
    async with _run_up(folder, clusters):
        await _tell(folder, day2.steps(*_places(folder)), pause)


async def _rollout(folder: DataPaths, pause: bool, clusters: int, stations: Collection[str]) -> None:
    folder.make()
    work = folder.root / "prometheus"
    names = rollout.with_needed(stations)
    is_wanted = "waves" in names
    async with surroundings.open_monitoring(work, work / "errors") if is_wanted else _no_monitoring() as url:
        if is_wanted:
            click.echo(
                f"Prometheus: {url}"
                if url
                else "prometheus is not on PATH (Debian's package prometheus): the checks look at an object"
            )
        errors = work / "errors" if url else None
        running = _run_up(folder, clusters, "--promote", PVBUS_PROMETHEUS_URL=url)
        async with running, _programs(folder, errors):
            await _tell(folder, _stations(folder, names, has_metric=bool(url)), pause)


@asynccontextmanager
async def _no_monitoring() -> AsyncIterator[str]:
    yield ""


def _stations(folder: DataPaths, names: Collection[str], *, has_metric: bool) -> Iterator[story.Step]:
    """Yield the steps of these stations. The train goes while the canary's evidence is waited for."""
    options, example, work = _places(folder)
    scene = rollout.Scene(options, example, work, has_metric)
    begins, ends = mishaps.canary(scene) if "canary" in names else ((), ())
    number = mishaps.NUMBER + ("canary" in names)
    yield from rollout.begin(scene)
    yield from begins
    yield from train.train(scene) if "train" in names else ()
    yield from ends
    yield from mishaps.quarantine(scene) if "quarantine" in names else ()
    yield from mishaps.joiner(scene) if "joiner" in names else ()
    yield from rollout.gates(scene, number) if "gates" in names else ()
    yield from rollout.waves(scene, number) if "waves" in names else ()


@asynccontextmanager
async def _programs(folder: DataPaths, errors: Path | None) -> AsyncIterator[None]:
    """Run the programs of the story within the block. errors: the file of the metric, if there is one"""
    cluster = await HttpCluster.connect(folder.kubeconfig)
    running = {
        asyncio.create_task(surroundings.answer_gates(cluster), name="gates"),
        asyncio.create_task(deploying.deploy(cluster, errors), name="deploying"),
    }
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await cluster.close()


def _places(folder: DataPaths) -> tuple[str, str, str]:
    """Return the options of pvbus, the folder of the fleet's repositories, and one for a clone."""
    data = str(folder.root)
    options = "" if data == DEFAULT else f" --data {shlex.quote(data)}"
    return options, shlex.quote(str(folder.root / "example")), shlex.quote(str(folder.root / "demo-work"))


@asynccontextmanager
async def _run_up(folder: DataPaths, clusters: int, *more: str, **settings: str) -> AsyncIterator[None]:
    """Run `pvbus up` with the example fleet, and end it. Raises PermanentError if it ends by itself."""
    folder.make()
    arguments = ["up", "--data", str(folder.root), "--example", "fleet", "--clusters", str(clusters), *more]
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in settings.items() if value)
    click.echo(f"$ {given}pvbus {shlex.join(arguments)}   # in the background")
    log = folder.root / "demo.log"
    environment = {**os.environ, **{name: value for name, value in settings.items() if value}}
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "pvbus.cli", *arguments),
            stdout=stream,
            stderr=stream,
            env=environment,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while b" ready, variants" not in log.read_bytes():
            if process.returncode is not None or time.monotonic() > deadline:
                raise PermanentError(f"pvbus up did not start; {log} says why")
            await asyncio.sleep(story.LOOK_SECONDS)
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("web page: "):
                click.echo(line)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _tell(folder: DataPaths, steps: Iterable[story.Step], pause: bool) -> None:
    cluster = await HttpCluster.connect(folder.kubeconfig)
    try:
        fleet = story.Fleet(cluster)
        if await story.was_told(fleet):
            raise PermanentError(
                f"the fleet in {folder.root} has packages that are no first drafts, so it had its story "
                "already: choose a fresh folder, such as --data .pvbus-again",
                reason="Told",
            )
        seconds = await fleet.until(lambda: story.is_settled(fleet), "not every variant is ready")
        click.echo(f"now: {await fleet.size()} variants are ready, after {seconds:.0f} s")
        click.echo(f"$ export KUBECONFIG={shlex.quote(str(folder.kubeconfig))}")
        for number, step in enumerate(steps, 1):
            await tell_step(fleet, number, step, _environment(folder), pause=pause)
    except TransientError as exc:
        raise TransientError(f"the API server does not answer: {exc}") from exc
    finally:
        await cluster.close()


def _environment(folder: DataPaths) -> Mapping[str, str]:
    return {**os.environ, "KUBECONFIG": str(folder.kubeconfig), "PVBUS_PYTHON": sys.executable}


async def tell_step(
    fleet: story.Fleet, number: int, step: story.Step, environment: Mapping[str, str], *, pause: bool
) -> None:
    """Print a step, run its commands, wait for their effect and say it. Raises PermanentError."""
    click.echo(f"\n{number}. {step.title}")
    commands = step.commands if isinstance(step.commands, str) else await step.commands(fleet)
    for line in _as_typed(commands):
        click.echo(line)
    if pause:
        click.prompt("[Enter]", default="", show_default=False, prompt_suffix=" ")
    fleet.began = time.monotonic()
    code, output = await _run(PVBUS + commands, environment)
    if code not in step.codes:
        raise PermanentError(f"step {number} ended with code {code}; its output is above")
    if step.shows not in output:
        raise PermanentError(f'step {number} turned out otherwise: its output does not have "{step.shows}"')
    click.echo(f"now: {await step.outcome(fleet)}")


def _as_typed(commands: str) -> Iterator[str]:
    """Yield the lines as a terminal shows them: a prompt before each command, but not in a here-document."""
    is_document = False
    for line in commands.splitlines():
        yield line if is_document or line.startswith("  ") else f"$ {line}"
        is_document = line != "END" if is_document else line.endswith("<<'END'")


async def _run(script: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a script and show the first lines of its output; return its exit code, and all of the output."""
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        "sh", "-euc", script, stdout=pipe, stderr=both, env=environment
    )
    assert process.stdout is not None
    lines: list[str] = []
    async for line in process.stdout:
        lines.append(line.decode(errors="replace").rstrip())
        if len(lines) <= LINES_MAX:
            click.echo(f"  {lines[-1]}")
    if len(lines) > LINES_MAX:
        click.echo(f"  ... {len(lines) - LINES_MAX} lines more")
    return await process.wait(), "\n".join(lines)
