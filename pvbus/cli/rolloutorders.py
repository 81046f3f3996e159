"""`pvbus rollout pause`, `resume`, `approve`, `promote`, `abort`, `roll-back`, `restart` and `excuse`.

Each writes an annotation of the RolloutPolicy, which the service rollout follows. `kubectl annotate` with the
same value does the same.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec

from pvbus.cli.fleet import annotate, existing, kubeconfig_option, run_connected
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import counted
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutdocument import POLICY
from pvbus.core.api.rollouts import CanaryExcuse, RolloutPolicy, TargetCounts
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import rules_of
from pvbus.core.promotion.protocol.validation import validate_policy
from pvbus.core.promotion.rollout.commanding import (
    ABORT,
    APPROVE,
    EXCUSE,
    PAUSE,
    PROMOTE,
    RESTART,
    RESUME,
    ROLL_BACK,
    excuses_of,
)
from pvbus.core.promotion.rollout.waiting import release_waits
from pvbus.ports.cluster import Cluster, Kind, Object

ADVANCING = (RolloutState.ROLLING, RolloutState.HOLDING)
ABORTABLE = (*ADVANCING, RolloutState.STOPPED)
UNDOABLE = (
    *ABORTABLE,
    RolloutState.ISOLATING,
    RolloutState.COMPLETED,
    RolloutState.ABORTED,
    RolloutState.SUPERSEDED,
)


_WITHOUT = ", and nothing of it is quarantined"
REVIEW = Kind("authentication.k8s.io", "SelfSubjectReview")
REASON_CHARACTERS_MAX = 500
"""The annotation and the history have the reasons of all canaries: both stay small."""


class Order(NamedTuple):
    """What a command writes.

    annotations: the annotations to set, None to remove one; empty if there is nothing to do
    words: what to print afterwards
    question: what a person confirms first, "" for nothing
    """

    annotations: Mapping[str, str | None]
    words: str
    question: str = ""


policy_argument = object_argument("[KIND] NAME", (POLICY,))


def policy_named(words: Sequence[str], scope: Scope) -> Key:
    """Return the key of the policy that a command line names. Raises UsageError."""
    return named(words, (POLICY,), scope).key


# ------------------------------------------------------------ decisions


def pause(policy: RolloutPolicy, key: Key) -> Order:
    if policy.metadata.annotations.get(PAUSE, "false") != "false":
        return Order({}, f"{key} is paused already")
    return Order(
        {PAUSE: "true"},
        f"{key} is paused: nothing more is approved or rolled back; what was ordered goes on. To go on: "
        f"pvbus rollout resume {key}",
    )


def resume(policy: RolloutPolicy, key: Key) -> Order:
    annotations: dict[str, str | None] = {}
    words = []
    if policy.metadata.annotations.get(PAUSE, "false") != "false":
        annotations[PAUSE] = None
        words.append("is no longer paused")
    status = policy.status
    value = f"{status.attempt}.{status.stops}"
    if status.phase == RolloutState.STOPPED and policy.metadata.annotations.get(RESUME) == value:
        words.append(f"is resumed already after the stop of attempt {status.attempt}")
    elif status.phase == RolloutState.STOPPED:
        failing = (status.targets or TargetCounts()).failing
        annotations[RESUME] = value
        words.append(
            f"goes on with attempt {status.attempt}: {counted(failing, 'target')} may fail, one more stops it"
            + "".join(f"; it waits for {each}" for each in release_waits(key, policy))
        )
    if not words:
        raise PermanentError(f"{key} is neither paused nor stopped: {_standing(policy)}")
    return Order(annotations, f"{key} {', and '.join(words)}")


def approve(policy: RolloutPolicy, key: Key) -> Order:
    _check_spec(policy, key)
    rules, status = rules_of(policy.spec), policy.status
    wave = rules.waves[min(max(status.wave, 1), len(rules.waves)) - 1]
    is_start = status.phase == RolloutState.ROLLING and status.wave == 1 and rules.needs_start
    is_end = status.phase == RolloutState.HOLDING and wave.needs_person
    if not (is_start or is_end):
        hint = ""
        if status.phase == RolloutState.ROLLING:
            hint = "; a person is asked when all targets of the wave are proven"
        elif status.phase == RolloutState.HOLDING:
            hint = (
                "; this wave waits for no person: pvbus rollout promote goes on without its hold and checks"
            )
        raise PermanentError(f"{key} waits for no approval: {_standing(policy)}{hint}")
    value = f"{status.attempt}.{0 if is_start else status.wave}"
    what = "its first wave may begin" if is_start else f"wave {status.wave} has proven good"
    if policy.metadata.annotations.get(APPROVE) == value:
        return Order({}, f"{key}: it is approved already that {what} (attempt {status.attempt})")
    asked = [check.person.question for check in wave.checks if check.person is not None and is_end]
    question = f"{' '.join(asked)} Approve that {what} ({_standing(policy)})?".strip()
    return Order({APPROVE: value}, f"{key}: approved that {what} (attempt {status.attempt})", question)


def promote(policy: RolloutPolicy, key: Key, reason: str = "") -> Order:
    _check_spec(policy, key)
    counts = _in(policy, key, ADVANCING, "nothing is being approved")
    return _of_attempt(
        policy,
        key,
        PROMOTE,
        f"approves the rest at once{', in denied times, too' if reason else ', but not in denied times'}",
        f"Approve the other {counted(counts.waiting, 'target')} "
        "without hold times, windows, checks and persons?",
        reason,
    )


def abort(policy: RolloutPolicy, key: Key, reason: str = "") -> Order:
    counts = _in(
        policy,
        key,
        (*ABORTABLE, *((RolloutState.ISOLATING,) if reason else ())),
        "there is nothing to abort",
    )
    published = counts.in_flight + counts.proven + counts.failing
    return _of_attempt(
        policy,
        key,
        ABORT,
        f"is aborted{_WITHOUT if reason else ''}",
        f"Abort it? {counted(counts.waiting, 'target')} will not get their revision, "
        f"up to {published} keep it.",
        reason,
    )


def roll_back(policy: RolloutPolicy, key: Key, reason: str = "") -> Order:
    counts = _in(policy, key, UNDOABLE, "there is nothing to roll back")
    published = counts.in_flight + counts.proven + counts.failing
    return _of_attempt(
        policy,
        key,
        ROLL_BACK,
        f"is rolled back{_WITHOUT if reason else ''}",
        f"Publish the last good revision of up to {counted(published, 'target')} again?",
        reason,
    )


def restart(policy: RolloutPolicy, key: Key) -> Order:
    if not policy.status.attempt:
        raise PermanentError(f"there was no attempt of {key} yet")
    value = str(policy.status.attempt)
    if policy.metadata.annotations.get(RESTART) == value:
        return Order({}, f"{key}: what attempts up to {value} did not prove may be tried again already")
    return Order({RESTART: value}, f"{key}: what attempts up to {value} did not prove is tried again")


def excuse(canary: str, reason: str, by: str, at: str) -> "Decision":
    """Return the decision to go without a canary in one attempt."""

    def decide(policy: RolloutPolicy, key: Key) -> Order:
        status, annotations = policy.status, policy.metadata.annotations
        if canary not in policy.spec.canaries:
            known = ", ".join(policy.spec.canaries) or "none"
            raise PermanentError(f'{key} has no canary "{canary}"; its canaries: {known}')
        if not status.phase:
            raise PermanentError(f"{key}: {_standing(policy)}")
        is_running = status.phase in ABORTABLE
        attempt = status.attempt if is_running else status.attempt + 1
        given = excuses_of(annotations)
        if annotations.get(EXCUSE) and not given:
            raise PermanentError(f"{key}: the annotation {EXCUSE} cannot be read: mend or remove it")
        if any((each.attempt, each.canary) == (attempt, canary) for each in given):
            return Order({}, f"{key}: attempt {attempt} goes without canary {canary} already")
        new = CanaryExcuse(attempt=attempt, canary=canary, reason=reason, by=by, at=at)
        current = [each for each in given if each.attempt >= status.attempt]
        words = f"{key}: attempt {attempt} goes without canary {canary}"
        if status.phase == RolloutState.STOPPED:
            words += f"; it is stopped still: pvbus rollout resume {key}"
        return Order({EXCUSE: msgspec.json.encode([*current, new]).decode()}, words)

    return decide


def _of_attempt(
    policy: RolloutPolicy, key: Key, name: str, done: str, question: str, reason: str = ""
) -> Order:
    """Return the order of an annotation. reason: why, where the annotation has that; an order that was given
    with a reason stands without one, too."""
    attempt, given = str(policy.status.attempt), policy.metadata.annotations.get(name, "")
    value = f"{attempt}: {reason}" if reason else attempt
    if given == value or (not reason and given.partition(": ")[0] == attempt):
        return Order({}, f"{key}: this is ordered already for attempt {attempt}")
    words = f"{key}: attempt {attempt} {done}{reason and f': {reason}'}"
    return Order({name: value}, words, f"{key}: {_standing(policy)}. {question}")


def _in(policy: RolloutPolicy, key: Key, phases: tuple[RolloutState, ...], words: str) -> TargetCounts:
    if policy.status.phase not in phases:
        raise PermanentError(f"{key}: {words}: {_standing(policy)}")
    return policy.status.targets or TargetCounts()


def _check_spec(policy: RolloutPolicy, key: Key) -> None:
    if problems := validate_policy(policy.spec):
        raise PermanentError(f"{key} is not accepted, and approves nothing: {'; '.join(problems)}")


def _standing(policy: RolloutPolicy) -> str:
    status = policy.status
    if not status.phase:
        return "the service rollout has not seen it: pvbus up --promote, or pvbus install --add promotion"
    if not status.attempt:
        return "it has planned nothing yet"
    return f"attempt {status.attempt} is {status.phase} in wave {status.wave}"


# ------------------------------------------------------------ commands

Decision = Callable[[RolloutPolicy, Key], Order]


async def read_order(cluster: Cluster, decide: Decision, key: Key) -> tuple[Object, Order]:
    """Read a policy; return it with the order for it as it is now. Raises PermanentError."""
    found = await existing(cluster, POLICY, key)
    return found, decide(msgspec.convert(found, RolloutPolicy), key)


async def carry_out(
    cluster: Cluster, decide: Decision, key: Key, confirm: Callable[[str], bool] = lambda _: True
) -> str:
    """Read a policy, decide, ask, and write; return what to say. Raises PermanentError."""
    _, order = await read_order(cluster, decide, key)
    if not order.annotations:
        return order.words
    if order.question and not confirm(order.question):
        raise PermanentError(f"{key}: nothing was ordered")
    return await write_order(cluster, decide, key, order)


async def write_order(cluster: Cluster, decide: Decision, key: Key, order: Order) -> str:
    """Write an order that a person has confirmed, if it is still the one. Raises PermanentError."""
    policy, now = await read_order(cluster, decide, key)  # a person may have thought for long
    if now.annotations != order.annotations:
        raise PermanentError(f"{key} has changed meanwhile, and nothing was ordered: look again")
    await annotate(cluster, POLICY, policy, order.annotations)
    return order.words


async def user_name(cluster: Cluster) -> str:
    """Return who the API server takes us for, "" if it does not say."""
    resource = await cluster.resource(REVIEW)
    if resource is None:
        return ""
    asked = {"apiVersion": resource.api_version, "kind": REVIEW.kind, "metadata": {}}
    try:
        review = await cluster.create(resource, asked)
    except PermanentError:
        return ""
    return str(((review.get("status") or {}).get("userInfo") or {}).get("username") or "")


def is_terminal() -> bool:
    return sys.stdin.isatty()


def _confirm(question: str) -> bool:
    if not is_terminal():
        raise UsageError(f"cannot ask here, as this is no terminal: {question} Add --yes to confirm")
    return click.confirm(question)


def _command(name: str, decide: Decision, short: str, text: str, example: str) -> click.Command:
    def run(
        words: tuple[str, ...], namespace: str | None, kubeconfig: str | None, data: str, **options: Any
    ) -> None:
        confirm = (lambda _: True) if options.get("yes") else _confirm
        key = policy_named(words, Scope(namespace, data, kubeconfig))
        reason = (options.get("reason") or "").strip()
        if len(reason) > REASON_CHARACTERS_MAX:
            raise UsageError(f"--reason: say why, in at most {REASON_CHARACTERS_MAX} characters")
        if name in SPARING and bool(reason) is not bool(options["no_quarantine"]):
            raise UsageError("--no-quarantine and --reason go together: say why, for those who read it later")

        async def work(cluster: Cluster) -> str:
            by = await user_name(cluster) if name in SPARING and reason else ""
            given = {"reason": f"{reason} (by {by})" if by else reason} if reason else {}
            return await carry_out(cluster, partial(decide, **given), key, confirm)

        click.echo(asyncio.run(run_connected(data, kubeconfig, work)))

    options: list[click.Parameter] = []
    if name in ASKING:
        options.append(click.Option(["-y", "--yes"], is_flag=True, help="Do not ask."))
    if decide is promote:
        options.append(click.Option(["--reason"], help="Why in a time of spec.denyWindows, too; recorded."))
    if name in SPARING:
        words = "Quarantine nothing of the attempt: what it brought is sound."
        options.append(click.Option(["--no-quarantine"], is_flag=True, help=words))
        options.append(click.Option(["--reason"], help="Why nothing is quarantined; recorded."))
    command = click.Command(
        name,
        callback=run,
        params=options,
        help=text,
        short_help=short,
        epilog=f"\b\nExamples:\n  {example}\n\n"
        "Exit codes: 0 done (also if it was so before); 1 it does not fit the rollout as it is, or there is "
        "no such policy; 2 bad usage.",
    )
    for option in (data_option, kubeconfig_option, namespace_option, policy_argument):
        command = option(command)
    return command


@click.command(
    "excuse",
    short_help="Go without a canary in one attempt.",
    epilog="""\b
