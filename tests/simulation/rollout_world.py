"""A small world around the rollout machine: packages, a release that is late with orders, views that lag.

A world is an immutable value, so that a search can visit each once. A move gives the next world. The
machine's rows are durable: a crash loses nothing but the moves not made yet, so any order of moves has the
crashes in it. `problems` names what no history may lead to; it uses nothing of the machine but its rows.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from pvbus.core.api.quarantines import QuarantinedUpstream, QuarantineSpec
from pvbus.core.api.rollouts import CanaryExcuse, Check, ObjectCheck
from pvbus.core.kernel.rolloutrows import (
    NOTHING,
    Action,
    Answers,
    Approve,
    Ask,
    Commands,
    Evidence,
    Isolate,
    Isolated,
    Restore,
    Rollout,
    Step,
    Target,
    TargetFacts,
    Withdraw,
)
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.limits import NOT_PASSED
from pvbus.core.promotion.protocol.machine import step
from pvbus.core.promotion.protocol.partials import TRAIN_PARTIAL
from pvbus.core.promotion.protocol.proving import NO_EVIDENCE
from pvbus.core.promotion.protocol.rules import Rules, TrainRules, WaveRules
from tests.simulation.rollout_upstream import (
    drafts,
    is_behind,
    is_doubtful,
    is_frozen,
    keeps_proof,
    released,
    wrong_rollback,
    wrong_superseding,
)

NOW = 1_000_000.0
CHECK = Check(name="check", object=ObjectCheck(expression="true"))
TICK_SECONDS = 30.0
IN_FLIGHT = {TargetState.ORDERED, TargetState.CANCELLING, TargetState.APPROVED}
BAD = {TargetState.FAILED, TargetState.REFUSED}
LACKS = (NO_EVIDENCE, NOT_PASSED)
"""Why an attempt stops, without a word against its revision."""
FAILING = {*BAD, TargetState.SILENT}
OUT = {TargetState.LEFT, TargetState.GONE, TargetState.SKIPPED, *FAILING}
TRIED = {TargetState.APPROVED, TargetState.PROVEN, *FAILING}
HAVING = {*TRIED, TargetState.STRANDED} - {TargetState.REFUSED}
UNRESTORED = {*TRIED, TargetState.UNDOING, TargetState.CANCELLING} - {TargetState.REFUSED}
RULES = Rules(
    waves=(WaveRules(percent=0, number=1, hold_seconds=20, checks=(CHECK,)), WaveRules()),
    in_flight_max=1,
    rolls_back=True,
)
WITH_EVIDENCE = RULES._replace(evidence_seconds=TICK_SECONDS)
"""Targets that nothing says anything of are given up after one tick."""
TRAIN = RULES._replace(waves=(WaveRules(),), train=TrainRules(("a", "b"), partial_seconds=TICK_SECONDS))
"""Each two targets are a unit. One that is partial is given up after one tick."""
PATIENT_TRAIN = TRAIN._replace(train=TrainRules(("a", "b"), partial_seconds=20 * TICK_SECONDS))
FINISHING = RULES._replace(finishes=True)
WITH_CANARY = RULES._replace(canaries=("t0",), in_flight_max=2)

STEPS_KEPT = 100_000
"""Steps whose results are kept, each some hundred bytes beside what the worlds hold anyway."""

Rows = tuple[tuple[str, Target], ...]
Move = tuple[str, ...]


class RolloutWorld(NamedTuple):
    """real: the packages. view: what the machine sees of them. orders: what the release last heard.

    approved: (target, attempt) of every approval that was carried out; twice: one was carried out twice.
    by_hand: targets that a person changed. passed: (canary, attempt) of those with which a wave passed.
    quarantines: (attempt, number, spec) of those that last, 0 for a person's; ended: those that do not.
    doomed: targets whose planned revision turns out bad. now: the clock. tricks, ticks: moves of their kind
    that are left. releases: newer upstream revisions that may come. is_mute: nothing is known of the checks.
    """

    rules: Rules
    real: tuple[tuple[str, TargetFacts], ...]
    view: tuple[tuple[str, TargetFacts], ...]
    rollout: Rollout = Rollout()
    rows: Rows = ()
    actions: tuple[Action, ...] = ()
    orders: tuple[Action, ...] = ()
    evidence: tuple[tuple[str, Evidence], ...] = ()
    answers: Answers | None = None
    commands: Commands = Commands()
    approved: frozenset[tuple[str, int]] = frozenset()
    twice: bool = False
    by_hand: frozenset[str] = frozenset()
    passed: frozenset[tuple[str, int]] = frozenset()
    quarantines: tuple[tuple[int, int, QuarantineSpec], ...] = ()
    ended: frozenset[tuple[int, int]] = frozenset()
    isolated: Isolated | None = None
    doomed: frozenset[str] = frozenset()
    now: float = NOW
    tricks: int = 0
    ticks: int = 0
    releases: int = 0
    is_mute: bool = False
    broken: str = ""


def fresh(
    targets: int,
    rules: Rules = RULES,
    *,
    tricks: int = 0,
    ticks: int = 3,
    doomed: Collection[str] = (),
    quarantined: str = "",
    releases: int = 0,
) -> RolloutWorld:
    """Return a world of targets with a published revision v1 and a proposed v2, which nobody has seen yet.

    quarantined: an upstream revision that is from the beginning
    """
    real = tuple(
        (
            f"t{number}",
            TargetFacts(
                "v2",
                f"d2-{number}",
                True,
                "v1",
                f"d1-{number}",
                upstream="p/u@v2",
                source="p/u@v2",
                published_source="p/u@v1",
            ),
        )
        for number in range(targets)
    )
    if rules.train is not None:
        real = tuple((target, _member(facts, number)) for number, (target, facts) in enumerate(real))
    world = RolloutWorld(rules, real, real, tricks=tricks, ticks=ticks, releases=releases)
    world = world._replace(doomed=frozenset(doomed))
    if quarantined:
        world = world._replace(quarantines=((0, 0, _of_upstream(quarantined)),))
    return world._replace(view=tuple((target, shown(world, target, facts)) for target, facts in real))


def _member(facts: TargetFacts, number: int) -> TargetFacts:
    """Return the facts of a target as a member of a train, each member of another package."""
    package = f"p/{'ab'[number % 2]}"
    return facts._replace(
        unit=f"u{number // 2}",
        part=number % 2 + 1,
        upstream=f"{package}@v2",
        source=f"{package}@v2",
        published_source=f"{package}@v1",
    )


def with_rider(world: RolloutWorld, target: str) -> RolloutWorld:
    """Return a world in which a member wants nothing but v1, which is good."""
    facts = dict(world.real)[target]
    facts = facts._replace(
        revision="", digest="", is_proposed=False, is_current=True, source="", upstream=facts.published_source
    )
    good = Evidence(facts.published, facts.published_digest, 0, True)
    return _real(world, target, facts)._replace(
        view=put(world.view, target, facts), evidence=put(world.evidence, target, good)
    )


def _of_upstream(revision: str) -> QuarantineSpec:
    return QuarantineSpec(upstreams=(QuarantinedUpstream(revision=revision),))


def is_covered(world: RolloutWorld, source: str, digest: str) -> bool:
    """Tell whether a quarantine that lasts covers a revision."""
    return any(
        digest in spec.contents or any(each.revision == source for each in spec.upstreams)
        for _, _, spec in world.quarantines
    )


def shown(world: RolloutWorld, target: str, facts: TargetFacts) -> TargetFacts:
    """Return the facts as promote reports them."""
    is_open = is_covered(world, facts.source, facts.digest)
    runs = "q" if is_covered(world, facts.published_source, facts.published_digest) else ""
    is_outdated = is_behind(facts) and not is_frozen(world, target)
    is_proposed = facts.is_proposed and not is_open and not is_outdated
    banned = tuple(
        ("q", *each.upstreams) for _, _, spec in world.quarantines for each in spec.combinations if facts.part
    )
    return facts._replace(is_proposed=is_proposed, is_quarantined=is_open, runs=runs, banned=banned)


def is_barred(world: RolloutWorld, row: Target) -> bool:
    """Tell whether a quarantine that lasts covers the combination of a row."""
    combinations = (each for _, _, spec in world.quarantines for each in spec.combinations)
    return any(set(each.upstreams) <= set(row.combination) for each in combinations)


@lru_cache(maxsize=STEPS_KEPT)
def _step_on(
    rules: Rules,
    rollout: Rollout,
    rows: Rows,
    view: tuple[tuple[str, TargetFacts], ...],
    evidence: tuple[tuple[str, Evidence], ...],
    now: float,
    answers: Answers | None,
    isolated: Isolated | None,
    commands: Commands,
) -> Step:
    """Take a step of the machine, once for all worlds in which it sees the same: it is a pure function."""
    return step(
        rules,
        rollout,
        dict(rows),
        {target: facts for target, facts in view if facts != NOTHING},
        dict(evidence),
        now=now,
        answers=answers,
        isolated=isolated,
        commands=commands,
    )


def stepped(world: RolloutWorld) -> tuple[RolloutWorld, Step]:
    """Let the machine take a step on what it sees."""
    taken = _step_on(
        world.rules,
        world.rollout,
        world.rows,
        world.view,
        world.evidence,
        world.now,
        world.answers,
        world.isolated,
        world.commands,
    )
    rows = {**dict(world.rows), **taken.rows}
    remaining = tuple(sorted((target, row) for target, row in rows.items() if row is not None))
    after = world._replace(rollout=taken.rollout, rows=remaining, actions=taken.actions)
    after = after._replace(broken=_wrong_step(world, after))
    return after._replace(passed=after.passed | _passed_with(world, after)), taken


T = TypeVar("T")


def put(pairs: tuple[tuple[str, T], ...], target: str, value: T) -> tuple[tuple[str, T], ...]:
    return tuple(sorted({**dict(pairs), target: value}.items()))


# ------------------------------------------------------------ moves


def moves(world: RolloutWorld) -> Iterator[tuple[Move, RolloutWorld]]:
    """Yield every move that the world may make, without those of people and of bad luck."""
    after, _ = stepped(world)
    if after != world:
        yield ("step",), after
    if world.orders != world.actions:
        yield ("deliver",), world._replace(orders=world.actions)
    for action in world.orders:
        done = carried_out(world, action)
        if done != world:
            yield ("carry out", type(action).__name__, _object(action)), done
    for (target, seen), (_, facts) in zip(world.view, world.real, strict=True):
        if seen != (current := shown(world, target, facts)):
            yield ("see", target), world._replace(view=put(world.view, target, current))
    for target, facts in drafts(world):
        yield ("propose the newer", target), _real(_unsaid(world, target), target, facts)
    for target, row in world.rows:
        if _is_ours(world, target, row) and not is_doubtful(world, target):
            found = Evidence(row.revision, row.digest, row.attempt, target not in world.doomed)
            if dict(world.evidence).get(target) not in (found, found._replace(is_good=not found.is_good)):
                name = "good" if found.is_good else "bad"
                yield (name, target), world._replace(evidence=put(world.evidence, target, found))
    for target, found in _proofs_of_restored(world):
        if dict(world.evidence).get(target) != found:
            yield ("good again", target), world._replace(evidence=put(world.evidence, target, found))
    if world.releases:
        left = world._replace(real=released(world.real), releases=world.releases - 1)
        yield ("newer upstream",), left
    if world.ticks and world.rollout.seen_at:
        yield ("tick",), world._replace(now=world.now + TICK_SECONDS, ticks=world.ticks - 1)


def _proofs_of_restored(world: RolloutWorld) -> Iterator[tuple[str, Evidence]]:
    """Yield what the clusters say of targets whose former content is published again."""
    for target, row in world.rows if world.rules.is_evidenced else ():
        facts = dict(world.real)[target]
        if row.state is TargetState.UNDOING and facts.published_digest == row.good_digest:
            yield target, Evidence(facts.published, row.good_digest, row.attempt, True)


def tricks(world: RolloutWorld) -> Iterator[tuple[Move, RolloutWorld]]:
    """Yield the moves of people and of bad luck."""
    if not world.tricks:
        return
    left = world._replace(tricks=world.tricks - 1)
    attempt = world.rollout.attempt
    for target, facts in world.real:
        changed = left._replace(by_hand=left.by_hand | {target})
        if facts.is_proposed:
            yield ("withdraw", target), _real(left, target, facts._replace(is_proposed=False))
            newer = f"{facts.source.partition('@')[0]}@v3"
            moved = facts._replace(revision="v3", digest=f"{facts.digest}'", upstream=newer, source=newer)
            yield ("new upstream", target), _real(left, target, moved)
            yield ("refuse", target), _real(left, target, facts._replace(refused=attempt))
            yield ("approve by hand", target), _real(changed, target, _published(facts))
        elif facts.revision and facts.published != facts.revision:
            yield ("propose again", target), _real(left, target, facts._replace(is_proposed=True))
        if facts != NOTHING:
            yield ("delete", target), _real(changed, target, NOTHING)
    for target, row in world.rows:
        if _is_ours(world, target, row):
            bad = Evidence(row.revision, row.digest, row.attempt, False)
            yield ("bad", target), left._replace(evidence=put(left.evidence, target, bad))
        for stale in (
            Evidence(row.revision, row.digest, row.attempt - 1, True),
            Evidence(row.revision, "another", row.attempt, True),
            Evidence(row.good, row.good_digest, row.attempt, True),
        ):
            yield ("stale", target, str(stale)), left._replace(evidence=put(left.evidence, target, stale))
    if world.rollout.ask:
        rollout = world.rollout
        yield ("old answer",), left._replace(answers=Answers(attempt, rollout.wave, rollout.ask - 1, (True,)))
        yield ("failed check",), left._replace(answers=Answers(attempt, rollout.wave, rollout.ask, (False,)))
    yield ("jump ahead",), left._replace(now=world.now + 1e6)
    yield ("jump back",), left._replace(now=world.now - 1e3)
    for name, wanted in (
        ("abort", world.commands._replace(abort=attempt)),
        ("roll back", world.commands._replace(roll_back=attempt)),
        ("roll back what is sound", world.commands._replace(roll_back=attempt, roll_back_reason="sound")),
        ("restart", world.commands._replace(restart=attempt)),
        ("promote", world.commands._replace(promote=attempt)),
    ):
        yield (name,), left._replace(commands=wanted)
    for canary in world.rules.canaries:
        excuse = CanaryExcuse(attempt=attempt or 1, canary=canary, reason="test")
        wanted = world.commands._replace(excuses=(*world.commands.excuses, excuse))
        yield ("excuse", canary), left._replace(commands=wanted)
    if world.quarantines:
        ended = frozenset((number[0], number[1]) for number in world.quarantines)
        yield ("release",), left._replace(quarantines=(), ended=world.ended | ended)
    yield ("quarantine",), left._replace(quarantines=((0, 0, _of_upstream("p/u@v2")), *world.quarantines))
    yield ("pause",), left._replace(commands=world.commands._replace(paused=not world.commands.paused))
    yield ("resume",), left._replace(commands=world.commands._replace(resume=(attempt, world.rollout.stops)))


def carried_out(world: RolloutWorld, action: Action) -> RolloutWorld:
    """Let the release carry out an order that it has heard of: a compare-and-swap on what is really there."""
    if isinstance(action, Ask):
        verdicts = (None if world.is_mute else True,) * len(action.checks)
        return world._replace(answers=Answers(action.attempt, action.wave, action.number, verdicts))
    if isinstance(action, Isolate):
        return _isolated(world, action)
    facts = dict(world.real)[action.target]
    match action:
        case Approve():
            row = dict(world.rows).get(action.target)
            if is_covered(world, facts.source, facts.digest) or (row is not None and is_barred(world, row)):
                return world
            if not facts.is_proposed or (facts.revision, facts.digest) != (action.revision, action.digest):
                return world
            if facts.refused == action.attempt:
                return world
            key = (action.target, action.attempt)
            done = world._replace(approved=world.approved | {key}, twice=key in world.approved)
            return _real(done, action.target, _published(facts))
        case Withdraw():
            return _real(world, action.target, facts._replace(withdrawn=action.attempt))
        case Restore():
            if facts.published_digest == action.digest or facts.published != action.replaces:
                return world
            source = dict(world.rows)[action.target].good_source
            if is_covered(world, source, action.digest):
                return _real(world, action.target, facts._replace(unrestored=action.attempt))
            return _real(
                world,
                action.target,
                facts._replace(
                    published=f"r{action.attempt}",
                    published_digest=action.digest,
                    published_source=source,
                    is_current=False,
                ),
            )


def _isolated(world: RolloutWorld, action: Isolate) -> RolloutWorld:
    """Create a quarantine unless it is there, also as one that a person has ended."""
    key = (action.attempt, action.number)
    is_lasting = key not in world.ended
    if is_lasting and all(each[:2] != key for each in world.quarantines):
        world = world._replace(quarantines=(*world.quarantines, (*key, action.spec)))
    return world._replace(isolated=Isolated(*key, is_lasting=is_lasting))


def _object(action: Action) -> str:
    return str(action.number) if isinstance(action, Ask | Isolate) else action.target


def _published(facts: TargetFacts) -> TargetFacts:
    return facts._replace(
        is_proposed=False,
        is_current=True,
        published=facts.revision,
        published_digest=facts.digest,
        published_source=facts.source,
    )


def _unsaid(world: RolloutWorld, target: str) -> RolloutWorld:
    """Return the world in which Ready says nothing of what a target runs, unless that is frozen."""
    row = dict(world.rows).get(target)
    if row is not None and row.is_frozen:
        return world
    return world._replace(evidence=tuple(each for each in world.evidence if each[0] != target))


def _real(world: RolloutWorld, target: str, facts: TargetFacts) -> RolloutWorld:
    return world._replace(real=put(world.real, target, facts))


def _is_ours(world: RolloutWorld, target: str, row: Target) -> bool:
    """Tell whether a target's planned revision is really published: only then there is evidence of it."""
    facts = dict(world.real)[target]
    return (facts.published, facts.published_digest) == (row.revision, row.digest) and (
        row.state in (TargetState.APPROVED, TargetState.PROVEN, TargetState.FAILED, TargetState.SILENT)
    )


