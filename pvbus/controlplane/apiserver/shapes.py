"""The forms in which objects are sent: whole, metadata only, or as rows of a table."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.entries import Entry, encode
from pvbus.controlplane.apiserver.printing import partial_metadata
from pvbus.controlplane.apiserver.printing import table as make_table
from pvbus.controlplane.apiserver.registry import Endpoint
from pvbus.controlplane.apiserver.requests import Shape

Include = Literal["Metadata", "Object", "None"]
_INCLUDES: Mapping[str, Include] = {
    "": "Metadata",
    "Metadata": "Metadata",
    "Object": "Object",
    "None": "None",
}


class Form(NamedTuple):
    """Encodes the objects for one request.

    endpoint: the kind, in the version of the request
    shape: whole objects, their metadata, or a table
    include: the part of its object that each row of a table holds
    """

    endpoint: Endpoint
    shape: Shape
    include: Include = "Metadata"

    def one(self, entry: Entry, *, watch: bool = False, first: bool = True) -> bytes:
        """Return the JSON of a single object; in a watch only the first table has column definitions."""
        if self.shape == "":
            return self.endpoint.raw(entry)
        if self.shape == "PartialObjectMetadata":
            return encode(partial_metadata(self.endpoint.presented(entry.opened())))
        obj = self.endpoint.presented(entry.decode())
        return encode(self.table([obj], str(entry.rv), watch=watch and not first))

    def many(self, entries: Sequence[Entry], rv: int, continue_: str, remaining: int) -> bytes:
        """Return the JSON of a list."""
        if self.shape == "Table":
            objects = [self.endpoint.presented(entry.decode()) for entry in entries]
            return encode(self.table(objects, str(rv), continue_, remaining=remaining or None))
        metadata: dict[str, Any] = {"resourceVersion": str(rv)}
        if continue_ or self.endpoint.served.custom:
            metadata["continue"] = continue_  # that of a custom kind is there even if it is empty
        if remaining:
            metadata["remainingItemCount"] = remaining
        if self.shape == "PartialObjectMetadata":
            kind, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            items = [encode(partial_metadata(entry.opened())) for entry in entries]
        else:
            kind, api_version = self.endpoint.served.list_kind, self.endpoint.api_version
            items = [self.endpoint.raw(entry) for entry in entries]
        return joined(api_version, kind, metadata, items)

    def bookmark(self, rv: int, *, initial: bool) -> bytes:
        """Return the object of a bookmark: a kind and a resourceVersion, nothing else."""
        metadata: dict[str, Any] = {"resourceVersion": str(rv)}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.shape == "Table":
            empty = self.table([], str(rv), watch=True)
            empty["metadata"] = metadata
            return encode(empty)
        if self.shape == "PartialObjectMetadata":
            kind, api_version = "PartialObjectMetadata", "meta.k8s.io/v1"
        else:
            kind, api_version = self.endpoint.served.kind, self.endpoint.api_version
        return encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})

    def table(
        self,
        objects: list[Any],
        rv: str = "",
        continue_: str = "",
        *,
        remaining: int | None = None,
        watch: bool = False,
    ) -> dict[str, Any]:
        return make_table(
            self.endpoint.served,
            self.endpoint.version.name,
            objects,
            now=datetime.now(UTC),
            include=self.include,
            resource_version=rv,
            continue_=continue_,
            remaining=remaining,
            watch=watch,
        )


def form(endpoint: Endpoint, shape: Shape, query: Mapping[str, str]) -> Form:
    include = _INCLUDES.get(query.get("includeObject", ""))
    if include is None:
        raise status.bad_request(f"invalid includeObject: {query['includeObject']}")
    return Form(endpoint, shape, include)


def joined(api_version: str, kind: str, metadata: Mapping[str, Any], items: Sequence[bytes]) -> bytes:
    """Return the JSON of a list with encoded items."""
    head = encode({"apiVersion": api_version, "kind": kind, "metadata": metadata})
    return b"".join((head[:-1], b',"items":[', b",".join(items), b"]}"))
