"""A package in a registry that wants a password, from its image to the objects that it brings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.command import running
from tests.e2e.packaging.platform import Platform, kubectl_or_skip, owners_of
from tests.tools import registry
from tests.tools.images import Built, Pusher, basic, pull_secret, xpkg_of

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

REPOSITORY = "network"
CRD = "networks.network.example.dev"
CONTENT = """\
apiVersion: meta.pkg.crossplane.io/v1
kind: Provider
metadata: {{name: network}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: networks.network.example.dev}}
spec:
  group: network.example.dev
  names: {{kind: Network, listKind: NetworkList, plural: networks, singular: network}}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, properties: {{{field}: {{type: string}}}}}}}}
"""


@pytest.fixture
def images(tmp_path: Path) -> Iterator[registry.Running]:
    program = registry.found_or_skipped()
    folder = tmp_path / "registry"
    folder.mkdir()
    with registry.running(program, folder, auth="basic") as found:
        yield found


def test_a_package_is_pulled_established_and_renewed(tmp_path: Path, images: registry.Running) -> None:
    """The pull secret opens the registry; a tag that moves is a new revision, and takes the object over."""
    platform = Platform(tmp_path, kubectl_or_skip())
    pusher = Pusher(images.url, basic(registry.USER, registry.PASSWORD))
    first = pusher.push(REPOSITORY, "v1.0.0", xpkg(field="cidr"))
    manifests(tmp_path / "manifests", images)
    with running("up", "manifests", "--packages", cwd=tmp_path, **FAST) as up:
        up.wait_for("manifests: ")
        platform.until(lambda: platform.versions() == {"network": "v1.0.0"}, up)
        assert digests(platform) == {1: first}
        assert fields(platform) == ["cidr"]
        second = pusher.push(REPOSITORY, "v1.0.0", xpkg(field="range"))
        platform.until(lambda: platform.revisions(REPOSITORY) == {1: "Inactive", 2: "Active"}, up)
        platform.until(lambda: fields(platform) == ["range"], up)
        assert digests(platform) == {1: first, 2: second}
        names = [platform.revision(REPOSITORY, number)["metadata"]["name"] for number in (1, 2)]
        assert owners_of(platform.get("customresourcedefinition", CRD)) == {names[0]: False, names[1]: True}
        assert up.end() == 0, up.output
        assert "Traceback" not in up.output
        assert registry.PASSWORD not in up.output


FAST = {"PVBUS_OBSERVE_SECONDS": "1"}
"""How often a source is looked at: a moved tag is seen no sooner."""


def digests(platform: Platform) -> dict[int, str]:
    """Return the digest of each revision's image, by number."""
    found = {number: platform.revision(REPOSITORY, number) for number in platform.revisions(REPOSITORY)}
    return {number: each["spec"]["image"].partition("@")[2] for number, each in found.items()}


def fields(platform: Platform) -> list[str]:
    """Return the fields of the kind that the package defines."""
    (version,) = platform.get("customresourcedefinition", CRD)["spec"]["versions"]
    return list(version["schema"]["openAPIV3Schema"]["properties"])


def xpkg(*, field: str) -> Built:
    return xpkg_of({"package.yaml": CONTENT.format(field=field).encode()})


def manifests(folder: Path, images: registry.Running) -> None:
    secret = pull_secret(images.address, registry.USER, registry.PASSWORD)
    head = {"apiVersion": "v1", "kind": "Secret"}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "crossplane-system"}},
        {**head, **secret, "metadata": {"name": "pull", "namespace": "crossplane-system"}},
        {
            "apiVersion": "pkg.crossplane.io/v1",
            "kind": "Provider",
            "metadata": {"name": "network"},
            "spec": {
                "package": f"{images.address}/{REPOSITORY}:v1.0.0",
                "packagePullSecrets": [{"name": "pull"}],
            },
        },
    ]
    folder.mkdir()
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
