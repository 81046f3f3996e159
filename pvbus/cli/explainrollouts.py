"""What the rollouts of a variant know of it: its part in the attempt, and the evidence that it waits for."""

from collections.abc import Iterator
from typing import Any

import msgspec

from pvbus.cli.reading import read_rows
from pvbus.core.kernel.keys import ChildKey, Key
from pvbus.core.kernel.promotionrows import CandidateRow, PromotionRow
from pvbus.core.kernel.records import CANDIDATES, PROMOTIONS, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.promotion.rollout.candidates import words_of
from pvbus.core.promotion.rollout.waiting import planning_waits
from pvbus.ports.bus import Bus
from pvbus.telemetry.terminal import one_line

Document = dict[str, Any]


async def rollouts_of(bus: Bus, key: Key) -> list[Document]:
    """Return what each rollout knows of a variant; [] where promote does not run, or no policy has it."""
    promotions = await read_rows(bus, PROMOTIONS, key=str(key))
    if str(key) not in promotions:
        return []
    row = msgspec.json.decode(promotions[str(key)], type=PromotionRow)
    return [await _rollout(bus, Key(key.namespace, name), key.name) for name in row.candidates]


async def _rollout(bus: Bus, policy: Key, variant: str) -> Document:
    name = str(ChildKey(str(policy), variant))
    rows = await read_rows(bus, ROLLOUTS, key=str(policy))
    candidates = await read_rows(bus, CANDIDATES, key=str(policy))
    rollout = msgspec.json.decode(rows.get(str(policy), b"{}"), type=Rollout)
    target = msgspec.json.decode(rows[name], type=Target) if name in rows else None
    candidate = msgspec.json.decode(candidates[name], type=CandidateRow) if name in candidates else None
    is_in = target is not None and target.attempt == rollout.attempt
    return {
        "policy": str(policy),
        "attempt": rollout.attempt,
        "state": target.state.value if target is not None and is_in else "",
        "wave": target.wave if target is not None and is_in else 0,
        "held": words_of(candidate) if candidate is not None else "",
        "lacks": target.evidence if target is not None and is_in else "",
        "evidence": _evidence(candidate),
        "waitsFor": list(planning_waits(policy, rollout)),
    }


def _evidence(candidate: CandidateRow | None) -> Document:
    """Return where the evidence of a target is, empty if its policy asks for nothing but Ready."""
    source = candidate.evidence if candidate is not None else None
    if source is None:
        return {}
    return {
        "object": "/".join(filter(None, (source.namespace, source.name))),
        "query": source.query,
        "commit": source.commit,
        "conditions": [each.words for each in source.conditions],
        "problem": source.problem,
    }


def rollout_lines(rollouts: list[Document]) -> Iterator[str]:
    """Yield the part of a variant in each rollout, and what its evidence is and lacks."""
    for each in rollouts:
        where = (
            f"{each['state']} in wave {each['wave']} of attempt {each['attempt']}" if each["state"] else ""
        )
        held = each["held"] if not each["lacks"] else ""
        parts = filter(None, (where or "in no attempt now", held))
        yield f"  rollout {each['policy']}: {one_line('; '.join(parts))}"
        evidence = each["evidence"]
        for name in ("object", "query"):
            if evidence.get(name):
                yield f"    evidence {name}: {one_line(evidence[name])}"
        for words in evidence.get("conditions", ()):
            yield f"    evidence condition: {one_line(words)}"
        if evidence.get("commit") and each["state"]:
            yield f"    it has to be of commit {evidence['commit'][:12]}"
        if lacks := each["lacks"] or evidence.get("problem", ""):
            yield f"    it lacks: {one_line(lacks)}"
