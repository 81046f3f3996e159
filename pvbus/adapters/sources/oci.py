"""Reads image registries by the OCI distribution protocol, by the client oras.

oras has the protocol: URLs, challenges and tokens, pages of tags. Not taken from it: its retries, which sleep
in their thread for minutes; its reading of ~/.docker, which belongs to a person; its reading of manifests and
layers, which checks neither digest nor size.

Source: OCI distribution specification v1.1, sections "Pull" and "Content Discovery"; OCI image specification
v1.1, manifest.md and image-index.md; Distribution's documentation, "Token Authentication Specification".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import oras.auth
import oras.container
import oras.provider
import requests

from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.session import LimitedSession
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.platform.packaging.archives import XPKG_ANNOTATION, XPKG_BASE, Layer
from pvbus.core.platform.packaging.pullsecrets import Login
from pvbus.core.platform.packaging.references import Image, digest_of, is_digest

UNAUTHORIZED = "Unauthorized"
NOT_FOUND = "NotFound"
REFUSED = "Refused"
DIGEST_MISMATCH = "DigestMismatch"
MEDIA_TYPE = "MediaType"
LAYERS_MAX = 127
"""What overlay filesystems can stack; no runtime starts an image with more."""
HUB, HUB_ADDRESS = "docker.io", "registry-1.docker.io"
PLATFORM = ("linux", "amd64")

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LAYERS = frozenset(
    {
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    }
)
_ACCEPT = ", ".join((*_MANIFESTS, *_INDEXES))


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    annotations: Mapping[str, str] | None = None
    platform: Mapping[str, Any] | None = None


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    layers: tuple[_Descriptor, ...] = ()
    manifests: tuple[_Descriptor, ...] = ()


class Mirror(NamedTuple):
    """Where images of a registry are asked for first.

    registry: the registry
    address: the address of the mirror
    prefix: the path before the repository's name, "" for none
    """

    registry: str
    address: str
    prefix: str = ""


def parse_mirrors(text: str) -> tuple[Mirror, ...]:
    """Return the mirrors of `registry=address[/prefix]`, separated by commas. Raises ValueError."""
    mirrors = []
    for item in (each.strip() for each in text.split(",") if each.strip()):
        registry, equals, target = item.partition("=")
        address, _, prefix = target.strip().partition("/")
        if not equals or not registry.strip() or not address or "://" in item:
            raise ValueError(f"{item}: write registry=address[/prefix]")
        mirrors.append(Mirror(registry.strip(), address, prefix.strip("/")))
    return tuple(mirrors)


def addresses(image: Image, mirrors: Sequence[Mirror]) -> tuple[Image, ...]:
    """Return where an image is asked for, in order: at the mirrors of its registry, then there."""
    mirrored = [
        image._replace(
            registry=each.address, repository="/".join(filter(None, (each.prefix, image.repository)))
        )
        for each in mirrors
        if each.registry == image.registry
    ]
    return (*mirrored, image)


class _Auth(oras.auth.TokenAuth):  # type: ignore[misc]  # oras has no types
    """Answers a challenge with the login of a pull secret, or as anybody."""

    def __init__(self, login: Login | None) -> None:
        super().__init__()
        self._login = login
        if login is not None:
            self.set_basic_auth(*login)

    def load_configs(self, container: Any, configs: Any = None) -> None:
        """Read no file: see the module."""

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        """Return the headers that answer a challenge. Raises PermanentError if nothing can."""
        challenge = original.headers.get("Www-Authenticate", "")
        scheme = challenge.partition(" ")[0].lower()
        if original.status_code == 403 and refresh:
            raise _refused(original, self._login)
        if scheme == "basic" and self._login is not None and not refresh:
            return {**(headers or {}), "Authorization": f"Basic {self._basic_auth}"}, True
        if scheme == "bearer" and re.search(r'realm="[^"]+"', challenge):
            answer, is_changed = super().authenticate_request(original, headers, refresh=True)
            if is_changed:
                return answer, True
        raise _refused(original, self._login)


class _Client(oras.provider.Registry):  # type: ignore[misc]  # oras has no types
    """oras's client on our session, without its retries."""

    def __init__(self, image: Image, session: LimitedSession, login: Login | None) -> None:
        address = HUB_ADDRESS if image.registry == HUB else image.registry
        super().__init__(hostname=address, insecure=image.is_local)
        self.address = address
        self.session: LimitedSession = session
        self.auth = _Auth(login)
        self.auth.session, self.auth.prefix, self.auth._tls_verify = session, self.prefix, True
        name = image.repository
        if image.registry == HUB and "/" not in name:
            name = f"library/{name}"
        self.container = oras.container.Container(f"{address}/{name}")

    def do_request(
        self, url: str, method: str = "GET", data: Any = None, headers: Any = None, json: Any = None,
        stream: bool = False,
    ) -> requests.Response:  # fmt: skip
        """Send one request, and answer its challenge. Raises PermanentError, TransientError."""
        if urlsplit(url).netloc != self.address:
            raise PermanentError(f"{self.address}: its answer names another host", reason="InvalidAnswer")
        once = oras.provider.Registry.do_request.__wrapped__
        response: requests.Response = once(
            self, url, method, data=data, headers=dict(headers or {}), json=json, stream=stream
        )
        if response.status_code != 200:
            body = response.content if not stream else b""
            response.close()
            raise _refused(response, self.auth._login, _words(body))
        return response


