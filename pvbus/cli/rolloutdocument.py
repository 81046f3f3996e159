"""The document of `pvbus rollout plan`: the waves of each policy, as the rollout machine takes them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from pvbus.cli.rolloutrows import Rows
from pvbus.cli.rolloutstanding import stand_of
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.rollouts import RolloutPolicy, TimeWindow, Wave
from pvbus.core.api.stops import RolloutStop
from pvbus.core.api.variants import PORCH_GROUP, PackageVariant
from pvbus.core.errors import UsageError
from pvbus.core.kernel.holds import SetHold, hold_reason, is_held
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import first_of
from pvbus.core.kernel.objectrows import STOP
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.evidencenames import evidence_warnings
from pvbus.core.promotion.protocol.rehearsal import Rehearsal, Standing, rehearse_all
from pvbus.core.promotion.protocol.rules import Rules, rules_of
from pvbus.core.promotion.protocol.selection import Package, Selection, conditions_of, packages_of, select
from pvbus.core.promotion.protocol.stops import standstill_of
from pvbus.core.promotion.rollout.waiting import described, planning_waits
from pvbus.ports.cluster import Kind, Object

Document = dict[str, Any]

POLICY = Kind(PROMOTION_GROUP, "RolloutPolicy")
QUARANTINE = Kind(PROMOTION_GROUP, "Quarantine")
NO_ROWS: Mapping[Key, Rows | str] = MappingProxyType({})
LEFT_OUT_NAMES_MAX = 3


def document_of(
    objects: Sequence[Object],
    now: float,
    *,
    name: tuple[str, str] | None = None,
    failing: Collection[str] = (),
    rows: Mapping[Key, Rows | str] = NO_ROWS,
) -> Document:
    """Return the plan of every policy, or of one.

    name: namespace and name of the one policy, None for all
    failing: the targets that are to fail
    rows: policy -> what the bus has of it, or why that is not known
    Raises UsageError if there is no such policy, or none at all, or no such target in the waves.
    """
    groups = _by_namespace(objects)
    packages = {namespace: _packages(group) for namespace, group in groups.items()}
    known = [
        (namespace, each)
        for namespace, group in groups.items()
        for each in select(_policies(group), _targets(packages[namespace], objects), now)
    ]
    shown = [each for each in known if name in (None, (each[0], each[1].policy.metadata.name))]
    if not shown:
        raise UsageError(_no_policy(name, known))
    unknown = set(failing) - {target for _, selection in shown for target in selection.seen}
    if unknown:
        raise UsageError(f"--failing: {', '.join(sorted(unknown))}: no such target of these policies")
    selected = {
        (namespace, target) for namespace, selection in known for target in (*selection.seen, *selection.lost)
    }
    policies = []
    for namespace, selection in shown:
        key = Key(namespace, selection.policy.metadata.name)
        found = _policy(key, selection, rows.get(key), groups[namespace], now, failing)
        policies.append({**found, "evidence": list(_evidence_gaps(selection, objects))})
    stops = [msgspec.convert(each, RolloutStop) for each in _of(objects, STOP)]
    return {
        "policies": policies,
        "unselected": _unselected(packages, selected),
        "stops": standstill_of(stops).message,
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


def _policies(objects: Sequence[Object]) -> list[RolloutPolicy]:
    return [msgspec.convert(obj, RolloutPolicy) for obj in _of(objects, POLICY)]


def _packages(objects: Sequence[Object]) -> list[Package]:
    variants = [msgspec.convert(obj, PackageVariant) for obj in objects if obj["kind"] == "PackageVariant"]
    sets = [obj["metadata"] for obj in objects if obj["kind"] == "PackageVariantSet"]
    held = {
        meta["name"]: SetHold(meta["name"], hold_reason(meta.get("annotations")))
        for meta in sets
        if is_held(meta.get("annotations"))
    }
    return packages_of(_revisions(objects), variants, held)


def _targets(packages: Sequence[Package], objects: Sequence[Object]) -> list[Package]:
    """Return the packages that policies select: a person approves what no PackageVariant owns. Objects
    without any variant do not say who owns what: then each package counts as a variant's."""
    has_variants = any(obj["kind"] == "PackageVariant" for obj in objects)
    return [package for package in packages if package.variant is not None or not has_variants]


def _of(objects: Sequence[Object], kind: Kind) -> list[Object]:
    return [o for o in objects if (o["apiVersion"].rpartition("/")[0], o["kind"]) == kind]


def _revisions(objects: Sequence[Object]) -> list[Object]:
    return _of(objects, Kind(PORCH_GROUP, "PackageRevision"))


def _unselected(packages: Mapping[str, Sequence[Package]], selected: Collection[tuple[str, str]]) -> int:
    """Return how many packages with a proposed revision no policy selects. packages: by namespace."""
    return sum(
        package.proposed is not None and (namespace, package.name) not in selected
        for namespace, group in packages.items()
        for package in group
    )


