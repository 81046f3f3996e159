"""Print the state machines as tables: python -m docs.states."""

from collections.abc import Callable
from typing import NamedTuple

from pvbus.core.ingest import states as informer
from pvbus.core.unroll import states as child


class Machine(NamedTuple):
    """A state machine. name: of its generated part (`states-<name>`) in ARCHITECTURE.md."""

    name: str
    title: str
    table: Callable[[], str]


MACHINES = (
    Machine("informer", "The informer of a kind", informer.transition_table),
    Machine("child", "A child of a set", child.transition_table),
)

if __name__ == "__main__":
    print("\n\n".join(f"# {machine.title}\n\n{machine.table()}" for machine in MACHINES))
