"""What a service requests of ingest for itself: to observe kinds that no set or variant names."""

from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.keys import WatchKey, watch_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.records import WATCHES, WatchRequest


class KindRequests:
    """The requests of a service's leases for kinds, each written once per lease.

    A request that was returned counts as sent until its row is read or `forget` is called, which is due
    whenever the outcome that has it may not have been written.
    """

    def __init__(self, service: str, kinds: tuple[Kind, ...]) -> None:
        self._service = service
        self._kinds = kinds
        self._written: set[str] = set()
        self._sent: set[str] = set()

    def load(self, key: str, value: bytes | None) -> None:
        """Apply a record of `watches`, of any service."""
        if value is None:
            self._written.discard(key)
        else:
            self._written.add(key)
        self._sent.discard(key)

    def take(self, partition: int) -> tuple[Put, ...]:
        """Return the rows that the lease has to write: those that are neither written nor sent."""
        puts = []
        for kind in self._kinds:
            request = WatchRequest(group=kind.group, kind=kind.kind, requester=self._requester(partition))
            key = watch_key(request)
            if key not in self._written and key not in self._sent:
                self._sent.add(key)
                puts.append(Put(WATCHES, key, request))
        return tuple(puts)

    def forget(self, partition: int) -> None:
        """Send again what the lease has sent and not read."""
        owner = self._requester(partition)
        self._sent = {key for key in self._sent if WatchKey.parse(key).requester != owner}

    def _requester(self, partition: int) -> str:
        return f"{self._service}-{partition}"