# ------------------------------------------------------------ what must not be


def _current(world: RolloutWorld) -> Mapping[str, Target]:
    return {target: row for target, row in world.rows if row.attempt == world.rollout.attempt}


def _wrong_step(before: RolloutWorld, after: RolloutWorld) -> str:
    """Return what is wrong with a step, "" for nothing."""
    rows, former = _current(after), dict(before.rows)
    ordered = [
        target
        for target, row in rows.items()
        if row.state is TargetState.ORDERED and not _is_as(former.get(target), row)
    ]
    if any(rows[target].wave > 1 and target not in after.rules.canaries for target in ordered):
        if open_canaries := [each for each in after.rules.canaries if _is_open_canary(before, after, each)]:
            return f"a later wave is ordered with the open canaries {open_canaries}"
    if after.rollout.attempt > before.rollout.attempt:
        if unplanned := [each for each in after.rules.canaries if _is_unplanned_canary(before, after, each)]:
            return f"an attempt is planned without {unplanned}"
    limit = after.rules.in_flight_max
    if (
        ordered
        and limit
        and len({_unit(row) for row in rows.values() if row.state in IN_FLIGHT and not row.rides}) > limit
    ):
        return "too many are in flight"
    if wrong := _wrong_train(after, rows, former, ordered):
        return wrong
    failing = len({_unit(row) for row in rows.values() if row.state in FAILING and not row.rides})
    if ordered and failing > max(after.rules.failing_max, after.rollout.tolerated):
        return "an approval is ordered beyond the failing budget"
    if ordered and before.commands.paused:
        return "an approval is ordered in a pause"
    if wrong := _wrong_isolation(before, after, rows, ordered):
        return wrong
    if wrong := wrong_superseding(before, after, rows) or wrong_rollback(before, rows):
        return wrong
    return _wrong_judgment(before, after, rows) or _wrong_advance(before, after, rows)


