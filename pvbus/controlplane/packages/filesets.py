"""The files of a package as bytes with git's modes, and as the texts that clients and functions see.

Every write of a package passes `check_files`: a clone, a merge, a pipeline and a request are refused alike.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from pvbus.controlplane.packages import bounds
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.core.yaml.rawtext import bytes_of, text_of


class FileMode(IntEnum):
    """Git's modes of a file and of a symbolic link; pygit2 has them, which not every process loads."""

    BLOB = 0o100644
    LINK = 0o120000


class File(NamedTuple):
    """A blob of a package, with git's file mode."""

    data: bytes
    mode: int = FileMode.BLOB

    @property
    def text(self) -> str | None:
        """The text that clients see; None if it is a symbolic link."""
        return None if self.mode == FileMode.LINK else text_of(self.data)


Files = Mapping[str, File]
"""The content of a package, by path relative to its folder."""


def texts(files: Files) -> dict[str, str]:
    """Return the regular files as text."""
    return {path: text for path, file in files.items() if (text := file.text) is not None}


def replaced(files: Files, wanted: Mapping[str, str]) -> dict[str, File]:
    """Replace the regular files. A file that stays regular keeps its mode."""
    result = {path: file for path, file in files.items() if file.mode == FileMode.LINK and path not in wanted}
    for path, text in wanted.items():
        old = files.get(path)
        mode = old.mode if old is not None and old.mode != FileMode.LINK else FileMode.BLOB
        result[path] = File(bytes_of(text), mode)
    return result


def check_files(files: Files) -> None:
    """Refuse files that no package may have. Raises: ContentError."""
    links = {path: file.data for path, file in files.items() if file.mode == FileMode.LINK}
    size = sum(len(file.data) for file in files.values())
    problem = bounds.path_problem(files) or bounds.link_problem(links)
    if size > bounds.PACKAGE_BYTES_MAX:
        problem = f"the package has {size} bytes, at most {bounds.PACKAGE_BYTES_MAX} are allowed"
    if problem:
        raise ContentError(problem)
