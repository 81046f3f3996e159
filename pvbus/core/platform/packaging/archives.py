"""Bytes of a published package in, its files out; nothing is written to a disk.

A layer is a tar archive, mostly compressed by gzip, that a stranger made. What could reach outside, or could
be read in two ways, is an error that names the path and the reason: `..`, absolute paths, links, devices,
a path twice. Sizes are limited while it is unpacked, as its own header may say anything.

Three layouts are known. xpkg (Crossplane): the layer with the annotation `io.crossplane.xpkg: base` has
`package.yaml`; without the annotation the layers are one filesystem. imgpkg (Carvel): a filesystem with
`.imgpkg/images.yml`. Plain: any YAML files.

Source: Crossplane's xpkg specification, "Package layer annotation"; Carvel's imgpkg documentation, "Bundle"
and "ImagesLock"; OCI image specification v1.1, layer.md (whiteouts).
"""

import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pvbus.core.errors import PermanentError
from pvbus.core.yaml.reader import PACKAGES, TooLargeError, YamlError, documents

XPKG_ANNOTATION = "io.crossplane.xpkg"
XPKG_BASE = "base"
XPKG_FILE = "package.yaml"
FOLDER_FILE = "crossplane.yaml"
IMAGES_FILE = ".imgpkg/images.yml"
BUNDLE_FILE = ".imgpkg/bundle.yml"

CHUNK_BYTES = 64 * 1024
MEMBER_BYTES = 2560
"""What an archive has for a file beside its content: a header, an extended one with its text, and padding."""
RATIO_BYTES_MIN = 1024 * 1024
"""Unpacked bytes up to which any ratio is fine: small archives are mostly padding."""
PATH_CHARACTERS_MAX = 4096
FOLDERS_DEEP_MAX = 64
HEADER_BYTES_MAX = 64 * 1024
"""Of an extended header, which tarfile reads whole, and by expressions that are slow on long ones."""
_EXTENDED = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Limits(NamedTuple):
    """What a package may have, unpacked.

    bytes_max: bytes of all files together, and of the archive
    files_max: number of files and folders
    ratio_max: unpacked bytes for each packed byte; gzip reaches 1,030 on zeros, and text 20
    """

    bytes_max: int = 128 * 1024 * 1024
    files_max: int = 10_000
    ratio_max: int = 200


class Layer(NamedTuple):
    """A layer of an image, as it was read and its digest verified."""

    data: bytes
    annotations: Mapping[str, str] = {}


Layout = Literal["xpkg", "folder", "imgpkg", "plain"]
"""folder: of a Crossplane package, before an image is built of it."""


def files_of_image(layers: Sequence[Layer], limits: Limits = Limits()) -> dict[str, bytes]:  # noqa: B008 - frozen
    """Return the files of a package: those of its base layer, else of all layers, the later ones above.

    Raises PermanentError (InvalidContent, TooLarge).
    """
    bases = [layer for layer in layers if layer.annotations.get(XPKG_ANNOTATION) == XPKG_BASE]
    if len(bases) > 1:
        raise invalid(f"{len(bases)} layers have the annotation {XPKG_ANNOTATION}: {XPKG_BASE}: one has it")
    if bases:
        files = read_layer(bases[0].data, limits)
        if XPKG_FILE not in files:
            raise invalid(f"{XPKG_FILE}: the layer with the annotation {XPKG_ANNOTATION} has no such file")
        return files
    return _flattened(layers, limits)


def layout_of(files: Mapping[str, bytes]) -> Layout:
    """Return how the files of a package are laid out."""
    if XPKG_FILE in files:
        return "xpkg"
    if FOLDER_FILE in files:
        return "folder"
    return "imgpkg" if IMAGES_FILE in files or BUNDLE_FILE in files else "plain"


def check_path(path: str) -> str:
    """Return a path without `./`. Raises PermanentError (InvalidContent) for one that is not safe."""
    if len(path) > PATH_CHARACTERS_MAX:
        raise invalid(f"{path[:60]!r}...: the path has more than {PATH_CHARACTERS_MAX} characters")
    if path.startswith("/"):
        raise invalid(f"{path!r}: the path is absolute")
    if "\\" in path or not path.isprintable():
        raise invalid(f"{path!r}: the path has a backslash, a control character, or is not UTF-8")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if len(names) > FOLDERS_DEEP_MAX:
        raise invalid(f"{path[:60]!r}...: the path has more than {FOLDERS_DEEP_MAX} folders")
    if ".." in names:
        raise invalid(f"{path!r}: the path has ..")
    return "/".join(names)


