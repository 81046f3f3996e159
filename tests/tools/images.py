"""Makes images of packages, and pushes them to a registry."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
BASE = {"io.crossplane.xpkg": "base"}

META = b"apiVersion: meta.pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: network}\n"
CRD = (
    b"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
    b"metadata: {name: networks.example.org}\n"
    b"spec:\n  group: example.org\n  names: {kind: Network, plural: networks}\n"
    b"  versions: [{name: v1, served: true}]\n"
)
PACKAGE = {"package.yaml": META + b"---\n" + CRD}


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: Mapping[str, bytes], *members: tarfile.TarInfo) -> bytes:
    """Return an archive of files, and of further members without content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return stream.getvalue()


def layer_of(files: Mapping[str, bytes]) -> bytes:
    return gzip.compress(tar_of(files), mtime=0)


class Built(NamedTuple):
    """An image: its manifest, and what this names. type: its media type."""

    manifest: bytes
    blobs: Mapping[str, bytes] = {}
    type: str = OCI_MANIFEST

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def image_of(
    *layers: tuple[bytes, Mapping[str, str]],
    layer_type: str = LAYER,
    changed: Mapping[str, Any] | None = None,
) -> Built:
    """Return an image of these layers and their annotations. changed: fields of each layer's descriptor."""
    config = b"{}"
    descriptors = [
        {
            "mediaType": layer_type, "digest": digest_of(data), "size": len(data),
            "annotations": dict(annotations), **(changed or {}),
        }
        for data, annotations in layers
    ]  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest_of(config),
            "size": len(config),
        },
        "layers": descriptors,
    }
    blobs = {digest_of(data): data for data in (config, *(data for data, _ in layers))}
    return Built(json.dumps(manifest).encode(), blobs)


def xpkg_of(files: Mapping[str, bytes] = PACKAGE) -> Built:
    return image_of((layer_of(files), BASE))


def index_of(images: Sequence[tuple[Built, str]]) -> Built:
    """Return an index of images, each with its platform, such as `linux/amd64`."""
    manifests = [
        {
            "mediaType": image.type, "digest": image.digest, "size": len(image.manifest),
            "platform": dict(zip(("os", "architecture"), platform.split("/"), strict=True)),
        }
        for image, platform in images
    ]  # fmt: skip
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    return Built(json.dumps(document).encode(), {}, OCI_INDEX)


class Pusher:
    """Pushes to a registry. authorization: of every request, "" for none."""

    def __init__(self, url: str, authorization: str = "") -> None:
        self._url = url
        self._headers = {"Authorization": authorization} if authorization else {}

    def push(self, repository: str, tag: str, image: Built) -> str:
        """Push an image, and return its digest."""
        for digest, data in image.blobs.items():
            begun = self._send("POST", f"{self._url}/v2/{repository}/blobs/uploads/", b"")
            location = begun.headers["Location"]
            separator = "&" if "?" in location else "?"
            self._send("PUT", f"{location}{separator}digest={digest}", data, "application/octet-stream")
        self._send("PUT", f"{self._url}/v2/{repository}/manifests/{tag}", image.manifest, image.type)
        return image.digest

    def _send(self, method: str, url: str, data: bytes, type_: str = "") -> Any:
        headers = {**self._headers, **({"Content-Type": type_} if type_ else {})}
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()
            return response


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def pull_secret(host: str, username: str, password: str, name: str = "pull") -> dict[str, Any]:
    """Return a Secret of the namespace demo."""
    entry = {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}
    document = json.dumps({"auths": {host: entry}}).encode()
    return {
        "metadata": {"namespace": "demo", "name": name},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(document).decode()},
    }
