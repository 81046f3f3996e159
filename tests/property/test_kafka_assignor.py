"""The group's shares: nobody is given what another member holds, and in two rounds all is shared out."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from pvbus.adapters.kafka.groups import share_out

PARTITIONS = 12


@st.composite
def holders(draw: st.DrawFn) -> Mapping[str, tuple[int, ...]]:
    """Members, and what each holds; some partitions are nobody's."""
    members = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
    owner = st.sampled_from([*members, ""])
    owners = draw(st.lists(owner, min_size=PARTITIONS, max_size=PARTITIONS))
    return {m: tuple(n for n, each in enumerate(owners) if each == m) for m in members}


@given(holders())
def test_nobody_is_given_what_another_holds(before: Mapping[str, tuple[int, ...]]) -> None:
    """A partition that has a living holder is in that member's share, or in nobody's."""
    owner = {number: member for member, held in before.items() for number in held}
    for member, share in share_out(PARTITIONS, before).items():
        assert {owner.get(number, member) for number in share} <= {member}


@given(holders())
def test_two_rounds_are_enough(before: Mapping[str, tuple[int, ...]]) -> None:
    """When members let go of what is not in their shares, the next round gives everything to somebody."""
    first = share_out(PARTITIONS, before)
    retained = {member: tuple(set(held) & set(first[member])) for member, held in before.items()}
    after_first = {member: tuple(sorted({*retained[member], *first[member]})) for member in before}
    second = share_out(PARTITIONS, after_first)
    given_out = sorted(number for share in second.values() for number in share)
    assert given_out == list(range(PARTITIONS))
    loads = [len(share) for share in second.values()]
    assert max(loads) - min(loads) <= 1
    assert all(set(after_first[member]) <= set(second[member]) for member in before)


@given(holders())
def test_a_settled_group_stays(before: Mapping[str, tuple[int, ...]]) -> None:
    """Once everything is shared out, another rebalance moves nothing."""
    settled = before
    for _ in range(2):
        settled = {member: tuple(share) for member, share in share_out(PARTITIONS, settled).items()}
    assert {member: tuple(share) for member, share in share_out(PARTITIONS, settled).items()} == settled
