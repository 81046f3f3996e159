"""What an install waits for: what it needs and is not healthy, but not what needs it in turn.

Packages that need each other in a cycle are one step: they wait for what any of them needs outside of the
cycle, and not for each other.
"""

from collections.abc import Callable, Iterable

from pvbus.core.platform.solver.connected import strongly_connected

Needs = Callable[[str], Iterable[str]]


def unmet(start: str, needs: Needs) -> list[str]:
    """Return the installs that one waits for. needs: returns what it needs and is not healthy."""
    edges: dict[tuple[str, str], list[tuple[str, str]]] = {}
    pending = [start]
    while pending:
        each = pending.pop()
        if ("", each) not in edges:
            found = list(dict.fromkeys(needs(each)))
            edges["", each] = [("", other) for other in found]
            pending += found
    group = next(each for each in strongly_connected(edges) if ("", start) in each)
    inside = {name for _, name in group}
    # What it needs itself comes first in a message.
    ordered = [start, *sorted(inside - {start})]
    return list(dict.fromkeys(name for each in ordered for _, name in edges["", each] if name not in inside))