Examples:
  pvbus rollout excuse default/web web-edge-asia-asia-01-web --reason "its site is closed until May"

Exit codes: 0 done (also if it was so before); 1 there is no such policy or canary; 2 bad usage.
""",
)
@object_argument("[KIND] NAME CANARY", (POLICY,))
@namespace_option
@click.option("--reason", required=True, help="Why, for those who read the history.")
@kubeconfig_option
@data_option
def excuse_command(
    words: tuple[str, ...], namespace: str | None, reason: str, kubeconfig: str | None, data: str
) -> None:
    """Let the attempt that runs, or else the next one, go on without a canary that cannot be proven.

    The history of the policy has the reason, who gave it, and when. Later attempts wait for the canary again.
    If it comes back it is approved with the others, and nothing waits for it. An attempt that stopped as the
    canary failed needs `pvbus rollout resume`, which accepts the canary, too.
    """
    _, key, rest = named(words, (POLICY,), Scope(namespace, data, kubeconfig), rest_max=1)
    if not rest:
        raise UsageError(f"{key}: name the canary, too: that of spec.canaries")
    if not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise UsageError(f"--reason: say why, in at most {REASON_CHARACTERS_MAX} characters")
    at = timestamp(time.time())

    async def write(cluster: Cluster) -> str:
        by = await user_name(cluster)
        return await carry_out(cluster, excuse(rest[0], reason.strip(), by, at), key)

    click.echo(asyncio.run(run_connected(data, kubeconfig, write)))


ASKING = ("approve", "promote", "abort", "roll-back", "restart")
SPARING = ("abort", "roll-back")

ORDERS: Mapping[str, Decision] = {
    "pause": pause,
    "resume": resume,
    "approve": approve,
    "promote": promote,
    "abort": abort,
    "roll-back": roll_back,
    "restart": restart,
}
"""What decides on each order that needs nothing but the policy."""

COMMANDS = (
    _command(
        "pause",
        pause,
        "Order nothing more for now.",
        "Pause a rollout: it orders no approvals and no rollbacks, and no time counts. What was ordered "
        "goes on.",
        "pvbus rollout pause default/web",
    ),
    _command(
        "resume",
        resume,
        "Go on after a pause or a stop.",
        "Let a rollout go on that is paused, or that stopped as too much failed. After a stop the targets "
        "that fail by now are accepted; one more stops it again. It waits until what is quarantined of it is "
        "released.",
        "pvbus rollout resume default/web",
    ),
    _command(
        "approve",
        approve,
        "Answer for a person whom a wave waits for.",
        "Approve that the first wave may begin (policies with approval Manual), or that the wave that is "
        "done has proven good, so that the next one begins.",
        "pvbus rollout approve default/web --yes",
    ),
    _command(
        "promote",
        promote,
        "Approve the rest now.",
        "Approve all other targets of the attempt at once, without hold times, time windows, checks and "
        "persons. The budgets still hold, and so do times of spec.denyWindows, but for --reason.",
        "pvbus rollout promote default/web",
    ),
    _command(
        "abort",
        abort,
        "End the attempt where it is.",
        "End an attempt. Approvals that are on their way are taken back where that is still possible; "
        "targets that have their revision keep it. What failed stays quarantined.",
        "pvbus rollout abort default/web",
    ),
    _command(
        "roll-back",
        roll_back,
        "Publish the last good revisions again.",
        "Publish the last good revision of each target of the attempt again, in the same waves. Targets that "
        "had none keep what they have. What the attempt brought is quarantined first.",
        "pvbus rollout roll-back default/web",
    ),
    _command(
        "restart",
        restart,
        "Try again what was not proven.",
        "Let content be planned again that an earlier attempt did not prove, for example because of a reason "
        "outside of the packages.",
        "pvbus rollout restart default/web",
    ),
    excuse_command,
)
