"""Sources of packages as text: an image, a folder of git, or files that are in the text itself.

    registry.example.org/team/package:v1.2.0@sha256:...
    git+https://git.example.org/team/repo.git//folder?ref=v1.2.0
    inline:<base64url of the JSON of path -> content>

Source: OCI distribution specification v1.1, section "Pull" (names, tags); OCI image specification v1.1,
descriptor.md (digests); github.com/distribution/reference (which part is the registry).
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from pvbus.core.errors import PermanentError
from pvbus.core.platform.solver.languages import MASTERMINDS, VersionError

INLINE = "inline:"
GIT = "git+"
GIT_SCHEMES = ("https", "http", "ssh", "file")
REPOSITORY_CHARACTERS_MAX = 255
"""Of host and repository together: registries refuse more."""
INLINE_CHARACTERS_MAX = 256 * 1024
"""A source is part of rows, which the bus bounds by 1 MB."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TAG_FORM = "up to 128 letters, digits, dots, hyphens and underscores"
_DIGEST_FORM = "write sha256: and 64 lower-case hexadecimal digits"
_REF = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//|\.lock(?:/|$)|/\.))[^\x00-\x20\x7f~^:?*\[\\]{1,255}(?<![./])")
_HUB_ALIASES = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
_LOCAL = re.compile(r"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?")


class Image(NamedTuple):
    """An image repository, and which image of it. tag, digest: "" for none; the digest counts."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, and so is spoken to by plain HTTP."""
        return _LOCAL.fullmatch(self.registry) is not None


class GitFolder(NamedTuple):
    """A folder of a git repository.

    folder: the path of the folder, "" for the root
    ref: a branch, tag or commit, "" for HEAD
    """

    url: str
    folder: str = ""
    ref: str = ""

    def __str__(self) -> str:
        folder = f"//{self.folder}" if self.folder else ""
        ref = f"?ref={quote(self.ref, safe='/')}" if self.ref else ""
        return f"{GIT}{self.url}{folder}{ref}"


class Inline(NamedTuple):
    """Files that a source has in itself."""

    files: Mapping[str, bytes]

    def __str__(self) -> str:
        return INLINE + base64.urlsafe_b64encode(_canonical(self.files)).decode().rstrip("=")


Reference = Image | GitFolder | Inline


def split_reference(text: str) -> tuple[str, str, str]:
    """Split a reference into its source, its tag or git ref, and its digest, "" for what it has not.

    The tag `folder/v1` of a folder of git is its version `v1`. What is after a wrong `?` stays in the source,
    which `parse` refuses then.
    """
    address, mark, query = text.partition("?")
    if text.startswith(GIT) and mark:
        name, _, ref = query.partition("=")
        ref = unquote(ref)
        if name != "ref" or not is_ref(ref):
            return text, "", ""
        version = ref.removeprefix(f"{address.partition('://')[2].partition('//')[2].strip('/')}/")
        return address, version if _is_version(version) else ref, ""
    head, slash, last = text.rpartition("/")
    rest, _, digest = last.partition("@")
    name, _, tag = rest.partition(":")
    return f"{head}{slash}{name}", tag, digest


def reference_of(source: str, tag: str) -> str:
    """Return the reference that `split_reference` splits into these."""
    if source.startswith(GIT) and "/" in tag:
        return f"{source}?ref={quote(tag, safe='/')}"
    return f"{source}:{tag}"


_NO_NAME = re.compile(r"[^\w./:@%+~$-]")
"""A character that no name of an image or of a package has."""


def reference_problem(text: str) -> str:
    """Return why a text is no reference to one version of a source, "" if it is one, or a name of files."""
    source, tag, _ = split_reference(text)
    if not source.rpartition("/")[2]:
        return "has no name before its tag or digest"
    if not text.startswith(GIT):
        wrong = _NO_NAME.search(source)
        return f"has {wrong[0]!r}, which no image's name has" if wrong else _pin_problem(text)
    if "?" in text and tag and any(split_reference(source)[1:]):
        return f"names a version before ?ref={tag}, too: remove one"
    try:
        parse(text if "?" in text else source)
    except PermanentError as exc:
        return str(exc)
    return ""


def _pin_problem(text: str) -> str:
    """Return why what follows an image's name is no tag or digest, "" if it is one or nothing follows.

    A name that ends in `:` is meant to have a tag, which a template has left empty.
    """
    rest, at, digest = text.rpartition("/")[2].partition("@")
    _, colon, tag = rest.partition(":")
    if colon and not is_tag(tag):
        return f'"{tag[:60]}" is not a tag: {_TAG_FORM}'
    return f'"{digest[:60]}" is not a digest: {_DIGEST_FORM}' if at and not is_digest(digest) else ""


def _is_version(text: str) -> bool:
    try:
        MASTERMINDS.parse_version(text)
    except VersionError:
        return False
    return True


def parse(source: str) -> Reference:
    """Return what a source is. Raises PermanentError (InvalidSource) that says what is wrong."""
    if source.startswith(INLINE):
        return _inline(source)
    if source.startswith(GIT):
        return _git(source)
    return parse_image(source)


