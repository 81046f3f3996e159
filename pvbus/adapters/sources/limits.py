"""How long and how much is read of a source."""

from typing import NamedTuple

from pvbus.core.platform.packaging.archives import Limits


class SourceLimits(NamedTuple):
    """Limits of one operation on a source.

    seconds_max: the time of one attempt, whatever the server sends meanwhile
    idle_seconds: the time without a byte
    layer_bytes_max: the size of a layer as it is sent
    content: the limits of what a layer unpacks to
    manifest_bytes_max: the size of a manifest or a page of tags; the specification lets registries refuse
        more than 4 MB
    requests_max: the requests of one operation, each page of tags included
    attempts: the attempts of an operation that fails for now
    cache_bytes: the size of the contents on disk
    """

    seconds_max: float = 60.0
    idle_seconds: float = 10.0
    layer_bytes_max: int = 64 * 1024 * 1024
    content: Limits = Limits()
    manifest_bytes_max: int = 4 * 1024 * 1024
    requests_max: int = 500
    attempts: int = 3
    cache_bytes: int = 1024 * 1024 * 1024