def _unit(row: Target) -> str:
    return row.unit or row.target


def _wrong_train(
    after: RolloutWorld, rows: Mapping[str, Target], former: Mapping[str, Target], ordered: list[str]
) -> str:
    """Return what a step does to a part of a unit, "" for nothing."""
    if barred := [target for target in ordered if rows[target].unit and _sees_barred(after, rows[target])]:
        return f"the quarantined combination of {barred} is ordered"
    for target, row in rows.items():
        mates = [mate for mate in rows.values() if row.unit and mate.unit == row.unit and mate != row]
        before = [mate for mate in mates if mate.part < row.part]
        if target in ordered and any(mate.state is not TargetState.PROVEN for mate in before):
            return f"{target} is ordered before those before it are proven"
        if target in ordered and any(mate.state in OUT for mate in mates):
            return f"{target} is ordered though its unit lost a member"
        is_undone = row.state is TargetState.UNDOING and former[target].state is not row.state
        later = [mate for mate in mates if mate.part > row.part and not mate.rides]
        if is_undone and any(mate.state in UNRESTORED for mate in later):
            return f"{target} is restored before those after it"
        is_stuck = any(not mate.good and not mate.rides for mate in mates if mate.state in TRIED)
        if is_undone and mates and is_stuck:
            return f"{target} is restored, and a member of its unit cannot be"
    return ""


