"""The faults of a run, planned from its seed: which, when, how long, and whom.

Each kind comes so often that an hour has at least 100 of it, evenly spread. Kinds of one lane exclude each
other: brokers are struck one fault after the other, so never are three of three away.
"""

import math
import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from tests.tools.faultyapi import ApiFault

PER_HOUR = 110
"""A tenth more than has to be shown: a busy machine may miss some."""

REAL_SHARE = 2
"""Half of the time belongs to each world: what only one of them has comes twice as often there."""


class Strike(StrEnum):
    """What happens to processes and etcd. Faults of requests are `ApiFault`."""

    SERVICE_KILLED = "service killed"
    SERVICE_FROZEN = "service frozen"
    BROKER_KILLED = "broker killed, one of three"
    BROKERS_KILLED = "brokers killed, two of three"
    BROKER_FROZEN = "broker frozen, one of three"
    BROKERS_FROZEN = "brokers frozen, two of three"
    SERVER_KILLED = "API server killed"
    SERVER_FROZEN = "API server frozen"
    COMPACTED = "etcd compacted"


Kind = Strike | ApiFault

LANES: dict[str, tuple[Kind, ...]] = {
    "kills": (Strike.SERVICE_KILLED,),
    "freezes": (Strike.SERVICE_FROZEN,),
    "brokers": (
        Strike.BROKER_KILLED,
        Strike.BROKERS_KILLED,
        Strike.BROKER_FROZEN,
        Strike.BROKERS_FROZEN,
    ),
    "server": (Strike.SERVER_KILLED, Strike.SERVER_FROZEN),
    "etcd": (Strike.COMPACTED,),
    "requests": tuple(ApiFault),
}
PARALLEL = ("freezes",)
"""Lanes whose faults may overlap: a frozen service sleeps for up to a minute."""

SECONDS: dict[Kind, tuple[float, float]] = {
    Strike.SERVICE_KILLED: (0.0, 3.0),
    Strike.SERVICE_FROZEN: (10.0, 60.0),
    Strike.BROKER_KILLED: (0.2, 2.0),
    Strike.BROKERS_KILLED: (0.2, 2.0),
    Strike.BROKER_FROZEN: (2.0, 9.0),
    Strike.BROKERS_FROZEN: (2.0, 8.0),
    Strike.SERVER_KILLED: (0.0, 5.0),
    Strike.SERVER_FROZEN: (2.0, 15.0),
}
"""How long a victim is away: between its end and its new start, or frozen."""


class Planned(NamedTuple):
    """at: seconds after the begin. seconds: how long. victim: chooses one, modulo how many there are."""

    at: float
    kind: Kind
    seconds: float
    victim: int


def lanes(seed: int, seconds: float, *, has_etcd: bool) -> dict[str, list[Planned]]:
    """Return the faults of so many seconds by lane, each in the order of time."""
    rng = random.Random(seed)
    planned = {}
    for lane, kinds in LANES.items():
        if lane != "etcd" or has_etcd:
            planned[lane] = sorted(each for kind in kinds for each in _of(rng, kind, seconds))
    return planned


def _of(rng: random.Random, kind: Kind, seconds: float) -> Iterator[Planned]:
    per_hour = PER_HOUR * (REAL_SHARE if kind is Strike.COMPACTED else 1)
    count = max(1, math.ceil(seconds * per_hour / 3600))
    for number in range(count):
        least, most = SECONDS.get(kind, (0.0, 0.0))
        longest = min(most, max(least, seconds / 3))
        yield Planned(
            (number + rng.random()) * seconds / count,
            kind,
            rng.uniform(least, longest),
            rng.randrange(1 << 30),
        )