def _policy(
    key: Key,
    selection: Selection,
    rows: Rows | str | None,
    objects: Sequence[Object],
    now: float,
    failing: Collection[str],
) -> Document:
    policy = selection.policy
    known = rows if isinstance(rows, Rows) else None
    document: Document = {
        "namespace": key.namespace,
        "name": key.name,
        "approval": policy.spec.approval or "Manual",
        "conditions": [msgspec.to_builtins(condition) for condition in conditions_of(selection, now)],
        "leftOut": [each._asdict() for each in selection.left_out],
        "problems": selection.problems,
        "missing": rows if isinstance(rows, str) else "",
        "waves": [],
    }
    if selection.problems:
        return document
    rules = rules_of(policy.spec)
    upstreams = _upstreams(objects) if policy.spec.train is not None else {}
    standing, left_out = stand_of(selection, known, _of(objects, QUARANTINE), upstreams)
    rehearsals = rehearse_all(rules, standing, now, failing)
    first, *later = [_attempt(key, selection, rules, standing, each) for each in rehearsals]
    document["leftOut"] = [each._asdict() for each in left_out]
    document["needsStart"] = rules.needs_start and not standing.rollout.is_started
    document["before"] = standing.rollout.state.value
    document["paused"] = standing.commands.paused
    return {**document, **first, "then": later}


def _upstreams(objects: Sequence[Object]) -> Mapping[str, Mapping[str, str]]:
    """Return the annotations of the published revisions, each by its number and by its workspace."""
    found = {}
    for obj in _revisions(objects):
        spec = obj["spec"]
        for name in (f"v{spec.get('revision', 0)}", spec.get("workspaceName")):
            if spec.get("lifecycle") == "Published" and name:
                found[f"{spec['repository']}/{spec['packageName']}@{name}"] = annotations_of(obj)
    return found


def _evidence_gaps(selection: Selection, objects: Sequence[Object]) -> Iterator[str]:
    """Yield each reason for which evidence of targets would never be known."""
    rule = selection.policy.spec.evidence.object
    if rule is None or selection.problems:
        return
    kind = Kind(rule.api_version.rpartition("/")[0], rule.kind)
    targets = {name: package.labels for name, package in selection.packages.items()}
    if targets:
        yield from evidence_warnings(selection.policy.spec, targets, _of(objects, kind))


def _attempt(
    key: Key, selection: Selection, rules: Rules, standing: Standing, rehearsal: Rehearsal
) -> Document:
    """Return what becomes of one attempt. standing: before all."""
    rollout = rehearsal.rollout
    waits = list(planning_waits(key, rollout))
    if rollout.state is RolloutState.ROLLING and not rollout.canary_reason:
        waits.append("a time window, and none opens in the next 90 days")
    return {
        "attempt": rehearsal.attempt,
        "waves": list(_waves(selection.policy, rules, standing, rehearsal)),
        "targets": len(rehearsal.rows),
        "seconds": round(rehearsal.seconds),
        "end": {"state": rollout.state.value, "reason": rollout.reason, "message": rollout.message},
        "waitsFor": waits,
    }


def _waves(
    policy: RolloutPolicy, rules: Rules, standing: Standing, rehearsal: Rehearsal
) -> Iterator[Document]:
    taken = {wave.number: wave for wave in rehearsal.waves}
    spec_waves = policy.spec.waves or (Wave(percent=100),)
    for number, (wave, rule) in enumerate(zip(spec_waves, rules.waves, strict=True), 1):
        rows = sorted((r for r in rehearsal.rows.values() if r.wave == number), key=lambda row: row.position)
        record = taken.get(number)
        yield {
            "number": number,
            **({"count": wave.count} if wave.count else {"percent": wave.percent}),
            "targets": [_target(row, standing) for row in rows],
            "hold": wave.hold,
            "timeout": wave.timeout,
            "checks": [{"name": check.name, "waitsFor": described(check)} for check in wave.checks],
            "needsPerson": rule.needs_person,
            "windows": [_window(window) for window in wave.windows or policy.spec.windows],
            "startsSeconds": round(record.starts_seconds) if record else None,
            "approved": record.approved if record else [],
            "restored": record.restored if record else [],
        }


def _target(row: Target, standing: Standing) -> Document:
    """before: its state when the rehearsal begins, "" if it is in no attempt then."""
    former = standing.rows.get(row.target)
    is_same = former is not None and former.attempt == row.attempt
    seen = standing.seen.get(row.target)
    return {
        "target": row.target,
        "revision": row.revision,
        "published": seen.published if seen is not None else "",
        "before": former.state.value if former is not None and is_same else "",
        "state": row.state.value,
    }


def _window(window: TimeWindow) -> str:
    return f"{','.join(window.days) or 'every day'} {window.start}-{window.end} {window.time_zone or 'UTC'}"


def left_out_lines(left_out: Iterable[Document]) -> list[tuple[int, str]]:
    """Return who is left out and why, as lines: targets with one reason share one, with their number."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for each in left_out:
        groups.setdefault((each["reason"], each["message"]), []).append(each)
    return [
        (
            len(targets),
            f"{first_of(list(map(_left_out_name, targets)), LEFT_OUT_NAMES_MAX)}: {reason}: {message}",
        )
        for (reason, message), targets in groups.items()
    ]


def _left_out_name(target: Document) -> str:
    return f"{target['target']} ({target['revision']})" if target["revision"] else str(target["target"])
