"""What a person can do on the web page. Each action is a command of pvbus, and runs by that command's code.

An action looks first: it returns the question, and what it would do. The page sends it again with `seen`, the
digest of what the person was shown, and it is carried out only if that is still so.
"""

import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec

from pvbus.cli import confirm, conflicts, proposalmoves, proposals, retry, settling, stops, task
from pvbus.cli.condition import check_content, readiness_line
from pvbus.cli.diff import settle
from pvbus.cli.fleet import Target, existing, silent, variants_of
from pvbus.cli.holding import put_on_hold, take_off_hold
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import typed
from pvbus.cli.output import counted
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.quarantines import end_quarantine
from pvbus.cli.rolloutorders import ORDERS, REASON_CHARACTERS_MAX, promote, read_order, write_order
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.api.stops import RolloutStop, words_of
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import HOLD, HOLD_REASON, Key, digest
from pvbus.core.kernel.objectrows import QUARANTINE, STOP
from pvbus.core.promotion.protocol.proposals import APPROVE, PROPOSE, REJECT
from pvbus.core.web.conflicts import found_in, group_id, groups_of
from pvbus.core.web.model import Model
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster
from pvbus.runtime.web.server import Hints

LINES_MAX = 20
ObjectName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9.-]{0,252}/[a-z0-9][a-z0-9.-]{0,252}\Z")]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=4_000)]


class Desk(NamedTuple):
    """What actions work with.

    cluster: the API server, as the person's own user
    model: what the page knows of the fleet
    hints: the options of commands for this installation
    """

    cluster: Cluster
    bus: Bus
    model: Model
    hints: Hints


class Outcome(NamedTuple):
    """What an action did.

    ok: whether all of it was done
    resolution: what `Undo` takes back, "" if nothing does
    """

    ok: bool
    lines: tuple[str, ...]
    resolution: str = ""


class Look(NamedTuple):
    """What an action would do.

    run: does exactly that; None if there is nothing to do
    seen: the digest of what it acts on, where that may change
    number: what the person types to confirm it, 0 for nothing
    ok: False if there is nothing to do because it is refused
    """

    question: str
    run: Callable[[], Awaitable[Outcome]] | None
    lines: tuple[str, ...] = ()
    seen: str = ""
    number: int = 0
    ok: bool = True


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", forbid_unknown_fields=True):
    """The base of all.

    seen: that of the `Look` that the person confirms
    typed: the number that the person typed
    """

    seen: Text = ""
    typed: Text = ""

    reads_bus: ClassVar[bool] = False

    def words(self) -> Sequence[str]:
        """Return the arguments of pvbus that do the same."""
        raise NotImplementedError

    async def look(self, desk: Desk) -> Look:
        """Return what it would do. Raises PvbusError, NothingHeldError."""
        raise NotImplementedError

    def command(self, hints: Hints) -> str:
        return shlex.join(["pvbus", *self.words()]) + (hints.bus if self.reads_bus else hints.cluster)


async def carry_out(action: Action, desk: Desk) -> Outcome:
    """Do what a person has seen and confirmed. Raises PvbusError, NothingHeldError."""
    look = await action.look(desk)
    if look.run is None:
        return Outcome(True, look.lines)
    if look.seen != action.seen:
        raise PermanentError("this has changed meanwhile, and nothing was done: look again", reason="Changed")
    if look.number and action.typed.strip() != str(look.number):
        raise UsageError(f"type the number {look.number} to confirm this; nothing was done")
    return await look.run()


# ------------------------------------------------------------ variants and sets


class _OnTarget(Action, frozen=True, kw_only=True):
    kind: Literal["variant", "set"]
    name: ObjectName

    @property
    def target(self) -> Target:
        return Target(SET if self.kind == "set" else VARIANT, Key.parse(self.name))

    def arguments(self) -> list[str]:
        return self.target.arguments.split()

    async def ask(self, desk: Desk, question: str, work: Callable[..., Awaitable[str]], what: Any) -> Look:
        """Return a question about the target, and the work on it, which returns what was done."""
        obj = await existing(desk.cluster, self.target.kind, self.target.key)
        lines: tuple[str, ...] = ()
        if self.kind == "set":
            lines = (f"It has {counted(len(await variants_of(desk.cluster, obj)), 'variant')}.",)

        async def run() -> Outcome:
            return Outcome(True, (await work(desk.cluster, self.target, **what),))

        return Look(question, run, lines)