def _sees_barred(world: RolloutWorld, row: Target) -> bool:
    banned = dict(world.view)[row.target].banned
    return any(set(each[1:]) <= set(row.combination) for each in banned)


def _is_as(former: Target | None, row: Target) -> bool:
    """Tell whether nothing has happened to a target."""
    return former is not None and (former.attempt, former.state) == (row.attempt, row.state)


def _wrong_judgment(before: RolloutWorld, after: RolloutWorld, rows: Mapping[str, Target]) -> str:
    """A target is judged by evidence of its own content in this attempt, and the want of it is no failure."""
    evidence, former = dict(before.evidence), dict(before.rows)
    for target, row in rows.items():
        if row.state not in (TargetState.PROVEN, TargetState.FAILED) or _is_as(former.get(target), row):
            continue
        wanted = Evidence(row.revision, row.digest, row.attempt, row.state is TargetState.PROVEN)
        if evidence.get(target) != wanted:
            return f"{target} is {row.state} by evidence of something else"
    facts = dict(after.view)
    for target, row in rows.items() if after.rules.is_evidenced else ():
        wanted = Evidence(facts[target].published, row.good_digest, row.attempt, True)
        is_new = row.state is TargetState.UNDONE and former[target].state is not TargetState.UNDONE
        if is_new and evidence.get(target) != wanted:
            return f"{target} counts as restored without evidence of its own"
    bad = len({_unit(row) for row in rows.values() if row.state in BAD and not row.rides})
    is_stop = after.rollout.state is RolloutState.STOPPED and before.rollout.state is not RolloutState.STOPPED
    if is_stop and after.rollout.reason == NO_EVIDENCE and bad > after.rules.failing_max:
        return "an attempt that fails stops as one without evidence"
    back = (RolloutState.ISOLATING, RolloutState.ROLLING_BACK)
    begins = after.rollout.undoes and after.rollout.state in back and before.rollout.state not in back
    is_asked = after.commands.roll_back == after.rollout.attempt
    is_failed = after.answers is not None and False in after.answers.verdicts
    if (
        begins
        and not is_asked
        and not is_failed
        and not _was_partial(before, after)
        and not any(_was_bad(row, evidence, facts) for row in rows.values())
    ):
        return "an attempt is rolled back though nothing is bad"
    return ""


