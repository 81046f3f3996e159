"""Plays many schedules, in several processes: `python -m tests.simulation --seeds 2000 --workers 2`.

Prints progress, each seed that fails with the command that repeats it, and in the end what was exercised.
Exits with 1 when a seed fails, and when something that must happen never happened: a simulation that
exercises nothing proves nothing. Each process has PYTHONHASHSEED=0, so a seed is one schedule everywhere.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from tests.simulation import carvel_schedule, packages_schedule
from tests.simulation.schedule import play

HASH_SEED = "0"
BATCH_SEEDS = 5  # few enough that workers end together, enough that a process's start does not count
EXERCISED_FROM_SEEDS = 100  # fewer schedules need not have everything
ALWAYS = (
    "orders",
    "removals",
    "kills",
    "freezes",
    "restarts of everything",
    "holds of users",
    "holds in calm weather",
    "rows held",
    "confirmations",
    "wrong confirmations",
    "confirmed removals",
    "inventories relabelled",
    "drafts published",
    "drafts edited",
    "API server away",
    "bus away",
    "steps of several rows",
    "PackageVariantSets reported ready",
    "check requests",
    "check answers",
    "withdrawals",
    "rows confirmed",
    "name conflicts",
    "variants copied",
    "notes too large",
    "clock jumps",
    "partitions lagging",
    "watches replayed",
    "lists without an object",
    "objects injected",
)
"""What must have happened in many schedules."""
VARIANTS, PACKAGES, CARVEL = "variants", "packages", "carvel"
WORLDS = {VARIANTS: ALWAYS, PACKAGES: packages_schedule.ALWAYS, CARVEL: carvel_schedule.ALWAYS}
"""What is simulated: the fleets of variants, or packages that depend on each other, of either family."""
PLAYS = {VARIANTS: play, PACKAGES: packages_schedule.play, CARVEL: carvel_schedule.play}


def command(seed: int, world: str = VARIANTS) -> str:
    """Return what repeats a schedule."""
    arguments = "" if world == VARIANTS else f' ARGS="--world {world}"'
    return f"make simulate SEEDS=1 FIRST={seed}{arguments}"


def unexercised(counts: Counter[str], seeds: int, world: str = VARIANTS) -> list[str]:
    """Return what should have happened in so many schedules, and never did."""
    return [name for name in WORLDS[world] if not counts[name]] if seeds >= EXERCISED_FROM_SEEDS else []


def play_here(first: int, count: int, world: str = VARIANTS) -> Iterator[dict[str, object]]:
    """Play schedules in this process; yield what came of each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    for seed in range(first, first + count):
        began = time.monotonic()
        counts, error = Counter[str](), ""
        try:
            counts = PLAYS[world](seed)
        except Exception as exc:
            frames = traceback.extract_tb(exc.__traceback__)[-1:]
            location = "".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}: " for frame in frames)
            notes = " ".join(getattr(exc, "__notes__", ()))
            error = f"{location}{type(exc).__name__}: {exc} ({notes})"
        seconds = round(time.monotonic() - began, 2)
        yield {"seed": seed, "counts": counts, "error": error, "seconds": seconds}


class Supervisor:
    """Plays seeds in processes, a batch at a time, and gathers what came of them."""

    def __init__(self, first: int, seeds: int, workers: int, *, quiet: bool, world: str = VARIANTS) -> None:
        self.failed: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.done = 0
        self.seconds = 0.0
        self._seeds = seeds
        self._quiet = quiet
        self._world = world
        starts = range(first, first + seeds, BATCH_SEEDS)
        self._batches = [(start, min(BATCH_SEEDS, first + seeds - start)) for start in starts]
        self._lock = threading.Lock()
        self._workers = min(workers, len(self._batches))

    def run(self) -> None:
        threads = [threading.Thread(target=self._work) for _ in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._batches:
                    return
                first, count = self._batches.pop(0)
            self._play(first, count)

    def _play(self, first: int, count: int) -> None:
        arguments = ["-m", "tests.simulation", "--here", "--first", str(first), "--seeds", str(count)]
        arguments += ["--world", self._world]
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        left = dict.fromkeys(range(first, first + count))
        with process:
            for line in process.stdout:
                if line.startswith("{"):
                    result = json.loads(line)
                    left.pop(result["seed"])
                    self._take(result)
        for seed in left:
            self._take(
                {"seed": seed, "counts": {}, "error": f"process ended: {process.returncode}", "seconds": 0}
            )

    def _take(self, result: dict[str, object]) -> None:
        with self._lock:
            self.done += 1
            self.counts.update(result["counts"])  # type: ignore[call-overload]
            self.seconds += float(str(result["seconds"]))
            seed, error = int(str(result["seed"])), str(result["error"])
            if error:
                self.failed[seed] = error
                print(f"seed {seed} failed: {error}\n  repeat it: {command(seed, self._world)}", flush=True)
            if not self._quiet and self.done % 10 == 0:
                print(f"{self.done} of {self._seeds} schedules, {len(self.failed)} failed", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="in this process; prints a JSON line per seed")
    parser.add_argument("--world", choices=sorted(WORLDS), default=VARIANTS, help="what is simulated")
    options = parser.parse_args(arguments)
    if options.here:
        for result in play_here(options.first, options.seeds, options.world):
            print(json.dumps(result), flush=True)
        return 0
    supervisor = Supervisor(options.first, options.seeds, options.workers, quiet=False, world=options.world)
    supervisor.run()
    each = supervisor.seconds / max(supervisor.done, 1)
    print(f"\nexercised in {supervisor.done} schedules ({each:.1f} s each):")
    for name, count in sorted(supervisor.counts.items()):
        print(f"  {count:8} {name}")
    missing = unexercised(supervisor.counts, supervisor.done, options.world)
    if missing:
        print(f"never happened, so nothing is proved of it: {', '.join(missing)}")
    if supervisor.failed:
        print(f"failed: {', '.join(map(str, sorted(supervisor.failed)))}")
    print(f"{len(supervisor.failed)} of {supervisor.done} schedules failed")
    return 1 if supervisor.failed or missing or not supervisor.done else 0


if __name__ == "__main__":
    sys.exit(main())
