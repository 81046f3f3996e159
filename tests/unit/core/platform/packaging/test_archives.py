"""Layers of packages: what is read, and everything that is refused."""

import bz2
import gzip
import io
import tarfile
import time
import tracemalloc

import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.archives import (
    Layer,
    Limits,
    check_files,
    files_of_image,
    images_of,
    layout_of,
    objects_of,
    read_layer,
)
from tests.tools.images import BASE, CRD, META, PACKAGE, layer_of, tar_of

IMAGES = b"""\
apiVersion: imgpkg.carvel.dev/v1alpha1
kind: ImagesLock
images:
- image: registry.example.org/app@sha256:1111
  annotations: {kbld.carvel.dev/id: app:v1}
- image: registry.example.org/other@sha256:2222
"""


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def refusal(data: bytes, limits: Limits = Limits()) -> PermanentError:  # noqa: B008
    with pytest.raises(PermanentError) as caught:
        read_layer(data, limits)
    return caught.value


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_the_files_of_an_archive_are_read(pack: object) -> None:
    assert callable(pack)
    files = {"package.yaml": META, "a/b.yaml": b"", "a/c/d.yaml": b"x" * 100_000}
    archive = tar_of({f"./{path}": data for path, data in files.items()}, member("a/", tarfile.DIRTYPE))
    assert read_layer(pack(archive)) == files


def test_an_archive_of_several_gzip_members_is_read_whole() -> None:
    archive = tar_of(PACKAGE)
    packed = gzip.compress(archive[:700]) + gzip.compress(archive[700:]) + b"\0" * 512
    assert read_layer(packed) == PACKAGE


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../a", "has .."),
        ("a/../../b", "has .."),
        ("a/..", "has .."),
        ("/etc/passwd", "is absolute"),
        ("a\\b", "backslash"),
        ("a\nb", "control character"),
        ("x" * 5000, "more than 4096"),
        ("a/" * 65 + "b", "more than 64 folders"),
    ],
)
def test_a_path_that_is_not_safe_is_refused_and_named(path: str, reason: str) -> None:
    error = refusal(tar_of({path: b""}))
    assert error.reason == "InvalidContent"
    assert reason in str(error)
    assert repr(path[:20])[1:-1] in str(error)


def test_a_path_that_is_not_utf_8_is_refused() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a\udcff"))
    assert "not UTF-8" in str(refusal(stream.getvalue()))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "is a link to '/etc/passwd'"),
        (tarfile.LNKTYPE, "is a link to '/etc/passwd'"),
        (tarfile.CHRTYPE, "no devices"),
        (tarfile.BLKTYPE, "no devices"),
        (tarfile.FIFOTYPE, "no devices"),
        (tarfile.GNUTYPE_SPARSE, "no devices"),
    ],
)
def test_links_and_devices_are_refused_and_named(kind: bytes, words: str) -> None:
    error = refusal(tar_of(PACKAGE, member("a/odd", kind, "/etc/passwd")))
    assert error.reason == "InvalidContent"
    assert "'a/odd'" in str(error)
    assert words in str(error)


def test_a_path_that_is_there_twice_is_refused() -> None:
    assert "'a': the path is there twice" in str(refusal(tar_of({"a": b"1", "./a": b"2"})))
    assert "'a' is there as a file" in str(refusal(tar_of({"a": b"1", "a/b": b"2"})))
    assert "'a': the path is there twice" in str(refusal(tar_of({"a/b": b"1", "a": b"2"})))
    assert "'a' is there as a file" in str(refusal(tar_of({"a": b"1"}, member("a", tarfile.DIRTYPE))))


def test_sizes_and_numbers_of_files_are_limited() -> None:
    files = {f"{number}": b"x" * 10 for number in range(10)}
    assert read_layer(tar_of(files), Limits(bytes_max=100, files_max=10)) == files
    for limits, words in (
        (Limits(bytes_max=99, files_max=10), "more than 99 bytes"),
        (Limits(bytes_max=100, files_max=9), "more than 9 files"),
    ):
        error = refusal(tar_of(files), limits)
        assert error.reason == "TooLarge"
        assert words in str(error)


