"""Carries out promote's orders: proposes drafts, takes proposals back, and makes conditions Unknown that were
found on other content.

An order is for a revision in exactly the state that promote saw: the digest of the live object must be that
in the order, and the write has its resourceVersion as the precondition. What it writes changes the digest. So
an order is carried out at most once, whatever is repeated, and whenever a process ends; an order on an older
state does nothing, and promote decides again on the new one.
"""

from collections.abc import Collection, Generator
from typing import Any

import msgspec

from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel import gates
from pvbus.core.kernel.effects import Effect, Get, Update
from pvbus.core.kernel.keys import PROPOSED_CONTENT, RETURNED
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.objectrows import REVISION as REVISION_KIND
from pvbus.core.kernel.objectrows import digest_of
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.promotionrows import Carried, Verdict
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.owning import RESOURCES, REVISION, Object, lifecycle_of
from pvbus.core.variants.revisions.signatures import outdated, signed_digest

RETURNED_CHARACTERS_MAX = 2_000  # of the annotation; all of an object's may have 256 KiB


def carry_out(namespace: str, verdict: Verdict) -> Generator[Effect, Any, Carried | None]:
    """Carry out one order; return None if the revision is not what the order was made on.

    A revision that promote has proposed already is the work of an earlier attempt, whose response was lost.
    """
    live = yield Get(REVISION, namespace, verdict.revision)
    if live is None:
        return None
    order: Any = verdict.order
    done = Carried(revision=verdict.revision, row_digest=verdict.row_digest, order=order, outcome="done")
    if digest_of(REVISION_KIND, live) != verdict.row_digest:
        is_done = lifecycle_of(live) == "Proposed" and PROPOSED_CONTENT in _annotations(live)
        return done if is_done and verdict.order == "propose" else None
    try:
        if verdict.order == "propose":
            resources = yield Get(RESOURCES, namespace, verdict.revision)
            files = (resources["spec"].get("resources") or {}) if resources is not None else None
            if files is None or not _is_bound(verdict, files):
                return None
            yield Update(REVISION, _proposed(live, files))
        elif verdict.order == "void":
            yield Update(REVISION, _voided(live, verdict.void))
        else:
            yield Update(REVISION, as_draft(live, verdict.message))
    except PermanentError as error:
        if error.reason == "NotFound":  # deleted meanwhile
            raise ConflictError(str(error)) from error
        return msgspec.structs.replace(done, outcome="refused", message=cut(str(error)))
    return done


def _is_bound(verdict: Verdict, files: dict[str, str]) -> bool:
    """Return whether the files are those that every condition was found on."""
    return all(signed_digest(files, each.survives) == each.content for each in verdict.bound.values())


def _proposed(live: Object, files: dict[str, str]) -> Object:
    """Return a draft as a proposal, with the digest of its content: one write has both, or neither."""
    noted = {**_annotations(live, without=RETURNED), PROPOSED_CONTENT: content_digest(files)}
    return _moved(live, "Proposed", noted)


def _voided(live: Object, types: Collection[str]) -> Object:
    """Return a draft whose conditions of these types are no longer True."""
    conditions = [
        outdated(each) if each.get("type") in types and each.get("status") == "True" else each
        for each in gates.conditions_of(live)
    ]
    return {**live, "status": {**live["status"], "conditions": conditions}}


def as_draft(live: Object, why: str) -> Object:
    """Return a proposal as a draft, with the reason, and without the digest: it may be proposed again."""
    noted = {
        **_annotations(live, without=PROPOSED_CONTENT),
        RETURNED: cut(why, RETURNED_CHARACTERS_MAX),
    }
    return _moved(live, "Draft", noted)


def _annotations(live: Object, *, without: str = "") -> dict[str, str]:
    present = annotations_of(live)
    return {key: value for key, value in present.items() if key != without}


def _moved(live: Object, lifecycle: str, annotations: dict[str, str]) -> Object:
    return {
        **live,
        "metadata": {**live["metadata"], "annotations": annotations},
        "spec": {**live["spec"], "lifecycle": lifecycle},
    }
