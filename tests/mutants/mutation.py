"""One mutation, and what must find it."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """Replaces one piece of text in one file. old: occurs there exactly once.

    killed_by: tests, as pytest names them, relative to `tests/`; each alone need not find it, together
    they must. equivalent: why no test can find it; then nothing is run.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...] = ()
    equivalent: str = ""
