"""The rows of one group in the file: who its members are, and which of them has which lease."""

from pvbus.adapters.sqlite.store import Store
from pvbus.core.errors import PermanentError
from pvbus.ports.bus import Lease


class GroupRows:
    """The members and leases of a group. Caller: inside `Store.write`."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store

    def create_leases(self, partitions: int) -> None:
        (known,) = self._store.db.execute(
            "SELECT count(*) FROM leases WHERE consumer_group = ?", (self.name,)
        ).fetchone()
        if known not in (0, partitions):
            raise PermanentError(
                f"group {self.name} has {known} leases, but its topics have {partitions} partitions",
                reason="PartitionsDiffer",
            )
        if not known:
            self._store.db.executemany(
                "INSERT INTO leases (consumer_group, partition, epoch) VALUES (?, ?, 1)",
                ((self.name, partition) for partition in range(partitions)),
            )

    def add_member(self, process: str, label: str) -> int:
        sql = "INSERT INTO members (consumer_group, process, label) VALUES (?, ?, ?) RETURNING id"
        (member,) = self._store.db.execute(sql, (self.name, process, label)).fetchone()
        return int(member)

    def beat(self, member: int, *, leaving: bool) -> bool:
        """Raise a member's beat; return False if the member has been removed."""
        sql = "UPDATE members SET beat = beat + 1, leaving = ? WHERE id = ?"
        return self._store.db.execute(sql, (leaving, member)).rowcount > 0

    def members(self) -> list[tuple[int, str, int, int]]:
        """Return (id, process, beat, leaving) of each member."""
        sql = "SELECT id, process, beat, leaving FROM members WHERE consumer_group = ? ORDER BY id"
        return self._store.db.execute(sql, (self.name,)).fetchall()

    def leases(self) -> list[tuple[int, int, int | None]]:
        """Return (partition, epoch, owner) of each lease."""
        sql = "SELECT partition, epoch, owner FROM leases WHERE consumer_group = ? ORDER BY partition"
        return self._store.db.execute(sql, (self.name,)).fetchall()

    def set_owner(self, partition: int, member: int) -> None:
        """Give a free lease to a member; its epoch rose when it became free."""
        sql = "UPDATE leases SET owner = ? WHERE consumer_group = ? AND partition = ?"
        self._store.db.execute(sql, (member, self.name, partition))

    def release(self, lease: Lease, member: int) -> None:
        """Free a lease, if it still is the member's."""
        self._store.db.execute(
            "UPDATE leases SET owner = NULL, epoch = epoch + 1"
            " WHERE consumer_group = ? AND partition = ? AND epoch = ? AND owner = ?",
            (lease.group, lease.partition, lease.epoch, member),
        )

    def remove_member(self, member: int) -> None:
        """Remove a member, and fence all leases that it held."""
        self._store.db.execute("DELETE FROM members WHERE id = ?", (member,))
        self._store.db.execute("UPDATE leases SET owner = NULL, epoch = epoch + 1 WHERE owner = ?", (member,))
