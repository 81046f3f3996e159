"""Compares a plan with what there is: which inputs have moved, and how far the plan is carried out.

The states of an object in a plan are a chain: before any change, and after each. An object in its last state
is done, one in an earlier state is on its way, and one in no state of its chain has moved.

A plan ends with drafts, and promotion goes on from there: a revision that the plan leads to is done, too, if
what was proposed or published is what the plan announced.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from pvbus.adapters.memory.objects import package_of
from pvbus.cli.live import FILES, REVISION, Export
from pvbus.cli.planfile import PlanFile, PlannedObject, commit_of, key_of_object, name_of_key, uid_of
from pvbus.core.api.packages import PLACEHOLDER_REVISION
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.changes import ObjectName
from pvbus.runtime.preview.meaning import ABSENT, before_promotion, digest_of_object

PROMOTED = ("Proposed", "Published")


class Standing(NamedTuple):
    """How a plan and the present state compare.

    moved: what is in no state that the plan knows, in words, in order
    done: how many objects that the plan changes are in their last state
    waiting: the objects that are not yet
    begun: whether any object has left its first state
    """

    moved: list[str]
    done: int
    waiting: list[str]
    begun: bool

    @property
    def total(self) -> int:
        return self.done + len(self.waiting)

    @property
    def is_complete(self) -> bool:
        return not self.moved and not self.waiting


def standing_of(plan: PlanFile, export: Export) -> Standing:
    """Compare a plan with the objects that were read again."""
    present = {key_of_object(obj): obj for obj in export.items}
    promoted = set(_promoted(plan, present))
    placeholders = set(_placeholders(present, promoted))
    known = {planned.key for planned in plan.objects} | placeholders
    moved, waiting = [], []
    done, begun = 0, False
    for planned in plan.objects:
        obj = present.get(planned.key)
        if planned.key in promoted:
            done += len(planned.states) > 1
            begun = True
        elif planned.key in placeholders:
            continue
        elif words := moved_words(planned, obj):
            moved.append(words)
        elif len(planned.states) > 1:
            digest = digest_of_object(obj)
            done += digest == planned.states[-1]
            begun = begun or digest != planned.states[0]
            if digest != planned.states[-1]:
                waiting.append(str(planned))
    moved += _new(plan, present, known)
    return Standing(moved, done, waiting, begun)


def _promoted(plan: PlanFile, present: Mapping[ObjectName, Object]) -> Iterator[ObjectName]:
    """Yield the revisions that promotion took on from the last state of the plan, with the files of it."""
    files = {
        (planned.namespace, planned.name): digest_of_object(present.get(planned.key)) == planned.states[-1]
        for planned in plan.changed
        if planned.key.kind == FILES
    }
    for planned in plan.objects:
        name, obj = (planned.namespace, planned.name), present.get(planned.key)
        is_led_to = planned.key.kind == REVISION and (len(planned.states) > 1 or name in files)
        if not is_led_to or obj is None or lifecycle_of(obj) not in PROMOTED or not files.get(name, True):
            continue
        is_same = not planned.uid or planned.uid == uid_of(obj)
        if is_same and digest_of_object(before_promotion(obj)) == planned.states[-1]:
            yield planned.key


def _placeholders(
    present: Mapping[ObjectName, Object], promoted: Collection[ObjectName]
) -> Iterator[ObjectName]:
    """Yield the revisions of the branches that promoted ones were published to, and their files."""
    packages = {package_of(present[key]) for key in promoted}
    for key, obj in present.items() if packages else ():
        if key.kind == REVISION and obj["spec"].get("revision") == PLACEHOLDER_REVISION:
            if package_of(obj) in packages:
                yield from (key, key._replace(kind=FILES))


def moved_words(planned: PlannedObject, obj: Object | None) -> str:
    """Return how an object has moved, in words, "" if it has not."""
    digest = digest_of_object(obj)
    if digest not in planned.states:
        if obj is None:
            return f"{planned}: was deleted"
        return f"{planned}: {'exists now' if planned.states[0] == ABSENT else 'was changed'}"
    if obj is None or digest != planned.states[0] or digest in planned.states[1:]:
        return ""
    if planned.uid and uid_of(obj) != planned.uid:
        return f"{planned}: was deleted and created again, or is in another cluster"
    if len(planned.states) == 1 and planned.commit and commit_of(obj) != planned.commit:
        return f"{planned}: is at commit {commit_of(obj)}, and was at {planned.commit}"
    return ""


def _new(plan: PlanFile, present: Mapping[ObjectName, Object], known: set[ObjectName]) -> Iterable[str]:
    """Return the objects that the plan would have read, had they been there.

    The files of a revision are read only if they matter, so new ones say nothing that the revision does not.
    """
    kinds = {tuple(kind) for kind in plan.kinds}
    namespaces = {*plan.namespaces, ""}
    return [
        f"{name_of_key(key)}: is new"
        for key in sorted(present.keys() - known)
        if key.kind != FILES and tuple(key.kind) in kinds and key.namespace in namespaces
    ]