def _was_partial(before: RolloutWorld, after: RolloutWorld) -> bool:
    """Tell whether a unit had a part of its revisions for as long as that may be."""
    limit = after.rules.train.partial_seconds if after.rules.train is not None else 0
    noted = (row.partial_since for row in _current(before).values() if row.partial_since is not None)
    return after.rollout.reason == TRAIN_PARTIAL and any(
        after.rollout.train_seconds - since >= limit for since in noted
    )


def _was_bad(row: Target, evidence: Mapping[str, Evidence], facts: Mapping[str, TargetFacts]) -> bool:
    """Tell whether a target was bad or refused before its rollback began."""
    bad = Evidence(row.revision, row.digest, row.attempt, False)
    return evidence.get(row.target) == bad or facts[row.target].refused == row.attempt


def _wrong_isolation(
    before: RolloutWorld, after: RolloutWorld, rows: Mapping[str, Target], ordered: list[str]
) -> str:
    """Return what a step does to quarantined revisions, or before they are, "" for nothing."""
    view, attempt = dict(before.view), after.rollout.attempt
    if covered := [target for target in ordered if view[target].is_quarantined]:
        return f"the quarantined revisions of {covered} are ordered"
    if ordered and any(each[0] == attempt for each in before.quarantines):
        return "an approval is ordered in an attempt whose revision is quarantined"
    former = dict(before.rows)
    planned = [row for target, row in rows.items() if row.attempt == attempt and former.get(target) != row]
    for row in planned:
        if row.state is TargetState.PLANNED and row.good and view.get(row.target, NOTHING).runs:
            if row.good_digest == view[row.target].published_digest:
                return f"{row.target} would go back to what is quarantined"
    is_new = before.rollout.state is not after.rollout.state
    is_undone = is_new and after.rollout.state in (RolloutState.STOPPED, RolloutState.ROLLING_BACK)
    is_undone = is_undone and after.rollout.reason not in LACKS
    if (
        not is_undone
        or after.rollout.spared
        or before.ended
        or after.rollout.attempt != before.rollout.attempt
    ):
        return ""
    for target, row in former.items():
        facts = dict(before.real)[target]
        is_ours = row.state in TRIED and (facts.published, facts.published_digest) == (
            row.revision,
            row.digest,
        )
        is_free = not is_covered(before, row.source, row.digest) and not is_barred(before, row)
        if row.attempt == attempt and is_ours and is_free and not row.rides:
            return f"{row.revision} of {target} failed or goes back, and is not quarantined"
    return ""


