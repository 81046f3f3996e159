"""`pvbus propose`, `approve` and `reject`: the lifecycle of a whole set's drafts.

kubectl and porchctl do the same for one package revision.
"""

import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import click
import msgspec

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.fleet import (
    Member,
    Progress,
    Target,
    counter,
    current,
    existing,
    key_of,
    kubeconfig_option,
    members_of,
    on_hold,
    persist,
    require_served,
    run_connected,
    selector_at,
    set_of,
    variants_of,
    work_off,
)
from pvbus.cli.guarding import Guard, note_override, read_guard
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument, typed
from pvbus.cli.output import columns, emit
from pvbus.cli.progress import SET, VARIANT, Judged, condition_of
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutorders import REASON_CHARACTERS_MAX
from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.core.kernel.holds import SetHold, hold_reason
from pvbus.core.kernel.keys import Key
from pvbus.core.promotion.protocol.proposals import (
    APPROVE,
    PROPOSE,
    REJECT,
    Move,
    is_ready,
    labels_of,
    refusal,
)
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Cluster, Kind, Object

SHOWN_MAX = 20
INTERRUPTED = 130
KINDS = (SET, VARIANT)
"""What the commands take; a name without a kind is a set's."""

Command = Callable[..., Any]


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


def _options(command: Command) -> Command:
    """Add the options that the three commands share."""
    for option in (
        data_option,
        kubeconfig_option,
        click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text"),
        click.option("--dry-run", is_flag=True, help="Only say what would be done, and what is refused."),
        click.option(
            "-l",
            "--selector",
            default="",
            help="Only revisions with these labels, as for kubectl: a=b,c!=d,e in (f,g). It sees the "
            "labels of the PackageVariant, and over them those of its PackageRevision.",
        ),
        namespace_option,
        click.option("--set", "set_name", metavar="[NAMESPACE/]SET", help="The same as NAME."),
        object_argument("[KIND] NAME", (SET,), required=False),
    ):
        command = option(command)
    return command


REFUSALS = """
    A draft is refused, and the others go on, when its variant is on hold or not ready (so its draft may not
    follow the upstream), its pipeline has failed, the conflicts of its upgrade are not settled
    (`pvbus diff`), or its readiness gates are not met. A quarantine refuses it, too, and a stop of all
    rollouts its approval, unless you say why it goes out all the same (--override).
"""
OVERRIDE = click.option(
    "--override", default="", metavar="REASON", help="Why, in spite of quarantines and stops; recorded."
)
EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 something was refused or failed; 2 bad usage; 130 interrupted."
)


@click.command(
    short_help="Propose the drafts of a set's variants.",
    epilog=f"""\b
Examples:
  pvbus propose --set default/web --dry-run        what would be proposed, and what is refused why
  pvbus propose --set default/web -l region=asia   one region of the fleet
  pvbus propose pv/default/web-edge-asia-01-web    the draft of one variant
  pvbus approve --set default/web -l region=asia   publishes what is proposed

{EXIT_CODES}
""",
)
@_options
@OVERRIDE
def propose(**options: Any) -> int:
    return _run(PROPOSE, **options)


@click.command(
    short_help="Publish what is proposed of a set's variants.",
    epilog=f"""\b
Examples:
  pvbus approve --set default/web -l region=asia --dry-run
  pvbus approve --set default/web -l region=asia          asks first
  pvbus approve --set web -n default --yes                everything that is proposed, without asking

{EXIT_CODES}
""",
)
@_options
@OVERRIDE
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def approve(**options: Any) -> int:
    return _run(APPROVE, **options)


@click.command(
    short_help="Make drafts again of what is proposed.",
    epilog=f"""\b
Examples:
  pvbus reject --set default/web -l region=asia
  kubectl get packagerevisions -l region=asia     they are drafts again, to change or to delete

{EXIT_CODES}
""",
)
@_options
def reject(**options: Any) -> int:
    """Turn the proposed package revisions of a set's variants back into drafts."""
    return _run(REJECT, **options)


propose.help = f"""Propose the drafts of a set's variants: nothing changes them until they are approved or
    rejected.
{REFUSALS}"""
approve.help = f"""Publish the proposed package revisions of a set's variants, and check each.

    Drafts that are not proposed stay as they are.
{REFUSALS}"""


def _run(
    move: Move,
    *,
    words: tuple[str, ...],
    set_name: str | None,
    namespace: str | None,
    selector: str,
    dry_run: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
    yes: bool = True,
    override: str = "",
) -> int:
    if bool(words) == bool(set_name):
        raise UsageError(
            f"name one set: pvbus {move.verb} NAMESPACE/SET (or --set NAMESPACE/SET), or one variant: "
            f"pvbus {move.verb} pv/NAMESPACE/VARIANT"
        )
    scope = Scope(namespace, data, kubeconfig)
    kind, key, _ = named((set_name,) if set_name else words, (SET,) if set_name else KINDS, scope)
    try:
        parsed = parse_label_selector(selector)
    except ValueError as exc:
        raise UsageError(f"-l {selector}: {exc}") from exc
    if len(override) > REASON_CHARACTERS_MAX:
        raise UsageError(f"--override: say why, in at most {REASON_CHARACTERS_MAX} characters")
    hints = _hints(selector, data, kubeconfig)
    asked = Asked(move, key, parsed, selector, dry_run, yes, hints, kind or SET, override.strip())

    plan = asyncio.run(run_connected(data, kubeconfig, partial(plan_moves, asked=asked)))
    if dry_run:
        written, interrupted = [Result(str(each.key), each.name, "done") for each in plan.due], False
    else:
        _ask(asked, plan)
        work = partial(carry_out, asked=asked, plan=plan)
        written, interrupted = asyncio.run(run_connected(data, kubeconfig, work))
    summary = summary_of(plan, written, interrupted=interrupted)
    if output == "json":
        emit(document_of(asked, summary), output)
    else:
        _print(asked, summary)
    return exit_code(summary)


