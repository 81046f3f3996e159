"""The document of `pvbus rollout plan`: the waves of each policy, as the rollout machine takes them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.rollouts import RolloutPolicy, TimeWindow, Wave
from pvbus.core.api.variants import PORCH_GROUP, PackageVariant
from pvbus.core.errors import UsageError
from pvbus.core.kernel.holds import SetHold, hold_reason, is_held
from pvbus.core.kernel.keys import Key
from pvbus.core.promotion.protocol.rehearsal import Rehearsal, rehearse
from pvbus.core.promotion.protocol.rules import Rules, rules_of
from pvbus.core.promotion.protocol.selection import Selection, conditions_of, packages_of, select
from pvbus.core.promotion.rollout.waiting import canary_waits, described
from pvbus.ports.cluster import Kind, Object

Document = dict[str, Any]

POLICY = Kind(PROMOTION_GROUP, "RolloutPolicy")


def document_of(
    objects: Sequence[Object],
    now: float,
    *,
    name: tuple[str, str] | None = None,
    failing: Collection[str] = (),
) -> Document:
    """Return the plan of every policy, or of one.

    name: namespace and name of the one policy, None for all
    failing: the targets that are to fail
    Raises UsageError if there is no such policy, or none at all, or no such target in the waves.
    """
    found = [
        (namespace, selection)
        for namespace, group in _by_namespace(objects).items()
        for selection in _selections(group, now)
    ]
    shown = [each for each in found if name in (None, (each[0], each[1].policy.metadata.name))]
    if not shown:
        raise UsageError(_no_policy(name, found))
    unknown = set(failing) - {target for _, selection in shown for target in selection.seen}
    if unknown:
        raise UsageError(f"--failing: {', '.join(sorted(unknown))}: no such target of these policies")
    selected = {
        (namespace, target) for namespace, selection in found for target in (*selection.seen, *selection.lost)
    }
    return {
        "policies": [_policy(namespace, selection, now, failing) for namespace, selection in shown],
        "unselected": _unselected(objects, selected),
    }


def _no_policy(name: tuple[str, str] | None, found: Sequence[tuple[str, Selection]]) -> str:
    if name is None:
        return "there is no RolloutPolicy: give one with -f FILE"
    known = ", ".join(f"{namespace}/{each.policy.metadata.name}" for namespace, each in found)
    return f"there is no RolloutPolicy {'/'.join(name)}; there is {known or 'none'}"


def _by_namespace(objects: Sequence[Object]) -> Mapping[str, list[Object]]:
    groups: dict[str, list[Object]] = {}
    for obj in objects:
        groups.setdefault(obj["metadata"].get("namespace") or "default", []).append(obj)
    return dict(sorted(groups.items()))


def _selections(objects: Sequence[Object], now: float) -> list[Selection]:
    policies = [msgspec.convert(obj, RolloutPolicy) for obj in _of(objects, POLICY)]
    variants = [msgspec.convert(obj, PackageVariant) for obj in objects if obj["kind"] == "PackageVariant"]
    sets = [obj["metadata"] for obj in objects if obj["kind"] == "PackageVariantSet"]
    held = {
        meta["name"]: SetHold(meta["name"], hold_reason(meta.get("annotations")))
        for meta in sets
        if is_held(meta.get("annotations"))
    }
    return select(policies, packages_of(_revisions(objects), variants, held), now)


def _of(objects: Sequence[Object], kind: Kind) -> list[Object]:
    return [o for o in objects if (o["apiVersion"].rpartition("/")[0], o["kind"]) == kind]


def _revisions(objects: Sequence[Object]) -> list[Object]:
    return _of(objects, Kind(PORCH_GROUP, "PackageRevision"))


def _unselected(objects: Sequence[Object], selected: Collection[tuple[str, str]]) -> int:
    """Return how many packages with a proposed revision no policy selects."""
    count = 0
    for namespace, group in _by_namespace(objects).items():
        variants = [msgspec.convert(obj, PackageVariant) for obj in group if obj["kind"] == "PackageVariant"]
        packages = packages_of(_revisions(group), variants)
        count += sum(p.proposed is not None and (namespace, p.name) not in selected for p in packages)
    return count


def _policy(namespace: str, selection: Selection, now: float, failing: Collection[str]) -> Document:
    policy = selection.policy
    document: Document = {
        "namespace": namespace,
        "name": policy.metadata.name,
        "approval": policy.spec.approval or "Manual",
        "conditions": [msgspec.to_builtins(condition) for condition in conditions_of(selection, now)],
        "leftOut": [each._asdict() for each in selection.left_out],
        "problems": selection.problems,
        "waves": [],
    }
    if selection.problems:
        return document
    rules = rules_of(policy.spec)
    rehearsal = rehearse(rules, selection.seen, now, failing, selection.words)
    document["waves"] = list(_waves(policy, selection, rules, rehearsal))
    document["targets"] = len(rehearsal.rows)
    document["needsStart"] = rules.needs_start
    document["seconds"] = round(rehearsal.seconds)
    document["end"] = {
        "state": rehearsal.rollout.state.value,
        "reason": rehearsal.rollout.reason,
        "message": rehearsal.rollout.message,
    }
    document["waitsFor"] = list(canary_waits(Key(namespace, policy.metadata.name), rehearsal.rollout))
    return document


def _waves(
    policy: RolloutPolicy, selection: Selection, rules: Rules, rehearsal: Rehearsal
) -> Iterator[Document]:
    taken = {wave.number: wave for wave in rehearsal.waves}
    spec_waves = policy.spec.waves or (Wave(percent=100),)
    for number, (wave, rule) in enumerate(zip(spec_waves, rules.waves, strict=True), 1):
        rows = sorted((r for r in rehearsal.rows.values() if r.wave == number), key=lambda row: row.position)
        record = taken.get(number)
        yield {
            "number": number,
            **({"count": wave.count} if wave.count else {"percent": wave.percent}),
            "targets": [
                {
                    "target": row.target,
                    "revision": row.revision,
                    "published": selection.seen[row.target].published,
                    "state": row.state.value,
                }
                for row in rows
            ],
            "hold": wave.hold,
            "timeout": wave.timeout,
            "checks": [{"name": check.name, "waitsFor": described(check)} for check in wave.checks],
            "needsPerson": rule.needs_person,
            "windows": [_window(window) for window in wave.windows or policy.spec.windows],
            "startsSeconds": round(record.starts_seconds) if record else None,
            "restored": record.restored if record else [],
        }


def _window(window: TimeWindow) -> str:
    return f"{','.join(window.days) or 'every day'} {window.start}-{window.end} {window.time_zone or 'UTC'}"
