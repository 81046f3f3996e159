"""A PackageRevision as the controllers observe it."""

from typing import NamedTuple

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.records import ObjectRow, RevisionFacts

REVISION_KIND = f"{PORCH_GROUP}/PackageRevision"


class ObservedRevision(NamedTuple):
    """A PackageRevision as observed."""

    namespace: str
    name: str
    row: ObjectRow
    facts: RevisionFacts

    @property
    def identity(self) -> str:
        """A string that changes when the upstream does: a tag may be moved, so its commit is part of it."""
        return f"{self.name}@{self.row.uid}@{self.facts.self_commit}@{self.facts.revision}"

    def followed(self, *, saves: bool) -> str:
        """Return the part of the identity that a variant follows. saves: also what is saved to a draft."""
        is_open = self.facts.lifecycle not in PUBLISHED
        return f"{self.name}@{self.row.uid}@draft" if is_open and not saves else self.identity

    def owned_by(self, uid: str) -> bool:
        return any(owner.uid == uid for owner in self.row.owners)
