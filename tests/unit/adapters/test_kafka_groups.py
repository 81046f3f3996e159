"""What is made of a coordinator's answers about a group."""

from typing import Any

import pytest
from aiokafka import errors
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.admin import DescribeGroupsResponse_v2

from pvbus.adapters.kafka.groups import (
    REBALANCE_SECONDS_MAX,
    CoPartitioningAssignor,
    Member,
    describe_members,
)
from pvbus.adapters.memory.virtual_time import SimulatedClock
from tests.kit.processes import run_simulated


def metadata(label: str) -> bytes:
    """What a member of ours sends when it joins."""
    assignor = CoPartitioningAssignor(["t"], 4, held=lambda: [1], on_share=lambda share: None, label=label)
    encoded: bytes = assignor.metadata(["t"]).encode()
    return encoded


def share(*numbers: int) -> bytes:
    topics = [("t", list(numbers)), ("u", list(numbers))]
    encoded: bytes = ConsumerProtocolMemberAssignment(0, topics, b"").encode()
    return encoded


def answer(state: str, *members: tuple[str, bytes, bytes], code: int = 0) -> DescribeGroupsResponse_v2:
    listed = [(name, "pvbus", "/127.0.0.1", reported, given) for name, reported, given in members]
    return DescribeGroupsResponse_v2(0, [(code, "group", state, "consumer", "pvbus", listed)])


class Admin:
    """Answers in turn, and the last one for ever."""

    def __init__(self, *answers: DescribeGroupsResponse_v2) -> None:
        self._answers = list(answers)

    async def describe_consumer_groups(self, groups: list[str]) -> list[DescribeGroupsResponse_v2]:
        assert groups == ["group"]
        return [self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]]


def described(*answers: DescribeGroupsResponse_v2) -> Any:
    async def main() -> tuple[list[Member], float]:
        clock = SimulatedClock()
        began = clock.monotonic()
        admin: Any = Admin(*answers)
        return await describe_members(admin, "group"), clock.monotonic() - began

    return run_simulated(main())


OURS = ("a-1", metadata("http://a:1"), share(0, 3))


def test_members_tell_their_label_and_have_their_share() -> None:
    found, seconds = described(answer("Stable", OURS, ("b-1", metadata(""), share())))
    assert found == [Member("a-1", "http://a:1", frozenset({0, 3})), Member("b-1", "", frozenset())]
    assert seconds == 0


@pytest.mark.parametrize("state", ["Empty", "Dead"])
def test_a_group_without_members_is_an_answer(state: str) -> None:
    """Dead is also what a group that never was is called."""
    assert described(answer(state))[0] == []


def test_the_end_of_a_rebalance_is_waited_for() -> None:
    """While it lasts the coordinator shows members without what they tell and have: that is no answer."""
    bare = ("a-1", b"", b"")
    found, seconds = described(
        answer("PreparingRebalance", bare), answer("CompletingRebalance", bare), answer("Stable", OURS)
    )
    assert found == [Member("a-1", "http://a:1", frozenset({0, 3}))]
    assert 0 < seconds < 1


def test_a_rebalance_that_does_not_end_is_an_error_in_time() -> None:
    with pytest.raises(TimeoutError):
        described(answer("PreparingRebalance", ("a-1", b"", b"")))
    assert REBALANCE_SECONDS_MAX < 15  # what the bus gives a call


@pytest.mark.parametrize("code", [14, 15, 16], ids=["loading", "not available", "elsewhere"])
def test_a_coordinator_that_is_not_there_yet_is_waited_for(code: int) -> None:
    """A new cluster has none before the first question."""
    found, seconds = described(answer("", code=code), answer("Stable", OURS))
    assert found == [Member("a-1", "http://a:1", frozenset({0, 3}))]
    assert 0 < seconds < 1


def test_an_error_of_the_coordinator_is_raised() -> None:
    with pytest.raises(errors.GroupAuthorizationFailedError):
        described(answer("", code=errors.GroupAuthorizationFailedError.errno))


@pytest.mark.parametrize("reported", [b"", b"\x00", b"[]", b'{"label":1}', None], ids=str)
def test_a_foreign_member_has_no_label(reported: bytes | None) -> None:
    """Somebody else's client may sit in our group, with whatever data, or with metadata of its own."""
    data = b"\x01" if reported is None else ConsumerProtocolMemberMetadata(0, ["t"], reported).encode()
    (member,), _ = described(answer("Stable", ("kcat-1", data, share(1))))
    assert member == Member("kcat-1", "", frozenset({1}))
