"""The door to where packages are published: image registries, git, and our own package store."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from pvbus.core.kernel.effects import Content, Observation

Secrets = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""Reads the Secret `<namespace>/<name>`; None if there is none."""


class Sources(Protocol):
    """All sources that can be reached; see `Observe` and `Pull` for the arguments."""

    async def observe(self, source: str, tags: Sequence[str], secrets: Sequence[str]) -> Observation:
        """Return the present state of a source.

        Raises PermanentError if it refuses or does not exist, TransientError if nothing of use was answered.
        """
        ...

    async def pull(self, source: str, digest: str, secrets: Sequence[str]) -> Content:
        """Return the content with this digest, from the cache if it is there.

        Raises PermanentError if what is there has another digest or cannot be used, TransientError if nothing
        of use was answered.
        """
        ...

    async def close(self) -> None: ...