def parse_image(text: str) -> Image:
    """Return the parts of `registry/repository[:tag][@digest]`; the registry has to be there.

    Raises PermanentError (InvalidSource).
    """
    rest, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _invalid(text, f'"{digest}" is not a digest: {_DIGEST_FORM}')
    host, slash, path = rest.partition("/")
    if not slash or not (set(".:") & set(host) or host == "localhost"):
        raise _invalid(
            text, "it has no registry: write registry/repository, as in registry.example.org/package"
        )
    if not _HOST.fullmatch(host):
        raise _invalid(text, f'"{host}" is not the address of a registry')
    if problem := _other_spelling(host):
        raise _invalid(text, f'"{host}" is another spelling of a registry: {problem}')
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(text, f'"{tag}" is not a tag: {_TAG_FORM}')
    if not _REPOSITORY.fullmatch(repository):
        raise _invalid(
            text, f'"{repository}" is not a repository: lower-case letters, digits, and . _ - between'
        )
    if len(host) + 1 + len(repository) > REPOSITORY_CHARACTERS_MAX:
        raise _invalid(text[:60] + "...", f"it has more than {REPOSITORY_CHARACTERS_MAX} characters")
    return Image(host, repository, tag, digest)


def _other_spelling(host: str) -> str:
    """Return what to write in place of an address, "" if it is the one spelling that a registry has here.

    By another one an image would escape the ImageConfigs that name its registry, and be installed twice.
    """
    name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdigit() else (host, "", "")
    if host != host.lower():
        return f"write {host.lower()}"
    if name in _HUB_ALIASES:
        return "write docker.io"
    if port.startswith("0") or (port == "443" and not _LOCAL.fullmatch(host)):
        return f"write {name}" if port.lstrip("0") == "443" else "a port does not begin with 0"
    return ""


def is_digest(text: str) -> bool:
    """Return whether a text is a digest of an algorithm that every registry knows."""
    return _DIGEST.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Return whether a registry may have this tag."""
    return _TAG.fullmatch(text) is not None


def is_ref(text: str) -> bool:
    """Return whether git may have a branch or tag of this name, or it is a commit."""
    return _REF.fullmatch(text) is not None


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """Return the digest of bytes. Raises ValueError for an algorithm that is unknown."""
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """Return the digest of files: the same for the same paths and bytes, whatever their source.

    A length is before each path and content, so that no two different sets of files have the same bytes.
    """
    total = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode(), files[path]):
            total.update(len(part).to_bytes(8, "big"))
            total.update(part)
    return f"sha256:{total.hexdigest()}"


def git_url(text: str) -> str:
    """Return a URL for what git takes as one: `git@host:path` by SSH, or a folder of this machine."""
    if "://" in text:
        return text
    return f"file://{text}" if text.startswith("/") else f"ssh://{text.replace(':', '/', 1)}"


def _git(source: str) -> GitFolder:
    text, _, query = source.removeprefix(GIT).partition("?")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in GIT_SCHEMES:
        raise _invalid(source, f"write git+SCHEME://..., where SCHEME is one of {', '.join(GIT_SCHEMES)}")
    base, _, folder = rest.partition("//")
    url = f"{scheme}://{base}"
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise _invalid(source, str(exc)) from exc
    if parts.password is not None or (parts.username is not None and scheme != "ssh"):
        raise _invalid("git+***", "a URL has no user and password: put them into a pull secret")
    if not parts.path.strip("/") or (scheme != "file" and not parts.hostname) or parts.fragment:
        raise _invalid(source, "it names no repository")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise _invalid(source, "its URL has a space or a control character")
    options = parse_qsl(query, keep_blank_values=True)
    unknown = [name for name, _ in options if name != "ref"]
    if unknown or len(options) > 1 or (query and not options):
        raise _invalid(source, f"?{query}: the only option is ref=, once")
    ref = options[0][1] if options else ""
    if options and not is_ref(ref):
        raise _invalid(source, f'"{ref}" is not a ref: name a branch, a tag or a commit')
    return GitFolder(url, _folder(source, folder), ref)


def _folder(source: str, folder: str) -> str:
    names = [name for name in folder.split("/") if name]
    if any(name in (".", "..") or not name.isprintable() for name in names):
        raise _invalid(source, f'"{folder}" is not a folder of a repository')
    return "/".join(names)


def _inline(source: str) -> Inline:
    text = source.removeprefix(INLINE)
    if len(text) > INLINE_CHARACTERS_MAX:
        raise _invalid("inline:...", f"it has more than {INLINE_CHARACTERS_MAX} characters: publish an image")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        files = msgspec.json.decode(data, type=dict[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as exc:
        raise _invalid("inline:...", f"it is not base64url of a JSON object of texts: {exc}") from exc
    return Inline({path: content.encode() for path, content in files.items()})


_ENCODER = msgspec.json.Encoder(order="sorted")


def _canonical(files: Mapping[str, bytes]) -> bytes:
    """Return the JSON of files. Raises PermanentError (InvalidSource) if one is no text."""
    try:
        return _ENCODER.encode({path: content.decode() for path, content in files.items()})
    except UnicodeDecodeError as exc:
        raise _invalid("inline:...", f"a file is no text in UTF-8: {exc.reason}") from exc


def _invalid(text: str, reason: str) -> PermanentError:
    return PermanentError(f"{text}: {reason}", reason="InvalidSource")