def check_files(files: Iterable[tuple[str, int]], limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
    """Check paths and sizes, in bytes, of files before they are read. Raises PermanentError."""
    budget = _Budget(limits)
    known: set[str] = set()
    for path, size in files:
        if check_path(path) != path:
            raise invalid(f"{path!r}: the path has an empty name or .")
        if path in known:
            raise invalid(f"{path!r}: the path is there twice")
        known.add(path)
        budget.spend(path, size)


def read_layer(data: bytes, limits: Limits = Limits()) -> dict[str, bytes]:  # noqa: B008 - frozen
    """Return the files of a tar archive, packed by gzip or not. Raises PermanentError."""
    return _read(data, _Budget(limits))


def images_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the images that a bundle locks: as they are named in it -> by digest; {} without a lock.

    Raises PermanentError (InvalidContent) if the lock cannot be read.
    """
    data = files.get(IMAGES_FILE)
    if data is None:
        return {}
    document = _single(IMAGES_FILE, data)
    if document.get("kind") != "ImagesLock":
        raise invalid(f"{IMAGES_FILE}: kind must be ImagesLock")
    images: dict[str, str] = {}
    for index, item in enumerate(document.get("images") or []):
        image = item.get("image") if isinstance(item, dict) else None
        if not isinstance(image, str) or "@" not in image:
            raise invalid(f"{IMAGES_FILE}: images[{index}].image must be an image with a digest")
        names = item.get("annotations") or {}
        images[str(names.get("kbld.carvel.dev/id", image))] = image
    return images


def objects_of(files: Mapping[str, bytes]) -> list[Mapping[str, Any]]:
    """Return the objects of plain files or of a bundle, in the order of paths and documents.

    Raises PermanentError: InvalidContent, TooLarge.
    """
    return [each for path in sorted(files) if _is_manifest(path) for each in _objects(path, files[path])]


def _is_manifest(path: str) -> bool:
    return path.endswith((".yaml", ".yml")) and not path.startswith(".imgpkg/")


def _objects(path: str, data: bytes) -> Iterator[Mapping[str, Any]]:
    try:
        for number, (value, _, _) in enumerate(documents(data, PACKAGES), 1):
            if value is None:
                continue
            if not isinstance(value, dict) or not value.get("kind") or not value.get("apiVersion"):
                raise invalid(f"{path}: document {number} has no apiVersion and kind")
            yield value
    except TooLargeError as exc:
        raise _too_large(f"{path}: {exc}") from exc
    except YamlError as exc:
        raise invalid(f"{path}: {exc}") from exc


def _single(path: str, data: bytes) -> Mapping[str, Any]:
    objects = list(_objects(path, data))
    if len(objects) != 1:
        raise invalid(f"{path}: it has {len(objects)} documents, and must have one")
    return objects[0]


class _Budget:
    """What is left of the limits of a package."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes = 0
        self._files = 0

    def spend(self, path: str, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > self.limits.files_max:
            raise _too_large(f"{path}: the package has more than {self.limits.files_max} files")
        if self._bytes > self.limits.bytes_max:
            raise _too_large(f"{path}: the files have more than {self.limits.bytes_max} bytes")


class _Member(tarfile.TarInfo):
    """A header of an archive, looked at before tarfile reads what it announces."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        prefix = bytes(buf[345:500]) if buf[257:263] == b"ustar\0" else b""  # GNU's format has times there
        for field in (bytes(buf[:100]), prefix):
            name, _, rest = field.partition(b"\0")
            if rest.strip(b"\0"):
                raise invalid(f"{name.decode(errors='replace')!r}: the name has a NUL, and ends there or not")
        return member

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _EXTENDED and self.size > HEADER_BYTES_MAX):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        proceed: Any = super()._proc_member  # type: ignore[misc]  # tarfile says to override it
        member: tarfile.TarInfo = proceed(archive)
        return member


class _Unpacked(io.RawIOBase):
    """Unpacks gzip as it is read, in chunks, and stops at a limit: a small archive may hold a huge one."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._left = memoryview(data)
        self._gzip = data.startswith(_GZIP_MAGIC)
        self._engine = zlib.decompressobj(31)
        self._buffer = b""
        self._seen = 0
        self._limits = limits
        self._ratio_bytes = max(len(data) * limits.ratio_max, RATIO_BYTES_MIN)
        self._archive_bytes = limits.bytes_max + limits.files_max * MEMBER_BYTES + 2 * CHUNK_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = CHUNK_BYTES if size < 0 else size
        parts: list[bytes] = []
        while wanted > 0 and (part := self._take(min(wanted, CHUNK_BYTES))):
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _take(self, size: int) -> bytes:
        if not self._gzip:
            part, self._left = bytes(self._left[:size]), self._left[size:]
        else:
            part = self._inflate(size)
        self._seen += len(part)
        if self._seen > self._archive_bytes:
            raise _too_large(f"the archive has more than {self._limits.bytes_max} bytes unpacked")
        if self._gzip and self._seen > self._ratio_bytes:
            raise _too_large(
                f"the archive unpacks to more than {self._limits.ratio_max} times its size: a bomb is refused"
            )
        return part

    def _inflate(self, size: int) -> bytes:
        while True:
            part = self._engine.decompress(self._buffer, size)
            self._buffer = self._engine.unconsumed_tail
            if part:
                return part
            if self._engine.eof:
                rest = self._engine.unused_data + bytes(self._left[:CHUNK_BYTES])
                if not rest.startswith(_GZIP_MAGIC):  # zeros may follow the last member
                    return b""
                self._left = self._left[CHUNK_BYTES:]
                self._engine, self._buffer = zlib.decompressobj(31), rest
                continue
            if not self._buffer:
                if not self._left:
                    raise invalid("the archive ends in the middle: it was cut off")
                self._buffer, self._left = bytes(self._left[:CHUNK_BYTES]), self._left[CHUNK_BYTES:]


def _read(data: bytes, budget: _Budget) -> dict[str, bytes]:
    if data.startswith(_ZSTD_MAGIC):
        raise invalid("the archive is packed by zstd, which is not supported: pack it by gzip")
    files: dict[str, bytes] = {}
    folders: set[str] = set()
    try:
        with tarfile.open(
            fileobj=_Unpacked(data, budget.limits), mode="r|", bufsize=CHUNK_BYTES, tarinfo=_Member
        ) as archive:
            for member in archive:
                _add(files, folders, archive, member, budget)
            _check_end(archive)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, OSError) as exc:
        raise invalid(f"it is not a tar archive, or is damaged: {exc}") from exc
    return files


def _check_end(archive: tarfile.TarFile) -> None:
    """Read what follows the end of an archive: zeros, within the limits. Some programs read files there."""
    stream = archive.fileobj
    while stream is not None and (rest := stream.read(CHUNK_BYTES)):
        if rest.strip(b"\0"):
            raise invalid("more than zeros follows the end of the archive: it could be read in two ways")


def _add(
    files: dict[str, bytes],
    folders: set[str],
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    budget: _Budget,
) -> None:
    """Add a member of an archive to the files."""
    path = check_path(member.name)
    if member.issym() or member.islnk():
        raise invalid(f"{path!r}: it is a link to {member.linkname[:200]!r}: a package has no links")
    if member.isdir():
        budget.spend(path, 0)
        _check_parents(files, path, is_folder=True)
        _add_folders(folders, f"{path}/x", budget)
        return
    if not member.isreg() or member.issparse() or member.size < 0:
        raise invalid(f"{path!r}: it is neither a file nor a folder: a package has no devices")
    if not path:
        raise invalid(f"{member.name!r}: the file has no name")
    if path in files or path in folders:
        raise invalid(f"{path!r}: the path is there twice")
    _check_parents(files, path)
    budget.spend(path, member.size)
    stream = archive.extractfile(member)
    content = stream.read() if stream is not None else b""
    if len(content) != member.size:
        raise invalid(f"{path!r}: the archive ends in the middle: it was cut off")
    files[path] = content
    _add_folders(folders, path, budget)


def _add_folders(folders: set[str], path: str, budget: _Budget) -> None:
    """Note the folders of a path; a new one counts as a file, as each takes memory."""
    for folder in _folders_of(path):
        if folder not in folders:
            budget.spend(folder, 0)
            folders.add(folder)


def _folders_of(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _check_parents(files: Mapping[str, bytes], path: str, *, is_folder: bool = False) -> None:
    for folder in (*((path,) if is_folder else ()), *_folders_of(path)):
        if folder in files:
            raise invalid(f"{path!r}: {folder!r} is there as a file, too")


def _flattened(layers: Sequence[Layer], limits: Limits) -> dict[str, bytes]:
    """Return the filesystem that layers make, the later ones above; a whiteout removes what is below."""
    budget = _Budget(limits)
    files: dict[str, bytes] = {}
    is_empty = True
    for layer in layers:
        above = _read(layer.data, budget)
        added = {path: data for path, data in above.items() if not _is_whiteout(path)}
        gone = set(added)
        emptied = set()
        for path in filter(_is_whiteout, above):
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                emptied.add(folder)
            else:
                gone.add(f"{folder}/{name[len(_WHITEOUT) :]}".lstrip("/"))
        emptied |= gone
        parents = {folder for path in added for folder in _folders_of(path)}
        files = {
            path: data
            for path, data in files.items()
            if path not in gone
            and path not in parents
            and "" not in emptied
            and emptied.isdisjoint(_folders_of(path))
        }
        files |= added
        is_empty = is_empty and not above
    if is_empty:
        raise invalid("the layers have no file: their archives are empty")
    return files


def _is_whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_WHITEOUT)


def invalid(message: str) -> PermanentError:
    """Return the error of a content that no retry makes right."""
    return PermanentError(message, reason="InvalidContent")


def _too_large(message: str) -> PermanentError:
    return PermanentError(message, reason="TooLarge")