def _ask(asked: Asked, plan: Plan) -> None:
    """Ask before the first write. Raises PermanentError if the answer is no, UsageError if none can come."""
    if asked.yes or not plan.due:
        return
    if not sys.stdin.isatty():
        raise UsageError("cannot ask here, as this is no terminal: add --yes, or --dry-run to look first")
    if not click.confirm(question_of(asked, plan), err=True):
        raise PermanentError(f"nothing was {asked.move.past}", reason="Declined")


def question_of(asked: Asked, plan: Plan) -> str:
    """Return what a person confirms before the first write."""
    refused = f" ({len(plan.refused)} more are refused)" if plan.refused else ""
    return f"{asked.move.verb.capitalize()} {_counted(len(plan.due), asked.move)} of {asked.key}{refused}?"


def _hints(selector: str, data: str, kubeconfig: str | None) -> str:
    """Return the options that another command needs to act on the same revisions."""
    given = (("-l", selector), ("--data", data if data != DEFAULT else ""), ("--kubeconfig", kubeconfig))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


# ------------------------------------------------------------ the work


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


# ------------------------------------------------------------ the answer


def exit_code(summary: Summary) -> int:
    if summary.interrupted:
        return INTERRUPTED
    return 1 if any(result.outcome != "done" for result in summary.results) else 0


def document_of(asked: Asked, summary: Summary) -> dict[str, Any]:
    """Return the answer of `-o json`."""
    by: dict[str, list[dict[str, str]]] = {"done": [], "refused": [], "failed": []}
    for result in sorted(summary.results):
        entry = {"variant": result.variant, "revision": result.revision}
        if result.outcome != "done":
            entry |= {"reason": result.reason, "message": result.message}
        by[result.outcome].append(entry)
    return {
        ("set" if asked.kind == SET else "variant"): str(asked.key),
        "command": asked.move.verb,
        "dryRun": asked.dry_run,
        "interrupted": summary.interrupted,
        **by,
        "notBegun": summary.left,
        "notReady": summary.unready,
        "others": dict(summary.others),
    }


def _print(asked: Asked, summary: Summary) -> None:
    done, refused, failed = (
        sorted(result for result in summary.results if result.outcome == outcome)
        for outcome in ("done", "refused", "failed")
    )
    if asked.dry_run and done:
        _table(done, ("VARIANT", "REVISION"))
    for results, words in ((refused, "refused"), (failed, "failed")):
        if results:
            _table(results, ("VARIANT", "REVISION", "REASON", "MESSAGE"))
            reasons = Counter(result.reason for result in results)
            click.echo(f"{words}: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}")
    for line in summary_lines(asked, summary, len(done)):
        click.echo(line)


def _table(results: Sequence[Result], headings: Sequence[str]) -> None:
    fields = [heading.lower() for heading in headings]
    columns(headings, ([getattr(result, field) for field in fields] for result in results[:SHOWN_MAX]))
    if len(results) > SHOWN_MAX:
        click.echo(f"and {len(results) - SHOWN_MAX} more (-o json lists all)")


def summary_lines(asked: Asked, summary: Summary, done: int) -> Iterator[str]:
    """Yield what was done in a sentence, and what comes next."""
    move = asked.move
    others = ", ".join(f"{count} {state}" for state, count in sorted(summary.others.items()))
    if summary.unready and move.is_checked:
        more = "1 more variant is" if summary.unready == 1 else f"{summary.unready} more variants are"
        explain = f"pvbus explain {Target(asked.kind, asked.key).arguments}"
        yield f"{more} not ready, and may get a draft: {explain}"
    if move is APPROVE and summary.others["Draft"]:
        drafts = _counted(summary.others["Draft"], PROPOSE)
        yield f"{drafts} not proposed: pvbus propose {asked.arguments}{asked.hints}"
    if not summary.total:
        found = f"; there are {others}" if others else ", nor any other package revision"
        yield f"nothing to {move.verb}: {asked.key} has no {move.noun} here{found}"
        return
    words = f"would {move.verb}" if asked.dry_run else move.past
    yield f"{words} {done} of {summary.total} {move.noun}s of {asked.key}"
    if summary.interrupted:
        yield f"interrupted: {_counted(summary.left, move)} not begun; the same command goes on with them"
    if done and move is PROPOSE and not asked.dry_run:
        yield f"to publish them: pvbus approve {asked.arguments}{asked.hints}"


def _counted(count: int, move: Move) -> str:
    return f"1 {move.noun}" if count == 1 else f"{count} {move.noun}s"
