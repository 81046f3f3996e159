"""Shares of one user, of all, and of the server's own accounts; turns; lines of refused writes."""

import asyncio
from contextlib import ExitStack

import pytest

from pvbus.controlplane.apiserver.audit import REFUSALS_MAX, REFUSALS_SECONDS, USERS_MAX, Refusals
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, User
from pvbus.controlplane.apiserver.rbac.services import user_of
from pvbus.controlplane.apiserver.shares import TURNS_MAX, Room, Shares, Turns, is_own, payer_of

ANN, BOB, ADMIN = User("ann"), User("bob"), User("root", (ADMINS_GROUP,))


@pytest.mark.parametrize(
    ("user", "own"),
    [
        (ADMIN, True),
        (user_of("ingest"), True),
        (User("system:kube-controller-manager"), True),
        (ANN, False),
        (User("system:serviceaccount:pvbus:other"), False),
        (User("system:anonymous"), False),
        (User("system:apiserverx"), False),
    ],
)
def test_whose_room_it_is(user: User, own: bool) -> None:
    assert is_own(user) is own


def test_amounts_are_given_back() -> None:
    """Also when the block fails."""
    shares = Shares(lambda: Room("bytes", 10, 15, 8))
    with pytest.raises(KeyError), shares.hold(ANN, 10):
        raise KeyError
    assert shares.total == 0
    with shares.hold(ANN, 5), shares.hold(BOB, 5), shares.hold(ANN, 5):
        assert shares.total == 15
    assert shares.total == 0


def test_one_large_amount_is_always_taken() -> None:
    """A body beyond the share of its user is no reason to refuse it for ever."""
    shares = Shares(lambda: Room("bytes", 10, 15, 8))
    with (
        shares.hold(ANN, 100),
        pytest.raises(StatusError, match='user "ann" has 100 bytes'),
        shares.hold(ANN),
    ):
        pass


def test_users_in_all_have_a_limit_and_own_accounts_have_theirs() -> None:
    shares = Shares(lambda: Room("watches", 2, 3, 4))
    with ExitStack() as held:
        for user in (ANN, ANN, BOB):
            held.enter_context(shares.hold(user))
        with pytest.raises(StatusError, match="all users together have 3 watches, of 3"):
            held.enter_context(shares.hold(BOB))
        for user in (ADMIN, ADMIN, user_of("ingest")):
            held.enter_context(shares.hold(user))
        with pytest.raises(StatusError, match="root") as refused:
            held.enter_context(shares.hold(ADMIN))
        assert (refused.value.code, refused.value.retry_after_seconds) == (429, 1)
        held.enter_context(shares.hold(user_of("unroll")))


def test_who_pays_for_an_impersonated_request() -> None:
    assert payer_of(User("anybody", sender=ANN)) is ANN
    assert payer_of(ANN) is ANN


async def test_turns_are_per_user() -> None:
    """The third request of a user waits, and the first of another one does not."""
    turns = Turns()
    done = asyncio.Event()
    running: list[str] = []

    async def compute(user: User) -> None:
        async with turns.turn(user):
            running.append(user.name)
            await done.wait()

    async with asyncio.TaskGroup() as group:
        for user in (*[ANN] * (TURNS_MAX + 3), BOB, *[ADMIN] * 5):
            group.create_task(compute(user))
        for _ in range(10):
            await asyncio.sleep(0)
        assert sorted(running) == ["ann"] * TURNS_MAX + ["bob"] + ["root"] * 5
        done.set()
    assert running.count("ann") == TURNS_MAX + 3


def test_lines_of_refused_writes() -> None:
    """Some lines in a while for each user, and then the number of those that were left out."""
    refusals = Refusals()
    first = [refusals.count_refusal("ann", 0.0) for _ in range(REFUSALS_MAX + 5)]
    assert first == [0] * REFUSALS_MAX + [None] * 5
    assert refusals.count_refusal("bob", 1.0) == 0
    assert refusals.count_refusal("ann", REFUSALS_SECONDS) == 5
    assert refusals.count_refusal("ann", REFUSALS_SECONDS + 1) == 0


def test_the_number_of_counted_users_is_limited() -> None:
    refusals = Refusals()
    for n in range(3 * USERS_MAX):
        assert refusals.count_refusal(f"user-{n}", float(n)) == 0
