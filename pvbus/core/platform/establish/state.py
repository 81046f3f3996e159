"""What is known of one install: its object, its row in the lock, and what was done."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.packagerows import EstablishedRow, LockRow
from pvbus.core.platform.packaging.statuses import Runtime

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class InstallData:
    """The rows of one key.

    looked_at: when the cluster was last compared with the lock's row, in seconds since 1970; 0 to compare now
    look_after: seconds until the next comparison
    changes: how often the input of the comparison has changed; a pass sees by it that it is outdated
    strays: revision name -> whether the revision lacks the label of its install
    references: references to the active revision's objects, as of the last comparison
    runtime: the state of the active revision's controller, as of the last comparison
    manifest: fields of the active revision's status that come from its package, as of the last comparison
    reported: the status of the install that was written last; None if it is not wanted any more
    app: the digest of what the App of an install of Carvel's says, as it was written last
    """

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.row: LockRow | None = None
        self.done: EstablishedRow | None = None
        self.looked_at = 0.0
        self.look_after = 0.0
        self.changes = 0
        self.strays: dict[str, bool] = {}
        self.order = ""
        self.references: tuple[Mapping[str, Any], ...] = ()
        self.runtime: Runtime | None = None
        self.manifest: Mapping[str, Any] = {}
        self.reported: Mapping[str, Any] | None = None
        self.app = ""

    @property
    def is_empty(self) -> bool:
        return self.raw is None and self.row is None and self.done is None and not any(self.strays.values())

    @property
    def active(self) -> str:
        """The revision that the lock orders to be active, "" without one."""
        revisions = self.row.revisions if self.row is not None else ()
        return next((each.name for each in revisions if each.is_active), "")

    def decide(self, row: LockRow | None) -> None:
        self.row = row
        self.look_again()
        self.order = digest(row) if row is not None else ""

    def observe(self, raw: bytes | None) -> bool:
        """Apply the install's object; return whether anything but our own report is new in it."""
        before, self.raw = self.raw, raw
        if self.row is None or before is None or raw is None or asked(before) != asked(raw):
            self.look_again()
            return True
        return self.reported is None or _decode(raw).get("status") != self.reported

    def look_again(self) -> None:
        """Compare the cluster with the lock's row at once, also if that is being done now."""
        self.looked_at = 0.0
        self.changes += 1

    def object(self) -> dict[str, Any]:
        """Return the install's object, a copy of the caller's own."""
        assert self.raw is not None
        return _decode(self.raw)


def asked(raw: bytes) -> Any:
    """Return what of an object matters beside its status."""
    obj = _decode(raw)
    meta = {
        name: value
        for name, value in (obj.get("metadata") or {}).items()
        if name not in ("resourceVersion", "managedFields", "generation")
    }
    return meta, obj.get("spec")
