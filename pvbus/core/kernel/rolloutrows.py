"""What a rollout stores, observes and orders.

A policy has one `Rollout` row, and one `Target` row for each of its targets: no row grows with their number.
A target is named by its PackageVariant, or by its package where it has none.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.api.quarantines import QuarantineSpec
from pvbus.core.api.rollouts import CanaryExcuse, Check
from pvbus.core.kernel.codec import Row
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState


class Target(Row, frozen=True, kw_only=True):
    """A target's part in the attempt that planned it last.

    revision, digest: what is to be published, its name and the hash of its content. upstream: the upstream
    revision that its variant follows, "" if that is not known. source, files: the one that it is made of, and
    the digest of its files, "" if they are not known. position: its position in the order of the attempt.
    wave: from 1. good, good_digest, good_source: what a rollback publishes again, "" for none, and the
    upstream revision of that. uid: of the PackageVariant that its order was given for, "" before. since:
    `watched_seconds` of the rollout when it was last approved and not proven, or began to go back.
    published_at: the same when its publication was seen. evidence: what its evidence lacks. before: for weak
    evidence, pairs of a name and the digest of that status before its approval.

    unit: the train that it is a member of, "" for a target that is a unit of its own. part: its position in
    the train, from 1. rides: it has no new revision, and runs the one of the combination. combination: the
    upstream revisions of all members in their order, each with `source`. partial_since: `train_seconds` of
    the rollout since when its unit has been partial, noted at the first member; None if it is not.

    is_frozen: whether its proposal stays as planned though a newer upstream revision is there, and once
    published is proven by that. has_passed: whether it was proven when its wave passed. why: what keeps it
    from going back, or who has published something else. losses: how often its proof was lost.
    mates: the revisions of its train that were ordered together with this one, which is among them; none if
    it goes alone.
    ordered_at: when its last order was given, in seconds since 1970.
    """

    target: str
    revision: str
    digest: str
    attempt: int
    position: int
    wave: int
    state: TargetState = TargetState.PLANNED
    good: str = ""
    good_digest: str = ""
    uid: str = ""
    upstream: str = ""
    source: str = ""
    files: str = ""
    good_source: str = ""
    since: float = 0
    published_at: float = 0
    evidence: str = ""
    before: tuple[tuple[str, str], ...] = ()
    unit: str = ""
    part: int = 0
    rides: bool = False
    combination: tuple[str, ...] = ()
    partial_since: float | None = None
    is_frozen: bool = False
    has_passed: bool = False
    why: str = ""
    losses: int = 0
    mates: tuple[str, ...] = ()
    ordered_at: float = 0


class Rollout(Row, frozen=True, kw_only=True):
    """The state of a policy's rollout.

    wave: from 1; in a rollback that of the rollback. reason, message: why it stopped or rolls back. stops:
    how often this attempt stopped. tolerated: failing targets that a person accepted. is_started: a person
    approved the first wave, where that is needed. candidates: hash of the proposed revisions while they
    settle. phase_seconds: watched time of the settle or hold time. wave_seconds: of the wave, or since the
    first candidate. seen_at: the clock at the last step, in seconds since 1970; 0 while no time counts. ask:
    number of the last look at the checks; asked_seconds: phase_seconds when it was asked; is_answered,
    is_passed: what came of it. unmet: in a hold time, the checks that did not pass then, and why.
    needs_restart: what this attempt did not prove is not known any more; no other begins before a person
    restarts it. canary_reason, canary_message: why a named canary keeps others from their revision, "" for
    nothing. excused: the canaries that this attempt goes without, and who said so. sizes: how many units
    were planned for each wave. watched_seconds: watched time of the attempt, by which evidence or a former
    revision is overdue. isolations: how many quarantines this attempt has written. undoes: whether it rolls
    back after the one that is being written. refusal: why the API server refuses that one, "" if it does
    not. spared: why a person wanted none, "" for nothing. train_seconds: watched time in which a train
    was partial. train_message: which trains wait to be planned, and why.
    superseded: how many attempts in a row ended as superseded, until now.
    waits_for: what it waits for with a limit, "" for nothing. waited_seconds: watched time of that.
    newer: the upstream revisions that its targets follow by now. skipped: those that came and went meanwhile.
    """

    state: RolloutState = RolloutState.IDLE
    attempt: int = 0
    wave: int = 0
    reason: str = ""
    message: str = ""
    stops: int = 0
    tolerated: int = 0
    is_started: bool = False
    candidates: str = ""
    phase_seconds: float = 0
    wave_seconds: float = 0
    seen_at: float = 0
    ask: int = 0
    asked_seconds: float = 0
    is_answered: bool = False
    is_passed: bool = False
    unmet: str = ""
    needs_restart: bool = False
    canary_reason: str = ""
    canary_message: str = ""
    excused: tuple[CanaryExcuse, ...] = ()
    sizes: tuple[int, ...] = ()
    watched_seconds: float = 0
    isolations: int = 0
    undoes: bool = False
    refusal: str = ""
    spared: str = ""
    train_seconds: float = 0
    train_message: str = ""
    superseded: int = 0
    newer: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    waits_for: str = ""
    waited_seconds: float = 0


class TargetFacts(NamedTuple):
    """The live facts of a target.

    revision, digest: the open revision
    is_proposed: whether it is proposed, and nothing speaks against its approval
    published, published_digest: the latest published revision, "" for none
    refused: the last attempt in which the approval was refused, 0 for none
    withdrawn: the last attempt in which the order was confirmed as never to be carried out, 0 for none
    unrestored: the last attempt in which the last good revision could not be published, 0 for none
    upstream: the upstream revision that its variant follows, "" if that is not known
    is_current: whether the published revision is all that its variant wants: it has no open one, and is ready
    source, files: the upstream revision that the open one is made of, and the digest of its files, "" if they
        are not known
    published_source: the upstream revision that the published one is made of
    is_quarantined: whether a Quarantine covers the open revision
    runs: the Quarantine that covers the published one, "" for none
    unit, part: as in `Target`
    release, published_release: what the upstream revisions of the open and of the published one say that they
        were verified with, "" for nothing
    banned: the quarantined combinations with one of its upstream revisions, each after the Quarantine's name
    is_upstream_held: whether a Quarantine covers the upstream revision that its variant follows, or may
    """

    revision: str = ""
    digest: str = ""
    is_proposed: bool = False
    published: str = ""
    published_digest: str = ""
    refused: int = 0
    withdrawn: int = 0
    unrestored: int = 0
    upstream: str = ""
    is_current: bool = False
    source: str = ""
    files: str = ""
    published_source: str = ""
    is_quarantined: bool = False
    runs: str = ""
    unit: str = ""
    part: int = 0
    release: str = ""
    published_release: str = ""
    banned: tuple[tuple[str, ...], ...] = ()
    is_upstream_held: bool = False


NOTHING = TargetFacts()
"""A target of which nothing is left."""


class Evidence(NamedTuple):
    """Whether a published revision is good, as looked at after its approval in this attempt was seen."""

    revision: str
    digest: str
    attempt: int
    is_good: bool


class Sighting(NamedTuple):
    """What the last look at a target's evidence saw.

    words: why the target is not proven, "" if it is
    statuses: pairs of a name and the digest of that status, for weak evidence
    """

    words: str = ""
    statuses: tuple[tuple[str, str], ...] = ()


class Answers(NamedTuple):
    """The answers to one `Ask`.

    verdicts: the answer to each check, in order; None if it is not known, which passes and fails nothing
    words: why each check does not pass, "" if it does
    """

    attempt: int
    wave: int
    number: int
    verdicts: tuple[bool | None, ...]
    words: tuple[str, ...] = ()


class Isolated(NamedTuple):
    """What came of an `Isolate`.

    is_lasting: whether the quarantine lasts, and was not ended by a person meanwhile
    refusal: why the API server does not take it, "" if it has it
    """

    attempt: int
    number: int
    is_lasting: bool = True
    refusal: str = ""


class Commands(NamedTuple):
    """What people want. Each names what it is for, so that it is done once and never for a later attempt.

    resume: the attempt, and the number of its stop
    approve: the attempt, and the wave that passes; 0 if the first wave may begin
    promote, abort, roll_back: the attempt
    promote_reason: why a denied time does not hold it, "" if it does
    abort_reason, roll_back_reason: why nothing is quarantined, "" if it is
    restart: the attempt; revisions of this and of earlier ones may be tried again
    excuses: of canaries, each for one attempt
    """

    paused: bool = False
    resume: tuple[int, int] = (0, 0)
    approve: tuple[int, int] = (0, 0)
    promote: int = 0
    abort: int = 0
    roll_back: int = 0
    restart: int = 0
    excuses: tuple[CanaryExcuse, ...] = ()
    promote_reason: str = ""
    abort_reason: str = ""
    roll_back_reason: str = ""


NO_COMMANDS = Commands()


class Approve(msgspec.Struct, frozen=True):
    """Publish a proposed revision if its content is still this one."""

    target: str
    revision: str
    digest: str
    attempt: int


class Withdraw(msgspec.Struct, frozen=True):
    """Take an approval back, and confirm that it was or will never be carried out."""

    target: str
    revision: str
    digest: str
    attempt: int


class Restore(msgspec.Struct, frozen=True):
    """Publish the content of an earlier revision again, over the one that the attempt published."""

    target: str
    revision: str
    digest: str
    attempt: int
    replaces: str = ""


class Ask(msgspec.Struct, frozen=True):
    """Look at the checks of a wave now, and answer under this number."""

    attempt: int
    wave: int
    number: int
    checks: tuple[Check, ...]


class Isolate(msgspec.Struct, frozen=True):
    """Write the quarantine with this number of an attempt, unless it is there. spec: without its policy and
    sets."""

    attempt: int
    number: int
    spec: QuarantineSpec


Action = Approve | Withdraw | Restore | Ask | Isolate


class Step(NamedTuple):
    """The outcome of one step.

    rows: target -> its changed row, None for a row that goes
    actions: all that is to be done now, also what was ordered before and is not done yet
    wait_seconds: seconds until the next step if nothing else happens, None for never
    """

    rollout: Rollout
    rows: Mapping[str, Target | None]
    actions: tuple[Action, ...]
    wait_seconds: float | None