def _is_open_canary(before: RolloutWorld, after: RolloutWorld, canary: str) -> bool:
    """Tell whether a canary that nobody has excused is not proven. One that went after its wave does not
    count."""
    if any(each.canary == canary for each in after.rollout.excused):
        return False
    row, facts = _current(after).get(canary), dict(after.view).get(canary, NOTHING)
    if row is None:
        return facts != NOTHING and not _is_proven_now(before, canary)
    if after.rules.skips_absent and facts == NOTHING:
        return False  # the unit tests say when
    if row.state is TargetState.GONE:
        return (canary, row.attempt) not in before.passed
    good = Evidence(row.revision, row.digest, row.attempt, True)
    return dict(before.evidence).get(canary) != good


def _passed_with(before: RolloutWorld, after: RolloutWorld) -> frozenset[tuple[str, int]]:
    """Return the canaries that were proven when a step passed a wave."""
    is_same = before.rollout.attempt == after.rollout.attempt
    if not is_same or after.rollout.wave <= before.rollout.wave:
        return frozenset()
    rows = _current(after)
    proven = (
        each for each in after.rules.canaries if each in rows and rows[each].state is TargetState.PROVEN
    )
    return frozenset((canary, after.rollout.attempt) for canary in proven)


def _is_unplanned_canary(before: RolloutWorld, after: RolloutWorld, canary: str) -> bool:
    """Tell whether a canary is not in the plan, though it neither runs what is planned nor is excused."""
    is_excused = any(
        (each.attempt, each.canary) == (after.rollout.attempt, canary) for each in after.commands.excuses
    )
    if is_excused or canary in _current(after) or _is_proven_now(before, canary):
        return False
    view = dict(after.view)
    is_skipped = after.rules.skips_absent and view.get(canary, NOTHING) == NOTHING
    return not (is_skipped and any(view.get(each, NOTHING) != NOTHING for each in after.rules.canaries))


