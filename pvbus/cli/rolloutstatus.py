"""`pvbus rollout status` and `history`: how a rollout stands, what it waits for, and how attempts ended."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from pvbus.cli.fleet import api_server, existing, kubeconfig_option
from pvbus.cli.objectnames import Scope, namespace_option
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import bus_option, data_option
from pvbus.cli.rolloutdocument import POLICY, Document, left_out_lines
from pvbus.cli.rolloutorders import policy_argument, policy_named
from pvbus.cli.rolloutrows import Rows, rows_of
from pvbus.cli.stops import lines_of as lines_of_stops
from pvbus.cli.stops import read_stops
from pvbus.core.api.rollouts import CanaryExcuse, PastAttempt, RolloutPolicy
from pvbus.core.api.stops import RolloutStop
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import SEPARATOR
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.turn import ENDED, SUPERSEDED_MAX
from pvbus.core.promotion.protocol.units import units
from pvbus.core.promotion.protocol.validation import validate_policy
from pvbus.core.promotion.rollout.commanding import commands_of
from pvbus.core.promotion.rollout.waiting import waits_of
from pvbus.core.web.rollouts import head_of
from pvbus.telemetry.terminal import one_line

WATCH_SECONDS = 2.0
LIMIT = 20
TARGET_COLUMNS = ("TARGET", "WAVE", "STATE", "REVISION", "WHY")
HISTORY_COLUMNS = ("ATTEMPT", "PHASE", "WAVE", "STARTED", "ENDED", "TARGETS", "WHY")


@click.command(
    "status",
    short_help="Show how a rollout stands, and what it waits for.",
    epilog="""\b
Examples:
  pvbus rollout status default/web                     of `pvbus up`
  pvbus rollout status default/web --watch
  pvbus rollout status default/web --state failed --state refused
  pvbus rollout status default/web --kubeconfig ~/.kube/config --bus kafka://kafka:9092

Exit codes: 0 shown; 1 there is no such policy; 2 bad usage.
""",
)
@policy_argument
@namespace_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in TargetState]),
    help="List the targets in this state. Repeatable. The default is those in flight and those that fail.",
)
@click.option("--limit", default=LIMIT, show_default=True, help="Targets of a page; 0 for all.")
@click.option("--continue", "token", default="", help="The token of the page before.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
@bus_option
def status(
    words: tuple[str, ...],
    namespace: str | None,
    states: Sequence[str],
    limit: int,
    token: str,
    watch: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
    bus: str | None,
) -> None:
    """Show the attempt, its wave, the targets that are in flight or fail, and what the wave waits for.

    The counts are those of the policy's status. The targets are on the bus: without it (--data or --bus) the
    rest is shown.
    """
    key = policy_named(words, Scope(namespace, data, kubeconfig))
    wanted = frozenset(map(TargetState, states)) or SHOWN

    async def show() -> None:
        while True:
            document = await _read(key, kubeconfig, data, bus, wanted, limit, token)
            if watch and output == "text":
                click.clear()
            emit(document, output) if output != "text" else _print(document)
            if not watch:
                return
            await asyncio.sleep(WATCH_SECONDS)

    asyncio.run(show())


SHOWN = frozenset(
    {
        TargetState.ORDERED,
        TargetState.CANCELLING,
        TargetState.APPROVED,
        TargetState.FAILED,
        TargetState.SILENT,
        TargetState.REFUSED,
        TargetState.UNDOING,
        TargetState.STRANDED,
    }
)


UNPROVEN = (TargetState.PLANNED, TargetState.APPROVED, TargetState.FAILED, TargetState.SILENT)
"""A target in such a state may lack evidence."""


@click.command(
    "history",
    short_help="Show the last attempts of a policy.",
    epilog="""\b
Examples:
  pvbus rollout history default/web
  kubectl get rolloutpolicy -n default web -o jsonpath='{.status.history}'

