"""One leg of a chaos run: a fresh installation in one world, disturbed for a while, then judged."""

import asyncio
import json
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.chaos.judge import CHECKS, DRAFT_LOST, Found, Judge
from tests.chaos.load import ChaosFleet
from tests.chaos.observer import Observer
from tests.chaos.plan import Kind, lanes
from tests.chaos.striking import Striker, Workers
from tests.chaos.world import USER, WORLDS, ChaosWorld
from tests.integration.kafka.faults.deployment import Deployment
from tests.tools.auditlog import accepted
from tests.tools.faultyapi import FaultyApi, faulty_api
from tests.tools.kafka import KafkaCluster

FINAL = "final state"
PROGRESS_SECONDS = 10.0
SETTLED_SECONDS_MAX = 300.0
"""Backoff goes up to a minute, a session and a rebalance come on top, and the machine may be slow."""
PAUSE_SECONDS_MAX = 0.6


class Leg(NamedTuple):
    """What to play. seconds: of faults."""

    number: int
    world: str
    seed: int
    seconds: float
    targets: int


class Outcome(NamedTuple):
    """What came of a leg. counts: what happened; judged: what each check had to decide."""

    leg: Leg
    faults: Counter[Kind]
    counts: Counter[str]
    judged: Counter[str]
    found: tuple[Found, ...]
    seconds: float


