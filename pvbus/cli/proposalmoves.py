"""Judges the drafts and proposals of a set or a variant, and changes their lifecycle."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from pvbus.cli.fleet import (
    Member,
    Progress,
    counter,
    current,
    existing,
    key_of,
    members_of,
    on_hold,
    persist,
    require_served,
    selector_at,
    set_of,
    variants_of,
    work_off,
)
from pvbus.cli.guarding import Guard, note_override, read_guard
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import typed
from pvbus.cli.progress import SET, VARIANT, Judged, condition_of
from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.core.kernel.holds import SetHold, hold_reason
from pvbus.core.kernel.keys import Key
from pvbus.core.promotion.protocol.proposals import (
    APPROVE,
    Move,
    is_ready,
    labels_of,
    refusal,
)
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Cluster, Kind, Object


class Asked(NamedTuple):
    """What the command line asks for.

    move: the change of lifecycle
    key: the key of the set, or of the variant
    selector: the labels of the revisions to move
    selector_text: the same as it was typed
    dry_run: whether nothing is written
    yes: whether to write without a question
    hints: the options that another command needs to act on the same revisions
    kind: of what the key names
    override: why quarantines and stops do not keep them, "" if they do
    """

    move: Move
    key: Key
    selector: Requirements
    selector_text: str
    dry_run: bool
    yes: bool
    hints: str
    kind: Kind = SET
    override: str = ""

    @property
    def arguments(self) -> str:
        """The arguments of a command on the same set or variant."""
        return f"--set {self.key}" if self.kind == SET else typed(VARIANT, self.key)


class Result(NamedTuple):
    """What became of one revision.

    variant: the name of its variant
    revision: its name
    outcome: `done` if it has the new lifecycle, or with --dry-run would get it
    reason: the reason of a refusal or a failure
    message: its message
    """

    variant: str
    revision: str
    outcome: Literal["done", "refused", "failed"]
    reason: str = ""
    message: str = ""


class Plan(NamedTuple):
    """What a command is about to do.

    due: the revisions to write
    refused: the revisions that are refused
    others: the number of selected revisions in each other lifecycle
    unready: the number of other selected variants that the services still work on
    """

    due: list[Member]
    refused: list[Result]
    others: Counter[str]
    unready: int = 0
    set_on_hold: SetHold | None = None


class Summary(NamedTuple):
    """What a command did.

    results: the result of each revision that was begun or refused
    others: the number of selected revisions in each other lifecycle
    unready: the number of other selected variants that the services still work on
    left: the number of revisions that were not begun
    interrupted: whether a person has interrupted the command
    """

    results: list[Result]
    others: Counter[str]
    unready: int = 0
    left: int = 0
    interrupted: bool = False

    @property
    def total(self) -> int:
        return len(self.results) + self.left


async def plan_moves(cluster: Cluster, asked: Asked) -> Plan:
    """Judge every selected revision. Raises PermanentError, UsageError, TransientError."""
    owner, variants, at = await _read_owner(cluster, asked)
    members = await members_of(cluster, asked.key.namespace, variants, at)
    wanted = _selected(members, asked)
    due = [each for each in wanted if lifecycle_of(each.revision) == asked.move.before]
    others = Counter(lifecycle_of(each.revision) for each in wanted)
    del others[asked.move.before]
    set_on_hold = None
    if owner is not None and on_hold(owner):
        set_on_hold = SetHold(key_of(owner).name, hold_reason(owner["metadata"].get("annotations")))
    guard = await read_guard(cluster, asked.key.namespace, asked.move)
    judged = [(each, await _judge(each, asked, set_on_hold, guard)) for each in due]
    return Plan(
        [member for member, result in judged if result.outcome == "done"],
        [result for _, result in judged if result.outcome != "done"],
        others,
        len({each.key for each in wanted if not is_ready(each.variant)} - {each.key for each in due}),
        set_on_hold,
    )


async def _read_owner(cluster: Cluster, asked: Asked) -> tuple[Object | None, list[Object], str]:
    """Return the set if there is one, the variants to judge, and the field selector of their revisions.

    That a variant is up to date is judged with its draft.
    """
    found = await existing(cluster, asked.kind, asked.key)
    if asked.kind == VARIANT:
        return await set_of(cluster, found), [found], selector_at(found, "downstream")
    _check_evaluated(found, asked)
    return found, await variants_of(cluster, found), ""


async def carry_out(
    cluster: Cluster, asked: Asked, plan: Plan, progress: Progress = counter
) -> tuple[list[Result], bool]:
    """Write all revisions of a plan; return the results, and whether a person has interrupted it."""

    guard = await read_guard(cluster, asked.key.namespace, asked.move)

    async def one(member: Member) -> Result:
        return await _move(cluster, member, asked, plan.set_on_hold, guard)

    return await work_off(plan.due, one, f"{asked.move.verb} {asked.key}", progress)


def summary_of(plan: Plan, written: list[Result], *, interrupted: bool) -> Summary:
    """Return what a command did. written: the result of each revision that was begun"""
    left = len(plan.due) - len(written)
    return Summary([*written, *plan.refused], plan.others, plan.unready, left, interrupted and left > 0)


def _check_evaluated(owner: Object, asked: Asked) -> None:
    """Refuse to act on a set that changed just now: its variants are still those of the old set."""
    judged = msgspec.convert(owner, Judged)
    ready = condition_of(judged.status.conditions, "Ready")
    if asked.move.is_checked and (ready is None or ready.observed_generation < judged.metadata.generation):
        raise PermanentError(
            f"PackageVariantSet {asked.key} has changed, and the services have not evaluated it yet: try "
            "again in a moment",
            reason="NotUpToDate",
        )


def _selected(members: Sequence[Member], asked: Asked) -> list[Member]:
    """Return the members with the wanted labels. Raises UsageError if none has them."""
    found = [each for each in members if matches(asked.selector, labels_of(each.variant, each.revision))]
    if members and not found:
        raise UsageError(
            f"-l {asked.selector_text}: none of the {len(members)} package revisions of {asked.key} has "
            "these labels; kubectl get packagerevisions --show-labels lists them"
        )
    return found


async def _judge(member: Member, asked: Asked, set_on_hold: SetHold | None, guard: Guard) -> Result:
    if not asked.move.is_checked:
        return Result(str(member.key), member.name, "done")
    found = refusal(member.variant, member.revision, set_on_hold=set_on_hold)
    if found is None and not asked.override:
        found = await guard.refusal(member)
        more = f"; or say why it goes out all the same: pvbus {asked.move.verb} --override REASON"
        found = found and found._replace(message=f"{found.message}{more}")
    if found is None:
        return Result(str(member.key), member.name, "done")
    return Result(str(member.key), member.name, "refused", *found)


async def _move(
    cluster: Cluster, member: Member, asked: Asked, set_on_hold: SetHold | None, guard: Guard
) -> Result:
    """Write one revision; after a conflict, look at it anew first."""
    latest: Member | None = member
    move = asked.move

    async def attempt() -> Result:
        nonlocal latest
        seen, latest = latest or await current(cluster, member), None
        if seen is None:
            return Result(str(member.key), member.name, "failed", "Gone", "it was deleted meanwhile")
        lifecycle = lifecycle_of(seen.revision)
        if lifecycle == move.before:
            judged = await _judge(seen, asked, set_on_hold, guard)
            if judged.outcome == "done":
                passed = await guard.refusal(seen) if asked.override and move.is_checked else None
                if passed is not None:
                    noted = await note_override(cluster, seen.revision, passed, asked.override)
                    seen = seen._replace(revision={**seen.revision, **noted})
                await _write(cluster, seen, move)
            return judged
        if lifecycle == move.after:
            return Result(str(member.key), member.name, "done")
        return Result(str(member.key), member.name, "refused", "Changed", f"it is {lifecycle} meanwhile")

    try:
        return await persist(attempt)
    except PvbusError as exc:
        return Result(str(member.key), member.name, "failed", type(exc).__name__, str(exc))


async def _write(cluster: Cluster, member: Member, move: Move) -> None:
    resource = await require_served(cluster, REVISION)
    wanted = {**member.revision, "spec": {**member.revision["spec"], "lifecycle": move.after}}
    await cluster.update(resource, wanted, subresource=move.subresource)
    if move is not APPROVE:
        return
    live = await cluster.get(resource, member.key.namespace, member.name)
    number = (live or {}).get("spec", {}).get("revision", 0)
    if live is None or lifecycle_of(live) != "Published" or number < 1:
        state = f"{lifecycle_of(live)}, revision {number}" if live is not None else "gone"
        raise PermanentError(
            f"it was approved, but is {state}: look at it with kubectl", reason="NotPublished"
        )
