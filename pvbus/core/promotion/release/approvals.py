"""Carries out the orders of rollouts: approves revisions, takes approvals back, restores former content.

An approval is for a proposed revision with exactly the content that the rollout planned. It is written with
the resourceVersion of the object that was read before the content, so what is published is what was planned,
and a published revision with that content is the work of an earlier attempt, whose response was lost.

Revisions of a train that goes as one name each other, and the package store publishes all of them or none. A
member that has a reason to wait does not ask, and so keeps the others.

An approval is taken back once no write of it can arrive any more: the annotation WITHDRAWN changes the
resourceVersion, so that a request of a worker that has lost its lease conflicts.
"""

from collections.abc import Generator
from typing import Any

from pvbus.core.api.variants import Downstream
from pvbus.core.kernel import gates
from pvbus.core.kernel.effects import Effect, Get, Update
from pvbus.core.kernel.keys import WITHDRAWN
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.promotionrows import Approval
from pvbus.core.promotion.release.orders import (
    GONE,
    HELD,
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
from pvbus.core.promotion.release.restoring import restore
from pvbus.core.variants.revisions.owning import (
    REVISION,
    Object,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    version_of,
)

NOTICE = "the rollout to take notice of the revision as it is now"


def carry_out(order: Order, former: Approval | None) -> Ending:
    """Carry out an order. former: the last outcome of an order of this policy."""
    if former is not None and _is_final(order, former):
        return former
    row, meta = order.row, order.variant.metadata
    if row.order == "withdraw":
        return (yield from _withdraw(order))
    if row.uid != meta.uid or meta.deletion_timestamp:
        return GONE
    if order.is_held:
        return HELD
    if obstacle := obstacle_of(order):
        return obstacle
    try:
        return (yield from (_approve(order) if row.order == "approve" else restore(order)))
    except RefusedError as error:
        return order.ended("refused" if row.order == "approve" else "unrestored", str(error))


def is_lasting(outcome: Approval) -> bool:
    """Tell whether no change in the cluster makes another outcome. What was published may be replaced before
    the rollout has seen it: then it waits for another outcome."""
    return outcome.outcome != "done" or outcome.order == "approve"


def _is_final(order: Order, former: Approval) -> bool:
    row = order.row
    if former.outcome == "withdrawn" and row.order == "approve":
        return former.attempt == row.attempt
    same = (former.attempt, former.order, former.revision, former.digest)
    return is_lasting(former) and same == (row.attempt, row.order, row.revision, row.digest)


def _approve(order: Order) -> Ending:
    live = yield Get(REVISION, order.namespace, order.row.revision)
    if live is None or is_terminating(live) or not belongs_to(live, order.variant):
        return NOTICE
    if lifecycle_of(live) == "Draft":
        return NOTICE
    if lifecycle_of(live) == "Proposed" and gates.unmet_of(live):
        return NOTICE  # a veto: the server's refusal would count as a failure of the target
    if (yield from digest_of_files(order, order.row.revision)) != order.row.digest:
        return NOTICE
    if lifecycle_of(live) == "Proposed":
        if not order.is_current():
            return NOTICE
        if obstacle := obstacle_of(order):
            return obstacle
        if held := quarantined(order, live, order.row.files):
            return held
        yield from publish(live, order.cause, order.row.mates)
    return order.ended("done")


def _withdraw(order: Order) -> Ending:
    """Confirm that the revision was published with the planned content, or will never be by this attempt.

    Nothing is carried out for a former PackageVariant of that name. On hold nothing is written: a request
    that was sent before the hold, by a worker that has lost its lease since, is not kept from arriving.
    """
    if order.row.uid != order.variant.metadata.uid:
        return order.ended("withdrawn", "the PackageVariant was made again")
    live = yield Get(REVISION, order.namespace, order.row.revision)
    if live is None or lifecycle_of(live) == "Draft":
        return order.ended("withdrawn")
    if lifecycle_of(live) == "Proposed":
        if not order.is_held:
            try:
                yield from write(Update(REVISION, _fenced(order, live)))
            except RefusedError as error:
                return f"the API server to accept the annotation {WITHDRAWN}: {error}"
        return order.ended("withdrawn")
    if not (yield from _is_latest(order, live)):
        return order.ended("withdrawn", f"{order.row.revision} is not the last published revision any more")
    digest = yield from digest_of_files(order, order.row.revision)
    return order.ended("done" if digest == order.row.digest else "withdrawn")


def _is_latest(order: Order, live: Object) -> Generator[Effect, Any, bool]:
    package = Downstream(repo=live["spec"]["repository"], package=live["spec"]["packageName"])
    last = latest((yield from list_package(order.namespace, package)))
    return last is not None and last["metadata"]["name"] == live["metadata"]["name"]


def _fenced(order: Order, live: Object) -> Object:
    """Return a proposal with another value of the annotation, so that the write gives it a new version."""
    noted = f"{order.policy}.{order.row.attempt}@{version_of(live)}"
    annotations = {**annotations_of(live), WITHDRAWN: noted}
    return {**live, "metadata": {**live["metadata"], "annotations": annotations}}
