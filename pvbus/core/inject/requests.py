"""Whose content is asked for: rows of `watches`, counted by the variants that need them.

Several variants of a lease may need one object; its request is made with the first and withdrawn with
the last of them. A variant's result row remembers its requests, so a lease that moves or restarts can
still withdraw what nobody needs any more.
"""

from collections.abc import Iterable, Mapping

import msgspec

from pvbus.core.effects import Put
from pvbus.core.keys import WatchKey, is_check
from pvbus.core.records import WATCHES, WatchRequest

_request = msgspec.json.Decoder(WatchRequest)
_PREFIX = "inject-"


def requester(partition: int) -> str:
    """Return the name that a lease makes its requests under."""
    return f"{_PREFIX}{partition}"


class _LeaseRequests:
    """asked: what the bus has, or will have once the puts handed out are there; None until the first
    change, by when the lease is restored and all that is on the bus is known."""

    __slots__ = ("asked", "needs", "users")

    def __init__(self) -> None:
        self.asked: set[str] | None = None
        self.users: dict[str, set[str]] = {}
        self.needs: dict[str, frozenset[str]] = {}


class Requests:
    """The requests of the leases held."""

    def __init__(self) -> None:
        self._on_bus: dict[str, set[str]] = {}
        self._leases: dict[int, _LeaseRequests] = {}

    def close(self, partition: int) -> None:
        self._leases.pop(partition, None)

    def load(self, key: str, value: bytes | None) -> None:
        """Take in a record of `watches`."""
        if is_check(key):
            return
        owner = WatchKey.parse(key).requester
        if value is None:
            self._on_bus.get(owner, set()).discard(key)
        elif owner.startswith(_PREFIX):
            _request.decode(value)  # bad bytes must not count as a request
            self._on_bus.setdefault(owner, set()).add(key)

    def of(self, partition: int, vkey: str) -> tuple[str, ...]:
        """Return the keys of what a variant needs, sorted."""
        return tuple(sorted(self._lease(partition).needs.get(vkey, ())))

    def remember(self, partition: int, vkey: str, keys: Iterable[str]) -> None:
        """Take over what a variant needed when its result was written."""
        self._needs(self._lease(partition), vkey, frozenset(keys))

    def change(self, partition: int, vkey: str, wanted: Mapping[str, WatchRequest]) -> list[Put]:
        """Say what a variant needs from now on; the rows returned must be written."""
        lease = self._lease(partition)
        asked = lease.asked
        if asked is None:
            asked = lease.asked = set(self._on_bus.get(requester(partition), ()))
        left = self._needs(lease, vkey, frozenset(wanted))
        puts = [Put(WATCHES, key, request) for key, request in wanted.items() if key not in asked]
        puts += [Put(WATCHES, key, None) for key in sorted(left & asked)]
        asked.update(wanted)
        asked.difference_update(left)
        return puts

    def _lease(self, partition: int) -> _LeaseRequests:
        return self._leases.setdefault(partition, _LeaseRequests())

    @staticmethod
    def _needs(lease: _LeaseRequests, vkey: str, keys: frozenset[str]) -> set[str]:
        """Count the users anew; returns the requests that have none any more."""
        before = lease.needs.pop(vkey, frozenset())
        if keys:
            lease.needs[vkey] = keys
        for key in keys - before:
            lease.users.setdefault(key, set()).add(vkey)
        left = set()
        for key in before - keys:
            lease.users[key].discard(vkey)
            if not lease.users[key]:
                del lease.users[key]
                left.add(key)
        return left
