"""`pvbus propose`, `approve` and `reject`: the lifecycle of a whole set's drafts.

kubectl and porchctl do the same for one package revision.
"""

import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.fleet import (
    Target,
    kubeconfig_option,
    run_connected,
)
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.proposalmoves import Asked, Plan, Result, Summary, carry_out, plan_moves, summary_of
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutorders import REASON_CHARACTERS_MAX
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.promotion.protocol.proposals import (
    APPROVE,
    PROPOSE,
    REJECT,
    Move,
)

SHOWN_MAX = 20
INTERRUPTED = 130
KINDS = (SET, VARIANT)
"""What the commands take; a name without a kind is a set's."""

Command = Callable[..., Any]


def _options(command: Command) -> Command:
    """Add the options that the three commands share."""
    for option in (
        data_option,
        kubeconfig_option,
        click.option("-o", "--output", type=click.Choice(FORMATS), default="text"),
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
    if output != "text":
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
