"""When a set's children may be removed: quiet, guard, hold, check, order, withdrawal.

A removal waits until no other was added for a while, passes the guard or a person's confirmation, is
checked against a fresh read of everything the set depends on, and only then becomes an order to render.
Elapsed seconds come from a clock that cannot go back, counted since this holder of the lease wrote or
restored the row, so a wall clock that jumps changes nothing, and a lease that moves starts waits again.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple, Self

from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.keys import CONFIRM_DELETION, REMOVALS_MAX, REMOVALS_SHARE, Key, hold_token
from pvbus.core.kernel.records import CheckRequest, ChildState, Hold, SetResult
from pvbus.core.variants.unroll.children import Children
from pvbus.core.variants.unroll.view import Observed

WINDOW_SECONDS = 600.0  # of the guard; with a shorter one, removals trickle past it
WAIT_SECONDS_MAX = 600.0  # a set that changes all the time still gets its removals
TOKEN_SECONDS = 60.0  # between two changes of a token: a person needs time to read and confirm it
COUNTED = (ChildState.WAITING, ChildState.HELD, ChildState.ORDERED, ChildState.GONE)  # by the guard


class RemovalLimits(NamedTuple):
    """The quiet time before removals, and how many may go unconfirmed.

    removal_quiet_seconds: how long no removal may be added before any is ordered
    removals_max: how many removals within the window may go unconfirmed
    removals_share: the same as a share of the children before them; the higher limit counts
    """

    removal_quiet_seconds: float = 5.0
    removals_max: int = 5
    removals_share: float = 0.1

    def of(self, annotations: Mapping[str, str]) -> Self:
        """Return the limits of one set, whose annotations may replace those of the guard.

        Raises ValueError that names the annotation.
        """
        limits = self
        if REMOVALS_MAX in annotations:
            number = annotations[REMOVALS_MAX]
            if not (number.isascii() and number.isdigit()):
                raise ValueError(f'annotation {REMOVALS_MAX}: "{number}" is not a number like 20')
            limits = limits._replace(removals_max=int(number))
        if REMOVALS_SHARE in annotations:
            share = _share(annotations[REMOVALS_SHARE])
            limits = limits._replace(removals_share=share)
        return limits


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise ValueError(f'annotation {REMOVALS_SHARE}: "{text}" is not a share from 0 to 1, like 0.25')
    return share


class Check(NamedTuple):
    """An open check: it asks ingest whether the rows of all kinds that a set reads are up to date.

    generation: the generation of the set at the question
    names: the children that are to be removed
    requests: key -> the check request of one kind
    """

    nonce: str
    generation: int
    names: frozenset[str]
    requests: Mapping[str, CheckRequest]


class Removal:
    """The part of a set's removals that no row records: it ends with this holder of the lease.

    Each row that is leaving or was unwanted lately has a clock, which starts when the row comes into its
    state. A new holder of the lease has no clocks: its first pass starts them all, so a wait that was under
    way gets longer, never shorter. `_since` is in the order of these starts, so the oldest are at its front.

    check: the open check, None without one
    answered_at: when its last answer was seen, in elapsed seconds, None before that
    cleared: the children that have passed everything and are being ordered
    changed: the children that a change of the set itself made unwanted
    followed: the ids of the hold and of the confirmation that every held row has followed
    _since: name -> state and number of the pass that the clock is for, and its start in elapsed seconds
    _added_at: when a row last became `waiting` or `confirmed`, in elapsed seconds
    _token_at: when the hold began or its token last changed, in elapsed seconds; None while unknown
    _cancelled: number of passes that withdrew orders, since the set last had no row that is leaving
    """

    def __init__(self, children: Children) -> None:
        self.check: Check | None = None
        self.answered_at: float | None = None
        self.cleared: list[str] = []
        self.changed: set[str] = set()
        self.followed: tuple[str, str] | None = None
        self._children = children
        self._since: dict[str, tuple[ChildState, int, float]] = {}
        self._added_at = float("-inf")
        self._token_at: float | None = None
        self._cancelled = 0

    # ------------------------------------------------------------ clocks

    def note(self, elapsed: float) -> None:
        """Start the clock of each row that changed its state since the last pass."""
        children = self._children
        for name in children.taken:
            row = children.rows.get(name)
            if row is None or not (name in children.leaving or name in children.returned):
                self._since.pop(name, None)
                self.changed.discard(name)
                continue
            before = self._since.get(name)
            if before is None or before[:2] != (row.state, row.unwanted):
                self._since.pop(name, None)  # the oldest ones stay first
                self._since[name] = (row.state, row.unwanted, elapsed)
                if row.state in (ChildState.WAITING, ChildState.CONFIRMED):
                    self._added_at = elapsed
        children.taken.clear()
        if not children.leaving:
            self._cancelled = 0

    def _age(self, name: str, elapsed: float) -> float:
        return elapsed - self._since[name][2]

    def note_cancelled(self) -> None:
        """Note that an order was withdrawn: the next quiet time is longer, and needs a new check."""
        self._cancelled += 1
        self.forget_check()

    def forget_check(self) -> None:
        """Drop the open check, its answer and the cleared children."""
        self.cleared = []
        self.check = self.answered_at = None

    def _quiet_seconds(self, limits: RemovalLimits) -> float:
        return min(WAIT_SECONDS_MAX, limits.removal_quiet_seconds * 2.0 ** min(self._cancelled, 16))

    def quiet_in(self, limits: RemovalLimits, elapsed: float) -> float:
        """Return the seconds until waiting removals are quiet, 0 when they are."""
        quiet = self._added_at + self._quiet_seconds(limits) - elapsed
        if quiet <= 0:
            return 0.0
        waiting = [self._age(name, elapsed) for name in self._children.in_state(ChildState.WAITING)]
        longest = WAIT_SECONDS_MAX - max(waiting, default=0.0)
        return max(0.0, min(quiet, longest))

    def forgotten(self, elapsed: float) -> list[str]:
        """Return the gone or returned children whose removal is older than the guard's window."""
        old = takewhile(lambda name: self._age(name, elapsed) >= WINDOW_SECONDS, self._since)
        rows, returned = self._children.rows, self._children.returned
        return sorted(name for name in old if rows[name].state is ChildState.GONE or name in returned)

    def next_look(self, limits: RemovalLimits, hold: Hold | None, elapsed: float) -> float | None:
        """Return the seconds until the clock alone changes something; None when it never does."""
        times = []
        if self._children.leaving or self._children.returned:
            oldest = next(iter(self._since.values()))[2] if self._since else elapsed
            times.append(max(oldest + WINDOW_SECONDS - elapsed, TOKEN_SECONDS))
        if hold is not None:
            token = self.token_in(hold, limits, elapsed)
            if token > 0:  # at 0 the guard has acted already, and only an event changes the hold
                times.append(token + 0.01)
        if self._children.has_any(ChildState.WAITING, ChildState.CONFIRMED):
            quiet = self.quiet_in(limits, elapsed)
            if quiet > 0:
                times.append(quiet + 0.01)
        return min(times) if times else None

    # ------------------------------------------------------------ guard

    def exceeds(self, limits: RemovalLimits, elapsed: float) -> bool:
        """Whether more removals were wanted within the window than may go without confirmation.

        They count while they wait, are held or ordered, and for the window after they are gone or their
        target came back; confirmed ones do not. The limit is removals_max, or if it is higher, the share of
        the children that were created before the oldest of them.
        """
        rows = self._children.rows
        counted = [
            rows[name].unwanted
            for name in self._children.leaving
            if rows[name].state in COUNTED
            and (rows[name].state is ChildState.HELD or not rows[name].hold)
            and (rows[name].state is not ChildState.GONE or self._age(name, elapsed) < WINDOW_SECONDS)
        ]
        counted += [
            rows[name].unwanted
            for name in self._children.returned
            if self._age(name, elapsed) < WINDOW_SECONDS
        ]
        if len(counted) <= limits.removals_max:
            return False
        oldest = min(counted)
        had = sum(1 for row in rows.values() if row.created < oldest)
        return len(counted) > limits.removals_share * had

    # ------------------------------------------------------------ hold

    def token(self, hold: Hold, owned: Mapping[str, Observed]) -> Hold:
        """Return the hold with the token and the number of its current rows."""
        namespace = Key.parse(self._children.skey).namespace
        names = self._children.in_state(ChildState.HELD)
        pairs = ((f"{namespace}/{name}", owned[name].uid if name in owned else "") for name in names)
        return Hold(
            id=hold.id, token=hold_token(hold.id, pairs), count=len(names), generation=hold.generation
        )

    def token_in(self, hold: Hold, limits: RemovalLimits, elapsed: float) -> float:
        """Return the seconds until a hold may get its token, or lose it to get another one.

        Removals are collected until none is added for the quiet time, for at most a minute. The token then
        stays for at least a minute.
        """
        if self._token_at is None:  # a new holder of the lease does not know the time
            self._token_at = elapsed
        minute = self._token_at + TOKEN_SECONDS - elapsed
        if hold.token:
            return max(0.0, minute)
        return max(0.0, min(minute, self._added_at + self._quiet_seconds(limits) - elapsed))

    def note_token(self, elapsed: float) -> None:
        """Note that a hold began, or that its token was set or removed."""
        self._token_at = elapsed


def confirmed_tokens(obj: PackageVariantSet) -> frozenset[str]:
    """Return the tokens in the confirming annotation of a set."""
    text = obj.metadata.annotations.get(CONFIRM_DELETION, "")
    return frozenset(token.strip() for token in text.split(",")) - {""}


def hold_of(rollup: SetResult | None, uid: str) -> tuple[Hold | None, str]:
    """Return the current hold of the set with this uid, and the id of its last confirmed hold."""
    if rollup is None or rollup.uid != uid:
        return None, ""
    return rollup.hold, rollup.released