class Hold(_OnTarget, frozen=True, kw_only=True, tag="hold"):
    reason: Reason = ""

    def words(self) -> Sequence[str]:
        return ["hold", *self.arguments(), *(["--reason", self.reason] if self.reason else [])]

    async def look(self, desk: Desk) -> Look:
        annotations = {HOLD: "true", **({HOLD_REASON: self.reason} if self.reason else {})}
        question = f"Put {self.target} on hold? The services write nothing for it then."
        return await self.ask(desk, question, put_on_hold, {"annotations": annotations})


class Unhold(_OnTarget, frozen=True, kw_only=True, tag="unhold"):
    def words(self) -> Sequence[str]:
        return ["unhold", *self.arguments()]

    async def look(self, desk: Desk) -> Look:
        question = f"Take {self.target} off hold? The services do what has become due meanwhile."
        return await self.ask(desk, question, take_off_hold, {})


class Retry(_OnTarget, frozen=True, kw_only=True, tag="retry"):
    failing: bool = False

    def words(self) -> Sequence[str]:
        return ["retry", *self.arguments(), *(["--failing"] if self.failing else [])]

    async def look(self, desk: Desk) -> Look:
        if self.failing and self.kind != "set":
            raise UsageError("only of a set, those that are not ready can be chosen")
        look = await self.ask(desk, f"Try {self.target} again now?", _no_text, {})
        return look._replace(run=partial(self._run, desk))

    async def _run(self, desk: Desk) -> Outcome:
        work = retry.retry_variants(desk.cluster, self.target, failing=self.failing, progress=silent)
        outcomes, _ = await work
        lines = tuple(retry.outcome_lines(self.target, outcomes, failing=self.failing))
        return Outcome(bool(not outcomes or outcomes["asked"] or outcomes["rendered"]), lines)


async def _no_text(*_: Any) -> str:
    return ""


# ------------------------------------------------------------ lifecycles


class Move(_OnTarget, frozen=True, kw_only=True, tag="move"):
    """A change of lifecycle of a variant's revision, or of those of a set.

    overrides: whether the person says, after the question, why quarantines and stops do not keep them
    override: why
    """

    move: Literal["propose", "approve", "reject"]
    selector: Text = ""
    overrides: bool = False
    override: Reason = ""

    def words(self) -> Sequence[str]:
        named = ["--set", self.name] if self.kind == "set" else [typed(VARIANT, Key.parse(self.name))]
        passes = ["--override", self.override or "REASON"] if self.overrides else []
        return [self.move, *named, *(["-l", self.selector] if self.selector else []), *passes]

    def asked(self, hints: Hints) -> proposalmoves.Asked:
        move = {each.verb: each for each in (PROPOSE, APPROVE, REJECT)}[self.move]
        try:
            parsed = parse_label_selector(self.selector)
        except ValueError as exc:
            raise UsageError(f"{self.selector}: {exc}") from exc
        options = (parsed, self.selector, False, True, hints.cluster, self.target.kind)
        return proposalmoves.Asked(move, self.target.key, *options, override=self.override.strip())

    async def look(self, desk: Desk) -> Look:
        if self.override and not self.overrides:
            raise UsageError("a reason is for what a quarantine or a stop keeps")
        asked = self.asked(desk.hints)
        refused: tuple[str, ...] = ()
        if self.overrides:
            first = await proposalmoves.plan_moves(desk.cluster, asked._replace(override=""))
            refused = _result_lines(first.refused)
            asked = asked._replace(override=asked.override or "asked")
        plan = await proposalmoves.plan_moves(desk.cluster, asked)
        refused = refused or _result_lines(plan.refused)
        if not plan.due:
            summary = proposalmoves.summary_of(plan, [], interrupted=False)
            lines = (*refused, *proposals.summary_lines(asked, summary, 0))
            return Look("", None, lines, ok=not plan.refused)

        async def run() -> Outcome:
            if self.overrides and not self.override.strip():
                raise UsageError("say why it goes out all the same; nothing was done")
            written, interrupted = await proposalmoves.carry_out(desk.cluster, asked, plan, silent)
            summary = proposalmoves.summary_of(plan, written, interrupted=interrupted)
            done = sum(each.outcome == "done" for each in summary.results)
            lines = (*_result_lines(summary.results), *proposals.summary_lines(asked, summary, done))
            return Outcome(proposals.exit_code(summary) == 0, lines)

        seen = digest(sorted(str(Key(each.key.namespace, each.name)) for each in plan.due))
        return Look(proposals.question_of(asked, plan), run, refused, seen)


def _result_lines(results: Sequence[proposalmoves.Result]) -> tuple[str, ...]:
    """Return a line for each of some revisions that were refused or failed."""
    left = sorted(each for each in results if each.outcome != "done")
    lines = [f"{each.variant}: {each.outcome}: {each.message}" for each in left[:LINES_MAX]]
    more = [f"and {len(left) - LINES_MAX} more"] if len(left) > LINES_MAX else []
    return (*lines, *more)


