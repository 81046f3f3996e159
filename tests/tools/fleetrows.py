"""Rows of a fleet on the bus, as the services would have written them, in every state that the page shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP, Condition, Downstream
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, annotation
from pvbus.core.kernel.eventrows import ConditionEvent, EventTask
from pvbus.core.kernel.keys import okey, sync_key
from pvbus.core.kernel.records import (
    LATEST,
    OBJECTS,
    POLICIES,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    VARIANTS,
    ChildRow,
    ChildState,
    Counts,
    Hold,
    ObjectOwner,
    ObjectRow,
    RevisionFacts,
    SetResult,
    SyncMarker,
    TargetRow,
)
from pvbus.core.variants.attention import ATTENTION
from tests.tools.bustables import Row

REGIONS = ("africa", "america", "asia", "europe")
SET, VARIANT, REVISION = "PackageVariantSet", "PackageVariant", "PackageRevision"


def event(kind: str, name: str, type_: str, status: str, reason: str, **fields: Any) -> Row:
    """Return the last event of a condition. name: `<namespace>/<name>`."""
    message = fields.pop("message", "")
    generation, since = fields.pop("generation", 1), fields.pop("since", None)
    namespace, _, short = name.partition("/")
    condition = Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    made = ConditionEvent(
        kind=kind, namespace=namespace, name=short, uid="u", condition=condition, id=name, **fields
    )
    return LATEST, f"{kind}|{name}|{type_}", made


def ready(name: str, *, kind: str = VARIANT, generation: int = 1) -> Row:
    return event(kind, name, "Ready", "True", "Reconciled", generation=generation)


def unready(name: str, reason: str, message: str = "", *, kind: str = VARIANT) -> Row:
    return event(kind, name, "Ready", "False", reason, message=message)


def obj(
    topic: str, name: str, labels: Mapping[str, str] = {}, *, generation: int = 1, deleting: bool = False
) -> Row:
    """Return the row of a set or a variant."""
    namespace, _, short = name.partition("/")
    metadata: dict[str, Any] = {"name": short, "namespace": namespace, "generation": generation}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return topic, name, msgspec.json.encode({"metadata": {**metadata, "labels": dict(labels)}})


def variant(name: str, labels: Mapping[str, str] = {}, *, generation: int = 1, deleting: bool = False) -> Row:
    return obj(VARIANTS, name, labels, generation=generation, deleting=deleting)


def child(skey: str, name: str, state: ChildState = ChildState.PRESENT) -> Row:
    """Return the row of a set's child. name: without its namespace."""
    downstream = Downstream(repo="edge", package=name)
    row = ChildRow(set_uid="u", state=state, downstream=downstream, okey=f"example.org/Site|default|{name}")
    return UNROLL, f"{skey}|{name}", row


def target(skey: str, name: str) -> Row:
    namespace, _, short = skey.partition("/")
    downstream = Downstream(repo="edge", package=name)
    return (
        TARGETS,
        f"{namespace}/{name}|{short}",
        TargetRow(state="present", set_name=short, set_uid="u", downstream=downstream),
    )


def rollup(skey: str, hold: Hold | None = None, **counts: int) -> Row:
    return SETRESULTS, skey, SetResult(uid="u", generation=1, hold=hold, counts=Counts(**counts))


def disputed(skey: str) -> Row:
    """Return the condition of a set whose expressions cel-python evaluates otherwise."""
    message = "cel-python, another implementation of CEL, gives other results than pvbus: one of them"
    return event(SET, skey, "ExpressionDisputed", "True", "SecondOpinion", message=message)


def rollout(name: str, phase: str, wave: int, counts: Mapping[str, int], message: str = "") -> Row:
    """Return the row of a RolloutPolicy with three waves, in its third attempt."""
    namespace, _, short = name.partition("/")
    policy = {
        "metadata": {"namespace": namespace, "name": short},
        "spec": {
            "revisions": {"all": True},
            "approval": "Always",
            "waves": [{"count": 1}, {"percent": 50}, {"percent": 100}],
        },
        "status": {
            "phase": phase,
            "attempt": 3,
            "wave": wave,
            "targets": counts,
            "conditions": [
                {"type": "Progressing", "status": "False", "reason": "TooManyFailing", "message": message}
            ],
            "history": [
                {
                    "attempt": 2,
                    "phase": "RolledBack",
                    "wave": 1,
                    "startedAt": "2026-01-01T08:00:00Z",
                    "endedAt": "2026-01-01T08:30:00Z",
                    "reason": "TooManyFailing",
                    "message": "1 target fails, 0 may",
                }
            ],
        },
    }
    return POLICIES, name, msgspec.json.encode(policy)


def lifecycle(variant_name: str, revision: str, word: str) -> Row:
    """Return the lifecycle of a package revision. revision: without its namespace."""
    namespace, _, owner = variant_name.partition("/")
    status = "True" if word in ("Published", "DeletionProposed") else "False"
    return event(REVISION, f"{namespace}/{revision}", "Published", status, word, variant=owner)


