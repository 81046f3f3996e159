"""What was written to a cluster in memory, in order."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from pvbus.adapters.memory.spill import Span, Spill
from pvbus.ports.cluster import Object


class Write(NamedTuple):
    """One write that changed an object, as it was sent.

    verb: what was done, as in Kubernetes' verbs
    kind: the kind of the object
    namespace: the namespace of the object, "" for none
    name: the name of the object
    object: the object that was sent, None for a deletion
    subresource: the subresource that was written, "" for the object itself
    before: the previous object, None if it is new
    by: the writer, "" for a client of the cluster port that writes in its own name
    """

    verb: str
    kind: str
    namespace: str
    name: str
    object: Object | None
    subresource: str
    before: Object | None = None
    by: str = ""


class SpilledWrites(list[Write]):
    """Writes whose objects are on disk, but for those of status, which have none."""

    def __init__(self, spill: Spill) -> None:
        super().__init__()
        self._spill = spill

    def append(self, write: Write) -> None:
        objects = (None, None) if write.subresource == "status" else (write.object, write.before)
        sent, before = (self._spill.put(obj) if obj is not None else None for obj in objects)
        super().append(write._replace(object=cast(Any, sent), before=cast(Any, before)))

    def __iter__(self) -> Iterator[Write]:
        return map(self._read, super().__iter__())

    def _read(self, write: Write) -> Write:
        sent, before = (
            self._spill.get(cast(Span, span)) if span is not None else None
            for span in (write.object, write.before)
        )
        return write._replace(object=sent, before=before)
