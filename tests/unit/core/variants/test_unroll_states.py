"""A child's transitions: every pair of a state and an event, against a second table, and as rows."""

from collections.abc import Callable, Iterable

import pytest

from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.errors import InvariantError
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.records import UNROLL, ChildRow, ChildState
from pvbus.core.variants.unroll.children import Children
from pvbus.core.variants.unroll.state import SetState
from pvbus.core.variants.unroll.states import TRANSITIONS, ChildEvent, following
from pvbus.core.variants.unroll.view import Observed
from tests.unit.core.variants.unrolling import part

NAME = "alpha-r1-s1"
DOWNSTREAM = Downstream(repo="r1", package="s1")
LIVING = {NAME: Observed("uid-v", DOWNSTREAM, terminating=False)}

# ! cannot happen, - no row
EXPECTED = """
event                      -        present  waiting  held       confirmed  ordered    gone
wanted                     present  present  present  present    present    present    present
contested                  !        present  present  present    present    present    gone
unwanted                   waiting  waiting  waiting  held       confirmed  ordered    waiting
found-on-hold              waiting  !        !        !          !          !          !
held                       !        !        held     !          !          !          !
confirmed                  !        !        !        confirmed  !          !          !
hold-ended                 !        !        !        waiting    !          !          !
ordered                    !        !        ordered  !          ordered    !          !
withdrawn                  !        present  waiting  held       confirmed  waiting    !
confirmed-order-withdrawn  !        !        !        !          !          confirmed  !
seen-gone                  !        !        gone     gone       gone       gone       !
forgotten                  !        !        !        !          !          !          -
released                   !        -        -        -          -          -          -
"""


def read(word: str) -> ChildState | None:
    return None if word == "-" else ChildState(word)


HEADS, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
CASES = [
    (read(state), ChildEvent(line[0].replace("-", " ")), after)
    for line in LINES
    for state, after in zip(HEADS[1:], line[1:], strict=True)
]
POSSIBLE = [(state, event, read(after)) for state, event, after in CASES if after != "!"]
IMPOSSIBLE = [(state, event) for state, event, after in CASES if after == "!"]


def settled() -> SetState:
    """Return what unroll knows of a set with one target, after it evaluated it."""
    state = part(sites=("s1",)).controller.state(0, "default/alpha")
    assert state is not None
    return state


def with_child(state: ChildState | None, hold: str = "") -> Children:
    """Return the children of a set: one in a state."""
    children = Children("default/alpha")
    if state is not None:
        children.take(NAME, ChildRow(set_uid="u", state=state, downstream=DOWNSTREAM, digest="d", hold=hold))
    return children


def wanted(children: Children, obj: PackageVariantSet) -> Iterable[Put]:
    contexts = settled().contexts
    assert contexts is not None
    (context,) = contexts.by_key.values()
    return children.wanted(obj, contexts, context, NAME, 1.0)


WAYS: dict[ChildEvent, Callable[[Children, PackageVariantSet], Iterable[Put]]] = {
    ChildEvent.WANTED: wanted,
    ChildEvent.CONTESTED: lambda children, obj: children.contested(obj, NAME, 1.0),
    ChildEvent.UNWANTED: lambda children, obj: children.record_unwanted(obj, DOWNSTREAM, NAME, LIVING, 1.0),
    ChildEvent.FOUND_ON_HOLD: lambda children, obj: children.undecided(obj, NAME, LIVING[NAME], 1.0),
    ChildEvent.HELD: lambda children, obj: [children.held(NAME, "h", 1.0)],
    ChildEvent.CONFIRMED: lambda children, obj: [children.confirmed(NAME, 1.0)],
    ChildEvent.HOLD_ENDED: lambda children, obj: [children.hold_ended(NAME, 1.0)],
    ChildEvent.ORDERED: lambda children, obj: children.ordered(obj, NAME, 1.0, "why"),
    ChildEvent.WITHDRAWN: lambda children, obj: children.taken_back(obj, NAME, 1.0),
    ChildEvent.CONFIRMED_WITHDRAWN: lambda children, obj: children.taken_back(obj, NAME, 1.0),
    ChildEvent.SEEN_GONE: lambda children, obj: children.gone(NAME, 1.0),
    ChildEvent.FORGOTTEN: lambda children, obj: [children.forget_removal(NAME)],
    ChildEvent.RELEASED: lambda children, obj: children.release((NAME,), 1),
}
"""What the children do at each event."""


def test_every_pair_has_a_case() -> None:
    pairs = {(state, event) for state, event, _ in CASES}
    assert pairs == {(state, event) for state in (None, *ChildState) for event in ChildEvent}
    assert len(CASES) == len(pairs)


@pytest.mark.parametrize(("state", "event", "after"), POSSIBLE)
def test_each_event_leads_to_one_state(
    state: ChildState | None, event: ChildEvent, after: ChildState | None
) -> None:
    assert following(state, event) is after


@pytest.mark.parametrize(("state", "event"), IMPOSSIBLE)
def test_what_cannot_happen_raises(state: ChildState | None, event: ChildEvent) -> None:
    with pytest.raises(InvariantError, match=f"{event} is not a transition"):
        following(state, event)


@pytest.mark.parametrize(("state", "event", "after"), POSSIBLE)
def test_the_rows_of_a_child_follow_the_table(
    state: ChildState | None, event: ChildEvent, after: ChildState | None
) -> None:
    """A row that stays as it is is not written again."""
    obj = settled().obj
    assert obj is not None
    children = with_child(state, hold="h" if event is ChildEvent.CONFIRMED_WITHDRAWN else "")
    rows = [put.row for put in WAYS[event](children, obj) if put.topic == UNROLL]
    states = [row.state if isinstance(row, ChildRow) else None for row in rows]
    assert (states or [state]) == [after]


@pytest.mark.parametrize(
    "state", [s for s in ChildState if s not in (ChildState.WAITING, ChildState.CONFIRMED)]
)
def test_only_a_removal_that_waits_or_is_confirmed_can_be_ordered(state: ChildState) -> None:
    obj = settled().obj
    assert obj is not None
    with pytest.raises(InvariantError):
        with_child(state).ordered(obj, NAME, 1.0, "why")


def test_every_state_is_reached_and_left() -> None:
    after = {each for pairs in TRANSITIONS.values() for each in pairs.values()}
    assert after == set(TRANSITIONS) == {None, *ChildState}
    assert all(set(pairs.values()) - {state} for state, pairs in TRANSITIONS.items())


@pytest.mark.parametrize(
    ("state", "token"), [(ChildState.PRESENT, "t"), (ChildState.GONE, "")], ids=["living", "made again"]
)
def test_a_removal_waits_for_the_withdrawal_of_an_order_only_while_render_has_its_row(
    state: ChildState, token: str
) -> None:
    """A create may be under way while its target goes and the child counts as gone: no order is left then."""
    obj, children = settled().obj, Children("default/alpha")
    assert obj is not None
    children.take(NAME, ChildRow(set_uid="u", state=state, downstream=DOWNSTREAM, cancelled="t"))
    (put,) = children.record_unwanted(obj, DOWNSTREAM, NAME, LIVING, 1.0)
    assert isinstance(put.row, ChildRow)
    assert (put.row.state, put.row.cancelled) == (ChildState.WAITING, token)
    children.take(NAME, put.row)
    assert children.is_acknowledged(NAME) is not bool(token)
