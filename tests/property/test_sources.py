"""Laws of references and of reading archives, for any text and any bytes."""

import gzip
import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.errors import PermanentError
from pvbus.core.platform.packaging.archives import Layer, Limits, files_of_image, objects_of, read_layer
from pvbus.core.platform.packaging.references import GitFolder, Image, Inline, digest_of_files, parse
from tests.tools.images import tar_of

PARTS = st.from_regex(r"[a-z0-9]{1,8}([._-][a-z0-9]{1,8}){0,2}", fullmatch=True)
HOSTS = st.from_regex(r"[a-z]{1,8}\.[a-z]{2,5}(:[1-9][0-9]{0,3})?|localhost(:5000)?", fullmatch=True)
TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
DIGESTS = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
IMAGES = st.builds(
    Image,
    HOSTS,
    st.lists(PARTS, min_size=1, max_size=4).map("/".join),
    st.one_of(st.just(""), TAGS),
    st.one_of(st.just(""), DIGESTS),
)
REFS = st.from_regex(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,10}(/[A-Za-z0-9][A-Za-z0-9_+&%=-]{0,10}){0,2}", fullmatch=True
)
FOLDERS = st.builds(
    GitFolder,
    st.from_regex(r"https://[a-z]{1,5}\.org/[a-z]{1,8}(/[a-z]{1,8})?(\.git)?", fullmatch=True),
    st.lists(PARTS, max_size=3).map("/".join),
    st.one_of(st.just(""), REFS),
)
NAMES = st.text("ab.\\/~é\n ", min_size=1, max_size=6)
TEXTS = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=20).map(str.encode), max_size=4)
LIMITS = Limits(bytes_max=2000, files_max=5)


@given(st.one_of(IMAGES, FOLDERS, st.builds(Inline, TEXTS)))
def test_a_source_that_is_written_is_parsed_as_the_same(reference: Image | GitFolder | Inline) -> None:
    assert parse(str(reference)) == reference


@given(st.one_of(st.text(), st.text("git+https://a.b:@/?ref=#sha256 \n", max_size=40), IMAGES.map(str)))
def test_any_text_is_a_source_that_is_written_alike_or_is_refused(text: str) -> None:
    try:
        reference = parse(text)
    except PermanentError as error:
        assert error.reason == "InvalidSource"  # noqa: PT017  # any text may be refused
        return
    assert parse(str(reference)) == reference


@given(TEXTS, TEXTS)
def test_digests_are_the_same_exactly_for_the_same_files(
    one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    assert (digest_of_files(one) == digest_of_files(other)) == (one == other)


def is_safe(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/") and path != "" and "\\" not in path


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Draw an archive that may have anything in it, perhaps packed, perhaps cut."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in draw(st.lists(NAMES, max_size=6)):
            member = tarfile.TarInfo(name)
            kinds = [tarfile.REGTYPE] * 8 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE]
            member.type = draw(st.sampled_from(kinds))
            content = draw(st.binary(max_size=1000)) if member.type == tarfile.REGTYPE else b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    data = stream.getvalue()
    if draw(st.booleans()):
        data = gzip.compress(data)
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


@given(st.one_of(archives(), st.binary(max_size=2000)))
def test_any_archive_gives_safe_files_within_the_limits_or_is_refused(data: bytes) -> None:
    try:
        files = read_layer(data, LIMITS)
    except PermanentError as error:
        assert error.reason in ("InvalidContent", "TooLarge")  # noqa: PT017
        return
    assert all(is_safe(path) for path in files)
    assert sum(map(len, files.values())) <= LIMITS.bytes_max
    assert len(files) <= LIMITS.files_max
    assert not any(other.startswith(f"{path}/") for path in files for other in files)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,3}(/[A-Z]{1,3})?", fullmatch=True), st.binary(max_size=300), max_size=6
    )
)
def test_files_come_out_as_they_went_in(files: dict[str, bytes]) -> None:
    # No path is a file and a folder: those with a folder begin with a letter of their own.
    files = {path: data for path, data in files.items() if ("/" in path) == (path[0] > "m")}
    assert read_layer(gzip.compress(tar_of(files))) == files
    if files:  # an image without any is refused
        assert files_of_image([Layer(tar_of(files))]) == files


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text("apiVersion: kindmeta.pkg.crossplane.io/v1\n-{}[]&*!", max_size=200).map(str.encode),
    )
)
def test_the_objects_of_any_file_are_read_or_refused(data: bytes) -> None:
    try:
        objects_of({"a.yaml": data})
    except PermanentError as error:
        assert error.reason in ("InvalidContent", "TooLarge")  # noqa: PT017
