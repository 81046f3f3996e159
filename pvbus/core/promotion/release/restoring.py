"""Publishes the content of a former revision again, as a new revision of the package.

The new revision is an edit of the former one, under a workspace name that policy, attempt and content give:
each step finds what an earlier one has done. While it is a draft it has no owner, so its variant, which would
bring its content up to date, leaves it alone; it gets the variant as its owner in the write that proposes it.
The content is compared before it is proposed and before it is approved: a pipeline may have changed it.

What anybody has published since is not overruled: the order names the revision that it replaces, and where
another one is the last published, nothing is written, and the rollout takes notice of it. An order of an
older version names none. What the API server refuses stays as it is for a person,
and the outcome names it.
"""

from collections.abc import Iterable

from pvbus.core.api.variants import PORCH_GROUP, Downstream
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.effects import Create, Update
from pvbus.core.kernel.keys import RESTORES, digest
from pvbus.core.promotion.release.orders import (
    Ending,
    Order,
    RefusedError,
    digest_of_files,
    latest,
    obstacle_of,
    publish,
    quarantined,
    write,
)
from pvbus.core.variants.revisions import former
from pvbus.core.variants.revisions.making import CAUSE, edit_task
from pvbus.core.variants.revisions.owning import (
    PUBLISHED,
    REVISION,
    Object,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    owner_reference,
)

WORKSPACE_DIGITS = 8
"""Of the hash in a workspace name. Rollbacks of two policies with the same attempt number must differ."""
AGAIN = "the rollout to take notice of its new order"


def workspace_of(order: Order) -> str:
    row = order.row
    hashed = digest((order.policy, row.attempt, row.revision, row.digest))
    return f"rollback-{row.attempt}-{hashed[:WORKSPACE_DIGITS]}"


def restore(order: Order) -> Ending:
    """Publish the content of the order's revision, unless the latest published one has it."""
    downstream, row = order.variant.spec.downstream, order.row
    if downstream is None:
        return order.ended("unrestored", "the PackageVariant has no downstream")
    live = yield from list_package(order.namespace, downstream)
    last = latest(live)
    if last is not None and not belongs_to(last, order.variant):
        message = f"{last['metadata']['name']}, which the variant does not own, was published since"
        return order.ended("unrestored", message)
    if last is not None and (yield from digest_of_files(order, last["metadata"]["name"])) == row.digest:
        return order.ended("done")
    if replaced := _replaced(order, live):
        return replaced
    if not order.is_current():
        return AGAIN
    if obstacle := obstacle_of(order):
        return obstacle
    workspace = workspace_of(order)
    source = next((obj for obj in live if obj["metadata"]["name"] == row.revision), None)
    if source is not None and (held := quarantined(order, source, None)):
        return order.ended("unrestored", f"{row.revision} must not go out again: {held}")
    made = next((obj for obj in live if obj["spec"].get("workspaceName") == workspace), None)
    if made is None:
        if source is None or lifecycle_of(source) not in PUBLISHED:
            return order.ended("unrestored", f"PackageRevision {row.revision} is not published any more")
        made = yield from write(Create(REVISION, _edit_of(order, source, workspace)))
    if is_terminating(made):
        raise ConflictError(f"PackageRevision {made['metadata']['name']} is being deleted")
    if lifecycle_of(made) in PUBLISHED:
        message = f"{made['metadata']['name']} restored it, but is not the last published revision any more"
        return order.ended("unrestored", message)
    return (yield from _release(order, made, downstream))


def _replaced(order: Order, live: Iterable[Object]) -> str:
    """Return which event a restore waits for, as another revision than the attempt's is published, "" for
    none."""
    last = latest(live)
    if not order.row.replaces or last is None or last["metadata"]["name"] == order.row.replaces:
        return ""
    return f"the rollout to take notice of {last['metadata']['name']}, which is published (Replaced)"


def _release(order: Order, made: Object, downstream: Downstream) -> Ending:
    """Propose and approve the new revision, as far as that is not done."""
    name = made["metadata"]["name"]
    if (yield from digest_of_files(order, name)) != order.row.digest:
        message = (
            f"{name} was made from {order.row.revision}, but has other content: its pipeline or somebody "
            "else changed it; propose and approve it by hand, or delete it"
        )
        return order.ended("unrestored", message)
    try:
        if lifecycle_of(made) == "Draft":
            if not order.is_current():
                return AGAIN
            made = yield from write(Update(REVISION, _proposal(order, made)))
        if not order.is_current():
            return AGAIN
        if obstacle := obstacle_of(order):
            return obstacle
        if replaced := _replaced(order, (yield from list_package(order.namespace, downstream))):
            return replaced
        yield from publish(made, f"{order.cause}: {order.row.revision} again")
    except RefusedError as error:
        message = f"{error}; PackageRevision {name} has the content: approve it by hand, or delete it"
        return order.ended("unrestored", message)
    return order.ended("done")


def _edit_of(order: Order, source: Object, workspace: str) -> Object:
    spec, row = order.variant.spec, order.row
    cause = f"{order.cause}: rollback to {row.revision}"
    return {
        "apiVersion": f"{PORCH_GROUP}/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {
            "namespace": order.namespace,
            "labels": dict(spec.labels or {}),
            "annotations": {**(spec.annotations or {}), CAUSE: cause, RESTORES: row.revision},
        },
        "spec": {
            "packageName": source["spec"]["packageName"],
            "repository": source["spec"]["repository"],
            "workspaceName": workspace,
            "lifecycle": "Draft",
            "tasks": [edit_task(source)],
        },
    }


def _proposal(order: Order, made: Object) -> Object:
    meta = made["metadata"]
    annotations = {**(meta.get("annotations") or {}), former.MADE_BY: former.record_of(order.variant)}
    owners = [each for each in meta.get("ownerReferences") or () if not each.get("controller")]
    owned = {**meta, "annotations": annotations, "ownerReferences": [*owners, owner_reference(order.variant)]}
    return {**made, "metadata": owned, "spec": {**made["spec"], "lifecycle": "Proposed"}}
