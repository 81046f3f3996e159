"""What the page knows of each object: small rows, of which `model` has one for each variant and set.

They are mutable: a model of 100,000 rows makes no copies. Version is that of the model in which a row has
changed last.
"""

import msgspec

from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.kernel.records import ChildState, Hold
from pvbus.core.web.labels import Labels
from pvbus.core.web.states import State, lifecycle_of, set_state, variant_state


class Facts(msgspec.Struct, gc=False):
    """What the topics say of an object; mutable, as a model of 100,000 rows makes no copies."""

    version: int = 0
    exists: bool = False
    deleting: bool = False
    generation: int = 0
    observed: int = 0
    ready: bool = False
    stalled: bool = False
    stalled_at: int = 0  # the generation of Stalled
    on_hold: bool = False
    attention: str = ""  # the reason of AttentionNeeded
    reason: str = ""  # of Ready
    warning: str = ""  # the condition of WARNINGS that is True
    since: int = 0  # when a condition of its state changed last, in seconds since 1970; 0 is not known

    @property
    def reported(self) -> bool:
        """Whether a condition is known of it."""
        return bool(self.reason or self.stalled or self.on_hold or self.attention or self.warning)


class VariantRow(Facts, gc=False):
    """What the page knows of one variant.

    labels: its target's, and over them its own and those of its package
    own: its own labels, and over them those of its package
    set_name: the name of the set that made it, "" if a person did
    target: the key of the object that the set selected, "" for a package of a list
    downstream: repository and package that the set wants, as `<repository>/<package>`
    lifecycles: the counts of its revisions by lifecycle, as one number, see `counted`
    """

    labels: Labels = ()
    own: Labels = ()
    set_name: str = ""
    target: str = ""
    downstream: str = ""
    child: ChildState | None = None
    lifecycles: int = 0

    @property
    def state(self) -> State:
        return variant_state(self, self.child)

    @property
    def lifecycle(self) -> str:
        return lifecycle_of(self.lifecycles)

    @property
    def shown(self) -> bool:
        return self.exists or self.child not in (None, ChildState.GONE)

    @property
    def blank(self) -> bool:
        return not (self.shown or self.reported or self.lifecycles)


class SetRow(Facts, gc=False):
    """What the page knows of one set.

    labels: its own
    hold: its removals that are held, None for none
    """

    labels: Labels = ()
    hold: Hold | None = None

    @property
    def state(self) -> State:
        return set_state(self, holds_removals=self.hold is not None)

    @property
    def shown(self) -> bool:
        return self.exists

    @property
    def blank(self) -> bool:
        return not (self.exists or self.reported or self.hold)


class RolloutRow(msgspec.Struct):
    """A policy of rollouts, with the status that says how its attempt stands."""

    policy: RolloutPolicy
    version: int = 0


class QuarantineRow(msgspec.Struct):
    """A quarantine that no person has ended.

    covers: what must not go out again, in words
    why: what failed
    """

    covers: str
    why: str
    version: int = 0


class StopRow(msgspec.Struct):
    """A stop of all rollouts.

    why: who wants it, and why
    entries: the name of each entry that lasts, and the same of it
    """

    why: str
    entries: tuple[tuple[str, str], ...] = ()
    version: int = 0


class KeptRow(msgspec.Struct):
    """A draft that stayed when its variant went.

    variant: the variant, as `<namespace>/<name>`
    note: who edited the draft
    """

    variant: str
    note: str
    version: int = 0
