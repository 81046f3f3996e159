"""Print the software bill of materials of pvbus: `python -m deploy.sbom`, CycloneDX 1.6 in JSON.

It lists what an installation has: the packages of requirements/run.lock that this machine installs, each with
the hashes that the lock admits, its licence and what it needs, and the base image by its digest. Debian's git
and tini, which the image adds, are of the versions that Debian has when it is built, and are not listed.
"""

import re
import sys
import uuid
from collections.abc import Mapping
from importlib import metadata

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from deploy.licences import LOCKS, ROOT, Locked, licence_of, locked
from pvbus import __version__

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def bill() -> Bom:
    """Return the bill; all but its time is the same for the same lock files, Dockerfile and machine."""
    packages = locked(LOCKS["run"])
    components = {canonicalize_name(package.name): _component(package) for package in packages}
    pvbus = Component(
        type=ComponentType.APPLICATION,
        name="pvbus",
        version=__version__,
        bom_ref="pvbus",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    image = _base_image()
    bom = Bom(components=[*components.values(), image], serial_number=_serial(packages, image))
    bom.metadata.component = pvbus
    bom.register_dependency(pvbus, [*components.values(), image])
    for name, component in components.items():
        bom.register_dependency(component, _needed(name, components))
    return bom


def _component(package: Locked) -> Component:
    purl = PackageURL("pypi", name=canonicalize_name(package.name), version=package.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in package.hashes]
    wheels = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        comment="each wheel that may be installed has one of these hashes",
        hashes=hashes,
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence_of(package.name))],
        external_references=[wheels],
    )


def _base_image() -> Component:
    """Return the image that the Dockerfile begins with."""
    found = re.search(
        r"^FROM ([\w./-]+):([\w.-]+)@sha256:([0-9a-f]{64})$", DOCKERFILE.read_text(), re.MULTILINE
    )
    if found is None:
        raise SystemExit(
            f"error: {DOCKERFILE}: no base image by its digest; name it as NAME:TAG@sha256:DIGEST"
        )
    name, tag, digest = found.groups()
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        bom_ref=f"image-{name}",
        purl=PackageURL("oci", name=name, version=f"sha256:{digest}", qualifiers={"tag": tag}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def _needed(name: str, components: Mapping[NormalizedName, Component]) -> list[Component]:
    """Return what a package needs of the lock."""
    needs = (Requirement(text) for text in metadata.requires(name) or ())
    names = {
        canonicalize_name(need.name)
        for need in needs
        if need.marker is None or need.marker.evaluate({"extra": ""})
    }
    return [components[need] for need in sorted(names & set(components))]


def _serial(packages: list[Locked], image: Component) -> uuid.UUID:
    content = [f"{package.name}=={package.version} {' '.join(package.hashes)}" for package in packages]
    return uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([__version__, str(image.purl), *content]))


def text() -> str:
    return JsonV1Dot6(bill()).output_as_string(indent=2)


if __name__ == "__main__":
    sys.stdout.write(text() + "\n")
