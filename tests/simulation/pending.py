"""What the simulation demands, and today's code does not give yet.

A name in `PENDING` switches an expectation off: an invariant of `watching` is counted but does not fail
a schedule, and a scenario that needs it is not played, or is an expected failure. Take a name out of the
set to switch its expectation on; when the set is empty, this file can go. `PVBUS_SIMULATION_PENDING`
overrides the set for one run: names with commas between them, or nothing for none.

invariants:
    checked: a removal is ordered after an answer to its check request only
    wanted: no variant is deleted that the oracle wants at that answer
    order-age: no DELETE is sent more than 60 s after its order
    guard: removals without a confirmation stay below the guard's limit, in any ten minutes
    hold: nothing but a withdrawal is written under hold
    ready: a status that says Ready was true of the world since its cause
    events: each transition is one event, with an id of its own, and the last one says what the status says
scenarios:
    collisions: two sets that want one name (the loser gets it when the owner gives it up)
    copies: copies of variants, in the same namespace and in others, and foreign labels
    too-large: records that the bus refuses
    clock: wall clocks of single workers jump
    accident: a whole inventory is relabelled
"""

import os

PENDING = frozenset(
    {
        "checked",
        "wanted",
        "order-age",
        "guard",
        "hold",
        "ready",
        "events",
        "collisions",
        "copies",
        "too-large",
        "clock",
        "accident",
    }
)
if (_chosen := os.environ.get("PVBUS_SIMULATION_PENDING")) is not None:
    PENDING = frozenset(_chosen.split(",")) - {""}
