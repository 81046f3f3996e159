"""Installs and Carvel's Packages: every spelling is read, and what contradicts itself is refused."""

from typing import Any

import pytest

from pvbus.core.kernel.installs import Install, Override
from pvbus.core.platform.packaging.fields import MEANINGLESS, Fields
from pvbus.core.platform.packaging.reading import (
    Problem,
    carvel_package,
    install_of,
    installation_type_of,
    read_carvel_package,
    read_install,
    split_reference,
)
from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Requirement,
    api,
)
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds

DIGEST = "sha256:" + "a" * 64


def crossplane(kind: str = "Package", **spec: Any) -> dict[str, Any]:
    version = "v1beta1" if kind == "Package" else "v1"
    return {
        "apiVersion": f"pkg.crossplane.io/{version}",
        "kind": kind,
        "metadata": {"name": "aws", "uid": "u1", "generation": 3},
        "spec": {"package": "xpkg.example.org/acme/aws:v1.2.0", **spec},
    }


def package_install(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": "demo", "namespace": "apps", "uid": "u1", "generation": 3},
        "spec": {"packageRef": {"refName": "pkg.test.carvel.dev"}, **spec},
    }


def carvel(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": "pkg.test.carvel.dev.1.0.0", "namespace": "apps"},
        "spec": {"refName": "pkg.test.carvel.dev", "version": "1.0.0", **spec},
    }


def read(obj: dict[str, Any]) -> Install:
    found = install_of(obj)
    assert isinstance(found, Install), found
    return found


@pytest.mark.parametrize("kind", ["Package", "Provider", "Configuration", "Function"])
def test_each_crossplane_kind_is_an_install(kind: str) -> None:
    """X1: the shipped kinds are spellings of the seed's Package; the defaults are the shipped ones."""
    group = "pkg.crossplane.io"
    assert read(crossplane(kind)) == Install(
        okey=f"{group}/{kind}||aws",
        family="crossplane",
        uid="u1",
        generation=3,
        package="xpkg.example.org/acme/aws",
        tag="v1.2.0",
        history_max=1,
        is_manual=False,
        pull_policy="IfNotPresent",
    )


