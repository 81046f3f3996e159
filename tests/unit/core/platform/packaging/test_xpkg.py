"""The content of a package: its manifest, its objects, what it provides, and what makes it unusable."""

from collections.abc import Mapping

import pytest

from pvbus.core.kernel.packagerows import ContentRow
from pvbus.core.platform.packaging.xpkg import candidate_of, package_meta
from pvbus.core.platform.solver.model import Candidate, OfferNeed, PackageNeed, PlatformNeed, Requirement, api

META = """\
apiVersion: meta.pkg.crossplane.io/v1
kind: Configuration
metadata:
  name: network
spec:
  crossplane:
    version: ">=v1.14.0"
  dependsOn:
  - provider: xpkg.example.org/acme/aws
    version: ">=v2.0.0"
  - apiVersion: pkg.crossplane.io/v1
    kind: Function
    package: xpkg.example.org/acme/auto
    version: sha256:1234
  - crd: {apiVersion: example.org/v1, kind: Thing}
"""
CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.aws.example.org}
spec:
  group: aws.example.org
  names: {kind: Bucket, plural: buckets}
  versions:
  - {name: v1, served: true, storage: true}
  - {name: v1alpha1, served: false, storage: false}
"""
XRD = """\
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xnetworks.example.org}
spec:
  group: example.org
  names: {kind: XNetwork, plural: xnetworks}
  claimNames: {kind: Network, plural: networks}
  versions:
  - {name: v1alpha1, served: true, referenceable: true}
