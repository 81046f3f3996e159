"""State that the repository syncs of one store share."""

from collections.abc import Mapping

from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.gitrepo import File

FILES_BYTES_MAX = 64 * 1024 * 1024
FILE_OVERHEAD_BYTES = 300
"""Package content in memory: thousands of usual packages, ten of the largest."""


def _bytes_of(files: Mapping[str, File]) -> int:
    return sum(len(path) + len(file.data) + FILE_OVERHEAD_BYTES for path, file in files.items())


class StoreActivity:
    """The number of repository syncs and of requests in progress, and a cache of package content."""

    def __init__(self) -> None:
        self.files: SizedCache[str, Mapping[str, File]] = SizedCache(FILES_BYTES_MAX, _bytes_of)
        self.keepers = 0
        self.requests = 0