Exit codes: 0 shown; 1 there is no such policy; 2 bad usage.
""",
)
@policy_argument
@namespace_option
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
def history(
    words: tuple[str, ...], namespace: str | None, output: str, kubeconfig: str | None, data: str
) -> None:
    """Show when each of the last attempts began and ended, how, and with how many targets."""
    key = policy_named(words, Scope(namespace, data, kubeconfig))
    attempts = asyncio.run(_policy(key, kubeconfig, data))[0].status.history
    if output != "text":
        emit([msgspec.to_builtins(each) for each in attempts], output)
    elif attempts:
        columns(HISTORY_COLUMNS, map(_attempt_line, attempts))
    else:
        click.echo(f"there was no attempt of {key} yet")


# ------------------------------------------------------------ reading


async def _policy(key: Key, kubeconfig: str | None, data: str) -> tuple[RolloutPolicy, list[RolloutStop]]:
    async with api_server(data, kubeconfig) as cluster:
        policy = msgspec.convert(await existing(cluster, POLICY, key), RolloutPolicy)
        try:
            return policy, await read_stops(cluster)
        except PermanentError:  # the condition of the policy names the stop to a user without the right
            return policy, []


async def _read(
    key: Key,
    kubeconfig: str | None,
    data: str,
    bus_url: str | None,
    wanted: frozenset[TargetState],
    limit: int,
    token: str,
) -> Document:
    policy, stops = await _policy(key, kubeconfig, data)
    known = await rows_of(data, kubeconfig, bus_url, key)
    rows, missing = (None, known) if isinstance(known, str) else (known, "")
    found = document_of(
        key, policy, rows, time.time(), wanted=wanted, limit=limit, token=token, missing=missing
    )
    return {"stops": lines_of_stops(stops), **found}


# ------------------------------------------------------------ the document


def document_of(
    key: Key,
    policy: RolloutPolicy,
    rows: Rows | None,
    now: float,
    *,
    wanted: frozenset[TargetState] = SHOWN,
    limit: int = LIMIT,
    token: str = "",
    missing: str = "",
) -> Document:
    """Return the progress of a rollout.

    rows: what the bus has of it, None without a bus
    wanted: the states of the targets to list
    limit: the most targets to list, 0 for all
    token: of the page before, "" for the first page
    missing: why there is no bus, "" with one
    Raises UsageError if the token is of another attempt.
    """
    status = policy.status
    commands, problems = commands_of(policy.metadata.annotations)
    problems = [*validate_policy(policy.spec), *problems]
    rollout = rows.rollout if rows is not None else None
    waits = [] if validate_policy(policy.spec) else list(waits_of(key, policy, rollout, now))
    document: Document = {
        "policy": str(key),
        **head_of(policy, commands),
        "conditions": [msgspec.to_builtins(condition) for condition in status.conditions],
        "problems": problems,
        "waitsFor": waits,
        "excused": [msgspec.to_builtins(each) for each in _attempt(policy).excused],
        "quarantines": list(_attempt(policy).quarantines),
        "notQuarantined": _attempt(policy).not_quarantined,
        "superseded": status.superseded,
        "newer": list(status.newer) if status.phase not in ENDED else [],
        "missing": missing,
    }
    if rows is None:
        return document
    after = _position_in(token, rows.rollout.attempt)
    targets = [row for row in _listed(rows, wanted) if row.position > after]
    shown = limit or None
    page = targets[:shown]
    document["targets"] = [_target(row, rows.candidates.get(row.target)) for row in page]
    document["targetsMore"] = len(targets) - len(page)
    document["continue"] = f"{rows.rollout.attempt}.{page[-1].position}" if len(page) < len(targets) else ""
    candidates = rows.candidates.items() if not token else ()
    left_out = sorted((name, row) for name, row in candidates if row.reason and not row.winner)
    document["leftOut"] = [
        {"target": name, "revision": row.revision, "reason": row.reason, "message": row.message}
        for name, row in left_out[:shown]
    ]
    document["leftOutMore"] = len(left_out) - len(document["leftOut"])
    return document


def _position_in(token: str, attempt: int) -> int:
    """Return the position after which a page begins."""
    if not token:
        return -1
    number, _, position = token.partition(".")
    if number != str(attempt) or not position.isdecimal():
        raise UsageError(f"--continue {token}: it is of no page of attempt {attempt}: begin without it")
    return int(position)


def _listed(rows: Rows, wanted: frozenset[TargetState]) -> list[Target]:
    """Return the targets in a state, and of a train that has one all members, in the order of the rollout."""
    current = (row for row in rows.targets.values() if row.attempt == rows.rollout.attempt)
    return [
        row
        for members in units(current).values()
        if any(member.state in wanted for member in members)
        for row in members
    ]


def _attempt(policy: RolloutPolicy) -> PastAttempt:
    """Return the current attempt as the history has it."""
    history = policy.status.history
    return history[-1] if history and history[-1].attempt == policy.status.attempt else PastAttempt()


def without(excuse: CanaryExcuse) -> str:
    """Say which canary an attempt goes without, why, and who said so."""
    by = f" (by {excuse.by} at {excuse.at})" if excuse.by else ""
    return f"without canary {excuse.canary}{by}: {excuse.reason}"


def _target(row: Target, candidate: CandidateRow | None) -> Document:
    why = row.why
    if candidate is not None and row.state in (TargetState.REFUSED, TargetState.STRANDED):
        why = candidate.failure or row.why
    elif candidate is not None and row.state in UNPROVEN:
        why = SEPARATOR.join(filter(None, (candidate.verdict, row.evidence)))
    return {
        "target": row.target,
        "unit": row.unit,
        "rides": row.rides,
        "wave": row.wave,
        "state": row.state.value,
        "revision": row.revision,
        "why": why,
    }


# ------------------------------------------------------------ text


def _print(document: Document) -> None:
    for line in lines_of(document):
        click.echo(line)
    if document.get("targets"):
        columns(
            TARGET_COLUMNS,
            (
                [_named(each), str(each["wave"]), each["state"], each["revision"], each["why"] or "-"]
                for each in document["targets"]
            ),
        )
        if document["targetsMore"]:
            click.echo(
                f"and {document['targetsMore']} more: the same command with --continue "
                f"{document['continue']} (--limit 0 lists all)"
            )
    for _, words in left_out_lines(document.get("leftOut", ())):
        click.echo(f"left out: {one_line(words)}")
    if document.get("leftOutMore"):
        click.echo(f"left out: {document['leftOutMore']} more (--limit 0 lists all)")


def _named(target: Document) -> str:
    """Return a target with the unit that it is a member of."""
    rides = ", rides" if target["rides"] else ""
    return f"{target['target']} (train {target['unit']}{rides})" if target["unit"] else str(target["target"])


def lines_of(document: Document) -> Iterator[str]:
    """Yield the lines above the table of targets."""
    yield from map(one_line, document.get("stops", ()))
    yield f"RolloutPolicy {document['policy']}: {document['standing']}"
    for problem in document["problems"]:
        yield f"  wrong: {one_line(problem)}"
    counts = document["counts"]
    if counts.get("total"):
        parts = [f"{counts[name]} {words}" for name, words in _COUNTS if counts.get(name)]
        yield f"  {counts['total']} targets: {', '.join(parts) or 'none is planned'}"
    said: list[str] = []
    for each in document["conditions"]:
        if message := one_line(each.get("message", "")):
            words = unsaid(message, said)
            said.append(message)
            yield f"  {each['type']} is {each['status']} ({each['reason']}): {words}"
    for each in document["excused"]:
        yield f"  goes on {one_line(without(msgspec.convert(each, CanaryExcuse)))}"
    for name in document["quarantines"]:
        yield f"  quarantined what it brought: {name}"
    if document["notQuarantined"]:
        yield f"  quarantined nothing: {one_line(document['notQuarantined'])}"
    if document["superseded"]:
        after = (
            "this one finishes" if document["superseded"] >= SUPERSEDED_MAX else "after three one finishes"
        )
        yield f"  superseded in a row: {document['superseded']} ({after})"
    if document["newer"]:
        ends = f"pvbus rollout abort {document['policy']} ends it now"
        yield f"  {', '.join(document['newer'])} waits for the end of attempt {document['attempt']}: {ends}"
    for words in map(one_line, document["waitsFor"]):
        if not any(words.partition(": ")[2] in each for each in said):
            yield f"  waits for {words}"
    if document["missing"]:
        yield f"  {one_line(document['missing'])}"


def unsaid(message: str, said: Sequence[str]) -> str:
    """Return a message without its end where that was said in a line above."""
    former = next((each for each in said if message != each and message.endswith(each)), "")
    return f"{message.removesuffix(former).rstrip(': ')}, as said above" if former else message


_COUNTS = (
    ("waiting", "wait"),
    ("inFlight", "in flight"),
    ("proven", "proven"),
    ("failing", "failing"),
    ("rolledBack", "rolled back"),
    ("unproven", "published and unproven"),
    ("left", "left the plan"),
)


def _attempt_line(each: PastAttempt) -> Sequence[Any]:
    counts = each.targets
    targets = "-"
    if counts is not None:
        targets = f"{counts.proven} of {counts.total} proven"
        targets += f", {counts.rolled_back} rolled back" if counts.rolled_back else ""
    reasons = [f"{each.reason}: {each.message}"] if each.reason else []
    reasons += [f"quarantined: {', '.join(each.quarantines)}"] if each.quarantines else []
    reasons += [f"not quarantined: {each.not_quarantined}"] if each.not_quarantined else []
    reasons += [f"skipped: {', '.join(each.skipped)}"] if each.skipped else []
    why = "; ".join([*reasons, *map(without, each.excused)]) or "-"
    return [
        str(each.attempt),
        each.phase,
        "-" if each.phase == RolloutState.ROLLED_BACK else str(each.wave),
        each.started_at,
        each.ended_at or "-",
        targets,
        why,
    ]