# ------------------------------------------------------------ tasks


class Answer(Action, frozen=True, kw_only=True, tag="answer"):
    """An answer to a task. content: the digest of the draft's files that the page has shown, "" for none"""

    revision: ObjectName
    type: Text
    status: Literal["True", "False"]
    message: Text = ""
    again: bool = False
    content: Text = ""

    def words(self) -> Sequence[str]:
        more = ["--message", self.message] if self.message else []
        more += ["--again"] if self.again else []
        more += ["--content", self.content] if self.content else []
        return ["task", "answer", self.revision, self.type, "--status", self.status, *more]

    async def look(self, desk: Desk) -> Look:
        key = Key.parse(self.revision)
        wanted = task.answer_wanted(key, self.type, self.status, self.message, self.content)
        if wanted.content:
            await check_content(desk.cluster, wanted)
        asked = tasks.of(await existing(desk.cluster, REVISION, key)).tasks.get(self.type)

        async def run() -> Outcome:
            written = await task.write_answer(desk.cluster, wanted, again=self.again)
            words = task.answer_words(written, self.type, self.status)
            return Outcome(True, (f"{key}: {self.type} is {words}", readiness_line(written.revision)))

        lines = (asked.question,) if asked is not None else ()
        return Look(f"Answer {self.type} of {key} with {self.status}?", run, lines, digest(lines))


# ------------------------------------------------------------ conflicts


class Take(Action, frozen=True, kw_only=True, tag="take"):
    """One side's value for all conflicts of a group."""

    group: Text
    side: Literal["local", "upstream"]

    reads_bus: ClassVar[bool] = True

    def words(self) -> Sequence[str]:
        return ["conflicts", "take", self.side, self.group, "-A"]

    async def look(self, desk: Desk) -> Look:
        groups = groups_of(found_in(desk.model.conflicts.items()))
        group = next((each for each in groups if each.id == self.group), None)
        if group is None:
            raise PermanentError("no draft has this conflict any more", reason="Changed")

        async def run() -> Outcome:
            resolution = secrets.token_hex(6)
            work = settling.settle_group(desk.cluster, group, self.side, resolution, group_id, silent)
            results, _ = await work
            trouble = sorted(each for each in results if each.outcome != "done")
            lines = [f"{each.variant}: {each.outcome}: {each.message}" for each in trouble[:LINES_MAX]]
            lines.append(conflicts.changed_words(results, conflicts.undo_words(resolution)))
            return Outcome(not trouble, tuple(lines), resolution if len(trouble) < len(results) else "")

        seen = digest([member.revision for member in group.members])
        lines = tuple(conflicts.preview_lines(group, self.side))
        return Look(conflicts.take_question(group, self.side), run, lines, seen)


class TakeField(Action, frozen=True, kw_only=True, tag="take-field"):
    """One side's value for the conflict in one field of a variant's draft."""

    name: ObjectName
    side: Literal["local", "upstream"]
    field: Text
    file: Text = ""

    def words(self) -> Sequence[str]:
        return ["diff", self.name, "--take", self.side, self.field, *([self.file] if self.file else [])]

    async def look(self, desk: Desk) -> Look:
        key = Key.parse(self.name)
        await existing(desk.cluster, VARIANT, key)

        async def run() -> Outcome:
            words = await settle(desk.cluster, key, self.side, self.field, self.file)
            return Outcome(True, tuple(words.splitlines()))

        return Look(f"Take {self.side}'s value of {self.field} in the draft of {key}?", run)


class Undo(Action, frozen=True, kw_only=True, tag="undo"):
    resolution: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{1,64}\Z")]

    def words(self) -> Sequence[str]:
        return ["conflicts", "undo", self.resolution]

    async def look(self, desk: Desk) -> Look:
        drafts = await settling.read_settled(desk.cluster, self.resolution)
        if not drafts:
            return Look("", None, ("No draft records this resolution: it is published, or was undone.",))

        async def run() -> Outcome:
            results, _ = await settling.undo_all(desk.cluster, drafts, self.resolution, silent)
            lines = [f"{each.variant}: {each.message}" for each in results if each.outcome != "done"]
            lines = [*lines[:LINES_MAX], conflicts.changed_words(results, "their conflicts are open again")]
            return Outcome(all(each.outcome == "done" for each in results), tuple(lines))

        seen = digest(sorted(str(each["metadata"]["name"]) for each in drafts))
        names = sorted(map(settling.variant_of, drafts))
        more = [f"and {len(names) - LINES_MAX} more"] if len(names) > LINES_MAX else []
        lines = (*settling.undo_lines(drafts, self.resolution), *names[:LINES_MAX], *more)
        return Look(f"Open the conflicts of {counted(len(drafts), 'draft')} again?", run, lines, seen)


