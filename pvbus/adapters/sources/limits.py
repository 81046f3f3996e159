"""How long and how much is read of a source."""

from typing import NamedTuple

from pvbus.core.platform.packaging.archives import Limits


class SourceLimits(NamedTuple):
    """Limits of one operation on a source.

    seconds_max: of one attempt, whatever the server sends meanwhile. idle_seconds: without a byte.
    layer_bytes_max: of a layer as it is sent. content: of what it unpacks to. manifest_bytes_max: of a
    manifest or a page of tags; the specification lets registries refuse more than 4 MB. requests_max: of one
    operation, so pages of tags, too. attempts: of an operation that fails for now. cache_bytes: of the
    contents on disk.
    """

    seconds_max: float = 60.0
    idle_seconds: float = 10.0
    layer_bytes_max: int = 64 * 1024 * 1024
    content: Limits = Limits()
    manifest_bytes_max: int = 4 * 1024 * 1024
    requests_max: int = 500
    attempts: int = 3
    cache_bytes: int = 1024 * 1024 * 1024