@pytest.mark.parametrize(
    ("spec", "fields", "reason"),
    [
        ({"imagePullSecrets": [{"name": "s"}]}, {"secrets": ("crossplane-system/s",)}, "the seed's name"),
        ({"packagePullSecrets": [{"name": "s"}]}, {"secrets": ("crossplane-system/s",)}, "the shipped name"),
        (
            {"packagePullSecrets": [{"name": "s"}], "imagePullSecrets": [{"name": "s"}]},
            {"secrets": ("crossplane-system/s",)},
            "both, and they agree",
        ),
        ({"imagePullPolicy": "Always"}, {"pull_policy": "Always"}, "the seed's name"),
        ({"packagePullPolicy": "Never"}, {"pull_policy": "Never"}, "the shipped name"),
        ({"revisionActivationPolicy": "Manual"}, {"is_manual": True}, "a user activates revisions"),
        ({"revisionHistoryLimit": 0}, {"history_max": 0}, "all revisions are kept"),
        ({"skipDependencyResolution": True}, {"skips_dependencies": True}, "X15: a switch"),
        ({"ignoreCrossplaneConstraints": True}, {"ignores_platform": True}, "X15: a switch"),
        (
            {"commonLabels": {"b": "1", "a": "2"}},
            {"common_labels": (("a", "2"), ("b", "1"))},
            "sorted, so that the order means nothing",
        ),
        ({"commonAnnotations": {"a": "2"}}, {"common_annotations": (("a", "2"),)}, "annotations"),
        ({"runtimeConfigRef": {"name": "default"}}, {"runtime_config": "default"}, "a runtime"),
        (
            {"serviceAccount": {"annotations": {"role": "x"}}},
            {"account_annotations": (("role", "x"),)},
            "the seed's ServiceAccountOptions",
        ),
        ({"package": f"r.example:5000/a:v1@{DIGEST}"}, {"tag": "v1", "digest": DIGEST}, "a tag says which"),
        ({"someLaterField": 1}, {}, "the API server has dealt with unknown fields"),
    ],
)
def test_a_field_of_a_crossplane_install_in_each_spelling(
    spec: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    """X1, X15: seed and shipped names give the same Install."""
    found = read(crossplane(**spec))
    assert {name: getattr(found, name) for name in fields} == fields, reason


@pytest.mark.parametrize(
    ("spec", "fields", "reason"),
    [
        ({"dependencies": {"install": False}}, {"installs_dependencies": False}, "seed"),
        ({"dependencies": {"managedBy": "User"}}, {"installs_dependencies": False}, "merged"),
        ({"dependencies": {"managedBy": "Auto"}}, {"installs_dependencies": True}, "merged"),
        ({"dependencies": {"managedBy": "User", "install": False}}, {"installs_dependencies": False}, "both"),
        ({}, {"installs_dependencies": True, "overrides": ()}, "the default"),
        (
            {"dependencies": {"override": [{"refName": "p", "versionSelection": {"constraints": "1.0.1"}}]}},
            {"overrides": (Override(package="p", range="1.0.1"),)},
            "seed: by refName",
        ),
        (
            {
                "dependencies": {
                    "override": [{"name": "d", "packageRef": {"versionSelection": {"constraints": "1.0.1"}}}]
                }
            },
            {"overrides": (Override(dependency="d", range="1.0.1"),)},
            "merged: by the name of the dependency",
        ),
        (
            {"dependencies": {"override": [{"refName": "p", "install": False}]}},
            {"overrides": (Override(package="p", is_installed=False),)},
            "seed's example: one dependency is not installed",
        ),
        (
            {"dependencies": {"values": [{"alias": "d", "secretRef": {"name": "s", "key": "k"}}]}},
            {"overrides": (Override(dependency="d", values=("s",), value_keys=("k",)),)},
            "seed: alias is a name, and a key of the Secret",
        ),
        (
            {
                "dependencies": {
                    "override": [{"name": "d", "packageRef": {"refName": "q"}}],
                    "values": [
                        {"name": "d", "refName": "q", "secretRef": {"name": "s"}},
                        {"name": "d", "refName": "q", "secretRef": {"name": "t"}},
                    ],
                }
            },
            {"overrides": (Override(dependency="d", package="q", values=("s", "t"), value_keys=("", "")),)},
            "values add to the override of the same dependency",
        ),
        (
            {
                "packageRef": {
                    "refName": "p",
                    "versionSelection": {"constraints": ">=1.0.0", "prereleases": {"identifiers": ["rc"]}},
                }
            },
            {"package": "p", "range": ">=1.0.0", "prereleases": ("rc",), "language": "carvel"},
            "the shipped selection",
        ),
        ({"serviceAccountName": "sa"}, {"service_account": "sa"}, "shipped"),
        ({"paused": True}, {"is_paused": True}, "shipped"),
        ({"canceled": True}, {"is_paused": True}, "shipped: what goes on is ended, and nothing begins"),
    ],
)
def test_a_field_of_a_package_install_in_each_spelling(
    spec: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    """C2: the seed's and the merged proposal's names give the same Install."""
    found = read(package_install(**spec))
    assert found.target == "apps"
    assert {name: getattr(found, name) for name in fields} == fields, reason


@pytest.mark.parametrize(
    ("obj", "fields"),
    [
        (
            package_install(),
            {"owner": "", "downgrades": False, "removal": "orphan", "strategy": "direct"},
        ),
        (
            {
                **package_install(),
                "metadata": {
                    "name": "x",
                    "namespace": "apps",
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "annotations": {
                        "kapp-controller.carvel.dev/owner": "PackageInstall/demo",
                        "packaging.carvel.dev/downgradable": "",
                        "pvbus.dev/dependency-removal": "keep-if-used",
                        "pvbus.dev/dependency-strategy": "closure",
                    },
                },
                "status": {"version": "1.0.0"},
            },
            {
                "owner": "packaging.carvel.dev/PackageInstall|apps|demo",
                "downgrades": True,
                "removal": "keep-if-used",
                "strategy": "closure",
                "installed": "1.0.0",
                "is_deleted": True,
            },
        ),
        (
            {
                **crossplane("Provider", package="r/a"),
                "metadata": {
                    "name": "a",
                    "annotations": {
                        "pvbus.dev/owner": "Configuration/net",
                        "pvbus.dev/downgrades": "true",
                        "pvbus.dev/range": ">=v1.0.0",
                        "crossplane.io/paused": "true",
                    },
                },
                "status": {"currentIdentifier": "r/a:v1.0.0"},
            },
            {
                "owner": "pkg.crossplane.io/Configuration||net",
                "downgrades": True,
                "range": ">=v1.0.0",
                "is_paused": True,
                "installed": "v1.0.0",
            },
        ),
    ],
)
def test_what_metadata_and_status_say(obj: dict[str, Any], fields: dict[str, Any]) -> None:
    """Owners, switches and installed versions of both families."""
    found = read(obj)
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("obj", "field", "words"),
    [
        (crossplane(package=""), "spec.package", "not empty"),
        (crossplane(package=":v1"), "spec.package", "no name"),
        (crossplane(revisionActivationPolicy="manual"), "spec.revisionActivationPolicy", "Automatic, Manual"),
        (crossplane(revisionHistoryLimit=-1), "spec.revisionHistoryLimit", "not negative"),
        (crossplane(revisionHistoryLimit=True), "spec.revisionHistoryLimit", "not negative"),
        (crossplane(imagePullSecrets=["s"]), "spec.imagePullSecrets[0]", "mapping"),
        (
            crossplane(packagePullSecrets=[{"name": "s"}], imagePullSecrets=[{"name": "t"}]),
            "spec.imagePullSecrets",
            "contradicts",
        ),
        (
            crossplane(packagePullPolicy="Always", imagePullPolicy="Never"),
            "spec.imagePullPolicy",
            "contradicts",
        ),
        (crossplane(skipDependencyResolution="true"), "spec.skipDependencyResolution", "true or false"),
        (crossplane(commonLabels={"a": 1}), "spec.commonLabels", "texts to texts"),
        (
            {**crossplane(), "metadata": {"name": "a", "annotations": {"pvbus.dev/range": ">=1"}}},
            "metadata.annotations[pvbus.dev/range]",
            "excludes a tag",
        ),
        (
            {**crossplane(), "metadata": {"name": "a", "annotations": {"pvbus.dev/owner": "net"}}},
            "metadata.annotations[pvbus.dev/owner]",
            "a kind and a name",
        ),
        (package_install(packageRef={}), "spec.packageRef.refName", "not empty"),
        (
            package_install(dependencies={"managedBy": "Auto", "install": False}),
            "spec.dependencies.managedBy",
            "contradicts",
        ),
        (package_install(dependencies={"managedBy": "user"}), "spec.dependencies.managedBy", "Auto, User"),
        (
            package_install(dependencies={"override": [{"versionSelection": {}}]}),
            "spec.dependencies.override[0]",
            "name of a dependency",
        ),
        (
            package_install(
                dependencies={"override": [{"refName": "p", "versionSelection": {"contraints": "1.0.1"}}]}
            ),
            "spec.dependencies.override[0].versionSelection.contraints",
            "correct its name",
        ),
        (
            package_install(
                dependencies={"override": [{"name": "d", "packageRef": {}, "versionSelection": {}}]}
            ),
            "spec.dependencies.override[0].versionSelection",
            "packageRef",
        ),
        (
            package_install(dependencies={"override": [{"name": "d"}, {"name": "d"}]}),
            "spec.dependencies.override[1]",
            "same dependency",
        ),
        (
            package_install(dependencies={"values": [{"name": "d"}]}),
            "spec.dependencies.values[0].secretRef.name",
            "not empty",
        ),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}, "kind", "not an install"),
        ({}, "kind", "not an install"),
    ],
)
def test_what_means_nothing_or_two_things_is_refused(obj: dict[str, Any], field: str, words: str) -> None:
    """The problem names the field and says what is wrong."""
    found = install_of(obj)
    assert isinstance(found, Problem)
    assert (found.fields[0].field, words in found.fields[0].message) == (field, True), found.message