def retained_draft(variant_name: str, revision: str, editors: str) -> Row:
    """Return the condition of a draft that stayed when its variant went. revision: without its namespace."""
    namespace, _, owner = variant_name.partition("/")
    message = f"edited by {editors}; PackageVariant {owner} has left it"
    name = f"{namespace}/{revision}"
    return event(REVISION, name, "Kept", "True", "VariantDeleted", message=message, variant=owner)


def task(variant_name: str, revision: str, type_: str, question: str, **fields: Any) -> Row:
    """Return the last event of a task's condition. revision: without its namespace; fields: of its question.

    status, reason, message, since: of the condition.
    """
    said = {"reason": "Asked", "status": "Unknown", "since": "2026-01-01T08:00:00Z"}
    said = {name: fields.pop(name, text) for name, text in said.items()}
    message = fields.pop("message", "")
    asked = EventTask(question=question, **{"state": "open", "blocks": (type_,), **fields})
    namespace, _, owner = variant_name.partition("/")
    name = f"{namespace}/{revision}"
    return event(REVISION, name, type_, **said, message=message, variant=owner, task=asked)


def markers(state: Any = "ok", message: str = "") -> Iterator[Row]:
    """Yield the sync markers of sets and variants."""
    for topic, kind in ((SETS, SET), (VARIANTS, VARIANT)):
        yield topic, sync_key(CONFIG_GROUP, kind), SyncMarker(state=state, epoch=1, message=message)


def fleet(count: int) -> Iterator[Row]:
    """Yield the rows of so many variants of two sets, most of them ready, the others in all other states."""
    sets = ("default/web", "default/cache")
    hold = Hold(id="h", token="3-8f21c04e", count=sum(n % 97 == 5 and n % 5 != 4 for n in range(count)))
    yield from markers()
    yield from (obj(SETS, name) for name in sets)
    yield rollup(sets[0], hold)
    yield event(SET, sets[0], "Ready", "False", "DeletionHeld")
    yield rollup(sets[1])
    yield disputed(sets[1])
    yield event(SET, sets[1], "Ready", "False", "VariantsNotReady")
    for n in range(count):
        yield from _variant(sets[n % 5 == 4], n)


def _variant(skey: str, n: int) -> Iterator[Row]:
    region = REGIONS[n % 4]
    short = f"{skey.partition('/')[2]}-edge-{region}-{region}-{n:05}"
    name = f"default/{short}"
    held = n % 97 == 5 and n % 5 != 4
    removing = n % 89 == 7
    state = ChildState.HELD if held else ChildState.WAITING if removing else ChildState.PRESENT
    yield child(skey, short, state)
    yield target(skey, short)
    yield variant(name, {"region": region, "stage": "canary" if n % 20 == 0 else "production"})
    match n % 53:
        case 3:
            yield unready(name, "NoMatch", "no package revision web v9 in repository blueprints")
            yield event(VARIANT, name, "Stalled", "True", "NoMatch", message="no package revision web v9")
        case 11:
            yield unready(name, "OnHold")
            yield event(VARIANT, name, "OnHold", "True", "Annotation", message="fair in town")
        case 19:
            yield unready(name, "Reconciling", "waits for the render of its draft")
        case 27:
            yield ready(name)
            yield event(VARIANT, name, ATTENTION, "True", "UpgradeConflict", message="one thing waits")
        case 35:
            yield ready(name)
            yield event(VARIANT, name, "FieldsDropped", "True", "UnknownField", message="no such field")
        case _:
            yield ready(name)
    yield lifecycle(name, f"edge-{region}.{short}.v1", "Published" if n % 3 else "Draft")


def site(name: str, labels: Mapping[str, str]) -> Row:
    """Return the row of the object that the child of this name was made from."""
    return OBJECTS, f"example.org/Site|default|{name}", ObjectRow(uid="u", labels=labels)


def conflict(field: str, local: Any, new: Any, **fields: Any) -> Conflict:
    """Return a conflict in the file of a Deployment."""
    where = {"file": "deployment.yaml", "object": "Deployment web", **fields}
    return Conflict(field=field, old=0, local=local, new=new, **where)


def in_conflict(variant_name: str, conflicts: Sequence[Conflict], lifecycle: str = "Draft") -> Iterator[Row]:
    """Yield a variant, and the row of its package revision with conflicts."""
    namespace, _, owner = variant_name.partition("/")
    key = okey(PORCH_GROUP, REVISION, namespace, f"edge.{owner}.packagevariant-2")
    yield variant(variant_name)
    yield (
        OBJECTS,
        key,
        ObjectRow(
            uid="u",
            annotations={CONFLICTS: annotation(conflicts)} if conflicts else {},
            owners=(ObjectOwner(kind=VARIANT, name=owner, uid="u", controller=True),),
            revision=RevisionFacts(repository="edge", package=owner, lifecycle=lifecycle),
        ),
    )