def test_folders_count_as_files() -> None:
    folders = [member(f"d{number}", tarfile.DIRTYPE) for number in range(11)]
    assert refusal(tar_of({}, *folders), Limits(files_max=10)).reason == "TooLarge"

    deep = {f"{number}/a/b/c/d": b"" for number in range(3)}
    assert refusal(tar_of(deep), Limits(files_max=14)).reason == "TooLarge"
    assert read_layer(tar_of(deep), Limits(files_max=15)) == deep


def raw_header(kind: bytes, size: int) -> bytes:
    """Return a header that says any size."""
    made = member("a", kind)
    block = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 4 + size.to_bytes(8, "big", signed=True) if size < 0 else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (tarfile.REGTYPE, -512),
        (tarfile.DIRTYPE, -512),
        (tarfile.XHDTYPE, 1_000_000),
        (tarfile.XGLTYPE, 1_000_000),
        (tarfile.GNUTYPE_LONGNAME, 1_000_000),
    ],
)
def test_a_header_that_lies_about_sizes_is_refused(kind: bytes, size: int) -> None:
    data = raw_header(kind, size) + b"9" * 1_000_448 + tar_of(PACKAGE)
    assert f"a header of {size} bytes" in str(refusal(data))


def test_a_negative_size_in_an_extended_header_is_refused() -> None:
    made = tarfile.TarInfo("a")
    made.pax_headers = {"size": "-512"}
    data = made.tobuf(tarfile.PAX_FORMAT) + tar_of(PACKAGE)
    assert refusal(data).reason == "InvalidContent"


def test_a_gzip_bomb_is_refused_soon_and_with_little_memory() -> None:
    bomb = layer_of({"bomb": b"\0" * (100 * 1024 * 1024)})
    assert len(bomb) < 125_000
    tracemalloc.start()
    try:
        begun = time.process_time()
        error = refusal(bomb)
        assert time.process_time() - begun < 2
        assert tracemalloc.get_traced_memory()[1] < 100 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert error.reason == "TooLarge"
    assert "200 times its size" in str(error)


def test_a_header_that_says_less_than_the_archive_has_gives_nothing_away() -> None:
    """The archive itself is limited, not only what its headers say."""
    padding = tar_of({"a": b"1"}) + b"\0" * (30 * 1024 * 1024)
    assert read_layer(padding) == {"a": b"1"}  # what follows the end is not read
    error = refusal(tar_of({"a": b"x" * 5_000_000}), Limits(bytes_max=1000, files_max=1))
    assert error.reason == "TooLarge"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a tar archive"),
        (b"hello", "not a tar archive"),
        (bz2.compress(tar_of(PACKAGE)), "not a tar archive"),
        (layer_of(PACKAGE)[:-20], "cut off"),
        (tar_of({"a": b"x" * 5000})[:2000], "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 100, "packed by zstd"),
        (b"\x1f\x8b" + b"x" * 100, "damaged"),
    ],
)
def test_what_is_no_archive_or_damaged_is_refused(data: bytes, words: str) -> None:
    error = refusal(data)
    assert error.reason == "InvalidContent"
    assert words in str(error)


def test_files_are_checked_before_they_are_read() -> None:
    check_files([("a/b", 10)])
    for path in ("a//b", "./a", "../a", "/a"):
        with pytest.raises(PermanentError):
            check_files([(path, 1)])
    with pytest.raises(PermanentError, match="more than 5 bytes"):
        check_files([("a", 3), ("b", 3)], Limits(bytes_max=5))


def test_of_an_xpkg_only_the_base_layer_counts() -> None:
    other = Layer(layer_of({"package.yaml": b"other"}))
    assert files_of_image([other, Layer(layer_of(PACKAGE), BASE), other]) == PACKAGE