NEED = PackageNeed(package="p", range=">=1.0.0", language="carvel")
GVK = {"apiVersion": "some.api.org/v1", "kind": "MainAPI"}


@pytest.mark.parametrize(
    ("dependencies", "requirements", "reason"),
    [
        ([{"package": {"refName": "p", "version": ">=1.0.0"}}], [Requirement(need=NEED)], "seed"),
        (
            {"packages": [{"package": {"refName": "p", "version": ">=1.0.0"}, "optional": True}]},
            [Requirement(need=NEED, optional=True)],
            "the seed's example: `packages` around the list, and optional",
        ),
        (
            [
                {
                    "name": "d",
                    "packageRef": {"refName": "p", "versionSelection": {"constraints": ">=1.0.0"}},
                }
            ],
            [Requirement(need=NEED, name="d")],
            "merged",
        ),
        (
            [{"alias": "d", "gvk": GVK}],
            [Requirement(need=OfferNeed(offer=api("some.api.org/v1", "MainAPI")), name="d")],
            "the seed's alias",
        ),
        (
            [{"or": [{"gvk": GVK}, {"or": [{"package": {"refName": "p", "version": ">=1.0.0"}}]}]}],
            [
                Requirement(
                    need=AnyOf(
                        alternatives=(
                            OfferNeed(offer=api("some.api.org/v1", "MainAPI")),
                            AnyOf(alternatives=(NEED,)),
                        )
                    )
                )
            ],
            "seed: alternatives, nested",
        ),
    ],
)
def test_a_dependency_of_a_carvel_package_in_each_spelling(
    dependencies: Any, requirements: list[Requirement], reason: str
) -> None:
    """C1: the seed's and the merged proposal's spelling give the same requirements."""
    found = carvel_package(carvel(dependencies=dependencies))
    assert found == (
        "pkg.test.carvel.dev",
        Candidate(version="1.0.0", requirements=tuple(requirements)),
    ), reason


