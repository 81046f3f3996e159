"""What is asked while brokers are away and coordinators move."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition, errors

from pvbus.adapters.kafka.requests import (
    ANSWER_SECONDS_MAX,
    UnstableOffsetsError,
    ask_until_answered,
    fetch_offsets,
)
from pvbus.adapters.kafka.settings import TRANSACTION_SECONDS
from pvbus.adapters.memory.virtual_time import SimulatedClock
from tests.kit.processes import run_simulated

PLACES = [TopicPartition("table", 0), TopicPartition("table", 1)]
NOT_COORDINATOR = errors.NotCoordinatorForGroupError.errno


class Client:
    """Counts how often it was told to look for the brokers again."""

    def __init__(self) -> None:
        self.looks = 0

    async def force_metadata_update(self) -> bool:
        self.looks += 1
        return True


def asked(answers: list[object]) -> tuple[object, float, int]:
    """Ask until there is one of these, the last of them for ever; returns it, the seconds, and the looks."""

    async def ask() -> object:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> tuple[object, float, int]:
        clock, client = SimulatedClock(), Client()
        began = clock.monotonic()
        found = await ask_until_answered(client, ask)
        return found, clock.monotonic() - began, client.looks

    return run_simulated(main())


AWAY: tuple[Callable[[], Exception], ...] = (
    errors.NodeNotReadyError,
    errors.KafkaConnectionError,
    *(errors.for_code(code) for code in (14, 15, 16)),
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    UnstableOffsetsError,
)


@pytest.mark.parametrize("error", AWAY)
def test_who_is_away_is_asked_again(error: Callable[[], Exception]) -> None:
    """The brokers are looked for again each time, and the answer is there soon after it can be given."""
    found, seconds, looks = asked([error(), error(), "answer"])
    assert (found, looks) == ("answer", 2)
    assert seconds < 0.5


def test_what_does_not_pass_is_raised_at_once() -> None:
    with pytest.raises(errors.GroupAuthorizationFailedError):
        asked([errors.GroupAuthorizationFailedError("group"), "answer"])


def test_what_was_in_the_way_is_raised_in_time() -> None:
    """Before the call's own time is over, which would not tell why."""
    with pytest.raises(errors.NodeNotReadyError):
        asked([errors.NodeNotReadyError("node 2")])
    assert ANSWER_SECONDS_MAX < TRANSACTION_SECONDS


Part = tuple[int, int, int, str, int, dict[int, bytes]]
"""Partition, offset, the leader's epoch, metadata, error code, tags."""


class Answer(NamedTuple):
    """To an OffsetFetch."""

    topics: list[tuple[str, list[Part], dict[int, bytes]]]
    error_code: int


def reported(*offsets: tuple[int, int]) -> Answer:
    """Return an answer of offset and error code for each partition of `table`."""
    parts: list[tuple[Any, ...]] = [
        (number, offset, -1, "", code, {}) for number, (offset, code) in enumerate(offsets)
    ]
    return Answer([("table", parts, {})], 0)


class Coordinator(Client):
    """A client whose cluster answers from a list."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self._answers = list(answers)

    async def coordinator_lookup(self, kind: int, name: str) -> int:
        return 1

    async def send(self, node: int, request: object) -> Answer:
        return self._answers.pop(0)


def fetched(*answers: Answer) -> dict[TopicPartition, int]:
    return run_simulated(fetch_offsets(Coordinator(*answers), "group", PLACES, is_stable=True))


def test_offsets_of_a_coordinator_that_moved_are_asked_for_again() -> None:
    """It answers with an error and no offsets, which are not offsets of 0; where none is known, they are."""
    moved = Answer([], NOT_COORDINATOR)
    assert fetched(moved, moved, reported((7, 0), (-1, 0))) == {PLACES[0]: 7, PLACES[1]: 0}


def test_offsets_that_are_being_committed_are_asked_for_again() -> None:
    unstable = reported((7, 0), (-1, UnstableOffsetsError.errno))
    assert fetched(unstable, unstable, reported((7, 0), (3, 0))) == {PLACES[0]: 7, PLACES[1]: 3}


def test_an_error_about_one_offset_is_raised() -> None:
    with pytest.raises(errors.TopicAuthorizationFailedError):
        fetched(reported((7, 0), (-1, errors.TopicAuthorizationFailedError.errno)))
