"""What is remembered of an attempt: what it went by, what it wrote, how it was refused."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.core.keys import digest


class Inputs(NamedTuple):
    """What an outcome depends on, at one moment. revisions: name and digest; others: digest of the rest."""

    revisions: tuple[tuple[str, str], ...]
    others: str

    def digest(self, without: Iterable[str] = ()) -> str:
        """Return one digest over it all; without: names of revisions left out."""
        return digest([[r for r in self.revisions if r[0] not in without], self.others])


class Written(NamedTuple):
    """Revisions we wrote and whose echo is awaited until a time.

    others: digest of all else that the outcome depends on. versions: of each revision, as they
    followed one another.
    """

    others: str
    versions: dict[str, tuple[str, ...]]
    until: float


class RefusedAttempt(NamedTuple):
    """An attempt on these inputs that failed for good, as far as anybody knows, until a time. error: why."""

    inputs: str
    error: str
    until: float
