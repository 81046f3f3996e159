"""The selector index against the naive scan: 1,000 sets, 20,000 objects, one label changes.

    python -m tests.bench.index [--sets N] [--objects N]

Prints one JSON document: microseconds per label change of the index and of a loop over all
selectors, their ratio, selectors looked at, milliseconds to answer a set, and memory.
"""

import argparse
import json
import random
import statistics
import time
import tracemalloc
from typing import Any

from pvbus.core.api.selectors import matches
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.variants.unroll.index import SelectorIndex, TargetSelector

KIND = "example.org/Cluster"
SITES = 200
TIERS = ("gold", "silver", "bronze")


def labels_of(number: int, dice: random.Random) -> dict[str, str]:
    return {
        "cluster": f"edge-{number:05}",
        "site": f"site-{dice.randrange(SITES):03}",
        "tier": dice.choice(TIERS),
        "fleet": "edge",
    }


def selector(number: int, dice: random.Random) -> TargetSelector:
    """A fifth each: site; site and tier; one of two sites; site, tier not gold; all of these."""
    site = f"site-{dice.randrange(SITES):03}"
    choices = (
        f"site={site}",
        f"site={site},tier={dice.choice(TIERS)}",
        f"fleet=edge,site in ({site},site-000)",
        f"site={site},tier!=gold",
        f"fleet=edge,tier={dice.choice(TIERS)},site in ({site},site-000),tier!=gold",
    )
    return TargetSelector(KIND, "default", parse_label_selector(choices[number % len(choices)]))


def measure(sets: int, objects: int, changes: int) -> dict[str, Any]:
    dice = random.Random(7)
    labels = {f"edge-{number:05}": labels_of(number, dice) for number in range(objects)}
    selectors = [selector(number, dice) for number in range(sets)]
    tracemalloc.start()
    index = SelectorIndex()
    for name, own in labels.items():
        index.put_object(KIND, "default", name, own)
    answers = []
    for number, one in enumerate(selectors):
        started = time.perf_counter()
        index.set_selectors(number, [one])
        answers.append(time.perf_counter() - started)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    indexed, scanned, measured = [], [], 0
    for _ in range(changes):
        name = f"edge-{dice.randrange(objects):05}"
        before = labels[name]
        after = before | {"site": f"site-{dice.randrange(SITES):03}"}
        started = time.perf_counter()
        reported = index.put_object(KIND, "default", name, after)
        middle = time.perf_counter()
        naive = [
            (owner, was, now)
            for owner, one in enumerate(selectors)
            if (was := matches(one.requirements, before)) | (now := matches(one.requirements, after))
        ]
        ended = time.perf_counter()
        indexed.append(middle - started)
        scanned.append(ended - middle)
        assert len(reported) == len(naive)
        measured += len(reported)
        labels[name] = after
    return {
        "sets": sets,
        "objects": objects,
        "indexMicroseconds": round(statistics.median(indexed) * 1e6, 1),
        "indexMicrosecondsP99": round(statistics.quantiles(indexed, n=100)[-1] * 1e6, 1),
        "scanMicroseconds": round(statistics.median(scanned) * 1e6, 1),
        "ratio": round(statistics.median(scanned) / statistics.median(indexed), 1),
        "setsToldPerChange": round(measured / changes, 1),
        "setAnswerMilliseconds": round(statistics.median(answers) * 1e3, 3),
        "indexMegabytes": round(memory / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--changes", type=int, default=2000)
    options = parser.parse_args()
    print(json.dumps(measure(options.sets, options.objects, options.changes), indent=2))


if __name__ == "__main__":
    main()
