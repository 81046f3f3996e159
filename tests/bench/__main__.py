"""All benchmarks in one run: one table, and with --json a file of the same.

    python -m tests.bench [NAME...] [--small] [--json FILE] [--coefficients]

Names: ceiling, noop, affected, cel, large, revisions, upgrades, injected, yaml, resolve, proposals, rollouts,
approvals, churn, deletions, packages, lists, page, plan, cluster, cluster-large, tables, kafka, kafka-events,
kafka-large, kafka-workers. Those of Kafka start one, those of a cluster a kube-apiserver, and `page` a
browser; they are left out where that cannot be had. --small does the same with few objects, to see that it
works: its times mean nothing.
--coefficients updates what `pvbus size` computes with.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from pvbus.runtime.collector import relax_collector
from tests.bench.affected import affected
from tests.bench.approvals import approvals
from tests.bench.cel import cel
from tests.bench.churn import churn
from tests.bench.cluster import cluster
from tests.bench.cluster_large import cluster_large
from tests.bench.coefficients import write_coefficients
from tests.bench.deletions import deletions
from tests.bench.kafka import kafka_fleet
from tests.bench.kafka_events import kafka_events
from tests.bench.kafka_large import kafka_large
from tests.bench.kafka_workers import kafka_workers
from tests.bench.large import large
from tests.bench.lists import lists
from tests.bench.packages import packages
from tests.bench.page import page
from tests.bench.plan import plan
from tests.bench.proposals import proposals
from tests.bench.report import Row, machine, table, write_json
from tests.bench.resolving import resolving
from tests.bench.revisions import revisions
from tests.bench.rollouts import rollouts
from tests.bench.scenarios import ceiling, no_op
from tests.bench.tables import tables
from tests.bench.upgrades import injected, upgrades
from tests.bench.yamlcost import yaml
from tests.porch.programs import PorchUnavailableError
from tests.tools.browser import BrowserUnavailableError
from tests.tools.clusterprograms import ClusterUnavailableError
from tests.tools.kafka import KafkaUnavailableError

UNAVAILABLE = (
    BrowserUnavailableError,
    ClusterUnavailableError,
    KafkaUnavailableError,
    PorchUnavailableError,
)
"""Why a scenario is left out."""


class Scenario(Protocol):
    def __call__(self, *, small: bool) -> Awaitable[list[Row]]: ...


SCENARIOS: dict[str, Scenario] = {
    "ceiling": ceiling,
    "noop": no_op,
    "affected": affected,
    "cel": cel,
    "large": large,
    "revisions": revisions,
    "upgrades": upgrades,
    "injected": injected,
    "yaml": yaml,
    "resolve": resolving,
    "proposals": proposals,
    "rollouts": rollouts,
    "approvals": approvals,
    "churn": churn,
    "deletions": deletions,
    "packages": packages,
    "lists": lists,
    "page": page,
    "plan": plan,
    "tables": tables,
    "cluster": cluster,
    "cluster-large": cluster_large,
    "kafka": kafka_fleet,
    "kafka-events": kafka_events,
    "kafka-large": kafka_large,
    "kafka-workers": kafka_workers,
}


async def run(names: list[str], *, small: bool, say: Callable[[str], None]) -> list[Row]:
    """Run scenarios one after the other: they would disturb each other."""
    rows: list[Row] = []
    for name in names:
        began = time.perf_counter()
        say(f"{name}: running, load average {machine()['loadAverage']}")
        try:
            rows += await SCENARIOS[name](small=small)
        except UNAVAILABLE as exc:
            say(f"{name}: left out: {exc}")
        say(f"{name}: {time.perf_counter() - began:.0f} s")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(SCENARIOS)}; all without"
    )
    parser.add_argument("--small", action="store_true", help="few objects, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--coefficients", action="store_true", help="update the coefficients of `pvbus size`")
    options = parser.parse_args()
    if options.small and options.coefficients:
        parser.error("--coefficients needs a whole run, not --small")
    if unknown := set(options.names) - set(SCENARIOS):
        parser.error(f"no scenario is called {', '.join(sorted(unknown))}")
    relax_collector()  # as the services do, with whose cost what is measured in this process is compared
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # each try of a Kafka that is just up
    before = machine()
    names = options.names or list(SCENARIOS)
    rows = asyncio.run(run(names, small=options.small, say=lambda text: print(text, file=sys.stderr)))
    print(table(rows))
    if options.json is not None:
        write_json(options.json, rows, before)
    if options.coefficients:
        write_coefficients(rows)


if __name__ == "__main__":
    main()
