"""Which PackageRevs only this replica has changed since it last read git.

What others have written may follow from a newer state of git than this replica has read. What the replica
has written itself follows from a state that it knows, as it has pushed it. Apart from `store`, as
it needs no server.
"""

from typing import NamedTuple

from pvbus.controlplane.apiserver.entries import ObjectKey


class _Run(NamedTuple):
    """Writes of this replica in a row.

    before: the resourceVersion that the first one replaced
    last: the resourceVersion of the last one
    """

    before: int
    last: int


class OwnWrites:
    """The last run of own writes of each object."""

    def __init__(self) -> None:
        self._runs: dict[ObjectKey, _Run] = {}

    def add(self, key: ObjectKey, before: int, version: int) -> None:
        """Add a write of this replica.

        before: the resourceVersion that it replaced, or that of the last deletion; 0 if there was neither
        version: the resourceVersion of the write
        """
        run = self._runs.get(key)
        first = run.before if run is not None and run.last == before else before
        self._runs[key] = _Run(first, version)

    def forget(self, key: ObjectKey) -> None:
        """Treat the writes until now as another replica's: nobody knows whether they are in git."""
        self._runs.pop(key, None)

    def last_of_others(self, key: ObjectKey, version: int) -> int:
        """Return the resourceVersion that another replica has written last.

        version: the present resourceVersion
        """
        run = self._runs.get(key)
        return run.before if run is not None and run.last == version else version
