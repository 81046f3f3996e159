"""The port through which a cluster in memory calls a package server's rules for PackageRevisions."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pvbus.ports.cluster import Object


class Files(NamedTuple):
    """The files of a package revision after a write.

    revision: the PackageRevision after the write
    texts: the files, by path
    status: the status of the PackageRevisionResources
    """

    revision: Object
    texts: Mapping[str, str]
    status: Object


class PackageRules(Protocol):
    """The package server's rules beyond storage. All methods raise the errors of the cluster port."""

    def create(self, obj: Object) -> Files:
        """Check a new PackageRevision and create its files."""
        ...

    def update(self, old: Object, new: Object) -> None:
        """Check an update of a PackageRevision."""
        ...

    def save(self, revision: Object, stored: Mapping[str, str], wanted: Mapping[str, str]) -> Files:
        """Check and render an update of a revision's files."""
        ...

    def delete(self, obj: Object) -> None:
        """Check the deletion of a PackageRevision."""
        ...