def _is_proven_now(world: RolloutWorld, canary: str) -> bool:
    facts, evidence = dict(world.view).get(canary, NOTHING), dict(world.evidence).get(canary)
    content = (facts.published, facts.published_digest)
    return evidence is not None and (*evidence[:2], evidence.is_good) == (*content, True)


def _wrong_advance(before: RolloutWorld, after: RolloutWorld, rows: Mapping[str, Target]) -> str:
    same = before.rollout.attempt == after.rollout.attempt
    advancing = (RolloutState.ROLLING, RolloutState.HOLDING)
    passed = same and before.rollout.state in advancing and after.rollout.state in advancing
    passed = passed and after.rollout.wave > before.rollout.wave
    is_end = same and before.rollout.state in advancing and after.rollout.state is RolloutState.COMPLETED
    if not (passed or is_end):
        return ""
    evidence = dict(before.evidence)
    last = after.rollout.wave if is_end else after.rollout.wave - 1
    if any(row.state is TargetState.PLANNED and row.wave > last for row in rows.values()):
        wave = [row.state for row in rows.values() if row.wave == before.rollout.wave]
        if wave and not set(wave) & TRIED:
            return "a wave passed on nobody"
        if open_canaries := [each for each in after.rules.canaries if _is_open_canary(before, after, each)]:
            return f"a wave passed with the open canaries {open_canaries}"
    excused = {each.canary for each in after.rollout.excused}
    for target, row in rows.items():
        wanted = Evidence(row.revision, row.digest, row.attempt, True)
        if target in excused or keeps_proof(before, row):
            continue
        if row.rides and not any(
            mate.unit == row.unit and mate.state in TRIED and not mate.rides for mate in rows.values()
        ):
            continue  # its unit has left
        if row.wave <= last and row.state not in OUT and evidence.get(target) != wanted:
            return f"a wave passed without evidence of {target}"
    return ""


