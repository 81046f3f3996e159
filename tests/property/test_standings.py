"""The counts of a set's children after any history of their rows and results are those of a count of all."""

import pickle
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.api.variants import Downstream
from pvbus.core.kernel.records import ChildResult, ChildRow, ChildState
from pvbus.core.variants.unroll.children import Children

NAMES = ("a", "b", "c", "d", "e")
ROWS = st.builds(
    ChildRow,
    set_uid=st.just("u"),
    state=st.sampled_from(ChildState),
    downstream=st.just(Downstream(repo="r", package="p")),
    digest=st.sampled_from(["", "1", "2"]),
    target=st.integers(0, 2),
    okey=st.sampled_from(["", "x"]),
    unwanted=st.integers(0, 1),
    on_hold=st.booleans(),
)
RESULTS = st.builds(
    ChildResult,
    set_uid=st.just("u"),
    evaluated=st.sampled_from(["1", "2"]),
    applied=st.sampled_from(["", "1", "2"]),
    reason=st.sampled_from(["", "OnHold", "Failed"]),
    error=st.sampled_from(["", "one", "two"]),
    ready=st.booleans(),
    failing=st.booleans(),
    attention=st.sampled_from(["", "a question"]),
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.one_of(st.none(), ROWS, RESULTS), st.booleans()), max_size=40
)


def counted(children: Children) -> dict[str, int]:
    """Count all rows, one after the other."""
    tally = dict.fromkeys(("desired", "applied", "ready", "failed", "held", "removing"), 0)
    for name, row in children.rows.items():
        result = children.results.get(name)
        tally["held"] += row.state is ChildState.HELD
        is_removal = row.state in (ChildState.WAITING, ChildState.CONFIRMED, ChildState.ORDERED)
        is_placeholder = row.state is ChildState.WAITING and row.on_hold and not row.unwanted
        tally["removing"] += is_removal and not is_placeholder
        tally["desired"] += row.state is ChildState.PRESENT
        if row.state is not ChildState.PRESENT or result is None or result.reason == "OnHold":
            continue
        if result.error and result.evaluated == row.digest:
            tally["failed"] += 1
        elif row.digest and result.applied == row.digest:
            tally["applied"] += 1
            tally["failed"] += result.failing
            tally["ready"] += result.ready and not result.failing
    return tally


def is_in_error(children: Children, name: str) -> bool:
    row, result = children.rows.get(name), children.results.get(name)
    return (
        row is not None
        and result is not None
        and row.state is ChildState.PRESENT
        and result.reason != "OnHold"
        and bool(result.error)
        and result.evaluated == row.digest
    )


@settings(max_examples=300)
@given(CHANGES)
def test_the_counts_are_those_of_all_rows(
    changes: list[tuple[str, ChildRow | ChildResult | None, bool]],
) -> None:
    """Rows and results come in any order, twice, and go; the first errors are those of the first targets."""
    children = Children("ns/set")
    for name, change, is_row in changes:
        if isinstance(change, ChildRow) or (change is None and is_row):
            children.take(name, change if isinstance(change, ChildRow) else None)
        else:
            children.take_result(name, change if isinstance(change, ChildResult) else None)
        assert children.standings.tally() == counted(children)
        errors = [name for name in NAMES if is_in_error(children, name)]
        errors.sort(key=lambda name: (children.rows[name].target, children.rows[name].okey, name))
        assert children.standings.errors.first(2) == errors[:2]
        assert children.standings.messages == Counter(children.results[name].error for name in errors)


def test_names_that_come_again_and_again_are_not_remembered() -> None:
    """A stream of failures does not make the worker grow."""
    children = Children("ns/set")
    row = ChildRow(
        set_uid="u", state=ChildState.PRESENT, downstream=Downstream(repo="r", package="p"), digest="1"
    )
    for number in range(5000):
        result = ChildResult(set_uid="u", evaluated="1", error=f"attempt {number}")
        children.take(f"child-{number % 3}", row)
        children.take_result(f"child-{number % 3}", result)
    assert len(pickle.dumps(children.standings.errors)) < 10_000
    assert children.standings.errors.first(5) == ["child-0", "child-1", "child-2"]
