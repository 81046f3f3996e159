"""Writes a set's removals: withdrawals, holds, check requests and orders, a bounded number of rows at a time.

`removal` decides when, `children` builds the rows. Nothing here evaluates targets: `controller` has
settled before which children are wanted.

`controller` calls these steps in order. One that writes rows ends the pass, as the next one must see them.

1. `hold_puts`: while a user holds the set, every order is withdrawn, and render writes nothing.
2. `withdrawals`: an order of another generation is withdrawn, one that render found too old, and all orders
   while the set or a target of it cannot be evaluated.
3. `guard`: removals beyond the limits are held until a person confirms their token.
4. `seen_gone`: once all rows follow the targets, children that are gone are recorded as such.
5. `orders`: ingest is asked to check all that the set reads. When all answers are there, `controller` catches
   up with the topics and evaluates the set again. Children of the check that are still to be removed are
   cleared then, and ordered, some per pass.

So no child is ordered before all that the set reads was read afresh. A new generation and a new hold need a
new check.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.holds import because
from pvbus.core.kernel.keys import HOLD, ObjectKey, check_key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.records import SETRESULTS, WATCHES, CheckRequest, ChildRow, ChildState, Hold
from pvbus.core.variants.unroll.contexts import Contexts, describe_object, selected_kinds
from pvbus.core.variants.unroll.removal import Check, RemovalLimits, confirmed_tokens, hold_of
from pvbus.core.variants.unroll.report import EVALUATION, roll_up
from pvbus.core.variants.unroll.standings import is_undecided
from pvbus.core.variants.unroll.state import SetState
from pvbus.core.variants.unroll.view import REPOSITORY_KIND, REVISION_KIND, SET_KIND, Observed, UnrollView

ANSWER_SECONDS_MAX = 30.0  # an older answer proves nothing any more
NAMES_MAX = 50  # objects of a kind that are read one by one; for more, one list costs less


class Turn(NamedTuple):
    """One pass over a set.

    now: the wall clock, in seconds since the epoch
    elapsed: a clock that cannot go back, in seconds
    limits: the limits of this set's removals
    hold: the current hold, None if there is none
    puts_max: how many rows the pass may write
    nonce: returns 32 hex digits, never the same twice
    """

    now: float
    elapsed: float
    limits: RemovalLimits
    hold: Hold | None
    puts_max: int
    nonce: Callable[[], str]


# ---------------------------------------------------------------- withdrawing


def hold_puts(state: SetState, owned: Mapping[str, Observed], turn: Turn, *, on_hold: bool) -> list[Put]:
    """Return rows that stop render's writes for all children and withdraw every order, or that end the hold.

    After the hold, render has nothing to make until the targets are evaluated. Living children without a row
    get one for the duration of the hold; they are decided on afterwards.
    """
    assert state.obj is not None
    children = state.children
    puts: list[Put] = []
    wanted = on_hold, children.hold_reason if on_hold else ""
    for name in list(children.rows) if on_hold else sorted(children.on_hold):
        row = children.rows[name]
        if row.state is not ChildState.GONE and (row.on_hold, row.hold_reason) != wanted:
            if is_undecided(row):
                puts += children.release((name,), 1)
            else:
                puts += children.taken_back(state.obj, name, turn.now, on_hold=on_hold)
            if len(puts) >= turn.puts_max:
                return puts
    if on_hold:
        for name in sorted(owned.keys() - children.rows.keys()):
            puts += children.undecided(state.obj, name, owned[name], turn.now)
            if len(puts) >= turn.puts_max:
                break
    return puts


def withdrawals(state: SetState, turn: Turn, *, failing: bool) -> list[Put]:
    """Withdraw the orders that are no longer valid. failing: the set cannot be evaluated completely."""
    assert state.obj is not None
    puts: list[Put] = []
    for name in state.children.overdue(state.obj.metadata.generation, failing=failing):
        puts += state.children.taken_back(state.obj, name, turn.now)
        if len(puts) >= turn.puts_max:
            break
    if puts:
        state.removal.note_cancelled()
    return puts


# ---------------------------------------------------------------- holding


def guard(state: SetState, owned: dict[str, Observed], turn: Turn) -> list[Put]:
    """Hold or release removals. One roll-up record decides for all rows, which are updated after it."""
    assert state.obj is not None
    children, removal = state.children, state.removal
    hold, released = hold_of(state.rollup, state.obj.metadata.uid)
    decided = (hold.id if hold is not None else "", released)
    if removal.followed != decided:
        # The roll-up is the decision. A crash between it and its rows leaves rows that have yet to follow.
        puts = list(islice(_follow(state, hold, released, turn), turn.puts_max))
        if puts:
            return puts
        removal.followed = decided
    waiting = children.first_in_state(ChildState.WAITING, turn.puts_max)
    if hold is None:
        if not waiting or not removal.exceeds(turn.limits, turn.elapsed):
            return []
        removal.forget_check()
        removal.note_token(turn.elapsed)
        by_change = any(name in removal.changed for name in children.in_state(ChildState.WAITING))
        hold = Hold(id=turn.nonce()[:8], generation=state.obj.metadata.generation if by_change else 0)
        return [_rolled_up(state, hold, released)]
    if hold.token and hold.token in confirmed_tokens(state.obj):
        return [_rolled_up(state, None, hold.id)]
    if not children.has_any(ChildState.HELD) and (hold.token or not waiting):
        return [_rolled_up(state, None, released)]
    if waiting and not hold.token:
        return [children.held(name, hold.id, turn.now) for name in waiting]
    if removal.token_in(hold, turn.limits, turn.elapsed) > 0:
        return []
    fresh = removal.token(hold, owned)
    if fresh == hold and not waiting:
        return []
    removal.note_token(turn.elapsed)
    return [_rolled_up(state, replace(hold, token="") if hold.token else fresh, released)]


def _follow(state: SetState, hold: Hold | None, released: str, turn: Turn) -> Iterator[Put]:
    """Yield new rows for those that have not followed the last confirmation, or whose hold has ended."""
    children = state.children
    for name in children.in_state(ChildState.HELD):
        row = children.rows[name]
        if row.hold == released:
            yield children.confirmed(name, turn.now)
        elif hold is None or row.hold != hold.id:
            yield children.hold_ended(name, turn.now)


def _rolled_up(state: SetState, hold: Hold | None, released: str) -> Put:
    """Record a hold, or its end. The end updates only the count of the targets: rows of new targets waited
    for it, and without them the set would count as ready."""
    report = state.rollup
    if hold is not None or report is None:
        report = roll_up(state)
    elif state.contexts is not None:
        desired = max(report.counts.desired, len(state.contexts.by_downstream))
        report = replace(report, counts=replace(report.counts, desired=desired))
    return Put(SETRESULTS, state.skey, replace(report, hold=hold, released=released))


# ---------------------------------------------------------------- ordering


def seen_gone(state: SetState, owned: dict[str, Observed], turn: Turn) -> list[Put]:
    """Record which unwanted children are gone, and forget old removals.

    Caller: only if the list of PackageVariants is complete.
    """
    children = state.children
    puts: list[Put] = []
    for name in children.doubtful:
        if (
            name in children.leaving
            and children.rows[name].state is not ChildState.GONE
            and name not in owned
        ):
            puts += children.gone(name, turn.now)
            if len(puts) >= turn.puts_max:
                return puts
        children.doubtful.discard(name)
    puts += [children.forget_removal(name) for name in state.removal.forgotten(turn.elapsed)]
    return puts[: turn.puts_max]


def orders(
    state: SetState, view: UnrollView, owned: dict[str, Observed], turn: Turn, *, caught_up: bool
) -> list[Put]:
    """Return the next check requests or orders of the set's removals; record what they wait for.

    caught_up: whether this is the one evaluation for which the answers to the check are valid.
    """
    obj, removal, children = state.obj, state.removal, state.children
    assert obj is not None
    hold, _ = hold_of(state.rollup, obj.metadata.uid)
    if removal.cleared and not caught_up:
        puts = _more_orders(state, view, owned, turn, hold)
        if puts:
            return puts
    due = children.in_state(ChildState.CONFIRMED)
    if hold is None:
        due += children.in_state(ChildState.WAITING)
    kept_back = [name for name in due if owned[name].on_hold]
    due = [name for name in due if not owned[name].on_hold]
    still_due = set(due)
    removal.cleared = [name for name in removal.cleared if name in still_due]
    state.waiting = _waits_for(state, due, turn)
    if caught_up:
        # The answers hold for this evaluation alone, so the check ends here, whether or not it clears any.
        check, answered_at = removal.check, removal.answered_at
        removal.forget_check()
        fresh = answered_at is not None and turn.elapsed - answered_at <= ANSWER_SECONDS_MAX
        current = check is not None and check.generation == obj.metadata.generation
        if check is not None and current and fresh and not state.waiting:
            removal.cleared = [name for name in due if name in check.names and children.is_acknowledged(name)]
    if not due or state.waiting:
        removal.cleared = []
        if not due and children.has_any(ChildState.ORDERED):
            state.waiting = "render to delete what it was ordered to"
        elif not due and kept_back:
            reason = because(owned[kept_back[0]].hold_reason)
            state.waiting = f'PackageVariant "{kept_back[0]}" to lose its annotation {HOLD}{reason}'
        return [] if removal.check is not None and due else drop_requests(state, view)
    if removal.cleared:
        return drop_requests(state, view) + _order(state, turn)
    check = removal.check
    if check is None or check.generation != obj.metadata.generation:
        check = removal.check = _check(state, turn, due)
        removal.answered_at = None
    asked = sorted({request.kind for request in check.requests.values()})
    state.waiting = f"an answer of ingest to the check of {', '.join(asked)}"
    return _request_puts(state, view, check.requests)


def _more_orders(
    state: SetState, view: UnrollView, owned: dict[str, Observed], turn: Turn, hold: Hold | None
) -> list[Put]:
    """Order the next cleared children. Return nothing if none is due or something blocks them: then all due
    children are evaluated again."""
    cleared, rows = state.removal.cleared, state.children.rows
    due_states = {ChildState.CONFIRMED} if hold is not None else {ChildState.CONFIRMED, ChildState.WAITING}
    batch = cleared[: _orders_max(turn)]
    due = [n for n in batch if n in rows and rows[n].state in due_states and not owned[n].on_hold]
    if not due or _waits_for(state, due, turn):
        return []
    cleared[: len(batch)] = due
    return drop_requests(state, view) + _order(state, turn)


def _waits_for(state: SetState, due: list[str], turn: Turn) -> str:
    """Return what blocks the check and the order of due removals, "" if nothing does."""
    contexts, children = state.contexts, state.children
    assert contexts is not None
    if not due:
        return ""
    if contexts.failed or state.refused:
        return EVALUATION
    if contexts.duplicated:
        return "no two targets to have the same downstream"
    name = children.unevaluated()
    if name is not None:
        return f'render to evaluate PackageVariant "{name}" without an error'
    if not any(children.is_acknowledged(name) for name in due):
        return f'render to withdraw the last order on PackageVariant "{due[0]}"'
    if state.removal.quiet_in(turn.limits, turn.elapsed) > 0:
        return f"no removal to be added for {turn.limits.removal_quiet_seconds:g} s or more"
    return ""


def _orders_max(turn: Turn) -> int:
    """Return how many orders a pass may give: each is two rows."""
    return max(1, turn.puts_max // 2)


def _order(state: SetState, turn: Turn) -> list[Put]:
    obj = state.obj
    assert obj is not None
    count = _orders_max(turn)
    batch, state.removal.cleared = state.removal.cleared[:count], state.removal.cleared[count:]
    contexts, children = state.contexts, state.children
    assert contexts is not None
    reasons = {name: removal_reason(obj, contexts, children.rows[name]) for name in batch}
    return [put for name in batch for put in children.ordered(obj, name, turn.now, reasons[name])]


# ---------------------------------------------------------------- checking


def is_answered(state: SetState, view: UnrollView) -> bool:
    """Whether ingest has answered the open check for all kinds."""
    check = state.removal.check
    if check is None:
        return False
    answers = view.answers.get(state.skey, {})
    return all(answers.get(key) == check.nonce for key in check.requests)


def drop_requests(state: SetState, view: UnrollView) -> list[Put]:
    """Delete the check requests of a set that are on the bus."""
    return _request_puts(state, view, {})


def _check(state: SetState, turn: Turn, due: list[str]) -> Check:
    obj, contexts = state.obj, state.contexts
    assert obj is not None and contexts is not None
    nonce = turn.nonce()
    requests = {}
    for kind, names in sorted(_read_by(state, contexts).items()):
        group, _, name = kind.rpartition("/")
        request = CheckRequest(group=group, kind=name, nonce=nonce, names=names)
        requests[check_key(group, name, state.skey)] = request
    return Check(nonce, obj.metadata.generation, frozenset(due), requests)


def _read_by(state: SetState, contexts: Contexts) -> dict[str, tuple[str, ...]]:
    """Return every kind that the set's current spec reads, with its objects; () is the whole kind."""
    obj = state.obj
    assert obj is not None and obj.spec.upstream is not None
    namespace = obj.metadata.namespace
    read: dict[str, tuple[str, ...]] = {SET_KIND: (state.skey,)}
    upstream = contexts.view.upstream(namespace, obj.spec.upstream)
    if upstream is not None:
        read[REVISION_KIND] = (f"{namespace}/{ObjectKey.parse(upstream[0]).name}",)
    looked_up = sorted(name for name, users in contexts.by_repository.items() if users)
    if looked_up:
        names = tuple(f"{namespace}/{name}" for name in looked_up)
        read[REPOSITORY_KIND] = names if len(names) <= NAMES_MAX else ()
    for kind in selected_kinds(obj.spec):
        read[kind] = ()
    return read