def problems(world: RolloutWorld) -> Iterator[str]:
    """Yield what is wrong with a world."""
    if world.broken:
        yield world.broken
    if world.twice:
        yield "a revision was approved twice in one attempt"
    if world.rollout.state is RolloutState.ROLLED_BACK:
        for target, row in _current(world).items():
            facts = dict(world.real)[target]
            is_new = (facts.published, facts.published_digest) == (row.revision, row.digest)
            mates = [mate for mate in _current(world).values() if row.unit and mate.unit == row.unit]
            is_named = row.state is TargetState.STRANDED and row.target in world.rollout.message
            is_stranded = is_named or any(mate.state is TargetState.STRANDED for mate in mates)
            if is_new and row.good and not row.rides and not is_stranded and target not in world.by_hand:
                yield f"{target} is not rolled back"
    if world.rollout.state in (RolloutState.COMPLETED, RolloutState.ROLLED_BACK):
        yield from _halves(world)


def _halves(world: RolloutWorld) -> Iterator[str]:
    """Yield the units of an ended attempt in which a part has its revision, though no member is gone, and the
    server restored what it had."""
    rows = _current(world)
    for unit in {row.unit for row in rows.values() if row.unit}:
        states = {row.state for row in rows.values() if row.unit == unit and not row.rides}
        is_part = bool(states & HAVING) and not states <= HAVING
        if is_part and not states & {TargetState.GONE, TargetState.STRANDED}:
            yield f"a part of {unit} has its revision"


def settled(world: RolloutWorld, steps_max: int = 400) -> RolloutWorld:
    """Return the world after its own moves alone, in a fair order, until there is none. Time goes on."""
    for _ in range(steps_max):
        world = world._replace(ticks=max(world.ticks, 1))
        found = next(moves(world), None)  # the tick is the last one that it yields
        if found is None:
            return world
        world = found[1]
    raise AssertionError(f"no end after {steps_max} moves: {world.rollout}")
