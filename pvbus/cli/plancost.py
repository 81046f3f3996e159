"""Says what a plan costs to carry out, and what has to happen after it before its drafts are published.

The coefficients are in `plancost.toml`, which says how they were measured.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec

from pvbus.cli.output import counted
from pvbus.cli.plandocument import Document
from pvbus.core.kernel import gates
from pvbus.core.promotion.protocol.proposals import conflicts_of
from pvbus.ports.cluster import Object

COMMITTING = ("create PackageRevision", "updateResources PackageRevisionResources", "delete PackageRevision")
"""Writes that the package store turns into one commit or one removed branch in git."""
OPEN = ("Draft", "Proposed")


class Coefficients(msgspec.Struct, rename="camel", frozen=True):
    """How long writes take, as they were measured.

    source: how, on what and when
    seconds_per_write: of a write to the API server
    seconds_per_commit: of a write that is also a commit in git, beside that
    seconds_at_least: of any plan: what waits for itself, such as the delay of removals
    """

    source: str
    seconds_per_write: float
    seconds_per_commit: float
    seconds_at_least: float


@lru_cache(maxsize=1)
def coefficients() -> Coefficients:
    text = files("pvbus.cli").joinpath("plancost.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Coefficients)


def cost_of(document: Document, changes: int, measured: Coefficients) -> dict[str, Any]:
    """Return the number of API writes and commits of a plan, and the seconds that they take.

    changes: the objects that the user writes or deletes
    """
    tally = Counter(f"{action['verb']} {action['kind']}" for action in document["actions"])
    writes = changes + sum(tally.values())
    commits = sum(tally[write] for write in COMMITTING)
    seconds = writes * measured.seconds_per_write + commits * measured.seconds_per_commit
    return {
        "writes": writes,
        "commits": commits,
        "seconds": round(max(seconds, measured.seconds_at_least if writes else 0.0), 1),
        "source": measured.source,
    }


def cost_words(cost: Mapping[str, Any]) -> str:
    writes, commits = counted(cost["writes"], "API write"), counted(cost["commits"], "commit")
    return f"{writes}, {commits}, about {cost['seconds']:.0f} s"


def gates_of(document: Document, objects: Sequence[Object]) -> list[dict[str, Any]]:
    """Return what a plan's drafts wait for before they are published: each gate, how many and an example.

    objects: as they are afterwards
    """
    written = {
        f"{a['namespace']}/{a['name']}"
        for a in document["actions"]
        if a["kind"].startswith("PackageRevision") and a["verb"] != "delete"
    }
    found: dict[str, list[str]] = {}
    for obj in objects:
        meta = obj["metadata"]
        name = f"{meta.get('namespace', '')}/{meta['name']}"
        if obj["kind"] == "PackageRevision" and name in written:
            for gate in _gates_of_revision(obj):
                found.setdefault(gate, []).append(name)
    for held in document["held"]:
        found.setdefault("confirmation of a held removal", []).append(f"{held['namespace']}/{held['name']}")
    return [
        {"gate": gate, "count": len(names), "example": min(names)} for gate, names in sorted(found.items())
    ]


def _gates_of_revision(obj: Object) -> Iterator[str]:
    if obj["spec"].get("lifecycle") not in OPEN:
        return
    yield "approval"
    if conflicts_of(obj):
        yield "conflict to settle"
    for unmet in gates.unmet_of(obj):
        yield f"readiness gate {unmet.type}"


def gate_words(gates_left: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for gate in gates_left:
        yield f"{gate['gate']}: {gate['count']}, such as {gate['example']}"
