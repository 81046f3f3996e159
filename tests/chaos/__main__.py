"""`make chaos MINUTES=n`: faults on the real parts, and an independent checker.

Three Kafka brokers run for the whole time. A run has legs, each in a fresh installation: five services as
two processes each, an API server, a client that changes sets, targets, upstreams and drafts, and a proxy
between services and API server. The exit code is 0 when nothing is broken, else 1.
"""

import argparse
import asyncio
import math
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pvbus.core.errors import PvbusError
from tests.chaos.judge import CHECKS
from tests.chaos.leg import FINAL, Leg, Outcome, play
from tests.chaos.plan import LANES
from tests.tools.clusterprograms import ClusterUnavailableError
from tests.tools.kafka import KafkaFailedError, KafkaUnavailableError, running
from tests.tools.realcluster import ClusterFailedError

LEG_MINUTES = 15.0
"""A leg ends with a judgement of the whole state; longer ones show what grows with time."""
TARGETS = 60
ABOUT = """\
Disturb the services on real parts, and judge what they do.

  real       kube-apiserver, etcd and kube-controller-manager; targets become PackageVariants
  embedded   `pvbus apiserver` with its package store; PackageVariants become drafts in git

The minutes are those with faults; starting, settling and judging come on top. In an hour each kind of fault
comes at least 100 times. A process that ends by itself is a finding. Only a start that gave up, as it says
after a minute without an answer of the bus, is counted instead if brokers were away in that minute. A seed
repeats the plan of faults and the client's choices, not the moments."""


def main(arguments: Sequence[str]) -> int:
    """Play the legs; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make chaos", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="of faults, over all legs (%(default)g)")
    parser.add_argument("--cluster", choices=("both", "real", "embedded"), default="both",
                        help="the worlds; both: in turn (%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=None, help="of the plan; by default a new one")
    parser.add_argument("--targets", type=int, default=TARGETS, help="of the largest set (%(default)d)")
    parser.add_argument("--folder", type=Path, default=None, help="for logs and the reason of a failure")
    parsed = parser.parse_args(arguments)
    if parsed.minutes <= 0 or parsed.targets < 4:
        parser.error("--minutes has to be above 0, and --targets at least 4")
    seed = int(time.time()) if parsed.seed is None else parsed.seed
    folder = parsed.folder or Path(tempfile.mkdtemp(prefix="pvbus-chaos-"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    print(f"seed {seed}; logs in {folder}", flush=True)
    try:
        outcomes = run(legs(parsed.minutes, parsed.cluster, seed, parsed.targets), folder)
    except (KafkaUnavailableError, KafkaFailedError, ClusterUnavailableError, ClusterFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except PvbusError as error:
        print(f"error: {error}; logs in {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; logs in {folder}", file=sys.stderr)
        return 130
    print(table(outcomes))
    found = [each for outcome in outcomes for each in outcome.found]
    if not found:
        if parsed.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"nothing is broken (seed {seed})")
        return 0
    for each in found[:20]:
        print(f"BROKEN {each.check}: {each.text[:1000]}")
    print(f"{len(found)} broken (seed {seed}); faults, reasons and logs in {folder}")
    return 1


def legs(minutes: float, cluster: str, seed: int, targets: int) -> list[Leg]:
    """Divide a run: the worlds take turns, in legs of LEG_MINUTES at most."""
    worlds = ("real", "embedded") if cluster == "both" else (cluster,)
    count = max(1, math.ceil(minutes / LEG_MINUTES / len(worlds))) * len(worlds)
    seconds = minutes * 60 / count
    return [Leg(n, worlds[n % len(worlds)], seed + n, seconds, targets) for n in range(count)]


def run(planned: Sequence[Leg], folder: Path) -> list[Outcome]:
    """Play legs one after the other over one Kafka of three brokers."""

    def say(text: str) -> None:
        print(text, flush=True)

    async def play_all() -> list[Outcome]:
        outcomes = []
        for leg in planned:
            about = f"{leg.world}, {leg.seconds:.0f} s of faults, seed {leg.seed}"
            say(f"leg {leg.number + 1} of {len(planned)}: {about}")
            outcomes.append(await play(leg, kafka, folder / f"{leg.number}-{leg.world}", say))
        return outcomes

    with running(3) as kafka:
        if not kafka.brokers:
            raise KafkaUnavailableError("PVBUS_TEST_KAFKA names brokers that are not ours to kill: unset it")
        return asyncio.run(play_all())


def table(outcomes: Sequence[Outcome]) -> str:
    """Return what happened, by kind."""
    faults = sum((outcome.faults for outcome in outcomes), Counter())
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    judged = sum((outcome.judged for outcome in outcomes), Counter())
    broken = Counter(each.check for outcome in outcomes for each in outcome.found)
    lines = ["", f"{'fault':40} struck"]
    lines += [f"{kind:40} {faults[kind]:6}" for kinds in LANES.values() for kind in kinds]
    lines += ["", f"{'happened':40}  times"]
    lines += [f"{name:40} {count:6}" for name, count in sorted(counts.items())]
    lines += ["", f"{'check':40} judged  broken"]
    lines += [f"{check:40} {judged[check]:6}  {broken[check]:6}" for check in CHECKS]
    lines += [f"{FINAL:40} {len(outcomes):6}  {broken[FINAL]:6}"]
    minutes = sum(outcome.leg.seconds for outcome in outcomes) / 60
    total = sum(outcome.seconds for outcome in outcomes) / 60
    return "\n".join([*lines, "", f"{minutes:.1f} minutes of faults in {total:.1f} minutes"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
