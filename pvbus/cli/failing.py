"""Finds why a set's variants are not ready, and which of its targets cannot be evaluated.

The bus has one row for each variant, but none for a target whose downstream is unknown: this module evaluates
those again, with unroll's own code on the objects that unroll reads.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.cli.reading import read_rows
from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import Key, ObjectKey
from pvbus.core.kernel.records import LATEST, OBJECTS, SETS, ChildResult, ChildRow, ChildState
from pvbus.core.variants.template import compile_targets
from pvbus.core.variants.unroll.contexts import Contexts, root_of
from pvbus.core.variants.unroll.view import UnrollView
from pvbus.ports.bus import Bus

NOT_APPLIED = ("NotApplied", "its PackageVariant is not written yet")
NOT_REPORTED = ("NotReported", "nothing was reported of it yet")
_set = msgspec.json.Decoder(PackageVariantSet)
_event = msgspec.json.Decoder(ConditionEvent)


class VariantFailure(NamedTuple):
    """One variant, or one target without a variant, and its problem.

    reason: the reason of the condition
    message: its message
    name: the name of the variant, "" for a target without one
    target: the source of the variant, of `target_name`
    """

    reason: str
    message: str
    name: str = ""
    target: str = ""


def target_name(number: int, okey: str) -> str:
    """Name the source of a variant: the selected object, or the target for an entry of its list."""
    if not okey or okey.startswith("#"):
        return f"spec.targets[{number}]"
    found = ObjectKey.parse(okey)
    return f"{found.kind} {found.namespace}/{found.name}" if found.namespace else f"{found.kind} {found.name}"


def grouped(failures: Iterable[VariantFailure]) -> list[dict[str, Any]]:
    """Group failures with the same reason and message, the largest group first."""
    groups: dict[tuple[str, str], list[VariantFailure]] = {}
    for failure in failures:
        groups.setdefault((failure.reason, failure.message), []).append(failure)
    found = [
        {
            "reason": reason,
            "message": message,
            "count": len(members),
            "variants": [member.name for member in members if member.name],
            "targets": [member.target for member in members if member.target],
        }
        for (reason, message), members in groups.items()
    ]
    return sorted(found, key=lambda group: (-int(str(group["count"])), group["reason"], group["message"]))


async def unready_children(
    bus: Bus, key: Key, children: Mapping[str, ChildRow], results: Mapping[str, ChildResult]
) -> list[VariantFailure]:
    """Return every wanted variant of a set that is not ready, with the reason."""
    found: dict[str, VariantFailure] = {}
    unready: list[str] = []
    for name, child in sorted(children.items()):
        result = results.get(name)
        target = target_name(child.target, child.okey)
        if child.state is not ChildState.PRESENT:
            continue
        if result is not None and result.error:
            found[name] = VariantFailure(result.reason, result.error, name, target)
        elif result is None or result.applied != child.digest:
            found[name] = VariantFailure(*NOT_APPLIED, name)
        elif not result.ready:
            unready.append(name)
    if unready:
        events = await read_rows(bus, LATEST)
        for name in unready:
            found[name] = VariantFailure(
                *_reported(events.get(f"PackageVariant|{key.namespace}/{name}|Ready")), name
            )
    return [found[name] for name in sorted(found)]


def _reported(value: bytes | None) -> tuple[str, str]:
    condition = _event.decode(value).condition if value is not None else None
    if condition is None or condition.status == "True":
        return NOT_REPORTED
    return condition.reason, condition.message


async def failing_targets(bus: Bus, key: Key) -> list[VariantFailure]:
    """Return every target of a set whose repository and package cannot be evaluated."""
    raw = (await read_rows(bus, SETS, key=str(key))).get(str(key))
    if raw is None:
        return []
    return evaluated_failures(_set.decode(raw), await read_rows(bus, OBJECTS))


def evaluated_failures(obj: PackageVariantSet, objects: Mapping[str, bytes]) -> list[VariantFailure]:
    """Evaluate a set's targets on these rows of the objects topic; return the failures."""
    view = UnrollView(1)
    for okey, value in objects.items():
        for _ in view.load(0, okey, value):
            pass
    upstream = obj.spec.upstream
    found = view.upstream(obj.metadata.namespace, upstream) if upstream is not None else None
    if found is None:
        return []
    compiled = compile_targets(obj.spec)
    key = str(Key(obj.metadata.namespace, obj.metadata.name))
    contexts = Contexts(key, obj, compiled, root_of(*found), view)
    for _ in contexts.build():
        pass
    return [
        VariantFailure(reason, message, target=target_name(number, position))
        for number, position, reason, message, _ in sorted(contexts.errors())
    ]
