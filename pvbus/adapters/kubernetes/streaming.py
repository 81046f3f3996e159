"""Lists as streams (WatchList): a watch that begins with every object, and says when these are all.

A server answers a list from memory that it fills for each client; a stream needs next to none. Whether a kind
is streamed is decided by what its server answers: one that does not know the parameters refuses them, or
ignores them and never says that all objects were sent. Such kinds are listed in pages from then on.

Source: KEP-3157; Kubernetes 1.36, staging/src/k8s.io/apiserver, ValidateListOptions and cacher.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.variants.ingest.events import REPLAY_END
from pvbus.ports.cluster import GoneError, Listing, Object, Resource, WatchEvent

PARAMETERS = {
    "watch": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
    "timeoutSeconds": "300",
}
SILENCE_SECONDS_MAX = 5.0
"""A server that knows the parameters is silent for 3 s at most, until its cache is as new as etcd; one that
does not is silent for ever after its last object."""
LOOK_SECONDS = 1.0
"""How often an object puts off the end of that wait: a timer for each is a fifth of what a list costs."""
FIRST_PAGE_OBJECTS = 500
"""Kinds that fit into one page of this size, and most do, take one small request and no stream."""

_REFUSED = ("Invalid", "BadRequest")


class Streaming:
    """Reads kinds as streams, and remembers which kinds cannot be streamed."""

    def __init__(self) -> None:
        self._refused: set[Resource] = set()

    def may(self, resource: Resource) -> bool:
        return resource not in self._refused

    async def read(
        self,
        resource: Resource,
        stream: Callable[[], AsyncGenerator[WatchEvent]],
        keep: Callable[[Object], Object] | None = None,
    ) -> Listing | None:
        """Read a kind by a stream; None if its server sends none. Raises the errors of a watch.

        keep: see `pvbus.ports.cluster.Reader.list`
        """
        objects: dict[tuple[str, str], Object] = {}
        clock, look_at = asyncio.get_running_loop().time, 0.0
        try:
            async with aclosing(stream()) as events, asyncio.timeout(SILENCE_SECONDS_MAX) as silence:
                async for event in events:
                    if (now := clock()) >= look_at:
                        look_at = now + LOOK_SECONDS
                        silence.reschedule(look_at + SILENCE_SECONDS_MAX)
                    meta = event.object["metadata"]
                    name = (meta.get("namespace", ""), meta.get("name", ""))
                    if event.type == "DELETED":
                        objects.pop(name, None)
                    elif event.type != "BOOKMARK":
                        objects[name] = keep(event.object) if keep is not None else event.object
                    elif REPLAY_END in (meta.get("annotations") or {}):
                        return Listing(meta["resourceVersion"], list(objects.values()))
        except PermanentError as exc:
            if exc.reason not in _REFUSED:
                raise
        except GoneError as exc:
            raise TransientError(str(exc)) from exc
        except TimeoutError:
            pass
        self._refused.add(resource)
        return None
