"""Counts what one label change costs in code: calls, functions and files from the watch event to the write.

    python -m tests.tools.labelpath [--list]

One object's label changes, so that one PackageVariant is updated, in virtual time with the bus in memory.
Counted are calls of functions of pvbus from the moment in which the watch event arrives until the update of
the PackageVariant is sent, doubles of the bus's disk and of the cluster left out. A coroutine counts each
time that it goes on; a comprehension does not, as it is a call in Python 3.11 only. --list prints the
functions by file, in the order in which they are first called.

Counted is, too, how often a row of each type is decoded: a record on the way is decoded once.

More calls or files than the way had last (`CALLS_MAX`, `FILES_MAX`) are an error, which ends `make check`:
who shortens the way lowers them. So is a record that is decoded twice.
"""

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import structlog

import pvbus
from pvbus.core.kernel.codec import recent_decoder
from pvbus.core.kernel.records import ObjectRow, TargetRow
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.world import REPOSITORY, SITE, SimulatedWorld

ROOT = Path(pvbus.__file__).parent
LEFT_OUT = ("adapters",)
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
CALLS_MAX = 405
FILES_MAX = 49
RECENT: tuple[type[msgspec.Struct], ...] = (ObjectRow, TargetRow)
SERVICES = ("ingest", "unroll", "render")
TEMPLATE: dict[str, Any] = {
    "downstream": {"repo": "r1", "packageExpr": "target.name"},
    "labelExprs": [{"key": "tier", "valueExpr": "target.labels['tier']"}],
}


class Way(NamedTuple):
    """What was called, and what was decoded.

    calls: the functions in the order of the first calls, with how often each was called
    decoded: how often rows were decoded, by the name of their type
    """

    calls: Counter[CodeType]
    decoded: Counter[str]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(code.co_filename for code in self.calls))


class Counting:
    """Counts calls between `begin` and `end`."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.decoded: Counter[str] = Counter()
        self._files: dict[str, bool] = {}

    def _is_counted(self, file: str) -> bool:
        path = Path(file)
        return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in LEFT_OUT

    def _profile(self, frame: FrameType, event: str, called: object) -> None:
        decoder = getattr(called, "__self__", None) if event == "c_call" else None
        if isinstance(decoder, msgspec.json.Decoder) and self._is_counted(frame.f_code.co_filename):
            self.decoded[getattr(decoder.type, "__name__", "")] += 1
        if event != "call":
            return
        code = frame.f_code
        counted = self._files.get(code.co_filename)
        if counted is None:
            counted = self._files[code.co_filename] = self._is_counted(code.co_filename)
        if counted and code.co_name not in COMPREHENSIONS:
            self.calls[code] += 1

    def begin(self) -> None:
        self.decoded.subtract(_decoded())
        sys.setprofile(self._profile)

    def end(self) -> None:
        """Stop counting. May be called twice."""
        if sys.getprofile() is not None:
            sys.setprofile(None)
            self.decoded.update(_decoded())


def _decoded() -> dict[str, int]:
    """Return how often rows were decoded so far whose decoders are called by none of our lines."""
    return {row.__name__: recent_decoder(row).cache_info().misses for row in RECENT}


async def label_way() -> Way:
    """Change one label, and return what is called until the PackageVariant is updated."""
    world, counting = SimulatedWorld(watched=False), Counting()
    world.serve_sites()
    world.put(REPOSITORY, "r1")
    world.upstream(1)
    world.put(SITE, "s1", metadata={"labels": {"env": "prod", "tier": "gold"}})
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}
    world.set("alpha", [{"objectSelector": selector, "template": TEMPLATE}])
    await world.start(SERVICES)
    await world.converge(quiet=10)
    wrote = world.wrote

    def watch(verb: str, obj: Object, subresource: str) -> None:
        if verb == "update" and obj["kind"] == "PackageVariant":
            counting.end()
        wrote(verb, obj, subresource)

    world.wrote = watch  # type: ignore[method-assign]
    world.put(SITE, "s1", metadata={"labels": {"env": "prod", "tier": "silver"}})
    counting.begin()
    await world.converge(quiet=10)
    counting.end()
    (variant,) = world.variants().values()
    assert variant["spec"]["labels"] == {"tier": "silver"}
    await world.close()
    return Way(counting.calls, counting.decoded)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the functions, too")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    way = run_simulated(label_way())
    if options.list:
        for file in way.files:
            print(Path(file).relative_to(ROOT))
            for code, count in way.calls.items():
                if code.co_filename == file:
                    print(f"  {count:4} {code.co_qualname}")
    calls, files = sum(way.calls.values()), len(way.files)
    rows = ", ".join(f"{name} {count}" for name, count in sorted(way.decoded.items()))
    print(f"{calls} calls, {len(way.calls)} functions, {files} files; rows decoded: {rows}")
    if calls > CALLS_MAX or files > FILES_MAX:
        print(
            f"a label's way got longer: it had {CALLS_MAX} calls and {FILES_MAX} files; shorten it (--list "
            f"says where it goes), or raise the limits in {Path(__file__).name} and say why in the commit",
            file=sys.stderr,
        )
        return 1
    if twice := sorted(name for name, count in way.decoded.items() if count > 1):
        print(f"decoded twice on a label's way: {', '.join(twice)} (see `recent_decoder`)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
