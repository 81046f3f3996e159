"""Requests for object content: rows of `watches`, with a count of the variants that need them.

Several variants of a lease may need one object; its request is written for the first and withdrawn with
the last of them. A variant's result row stores its requests, so a lease that moves or restarts can
still withdraw the unused ones.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.kernel.effects import Effect, Get, Put
from pvbus.core.kernel.keys import WatchKey, is_check
from pvbus.core.kernel.records import WATCHES, WatchRequest
from pvbus.core.variants.inject.mutations import InjectionPoints, injection_points
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import RESOURCES

_request = msgspec.json.Decoder(WatchRequest)
_PREFIX = "inject-"
POINTS_KEPT = 256  # upstream contents whose injection points are cached


def requester(partition: int) -> str:
    """Return the requester name of a lease."""
    return f"{_PREFIX}{partition}"


class _LeaseRequests:
    """The requests of one lease.

    asked: the requests on the bus, with the puts that were returned and are not written yet; None until the
        first change, as the lease is restored then and the bus's rows are known
    users: request -> the variants that need it
    needs: variant -> the requests that it needs
    """

    __slots__ = ("asked", "needs", "users")

    def __init__(self) -> None:
        self.asked: set[str] | None = None
        self.users: dict[str, set[str]] = {}
        self.needs: dict[str, frozenset[str]] = {}


class Requests:
    """The requests of the held leases."""

    def __init__(self) -> None:
        self._on_bus: dict[str, set[str]] = {}
        self._leases: dict[int, _LeaseRequests] = {}

    def close(self, partition: int) -> None:
        self._leases.pop(partition, None)

    def load(self, key: str, value: bytes | None) -> None:
        """Apply a record of `watches`."""
        if is_check(key):
            return
        owner = WatchKey.parse(key).requester
        if value is None:
            self._on_bus.get(owner, set()).discard(key)
        elif owner.startswith(_PREFIX):
            _request.decode(value)  # bad bytes must not count as a request
            self._on_bus.setdefault(owner, set()).add(key)

    def of(self, partition: int, vkey: str) -> tuple[str, ...]:
        """Return the keys of a variant's requests, sorted."""
        return tuple(sorted(self._lease(partition).needs.get(vkey, ())))

    def remember(self, partition: int, vkey: str, keys: Iterable[str]) -> None:
        """Restore a variant's requests from its result row."""
        self._needs(self._lease(partition), vkey, frozenset(keys))

    def change(self, partition: int, vkey: str, wanted: Mapping[str, WatchRequest]) -> list[Put]:
        """Replace a variant's requests; the caller must write the returned rows."""
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
        """Replace a variant's requests; return those that have no user left."""
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


class KnownPoints:
    """The injection points of upstream contents, which say what is requested. Each content is read once."""

    def __init__(self) -> None:
        self._points: OrderedDict[str, InjectionPoints] = OrderedDict()

    def of(self, namespace: str, upstream: ObservedRevision) -> Generator[Effect, Any, InjectionPoints]:
        """Return the injection points of an upstream's content."""
        points = self._points.get(upstream.identity)
        if points is None:
            resources = yield Get(RESOURCES, namespace, upstream.name)
            files = ((resources or {}).get("spec") or {}).get("resources") or {}
            points = injection_points(files)
            if resources is not None and upstream.facts.lifecycle == "Published":  # others change in place
                self._points[upstream.identity] = points
        else:
            self._points.move_to_end(upstream.identity)
        while len(self._points) > POINTS_KEPT:
            self._points.popitem(last=False)
        return points
