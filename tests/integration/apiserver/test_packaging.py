"""The definitions of packages in the embedded API server: what both projects document applies unchanged."""

import msgspec
import pytest

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import (
    EstablishedRevision,
    EstablishedRow,
    LockedDependency,
    LockedRevision,
    LockRow,
)
from pvbus.core.platform.packaging.conditions import with_times
from pvbus.core.platform.packaging.reading import install_of
from pvbus.core.platform.packaging.statuses import (
    PAGE_BYTES_MAX,
    Runtime,
    carvel_status,
    lock_status,
    package_locks,
    package_status,
    revision_status,
)
from pvbus.core.platform.solver.model import api as offer_of
from tests.integration.apiserver.client import CRDS, Api
from tests.tools.packagingmanifests import (
    DEFINITIONS,
    PLURALS,
    Refused,
    contains,
    is_named,
    manifests,
    path,
    refused,
)


@pytest.fixture
async def packages(api: Api) -> Api:
    for definition in DEFINITIONS:
        await api.create(CRDS, definition)
    return api


async def test_every_manifest_applies_unchanged(packages: Api) -> None:
    """X1, C1, C2: strictly, and nothing that it says is lost."""
    for manifest in manifests():
        reply = await packages.call("POST", f"{path(manifest)}?fieldValidation=Strict", manifest)
        assert reply.code == 201, (manifest["kind"], reply.body)
        assert contains(reply.body, manifest), manifest["metadata"]["name"]


async def test_each_kind_is_in_a_manifest() -> None:
    """No definition is without a manifest that proves it."""
    kinds = {(each["apiVersion"].partition("/")[0], each["kind"]) for each in manifests()}
    assert kinds == set(PLURALS)


async def test_what_means_nothing_or_two_things_is_refused(packages: Api) -> None:
    """X1, C1, C2: with the field and the reason."""
    for case in refused():
        await _is_refused(packages, case)


async def _is_refused(api: Api, case: Refused) -> None:
    reply = await api.call("POST", path(case.object), case.object)
    assert reply.code == 422, (case, reply.body)
    assert is_named(case, reply.body), (case, reply.body)


async def test_a_misspelt_field_is_refused_by_a_strict_request(packages: Api) -> None:
    """C2: `contraints`, a slip of both proposals, does not silently mean every version."""
    (install,) = [each for each in manifests() if each["metadata"]["name"] == "first"]
    install["spec"]["dependencies"]["override"][0]["versionSelection"] = {"contraints": "1.0.1"}
    reply = await packages.call("POST", f"{path(install)}?fieldValidation=Strict", install)
    assert reply.code == 400
    assert "contraints" in reply.body["message"]


async def test_the_status_is_a_subresource_of_every_install_and_revision(packages: Api) -> None:
    """Columns, categories, scope and short names are those that users know."""
    for (group, kind), definition in PLURALS.items():
        (version,) = definition["spec"]["versions"]
        has_status = kind not in ("PackageMetadata", "ImageConfig", "DeploymentRuntimeConfig") and (
            group,
            kind,
        ) != (
            "data.packaging.carvel.dev",
            "Package",
        )
        assert ("subresources" in version) == has_status, kind
    packages_ = PLURALS["pkg.crossplane.io", "Provider"]["spec"]
    assert (packages_["scope"], packages_["names"]["categories"]) == ("Cluster", ["crossplane", "pkg"])
    installs = PLURALS["packaging.carvel.dev", "PackageInstall"]["spec"]
    assert (installs["scope"], installs["names"]["shortNames"], installs["names"]["categories"]) == (
        "Namespaced",
        ["pkgi"],
        ["carvel"],
    )
    (provider,) = [each for each in manifests() if each["kind"] == "Provider"]
    await packages.create(path(provider), provider)
    table = await packages.call("GET", path(provider), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [column["name"] for column in table.body["columnDefinitions"]]
    assert columns == ["Name", "Installed", "Healthy", "Package", "Age"]


async def test_every_status_that_is_built_fits_its_definition(packages: Api) -> None:
    """X14, X15, C11: nothing of it is pruned, and times are those that Crossplane's definitions require."""
    revision = LockedRevision(name="r-1", revision=1, digest="sha256:1", version="v1", source="r/x")
    active = msgspec.structs.replace(revision, is_active=True)
    dependencies = (
        LockedDependency(
            condition="OwnedPackageInstall",
            name="d",
            package="p",
            range=">=1.0.0",
            install="packaging.carvel.dev/PackageInstall|default|p",
            message="m",
        ),
        LockedDependency(condition="ExistingGVK", offer=offer_of("v1", "A")),
    )
    lock = LockRow(status="locked", version="v1", revisions=(active,), dependencies=dependencies)
    done = EstablishedRow(
        is_healthy=True, revisions=(EstablishedRevision(name="r-1", state="established"),), message="m"
    )
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
    for manifest in manifests():
        created = await packages.create(path(manifest), manifest)
        kind = manifest["kind"]
        if kind.endswith("Revision"):
            status = revision_status(
                active, lock, done, runtime=Runtime("Unknown", "m"), references=[reference]
            )
        elif kind == "PackageLock":
            status = lock_status({"pkg.crossplane.io/Provider||b": LockRow(status="broken", message="m")})
        elif kind in ("Package", "Provider", "Configuration", "Function", "PackageInstall"):
            install = install_of(manifest)
            if not isinstance(install, Install):
                assert manifest["apiVersion"].startswith("data.")
                continue
            install = install._replace(skips_dependencies=True)
            is_carvel = install.family == "carvel"
            status = (
                carvel_status(install, lock, done, ()) if is_carvel else package_status(install, lock, done)
            )
        else:
            continue
        if kind != "PackageInstall":
            status["conditions"] = with_times(status["conditions"], [], "2026-01-01T00:00:00Z")
        url = f"{path(manifest)}/{manifest['metadata']['name']}/status?fieldValidation=Strict"
        reply = await packages.call("PUT", url, {**created, "status": status})
        assert reply.code == 200, (kind, reply.body)
        assert reply.body["status"] == status


async def test_the_lock_of_a_large_fleet_is_accepted_page_by_page(packages: Api) -> None:
    """X1: 10,000 objects are a few PackageLocks, none of which is refused."""
    objects = tuple(
        f"apiextensions.k8s.io/CustomResourceDefinition||{n:05}.{'x' * 100}" for n in range(10_000)
    )
    revision = LockedRevision(name="r-1", revision=1, digest="d", is_active=True, objects=objects)
    pages = package_locks({"pkg.crossplane.io/Provider||a": LockRow(status="locked", revisions=(revision,))})
    assert len(pages) == 3
    for page in pages:
        assert len(msgspec.json.encode(page)) < PAGE_BYTES_MAX
        await packages.create(path(page), page)


async def test_packagerevisions_without_a_group_are_porchs(packages: Api) -> None:
    """kubectl takes the first group of the list that has a name; Porch's users go on to see theirs."""
    groups = [each["name"] for each in (await packages.get("/apis"))["groups"]]
    assert groups[0] == "porch.kpt.dev"
    aggregated = await packages.call(
        "GET", "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )
    assert [each["metadata"]["name"] for each in aggregated.body["items"]] == groups