# ------------------------------------------------------------ removals, rollouts, quarantines


class Confirm(Action, frozen=True, kw_only=True, tag="confirm"):
    """The removals that the guard holds for a set."""

    name: ObjectName

    reads_bus: ClassVar[bool] = True

    def words(self) -> Sequence[str]:
        return ["confirm", self.name]

    async def look(self, desk: Desk) -> Look:
        key = Key.parse(self.name)
        held = await confirm.read_held(desk.bus, key)
        if not held.hold.token:
            raise confirm.NothingHeldError("the list is still being written: try again in a few seconds")

        async def run() -> Outcome:
            return Outcome(True, (await confirm.annotate(desk.cluster, key, held),))

        names = list(held.rows)
        lines = [f"{key.namespace}/{name}" for name in names[:LINES_MAX]]
        lines += [f"and {len(names) - LINES_MAX} more"] if len(names) > LINES_MAX else []
        count = held.hold.count
        return Look(
            f"Delete these {counted(count, 'variant')} of {key}?", run, tuple(lines), held.hold.token, count
        )


class Order(Action, frozen=True, kw_only=True, tag="rollout"):
    """An order to the rollout of a policy."""

    name: ObjectName
    order: Literal["pause", "resume", "approve", "promote", "abort", "roll-back", "restart"]
    reason: Reason = ""

    def words(self) -> Sequence[str]:
        return ["rollout", self.order, self.name, *(["--reason", self.reason] if self.reason else [])]

    async def look(self, desk: Desk) -> Look:
        if self.reason and self.order != "promote":
            raise UsageError(f"{self.order} takes no reason")
        key, decide = Key.parse(self.name), ORDERS[self.order]
        if self.reason:
            decide = partial(promote, reason=self.reason)
        _, order = await read_order(desk.cluster, decide, key)
        if not order.annotations:
            return Look("", None, (order.words,))

        async def run() -> Outcome:
            return Outcome(True, (await write_order(desk.cluster, decide, key, order),))

        question = order.question or f"{self.order.capitalize()} the rollout of {key}?"
        return Look(question, run, (), _order_digest(order.annotations))


def _order_digest(annotations: Any) -> str:
    """Return the digest of an order without its reason, which the person gives after the question."""
    return digest(sorted((name, str(value).partition(":")[0]) for name, value in annotations.items()))


class Lift(Action, frozen=True, kw_only=True, tag="lift"):
    """The end of one entry of a stop of all rollouts."""

    name: ObjectName
    entry: Annotated[str, msgspec.Meta(pattern=r"\A\w[\w.-]{0,252}\Z")]
    reason: Reason = ""

    def words(self) -> Sequence[str]:
        return ["rollout", "lift", self.name, self.entry, "--reason", self.reason or "TEXT"]

    async def look(self, desk: Desk) -> Look:
        key = Key.parse(self.name)
        stop = msgspec.convert(await existing(desk.cluster, STOP, key), RolloutStop)
        lifted = next((each for each in stop.spec.lasting if each.name == self.entry), None)
        if lifted is None:
            return Look("", None, (f"{key} has no entry {self.entry} any more: it was lifted.",))

        async def run() -> Outcome:
            if not self.reason.strip():
                raise UsageError("say why the stop ends; nothing was done")
            words = await stops.lift_as_user(desk.cluster, key, self.entry, self.reason.strip())
            return Outcome(True, (words,))

        question = f"Lift the stop {key}? Rollouts go on when the last one is lifted."
        return Look(question, run, (f"Of {words_of(lifted)}",), digest(words_of(lifted)))


class Release(Action, frozen=True, kw_only=True, tag="release"):
    """The end of a quarantine."""

    name: ObjectName
    reason: Reason = ""

    def words(self) -> Sequence[str]:
        return ["rollout", "release", self.name, "--reason", self.reason or "TEXT"]

    async def look(self, desk: Desk) -> Look:
        key = Key.parse(self.name)
        await existing(desk.cluster, QUARANTINE, key)

        async def run() -> Outcome:
            if not self.reason.strip():
                raise UsageError("say why the quarantine ends; nothing was done")
            return Outcome(True, (await end_quarantine(desk.cluster, key, self.reason.strip()),))

        return Look(f"End the quarantine {key}? What it covers may go out again.", run)


AnyAction = Hold | Unhold | Retry | Move | Answer | Take | TakeField | Undo | Confirm | Order | Lift | Release