def test_two_base_layers_and_a_base_without_its_file_are_refused() -> None:
    base = Layer(layer_of(PACKAGE), BASE)
    with pytest.raises(PermanentError, match="2 layers have the annotation"):
        files_of_image([base, base])
    with pytest.raises(PermanentError, match=r"package\.yaml: the layer"):
        files_of_image([Layer(layer_of({"other.yaml": b""}), BASE)])


def test_without_the_annotation_layers_are_one_filesystem() -> None:
    below = {
        "package.yaml": b"old",
        "g/h/1": b"1",
        "a/1": b"1",
        "a/2": b"2",
        "b/1": b"1",
        "c": b"c",
        "e/f": b"x",
    }
    above = {
        "package.yaml": META,
        "a/.wh.1": b"",
        "b/.wh..wh..opq": b"",
        "b/2": b"2",
        "c/d": b"d",
        "e": b"e",
        "g/.wh.h": b"",
    }
    files = files_of_image([Layer(layer_of(below)), Layer(layer_of(above))])
    assert files == {"package.yaml": META, "a/2": b"2", "b/2": b"2", "c/d": b"d", "e": b"e"}


def test_the_limits_hold_for_all_layers_together() -> None:
    layers = [Layer(layer_of({f"{number}": b"x" * 60})) for number in range(2)]
    with pytest.raises(PermanentError, match="more than 100 bytes"):
        files_of_image(layers, Limits(bytes_max=100))


def test_layouts_are_told_apart() -> None:
    assert layout_of(PACKAGE) == "xpkg"
    assert layout_of({".imgpkg/images.yml": IMAGES, "config/a.yaml": b""}) == "imgpkg"
    assert layout_of({"config/a.yaml": b""}) == "plain"


def test_the_images_of_a_bundle_are_read() -> None:
    assert images_of({".imgpkg/images.yml": IMAGES}) == {
        "app:v1": "registry.example.org/app@sha256:1111",
        "registry.example.org/other@sha256:2222": "registry.example.org/other@sha256:2222",
    }
    assert images_of(PACKAGE) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"kind: Bundle\napiVersion: x/v1\n",
        b"kind: ImagesLock\napiVersion: x/v1\nimages: [{image: app:v1}]\n",
        b"kind: ImagesLock\napiVersion: x/v1\nimages: [3]\n",
        b"{",
        IMAGES + b"---\n" + IMAGES,
    ],
)
def test_a_lock_of_images_that_cannot_be_used_is_refused(data: bytes) -> None:
    with pytest.raises(PermanentError, match=r"\.imgpkg/images\.yml"):
        images_of({".imgpkg/images.yml": data})


def test_the_objects_of_plain_files_come_in_the_order_of_paths() -> None:
    files = {"b.yaml": META, "a.yaml": CRD, "readme.md": b"{", ".imgpkg/bundle.yml": b"{"}
    kinds = [each["kind"] for each in objects_of(files)]
    assert kinds == ["CustomResourceDefinition", "Configuration"]


BOMB = (
    META
    + b"a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + b"".join(
        b"a%d: &a%d [*a%d, *a%d, *a%d, *a%d]\n" % (n, n, n - 1, n - 1, n - 1, n - 1) for n in range(1, 20)
    )
)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (META + b"---\n- a\n", "InvalidContent"),
        (META + b"---\nkind: X\n", "InvalidContent"),
        (b"a: {", "InvalidContent"),
        (b"\xff", "InvalidContent"),
        (b"a: !!timestamp 2024-99-99\nkind: X\napiVersion: v1\n", "InvalidContent"),
        (b"[" * 2000, "InvalidContent"),
        (BOMB, "TooLarge"),
        (META + b"a: &a [*a]\n", "InvalidContent"),
    ],
)
def test_files_that_hold_no_objects_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(PermanentError, match=r"a\.yaml") as caught:
        objects_of({"a.yaml": content})
    assert caught.value.reason == reason
