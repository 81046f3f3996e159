"""Records of an attempt: its inputs, its writes, its refusal."""

from collections.abc import Iterable
from typing import NamedTuple

from pvbus.core.keys import digest


class Inputs(NamedTuple):
    """The inputs of an outcome at one moment. revisions: (name, digest); others: digest of the rest."""

    revisions: tuple[tuple[str, str], ...]
    others: str

    def digest(self, without: Iterable[str] = ()) -> str:
        """Return one digest of all inputs. without: names of revisions to leave out."""
        return digest([[r for r in self.revisions if r[0] not in without], self.others])


class Written(NamedTuple):
    """Revisions we wrote, whose watch echo is awaited.

    others: digest of all other inputs. versions: the resourceVersions of each revision, in order.
    until: end of the wait, in elapsed seconds.
    """

    others: str
    versions: dict[str, tuple[str, ...]]
    until: float


class RefusedAttempt(NamedTuple):
    """An attempt that failed permanently; it is not repeated on the same inputs before `until`."""

    inputs: str
    error: str
    until: float