"""
COMPOSITION = """\
apiVersion: apiextensions.crossplane.io/v1
kind: Composition
metadata: {name: networks}
"""


def image(*documents: str) -> dict[str, bytes]:
    return {"package.yaml": "---\n".join(documents).encode()}


def test_an_image_is_read_whole() -> None:
    """Objects are in the order of the content; claims and served versions are provided."""
    row = package_meta(image(CRD, META, XRD, COMPOSITION))
    assert row.defect == ""
    assert row.meta["metadata"] == {"name": "network"}
    assert row.objects == (
        "apiextensions.k8s.io/CustomResourceDefinition||buckets.aws.example.org",
        "apiextensions.crossplane.io/CompositeResourceDefinition||xnetworks.example.org",
        "apiextensions.crossplane.io/Composition||networks",
    )
    assert row.provides == (
        api("aws.example.org/v1", "Bucket"),
        api("example.org/v1alpha1", "XNetwork"),
        api("example.org/v1alpha1", "Network"),
    )


def test_a_candidate_has_the_requirements_of_the_manifest() -> None:
    """Every form of a dependency is read."""
    row = package_meta(image(META, CRD))
    assert candidate_of("v1.0.0", "sha256:9", row) == Candidate(
        version="v1.0.0",
        digest="sha256:9",
        requirements=(
            Requirement(need=PlatformNeed(platform="crossplane", range=">=v1.14.0")),
            Requirement(need=PackageNeed(package="xpkg.example.org/acme/aws", range=">=v2.0.0")),
            Requirement(need=PackageNeed(package="xpkg.example.org/acme/auto", digest="sha256:1234")),
            Requirement(need=OfferNeed(offer=api("example.org/v1", "Thing"))),
        ),
        provides=(api("aws.example.org/v1", "Bucket"),),
    )


def test_a_folder_is_read_as_crossplane_builds_an_image_of_it() -> None:
    """All files of objects count, in the order of their paths, but for examples, hidden and other files."""
    files = {
        "crossplane.yaml": META.encode(),
        "apis/definition.yaml": XRD.encode(),
        "apis/composition.yml": COMPOSITION.encode(),
        "examples/network.yaml": b"kind: x",
        "examples.yaml": CRD.encode(),
        "apis/examples/bucket.yaml": CRD.replace("buckets", "others").encode(),
        ".github/workflows/build.yaml": b"on: push",
        "apis/.hidden.yaml": b"[",
        "apis/more.json": b"{}",
        "README.md": b"\xff",
    }
    assert package_meta(files).objects == (
        "apiextensions.crossplane.io/Composition||networks",
        "apiextensions.crossplane.io/CompositeResourceDefinition||xnetworks.example.org",
        "apiextensions.k8s.io/CustomResourceDefinition||others.aws.example.org",
        "apiextensions.k8s.io/CustomResourceDefinition||buckets.aws.example.org",
    )


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_each_version_of_the_manifest_is_read(version: str) -> None:
    assert package_meta(image(META.replace("crossplane.io/v1\n", f"crossplane.io/{version}\n"))).defect == ""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "neither package.yaml nor crossplane.yaml"),
        (image(CRD), "has 0 manifests"),
        (image(META, META), "has 2 manifests"),
        (image(META.replace("/v1\n", "/v2\n", 1)), "has 0 manifests"),
        (image(META, CRD, CRD), "has CustomResourceDefinition buckets.aws.example.org twice"),
        (image(META, "kind: A\nmetadata: {name: x}\n"), "package.yaml, document 2: has no apiVersion"),
        (image(META, "apiVersion: v1\nkind: A\n"), "A has no metadata.name"),
        (image(META, "- a\n"), "is not an object"),
        (image(META, "a: [\n"), "package.yaml: line "),
        ({"package.yaml": b"\xff"}, "package.yaml: it is not UTF-8"),
        (image(META, COMPOSITION + "spec: {a: .nan}\n"), ".nan is not a number of JSON"),
        (image(META, COMPOSITION + "spec: {a: [{~: 2}]}\n"), "the key ~ is null"),
        (image(META + "  x: &x [*x]\n"), "the value of &x contains itself"),
        (image(META, CRD.replace("  group: aws.example.org\n", "")), "spec.group"),
        (image(META, CRD.replace("  group: aws.example.org\n", "  group: [a]\n")), "spec.group"),
        (image(META.replace('">=v2.0.0"', '">>2"')), "spec.dependsOn[0].version"),
        (image(META.replace("provider:", "configuration: x\n    provider:")), "exactly one of package"),
        (image(META.replace("kind: Function", "kind: Secret")), "spec.dependsOn[1].kind"),
        (image(META.replace("apiVersion: pkg.", "apiVersion: v1.")), "spec.dependsOn[1].apiVersion"),
    ],
)
def test_what_cannot_be_used_is_a_defect(files: Mapping[str, bytes], words: str) -> None:
    """The defect is a sentence, and the candidate has it, too."""
    row = package_meta(files)
    assert words in row.defect
    candidate = candidate_of("v1.0.0", "sha256:9", row)
    assert words in candidate.defect
    assert candidate.requirements == ()


def brought(api_version: str, kind: str, name: str = "x", spec: str = "{}") -> str:
    return f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (brought("pkg.crossplane.io/v1", "Provider"), "decides what else is installed"),
        (brought("pkg.crossplane.io/v1beta1", "ImageConfig"), "decides what else is installed"),
        (brought("pkg.crossplane.io/v1", "ProviderRevision"), "decides what else is installed"),
        (brought("packaging.carvel.dev/v1alpha1", "PackageInstall"), "decides what else is installed"),
        (brought("data.packaging.carvel.dev/v1alpha1", "Package"), "decides what else is installed"),
        (brought("v1", "Secret"), "only to run packages"),
        (brought("v1", "ServiceAccount"), "only to run packages"),
        (brought("apps/v1", "Deployment"), "only to run packages"),
        (brought("rbac.authorization.k8s.io/v1", "ClusterRole"), "only to run packages"),
        (brought("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), "only to run packages"),
        (CRD.replace("buckets.aws.example.org", "providers.pkg.crossplane.io"), "pvbus itself rests on"),
        (CRD.replace(" aws.example.org", " packaging.carvel.dev"), "pvbus itself rests on"),
        (CRD.replace(" aws.example.org", " config.porch.kpt.dev"), "pvbus itself rests on"),
        (XRD.replace(" example.org", " pkg.crossplane.io"), "pvbus itself rests on"),
    ],
)
def test_what_a_package_would_take_from_others_is_a_defect(document: str, words: str) -> None:
    """Objects of packages are written with the rights of establish, which has some for other ends: to make
    installs, to run packages, and to update every definition."""
    assert words in package_meta(image(META, document)).defect


@pytest.mark.parametrize(
    "document",
    [
        brought("v1", "ConfigMap"),
        brought("rbac.authorization.k8s.io/v1", "Role"),
        brought("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        brought("apiextensions.crossplane.io/v1", "ManagedResourceActivationPolicy"),
        CRD.replace("aws.example.org", "aws.pkg.crossplane.io.example.org"),
    ],
)
def test_other_kinds_are_left_to_the_rights_that_a_cluster_gives(document: str) -> None:
    assert package_meta(image(META, document)).defect == ""


def test_a_row_of_an_older_reader_is_checked_again() -> None:
    """A candidate never has half of the requirements."""
    row = ContentRow(meta={"spec": {"dependsOn": [{"provider": "a"}, {"version": "1"}]}})
    candidate = candidate_of("v1.0.0", "", row)
    assert "spec.dependsOn[1]" in candidate.defect
    assert candidate.requirements == ()
