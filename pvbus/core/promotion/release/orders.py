"""A rollout's order for one PackageVariant, and what the ways to carry it out share."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.effects import Effect, Get, Update
from pvbus.core.kernel.keys import APPROVE_TOGETHER
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow
from pvbus.core.promotion.protocol.quarantines import Content, QuarantineView, set_of, source_of_object
from pvbus.core.promotion.protocol.stops import StopView
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.former import PLACEHOLDER
from pvbus.core.variants.revisions.making import CAUSE
from pvbus.core.variants.revisions.owning import PUBLISHED, RESOURCES, REVISION, Object, lifecycle_of

GONE = "the PackageVariant of the orders"
HELD = "hold"
"""Stands for the end of the hold, which its caller names."""

Ending = Generator[Effect, Any, "Approval | str"]
"""Ends with the outcome, or with the event that the order waits for, in words."""


class RefusedError(Exception):
    """The API server refuses a write; the text says why."""


class Guards(NamedTuple):
    """What keeps all orders of rollouts but those that take one back.

    quarantines, stops: those of the cluster
    """

    quarantines: QuarantineView
    stops: StopView


class Order(NamedTuple):
    """An order of a rollout, as it is to be carried out.

    policy: the name of the RolloutPolicy
    is_held: whether the variant is on hold
    is_current: tells whether the order still stands, as another one may arrive between two effects
    guards: what else may keep it
    """

    policy: str
    row: ApprovalRow
    variant: PackageVariant
    is_held: bool
    is_current: Callable[[], bool]
    guards: Guards

    @property
    def namespace(self) -> str:
        return self.variant.metadata.namespace

    @property
    def cause(self) -> str:
        """Return why it is carried out, for the history of a package."""
        return f"RolloutPolicy {self.namespace}/{self.policy}, attempt {self.row.attempt}"

    def ended(
        self, outcome: Literal["done", "refused", "withdrawn", "unrestored"], message: str = ""
    ) -> Approval:
        assert self.row.order != "stranded"  # which is no order
        assert self.row.order != "freeze"  # which is none to release
        return Approval(
            policy=self.policy,
            attempt=self.row.attempt,
            order=self.row.order,
            revision=self.row.revision,
            digest=self.row.digest,
            outcome=outcome,
            message=cut(message),
        )


def obstacle_of(order: Order) -> str:
    """Return what an order waits for before anything is published, "" for nothing: that all quarantines are
    known, and that no person has stopped all rollouts."""
    standstill = order.guards.stops.standstill
    if standstill.holds(is_rollback=order.row.order == "restore"):
        return f"{standstill.reason}: {standstill.message}"
    return order.guards.quarantines.unlisted(order.namespace)


def quarantined(order: Order, live: Object, files: str | None) -> str:
    """Return why the content of an order does not go out, "" if nothing keeps it.

    live: the revision that has the content
    files: the digest of the upstream's files, None if they are not compared
    """
    source = source_of_object(order.variant, live)
    content = Content(set_of(order.variant), source, files, order.row.digest, order.row.combination)
    quarantines = order.guards.quarantines.of(order.namespace)
    refused = quarantines.refusal(content, order.variant.metadata.name)
    return refused.message if refused is not None else ""


def digest_of_files(order: Order, name: str) -> Generator[Effect, Any, str]:
    """Return the digest of a revision's content. Raises: ConflictError if it is gone."""
    resources = yield Get(RESOURCES, order.namespace, name)
    if resources is None:
        raise ConflictError(f"PackageRevisionResources {order.namespace}/{name} are gone")
    return content_digest(resources["spec"].get("resources") or {})


def latest(live: Iterable[Object]) -> Object | None:
    """Return the published revision with the highest number; one whose deletion is proposed counts."""
    published = [
        obj for obj in live if lifecycle_of(obj) in PUBLISHED and obj["spec"].get("revision", 0) > PLACEHOLDER
    ]
    return max(published, key=lambda obj: int(obj["spec"].get("revision", 0)), default=None)


def publish(live: Object, cause: str, mates: Sequence[str] = ()) -> Generator[Effect, Any, Object]:
    """Approve a proposed revision as it was read.

    cause: why, for the message of the commit
    mates: the revisions that the package store publishes with it, or none of them
    Raises: RefusedError; ConflictError if it has changed, or one of the others was not asked for yet.
    """
    group = {APPROVE_TOGETHER: ",".join(mates)} if mates else {}
    others = {key: text for key, text in annotations_of(live).items() if key != APPROVE_TOGETHER}
    approved = {
        **live,
        "metadata": {**live["metadata"], "annotations": {**others, CAUSE: cause, **group}},
        "spec": {**live["spec"], "lifecycle": "Published"},
    }
    return (yield from write(Update(REVISION, approved, subresource="approval")))


def write(effect: Effect) -> Generator[Effect, Any, Object]:
    """Write. Raises: RefusedError; ConflictError if the object has changed or is gone."""
    try:
        after: Object = yield effect
    except PermanentError as error:
        if error.reason == "NotFound":
            raise ConflictError(str(error)) from error
        raise RefusedError(str(error)) from error
    return after
