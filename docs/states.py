"""Print the state machines as tables: python -m docs.states."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from pvbus.core.kernel import rolloutstates as rollout
from pvbus.core.platform.establish import states as install
from pvbus.core.variants.ingest import states as informer
from pvbus.core.variants.revisions import states as downstream
from pvbus.core.variants.unroll import states as child
from pvbus.runtime.reconcile import states as lease


class Machine(NamedTuple):
    """A state machine. name: of its generated part (`states-<name>`) in ARCHITECTURE.md."""

    name: str
    title: str
    transitions: Mapping[Any, Mapping[Any, Any]]
    """The next state by state and event; for an informer, the states that may come next."""

    columns: tuple[str, str, str] = ("state", "event", "next state")

    def table(self) -> str:
        """Return a Markdown table with a row for each pair that can occur."""
        return "\n".join([f"| {' | '.join(self.columns)} |", "| --- | --- | --- |", *self._rows()])

    def _rows(self) -> Iterator[str]:
        for state, pairs in self.transitions.items():
            for event, after in pairs.items():
                choices = after if isinstance(after, tuple | frozenset) else (after,)
                yield f"| {_word(state)} | {_word(event)} | {', '.join(map(_word, choices))} |"


def _word(value: type | Enum | None) -> str:
    match value:
        case None:
            return "(no row)"
        case Enum():
            return str(value.value)
    return value.__name__


MACHINES = (
    Machine("informer", "The informer of a kind", informer.TRANSITIONS),
    Machine("child", "A child of a set", child.TRANSITIONS),
    Machine("downstream", "The downstream of a variant", downstream.ACTIONS, ("state", "finding", "action")),
    Machine(
        "upstream",
        "The upstream of a variant, beside the lock of its downstream",
        downstream.FINDINGS,
        ("wanted upstream", "what is left of the old one", "finding"),
    ),
    Machine("lease", "The lease of a partition", lease.TRANSITIONS),
    Machine("rollout", "A rollout", rollout.ROLLOUT_TRANSITIONS),
    Machine("target", "A target of a rollout", rollout.TARGET_TRANSITIONS),
    Machine("install", "An install of a package", install.ACTIONS, ("state", "finding", "action")),
)

if __name__ == "__main__":
    print("\n\n".join(f"# {machine.title}\n\n{machine.table()}" for machine in MACHINES))