def test_gates_and_provides_of_a_carvel_package() -> None:
    """C1: gates become needs of the platform; `provides` is read in both forms of the seed."""
    found = carvel_package(
        carvel(
            kubernetesVersionSelection={"constraints": ">=1.25.0"},
            kappControllerVersionSelection={"constraints": ">=0.50.0"},
            provides=[{"gvk": GVK}, {"apiVersion": "v1", "kind": "B"}],
        )
    )
    assert not isinstance(found, Problem)
    gates = [each.need for each in found[1].requirements]
    assert [(each.platform, each.range) for each in gates if isinstance(each, PlatformNeed)] == [
        ("kubernetes", ">=1.25.0"),
        ("kapp-controller", ">=0.50.0"),
    ]
    assert found[1].provides == (api("some.api.org/v1", "MainAPI"), api("v1", "B"))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"gvk": GVK, "packageRef": {"refName": "p"}}, "exactly one of gvk, package, packageRef, or"),
        ({"name": "d"}, "it has none"),
        ({"or": []}, "at least one alternative"),
        ({"or": [{"gvk": GVK, "optional": True}]}, "has no meaning"),
        ({"package": {"refName": "p", "contraints": "1"}}, "correct its name"),
        ({"package": {"refName": "p", "version": "~>1.0.0"}}, "carvel"),
        ({"name": "d", "alias": "e", "gvk": GVK}, "contradicts name"),
    ],
)
def test_a_dependency_that_means_nothing_makes_its_version_a_defect(item: dict[str, Any], words: str) -> None:
    """C1: two kinds in one item are refused; the version is there, and cannot be installed."""
    found = carvel_package(carvel(dependencies=[item]))
    assert not isinstance(found, Problem)
    assert words in found[1].defect
    assert found[1].requirements == ()


def test_alternatives_may_be_nested_a_few_times() -> None:
    """Whoever publishes a package cannot end the process that reads it."""
    item: dict[str, Any] = {"gvk": GVK}
    for _ in range(16):
        item = {"or": [item]}
    found = carvel_package(carvel(dependencies=[item]))
    assert not isinstance(found, Problem)
    assert found[1].defect == ""
    for _ in range(5000):
        item = {"or": [item]}
    found = carvel_package(carvel(dependencies=[item]))
    assert not isinstance(found, Problem)
    assert "nested more than 16 times" in found[1].defect