def _words(body: bytes) -> str:
    """Return the messages of a registry's error."""
    try:
        errors = msgspec.json.decode(body)["errors"]
        return "; ".join(f"{each['code']} {each.get('message', '')}".strip() for each in errors)[:300]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return ""


def _refused(response: requests.Response, login: Login | None, words: str = "") -> PermanentError:
    code = response.status_code
    where = response.url.partition("?")[0]
    who = f"as {login.username}" if login else "without a login"
    detail = f" ({words})" if words else ""
    match code:
        case 401:
            return PermanentError(
                f"{where}: refused {who}{detail}: check the pull secret and its host", reason=UNAUTHORIZED
            )
        case 403:
            return PermanentError(f"{where}: not allowed {who}{detail}", reason=FORBIDDEN)
        case 404:
            return PermanentError(f"{where}: there is no such image or tag{detail}", reason=NOT_FOUND)
    return PermanentError(f"{where}: it answered {code} {response.reason}{detail}", reason=REFUSED)


class Registry:
    """One image repository, for one attempt of one operation. Blocks: for worker threads."""

    def __init__(
        self, image: Image, session: LimitedSession, limits: SourceLimits, login: Login | None
    ) -> None:
        self._image = image
        self._session = session
        self._limits = limits
        self._client = _Client(image, session, login)

    def tags(self) -> tuple[str, ...]:
        """Return all tags, page by page. Raises PermanentError, TransientError."""
        try:
            return tuple(dict.fromkeys(str(tag) for tag in self._client.get_tags(self._client.container)))
        except (ValueError, AttributeError, TypeError) as exc:
            raise TransientError(f"{self._image}: its list of tags is no such list: {exc}") from exc

    def digest(self, tag: str) -> str | None:
        """Return the digest of a tag, None if there is no such tag. Raises PermanentError, TransientError."""
        try:
            # HEAD first: public registries count the GET of a manifest as a pull, and limit these.
            response = self._manifest(tag, "HEAD")
            found: str = response.headers.get("Docker-Content-Digest", "")
            if is_digest(found):
                return found
            return digest_of(self._manifest(tag).content)
        except PermanentError as exc:
            if exc.reason == NOT_FOUND:
                return None
            raise

    def layers(self, digest: str) -> tuple[Layer, ...]:
        """Return the layers that have the package. Raises PermanentError, TransientError."""
        manifest = self._decoded(digest)
        if manifest.manifests or manifest.media_type in _INDEXES:
            manifest = self._decoded(self._chosen(manifest).digest)
        if not manifest.layers:
            raise PermanentError(f"{self._image}: the image has no layer", reason="InvalidContent")
        wanted = [
            each for each in manifest.layers if (each.annotations or {}).get(XPKG_ANNOTATION) == XPKG_BASE
        ]
        wanted = wanted or list(manifest.layers)
        self._check_layers(wanted)
        return tuple(Layer(self._blob(each), each.annotations or {}) for each in wanted)

    def _manifest(self, reference: str, method: str = "GET") -> requests.Response:
        url = f"{self._client.prefix}://{self._client.container.manifest_url(reference)}"
        return self._client.do_request(url, method, headers={"Accept": _ACCEPT})

    def _decoded(self, digest: str) -> _Manifest:
        response = self._manifest(digest)
        body = response.content
        self._check_digest(digest, body, "the manifest")
        try:
            manifest = msgspec.json.decode(body, type=_Manifest)
        except msgspec.DecodeError as exc:
            raise PermanentError(
                f"{self._image}: the manifest is unusable: {exc}", reason=MEDIA_TYPE
            ) from exc
        type_ = manifest.media_type or response.headers.get("Content-Type", "").partition(";")[0].strip()
        if type_ not in (*_MANIFESTS, *_INDEXES):
            raise PermanentError(
                f"{self._image}: {digest} has the media type {type_ or '(none)'}, which is no image",
                reason=MEDIA_TYPE,
            )
        return msgspec.structs.replace(manifest, media_type=type_)

    def _chosen(self, index: _Manifest) -> _Descriptor:
        """Return the image of an index for our platform, or the only one."""
        images = [each for each in index.manifests if (each.platform or {}).get("os") != "unknown"]
        fitting = [
            each
            for each in images
            if each.platform and (each.platform.get("os"), each.platform.get("architecture")) == PLATFORM
        ]
        if fitting or len(images) == 1:
            return (fitting or images)[0]
        raise PermanentError(
            f"{self._image}: the index has {len(images)} images, and none is for {'/'.join(PLATFORM)}",
            reason="NoPlatform",
        )

    def _check_layers(self, layers: Sequence[_Descriptor]) -> None:
        if len(layers) > LAYERS_MAX:
            raise PermanentError(f"{self._image}: it has more than {LAYERS_MAX} layers", reason="TooLarge")
        for layer in layers:
            if layer.media_type not in _LAYERS:
                raise PermanentError(
                    f"{self._image}: layer {layer.digest} has the media type {layer.media_type or '(none)'}: "
                    "a package is a tar archive, packed by gzip or not",
                    reason=MEDIA_TYPE,
                )
            if not is_digest(layer.digest) or layer.size < 0:
                raise PermanentError(f"{self._image}: {layer.digest!r} is no digest", reason="InvalidContent")
            if layer.size > self._limits.layer_bytes_max:
                raise PermanentError(
                    f"{self._image}: layer {layer.digest} has {layer.size} bytes, and the limit is "
                    f"{self._limits.layer_bytes_max} (PVBUS_SOURCES_LAYER_MB)",
                    reason="TooLarge",
                )
        if sum(layer.size for layer in layers) > self._limits.content.bytes_max:
            raise PermanentError(
                f"{self._image}: its layers have more than {self._limits.content.bytes_max} bytes",
                reason="TooLarge",
            )

    def _blob(self, layer: _Descriptor) -> bytes:
        response = self._client.get_blob(self._client.container, layer.digest, stream=True)
        data = b"".join(self._session.chunks(response, layer.size))
        if len(data) != layer.size:
            raise TransientError(f"{self._image}: layer {layer.digest} ended after {len(data)} bytes")
        self._check_digest(layer.digest, data, "the layer")
        return data

    def _check_digest(self, digest: str, data: bytes, what: str) -> None:
        found = digest_of(data, digest.partition(":")[0])
        if found != digest:
            raise PermanentError(
                f"{self._image}: {what} has the digest {found}, and not {digest}: the registry or a mirror "
                "serves something else",
                reason=DIGEST_MISMATCH,
            )