class _Stage:
    """Everything that runs in a leg."""

    def __init__(
        self, leg: Leg, kafka: KafkaCluster, folder: Path, world: ChaosWorld, api: FaultyApi
    ) -> None:
        self.leg = leg
        self.world = world
        self.api = api
        self.judge = Judge()
        self.began = time.monotonic()
        self.fleet = ChaosFleet(
            folder / "git",
            leg.seed,
            clusters_per_region=max(1, leg.targets // 4),
            pause_seconds_max=PAUSE_SECONDS_MAX,
            has_drafts=world.has_drafts,
            edited=lambda edit: self.observer.edited(edit),
        )
        self.made = Deployment(kafka, folder, kafka.bootstrap, 0, self.fleet)
        self.made.kubeconfig = api.kubeconfig
        self.workers = Workers(self.made)
        self.striker = Striker(world, kafka, self.workers, api)
        self.observer: Observer

    def line(self, phase: str) -> str:
        faults, judge = self.striker.counts(), self.judge
        seconds = time.monotonic() - self.began
        return (
            f"{seconds:5.0f} s {self.world.name:8} {phase:9} faults {faults.total():4}  "
            f"changes {self.fleet.ledger.answered:5}  records {judge.counts['records']:6}  "
            f"writes {judge.counts['writes of services']:5}  judged {judge.judged.total():7}  "
            f"broken {len(judge.found)}"
        )


async def play(leg: Leg, kafka: KafkaCluster, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Play a leg. What fails is in `found`; a fault of this program raises."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(WORLDS[leg.world](folder))
        api = await stack.enter_async_context(faulty_api(world.account, folder / "proxy", leg.seed))
        stage = _Stage(leg, kafka, folder, world, api)
        stack.callback(stage.made.close)
        stack.push_async_callback(stage.fleet.close)
        reader = stack.enter_context(stage.made.reader(is_quiet=True))
        stage.observer = Observer(world, api, reader, stage.judge, folder / "git")
        found: list[Found] = []
        try:
            found = await _played(stage, say)
        finally:
            _write_story(stage, folder, found or stage.judge.found)
        counts = stage.judge.counts + Counter(
            {
                "changes of users, answered": stage.fleet.ledger.answered,
                "upstreams changed": stage.fleet.upstreams,
                "starts given up while brokers were away": sum(
                    stage.striker.is_excused(each) for each in stage.workers.deaths
                ),
                **{f"requests: {verb}": count for verb, count in api.requests.items()},
            }
        )
        seconds = time.monotonic() - began
        return Outcome(leg, stage.striker.counts(), counts, stage.judge.judged, tuple(found), seconds)


async def _played(stage: _Stage, say: Callable[[str], None]) -> list[Found]:
    await stage.fleet.connect(stage.world.kubeconfig)
    watching = asyncio.create_task(stage.observer.run())
    talking = asyncio.create_task(_talk(stage, say))
    supervising = asyncio.create_task(stage.workers.watch())
    try:
        problems = await _problems(stage, say, watching, supervising)
        if watching.done():
            problems.append(f"the checker ended: {watching.exception()!r}")
        await stage.observer.judge_now()
    finally:
        for task in (watching, talking, supervising):
            task.cancel()
        await asyncio.gather(watching, talking, supervising, return_exceptions=True)
    deaths = [each for each in stage.workers.deaths if not stage.striker.is_excused(each)]
    problems += [f"ended by itself: {each.text}" for each in deaths]
    found = [*stage.judge.found, *(Found(FINAL, time.time(), text) for text in problems)]
    return found + [Found(check, time.time(), "had nothing to judge") for check in _idle(stage)]


async def _problems(
    stage: _Stage,
    say: Callable[[str], None],
    watching: "asyncio.Task[None]",
    supervising: "asyncio.Task[None]",
) -> list[str]:
    """Disturb, heal and compare; return what is not as it has to be in the end."""
    try:
        await stage.fleet.settle_in()
        await stage.workers.ready()
        await stage.made.converged(SETTLED_SECONDS_MAX)
        await _disturb(stage, watching)
        say(stage.line("healing"))
        await _settle(stage, supervising)
        await _cross_check(stage)
    except AssertionError as error:
        return [str(error)]
    except Exception as error:  # it is why this leg failed; the next one can still be played
        return ["".join(traceback.format_exception(error))]
    return []


def _idle(stage: _Stage) -> list[str]:
    needed = [check for check in CHECKS if check != DRAFT_LOST or stage.world.has_drafts]
    return [check for check in needed if not stage.judge.judged[check]]


async def _disturb(stage: _Stage, watching: "asyncio.Task[None]") -> None:
    """Let users work, and strike, for the time of the leg."""
    stop = asyncio.Event()
    load = asyncio.create_task(stage.fleet.work(stop))
    leg = stage.leg
    planned = lanes(leg.seed, leg.seconds, has_etcd=stage.world.audit is not None)
    striking = asyncio.create_task(stage.striker.carry_out(planned))
    try:
        await asyncio.wait({load, striking, watching}, return_when=asyncio.FIRST_COMPLETED)
        for task, name in ((load, "the client"), (watching, "the checker")):
            assert not task.done(), f"{name} ended: {task.exception()!r}"
        await striking
    finally:
        stop.set()
        striking.cancel()
        stage.api.disarm()
        await asyncio.gather(load, striking, return_exceptions=True)


async def _settle(stage: _Stage, supervising: "asyncio.Task[None]") -> None:
    """Without faults the world becomes what the oracle says, keeps its promises, and stays so."""
    await stage.world.heal()
    await stage.workers.ready()
    stage.judge.client_writes(stage.fleet.ledger.answered, await stage.fleet.lost_writes())
    await stage.made.converged(SETTLED_SECONDS_MAX)
    await stage.made.promises_kept(*stage.workers.processes)
    supervising.cancel()
    await stage.made.quiet_over(stage.workers.restart_all)


async def _cross_check(stage: _Stage) -> None:
    """Compare the proxy's log with the server's own: no service has another way to the server."""
    if stage.world.audit is None:
        return
    asked = await asyncio.to_thread(stage.world.audit.writes, USER)
    logged = Counter((event.verb, event.object_ref.name) for event in accepted(asked))
    seen = Counter(
        (write.request.verb, write.name) for write in stage.api.writes if write.is_accepted or not write.code
    )
    assert not logged - seen, f"the server accepted writes that no service sent: {logged - seen}"


async def _talk(stage: _Stage, say: Callable[[str], None]) -> None:
    shown = 0
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        say(stage.line("running"))
        for each in stage.judge.found[shown:]:
            say(f"BROKEN {each.check}: {each.text[:500]}")
        shown = len(stage.judge.found)


def _write_story(stage: _Stage, folder: Path, found: list[Found]) -> None:
    """Write what was done, and what is broken, beside the logs of the processes and of the world."""
    for log in stage.world.logs():
        shutil.copy(log, folder / log.name)
    events = [
        *((e.began, f"{e.kind}: {e.text}; over at {e.ended:.3f}") for e in stage.striker.events),
        *((at, f"{fault}: {request}") for at, fault, request in stage.api.struck),
    ]
    lines = [f"{at:.3f} {text}" for at, text in sorted(events)]
    (folder / "faults.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = "\n".join(f"{each.time:.3f} {each.check}: {each.text}" for each in found)
    (folder / "broken.txt").write_text(f"{text}\n", encoding="utf-8")
    writes = "\n".join(json.dumps(msgspec.to_builtins(write)) for write in stage.api.writes)
    (folder / "writes.jsonl").write_text(f"{writes}\n", encoding="utf-8")
