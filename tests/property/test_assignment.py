"""Sharing out leases: balanced, stable, and the same for whoever works it out, in any order."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pvbus.adapters.assignment import assign

MEMBERS = st.lists(st.integers(1, 40).map(str), min_size=1, max_size=8, unique=True)
PARTITIONS = st.integers(1, 40)


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, list[str], dict[int, str]]:
    """Partitions, living members, and owners, of whom some are dead and some own too much."""
    partitions, members = draw(PARTITIONS), draw(MEMBERS)
    owners = draw(
        st.dictionaries(
            st.integers(0, partitions - 1), st.sampled_from([*members, "dead"]), max_size=partitions
        )
    )
    return partitions, members, owners


@given(situations())
def test_all_are_assigned_and_loads_differ_by_one_at_most(
    situation: tuple[int, list[str], dict[int, str]],
) -> None:
    partitions, members, owners = situation
    result = assign(partitions, members, owners)
    assert sorted(result) == list(range(partitions))
    loads = Counter(result.values())
    counts = [loads[member] for member in members]
    assert max(counts) - min(counts) <= 1
    assert max(counts) <= -(-partitions // len(members))
    assert set(result.values()) <= set(members)


@given(situations(), st.randoms(use_true_random=False))
def test_it_does_not_matter_who_asks(
    situation: tuple[int, list[str], dict[int, str]], rng: random.Random
) -> None:
    """The order in which members and owners are listed changes nothing."""
    partitions, members, owners = situation
    shuffled = rng.sample(members, len(members))
    items = rng.sample(sorted(owners.items()), len(owners))
    assert assign(partitions, shuffled, dict(items)) == assign(partitions, members, owners)


@given(situations())
def test_only_the_surplus_of_an_owner_moves(situation: tuple[int, list[str], dict[int, str]]) -> None:
    partitions, members, owners = situation
    result = assign(partitions, members, owners)
    floor, extra = divmod(partitions, len(members))
    held = Counter(owner for owner in owners.values() if owner in members)
    # As few as can move: the fullest `extra` members may keep one more than the others.
    fullest = sorted((held[member] for member in members), reverse=True)
    surplus = sum(max(0, count - floor - (rank < extra)) for rank, count in enumerate(fullest))
    moved = [number for number, owner in owners.items() if owner in members and result[number] != owner]
    assert len(moved) == surplus


@given(PARTITIONS, MEMBERS, st.integers(41, 50).map(str))
def test_who_joins_takes_only_for_itself_and_who_leaves_leaves_only_its_own(
    partitions: int, members: list[str], newcomer: str
) -> None:
    settled = assign(partitions, members, {})
    joined = assign(partitions, [*members, newcomer], settled)
    assert all(joined[n] in (settled[n], newcomer) for n in settled)
    left = assign(partitions, members, joined)
    assert all(left[n] == joined[n] for n in joined if joined[n] != newcomer)


@given(situations(), st.randoms(use_true_random=False))
def test_acting_on_it_in_any_order_ends_there(
    situation: tuple[int, list[str], dict[int, str]], rng: random.Random
) -> None:
    """Workers free and take one lease at a time, each on a fresh result: no lease moves twice."""
    partitions, members, owners = situation
    owners = dict(owners)
    moves: Counter[int] = Counter()
    for _ in range(4 * partitions):
        wanted = assign(partitions, members, owners)
        wrong = [number for number, member in wanted.items() if owners.get(number) != member]
        if not wrong:
            break
        number = rng.choice(wrong)
        if owners.get(number) in members:
            del owners[number]  # its owner frees it
        else:
            owners[number] = wanted[number]
            moves[number] += 1
    assert owners == assign(partitions, members, owners)
    assert all(count == 1 for count in moves.values())


def test_nobody_to_assign_to() -> None:
    assert assign(12, [], {0: "dead"}) == {}
