"""Strongly connected groups of a graph of packages: its cycles, and an order without them."""

from collections.abc import Mapping, Sequence

Location = tuple[str, str]
"""A target and a package."""


def strongly_connected(edges: Mapping[Location, Sequence[Location]]) -> list[tuple[Location, ...]]:
    """Return the nodes in groups that reach each other; a group comes after those that its edges lead to.

    `number` is the order in which nodes are found, `lowest` the lowest number on the path that one reaches.
    A node that reaches none before itself begins its group, which is the rest of the path from there on.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, 1972; with a stack of its own, as
    chains of packages can be longer than Python's.
    """
    number: dict[Location, int] = {}
    lowest: dict[Location, int] = {}
    path: list[Location] = []
    on_path: set[Location] = set()
    found: list[tuple[Location, ...]] = []
    for start in sorted(edges):
        work = [] if start in number else [(start, iter(edges[start]))]
        while work:
            location, others = work[-1]
            if location not in number:
                number[location] = lowest[location] = len(number)
                path.append(location)
                on_path.add(location)
            following = next(others, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[location])
                if lowest[location] == number[location]:
                    group = [path.pop()]
                    while group[-1] != location:
                        group.append(path.pop())
                    on_path.difference_update(group)
                    found.append(tuple(sorted(group)))
            elif following not in number:
                work.append((following, iter(edges[following])))
            elif following in on_path:
                lowest[location] = min(lowest[location], number[following])
    return found