@pytest.mark.parametrize("spec", [{"refName": ""}, {"version": "1.0"}, {"version": 1}])
def test_a_carvel_package_without_name_or_version_is_a_problem(spec: dict[str, Any]) -> None:
    """Without them nobody can say what it is a version of."""
    found = carvel_package(carvel(**spec))
    assert isinstance(found, Problem)
    assert found.okey == "data.packaging.carvel.dev/Package|apps|pkg.test.carvel.dev.1.0.0"


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("onePerCluster", "onePerCluster"),
        ("OnePerCluster", "onePerCluster"),
        ("onePerNamespace", "onePerNamespace"),
        ("OnePerNamespace", "onePerNamespace"),
        ("noRestrictions", "noRestrictions"),
        ("NoRestrictions", "noRestrictions"),
        (None, "noRestrictions"),
    ],
)
def test_the_installation_type_in_each_spelling(spelling: str | None, expected: str) -> None:
    """C1: the schema has the seed's spelling, the merged proposal's example has another."""
    assert installation_type_of(carvel(installationType=spelling)) == expected


def test_another_installation_type_is_a_defect() -> None:
    found = carvel_package(carvel(installationType="onlyOne"))
    assert not isinstance(found, Problem)
    assert found[1].defect.startswith("spec.installationType: must be one of")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("git+ssh://git@git.example/repo//folder:v1", ("git+ssh://git@git.example/repo//folder", "v1", "")),
        (f"git+https://h:8080/r//f@{DIGEST}", ("git+https://h:8080/r//f", "", DIGEST)),
    ],
)
def test_a_reference_to_a_folder_of_git_is_split_at_its_end(
    reference: str, expected: tuple[str, str, str]
) -> None:
    """A user or a port in an address is no digest and no tag."""
    assert split_reference(reference) == expected


READ = {
    crd["metadata"]["name"]: (
        f"{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}",
        crd["spec"]["names"]["kind"],
        set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]),
    )
    for crd in (*packaging_crds(), *crossplane_crds(), *carvel_crds())
    if crd["spec"]["names"]["plural"]
    in ("configurations", "functions", "packageinstalls", "packages", "providers")
}


@pytest.mark.parametrize("name", sorted(READ))
def test_the_strict_reader_knows_every_field_of_a_definition(name: str) -> None:
    """A file that the API server takes is one that `pvbus resolve` takes, too."""
    version, kind, names = READ[name]
    fields = Fields(is_strict=True)
    obj = {"apiVersion": version, "kind": kind, "spec": dict.fromkeys((*names, "madeUp"))}
    if version.startswith("data."):
        read_carvel_package(fields, obj)
    else:
        read_install(fields, obj, namespace="")
    assert [str(problem) for problem in fields.problems if MEANINGLESS in str(problem)] == [
        f"spec.madeUp: {MEANINGLESS}"
    ]


@pytest.mark.parametrize(
    ("gvk", "offer"),
    [
        ({"group": "a.dev", "version": "v1", "kind": "B"}, "API a.dev/v1 B"),
        ({"group": "", "version": "v1", "kind": "B"}, "API v1 B"),
        ({"version": "v1", "kind": "B"}, "API v1 B"),
        ({"apiVersion": "a.dev/v1", "kind": "B"}, "API a.dev/v1 B"),
    ],
)
def test_an_api_kind_in_each_spelling(gvk: dict[str, Any], offer: str) -> None:
    """In a dependency and in what a package provides, there with and without `gvk`."""
    found = carvel_package(carvel(dependencies=[{"gvk": gvk}], provides=[{"gvk": gvk}]))
    assert not isinstance(found, Problem)
    (requirement,) = found[1].requirements
    assert isinstance(requirement.need, OfferNeed)
    assert (requirement.need.offer, found[1].provides, found[1].defect) == (offer, (offer,), "")
    bare = carvel_package(carvel(provides=[gvk]))
    assert not isinstance(bare, Problem)
    assert bare[1].provides == (offer,)
    mixed = carvel_package(carvel(dependencies=[{"gvk": {**gvk, "apiVersion": "c/v1", "version": "v2"}}]))
    assert not isinstance(mixed, Problem)
    assert "has no meaning here" in mixed[1].defect
