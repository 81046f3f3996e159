"""The state that the service rollout holds for one policy."""

import math
from typing import NamedTuple

import msgspec

from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.kernel.echo import ObservedObject
from pvbus.core.kernel.rolloutrows import Commands, Rollout, Target
from pvbus.core.promotion.protocol.rules import Rules, rules_of
from pvbus.core.promotion.protocol.validation import validate_policy
from pvbus.core.promotion.rollout.candidates import Candidates
from pvbus.core.promotion.rollout.commanding import commands_of
from pvbus.core.promotion.rollout.recovery import recovered
from pvbus.core.promotion.rollout.sightings import Sightings

STATUS_SECONDS = 1.0
"""Between two writes of a status: it follows a rollout, and is no load for the API server."""

_policy = msgspec.json.Decoder(RolloutPolicy)


class Wanted(NamedTuple):
    """A policy as people wrote it.

    problems: what is wrong with its spec
    rules: the compiled spec, None if it has problems
    unread: what is wrong with the orders in its annotations
    """

    policy: RolloutPolicy
    problems: list[str]
    rules: Rules | None
    commands: Commands
    unread: list[str]

    @classmethod
    def of(cls, raw: bytes) -> "Wanted":
        policy = _policy.decode(raw)
        problems = validate_policy(policy.spec)
        commands, unread = commands_of(policy.metadata.annotations)
        return cls(policy, problems, None if problems else rules_of(policy.spec), commands, unread)

    def is_as(self, other: "Wanted | None") -> bool:
        """Tell whether nothing but the status differs."""
        return (
            other is not None
            and (self.policy.metadata.uid, self.policy.spec, self.commands, self.unread)
            == (other.policy.metadata.uid, other.policy.spec, other.commands, other.unread)
            and self.policy.metadata.deletion_timestamp == other.policy.metadata.deletion_timestamp
        )


class RolloutData(ObservedObject):
    """What rollout knows of one policy. All times are in seconds since the epoch.

    wanted: the policy, None if there is none
    rollout, rows: the rows on the bus
    sightings: what was last seen of the targets' evidence
    shown: the rollout after the last step, with the time that is not written yet
    is_touched: whether something has changed since the last step that changed nothing
    stepped_at: when the last step was taken
    due: when the next step is taken at the latest
    is_stale: whether the status may differ from the rows
    reported_at: when the status was last compared with the rows
    report_at: when the status may be written next
    remind_at: when it says again how long somebody is waited for
    """

    __slots__ = (
        "candidates",
        "due",
        "is_stale",
        "is_touched",
        "remind_at",
        "report_at",
        "reported_at",
        "rollout",
        "rows",
        "shown",
        "sightings",
        "stepped_at",
        "wanted",
    )

    def __init__(self) -> None:
        super().__init__()
        self.wanted: Wanted | None = None
        self.rollout: Rollout | None = None
        self.rows: dict[str, Target] = {}
        self.candidates = Candidates()
        self.sightings = Sightings()
        self.shown: Rollout | None = None
        self.is_touched = self.is_stale = True
        self.remind_at = math.inf
        self.stepped_at = self.due = self.reported_at = self.report_at = 0.0

    @property
    def present(self) -> Rollout:
        """The rollout as it is."""
        if self.rollout is not None or self.wanted is None:
            return self.rollout or Rollout()
        return recovered(self.wanted.policy.status)

    @property
    def is_empty(self) -> bool:
        return self.raw is None and self.rollout is None and not self.rows and not self.candidates

    def observe(self, raw: bytes | None) -> None:
        """Apply the policy as it is; a change of its status alone is no reason for a step."""
        wanted = Wanted.of(raw) if raw is not None else None
        if wanted is None or not wanted.is_as(self.wanted):
            self.is_touched = True
        super().observe(raw)
        self.wanted, self.is_stale = wanted, True
        self.report_at = min(self.report_at, self.reported_at + STATUS_SECONDS)  # a conflict is over