def _request_puts(state: SetState, view: UnrollView, wanted: Mapping[str, CheckRequest]) -> list[Put]:
    """Return rows that make the requests on the bus equal to the wanted ones."""
    if state.asked is None:
        state.asked = dict(view.requests.get(state.skey, {}))
    asked = state.asked
    state.asked = {key: request.nonce for key, request in wanted.items()}
    puts = [Put(WATCHES, key, wanted[key]) for key, nonce in state.asked.items() if asked.get(key) != nonce]
    return puts + [Put(WATCHES, key, None) for key in sorted(asked) if key not in wanted]


def removal_reason(obj: PackageVariantSet, contexts: Contexts, row: ChildRow) -> str:
    """Return why a child is removed, as the targets and their objects are at the order.

    row: of the child, which no target wants.
    """
    meta = obj.metadata
    confirmed = "; a person confirmed it" if row.hold else ""
    by = f"PackageVariantSet {meta.namespace}/{meta.name} (generation {meta.generation}) removed it"
    return part(f"{by}: {_cause(contexts, row)}{confirmed}")


def _cause(contexts: Contexts, row: ChildRow) -> str:
    downstream = f"package {row.downstream.package} in repository {row.downstream.repo}"
    if not row.okey:
        return f"no target names {downstream} any more"
    name, key = describe_object(row.okey), ObjectKey.parse(row.okey)
    if f"{key.group}/{key.kind}" in selected_kinds(contexts.spec) and row.okey not in contexts.view.objects:
        return f"{name}, the object of its target, is deleted"
    others = (context.downstream for context in contexts.of_object(row.okey))
    renamed = next(filter(None, others), None)
    if renamed is not None:
        return f"{name} gives package {renamed.package} in repository {renamed.repo} now, before {downstream}"
    return f"no target selects {name} any more"
