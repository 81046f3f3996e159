"""The type of a kind, for the core, the ports and the shells."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A group and kind; the version is not part of a kind's identity."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.kind}"
