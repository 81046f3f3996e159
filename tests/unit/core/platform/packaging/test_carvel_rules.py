"""Rules about objects of Carvel's: how often a package may be installed, edits, and fields of APIs."""

from typing import Any

import pytest

from pvbus.core.cel import Program, compile_expression
from pvbus.core.platform.packaging.carvelfacts import Catalogue, KnownPackage
from pvbus.core.platform.packaging.carvelobjects import GLOBAL_NAMESPACE, known_package, served_by
from pvbus.core.platform.packaging.protection import edit_problem
from pvbus.core.platform.packaging.reading import Problem
from pvbus.core.platform.packaging.restrictions import admission
from pvbus.core.platform.packaging.structure import REQUIRED_FIELDS, missing_fields, required_fields
from pvbus.core.platform.resolve.naming import NAME_BYTES_MAX, install_name
from pvbus.install.admission import created_installs
from pvbus.install.objects import Options
from tests.unit.core.platform.packaging.carvelworld import (
    MAIN_API,
    MAIN_OFFER,
    OWNER,
    InstallWorld,
    full,
    install,
    key,
    package,
)

# how often a package may be installed


@pytest.mark.parametrize(
    ("installation", "namespace", "text"),
    [
        ("onePerCluster", "demo", "may be installed once per cluster, and demo/first is there"),
        ("OnePerCluster", "other", "may be installed once per cluster, and demo/first is there"),
        ("onePerNamespace", "demo", "may be installed once per namespace, and demo/first is there"),
        ("OnePerNamespace", "other", ""),
        ("noRestrictions", "demo", ""),
        ("", "demo", ""),
    ],
)
def test_admission_names_the_install_that_is_there(installation: str, namespace: str, text: str) -> None:
    """The sentence has the package and the other install; the same install is always admitted."""
    packages = [package("db", "1.0.0", installation=installation)]
    first, second = install("first", "db"), install("second", "db", namespace=namespace)
    assert admission(second, packages, [first]) == (f"{full('db')} {text}" if text else "")
    assert admission(first, packages, [first, install("third", "other")]) == ""


def test_the_type_is_that_of_the_versions_concerned() -> None:
    """That of the version which the new install gets, and that of the one which the other install has."""
    packages = [package("db", "1.0.0", installation="onePerCluster"), package("db", "2.0.0")]
    free = install("free", "db", "2.0.0", installed="2.0.0")
    strict = install("strict", "db", "1.0.0", installed="1.0.0")
    other = install("other", "db", "2.0.0", namespace="other")
    assert admission(other, packages, [free]) == ""
    assert "demo/strict" in admission(other, packages, [strict])
    assert "demo/free" in admission(install("new", "db", "<2.0.0", namespace="x"), packages, [free])


def test_a_second_one_that_is_there_already_is_refused_by_the_lock() -> None:
    """Without an admission step, as on a real cluster: the installed one stays, the other names it."""
    packages = [package("db", "1.0.0", installation="onePerCluster")]
    installs = [install("a", "db"), install("b", "db", namespace="other", installed="1.0.0")]
    world = InstallWorld(packages, installs).settle()
    assert world.row("b", "other").status == "locked"
    row = world.row("a")
    assert (row.status, row.reason, row.version) == ("refused", "OnePerCluster", "")
    assert row.message == f"{full('db')} may be installed once per cluster, and other/b is there"


# edits of installs that were created for others

PVBUS = "system:serviceaccount:pvbus-system:pvbus-establish"
KAPP = "system:serviceaccount:kapp-controller:kapp-controller-sa"
MINE: dict[str, Any] = {"metadata": {"name": "x"}, "spec": {"a": 1}}
MADE: dict[str, Any] = {
    "metadata": {"name": "x", "annotations": {OWNER: "PackageInstall/p"}},
    "spec": {"a": 1},
}
MADE_FOR_Q: dict[str, Any] = {**MADE, "metadata": {"name": "x", "annotations": {OWNER: "PackageInstall/q"}}}
EDITS = [
    (None, MINE, "jane", ""),
    (None, MADE, "jane", "is set by pvbus only"),
    (None, MADE, PVBUS, ""),
    (MINE, {**MINE, "spec": {"a": 2}}, "jane", ""),
    (MINE, MADE, "jane", "is set by pvbus only"),
    (MADE, {**MADE, "spec": {"a": 2}}, "jane", "it was created for PackageInstall/p, and only pvbus changes"),
    (MADE, {**MADE, "spec": {"a": 2}}, PVBUS, ""),
    (MADE, {**MADE, "spec": {"a": 2}}, KAPP, ""),
    (MADE, {**MADE, "spec": {"a": 2}}, "system:serviceaccount:jane:pvbus-establish", "only pvbus changes"),
    (MADE, {**MINE, "spec": {"a": 2}}, "jane", "only pvbus changes"),
    (MADE, MINE, "jane", ""),
    (MADE, {**MADE, "status": {"version": "1.0.0"}}, "jane", ""),
    (MADE, {"metadata": {**MADE["metadata"], "labels": {"a": "b"}}, "spec": {"a": 1}}, "jane", ""),
    (MADE, MADE_FOR_Q, "jane", "is set by pvbus only"),
    (MADE, MADE_FOR_Q, PVBUS, ""),
]


@pytest.mark.parametrize(("old", "new", "user", "text"), EDITS)
def test_only_pvbus_changes_what_it_created(
    old: dict[str, Any] | None, new: dict[str, Any], user: str, text: str
) -> None:
    """Of the annotation others may only take it away, and the spec is theirs after that."""
    found = edit_problem(old, new, user)
    assert text in found
    assert bool(found) == bool(text)


@pytest.mark.parametrize(("old", "new", "user", "text"), EDITS)
def test_the_admission_policy_says_the_same(
    old: dict[str, Any] | None, new: dict[str, Any], user: str, text: str
) -> None:
    """Its CEL, evaluated here, refuses the same writes with the same sentence."""
    policy, _ = created_installs(Options())
    inputs: dict[str, Any] = {
        "object": new,
        "oldObject": old,
        "request": {"userInfo": {"username": user}},
        "variables": {},
    }

    def program(text: str) -> Program:
        return compile_expression(text, variables=("object", "oldObject", "request", "variables"))

    spec = policy["spec"]
    if not all(program(each["expression"]).test(inputs) for each in spec["matchConditions"]):
        assert not text
        return
    variables = {each["name"]: program(each["expression"]).evaluate(inputs) for each in spec["variables"]}
    inputs["variables"] = variables
    failed = [each for each in spec["validations"] if not program(each["expression"]).test(inputs)]
    assert bool(failed) == bool(text)
    if failed:
        made = failed[0].get("message") or program(failed[0]["messageExpression"]).evaluate(inputs)
        assert made == edit_problem(old, new, user)


def test_an_edit_is_not_overwritten_by_the_decision() -> None:
    """The template stays what pvbus wrote, and the version that the edit asks for decides nothing."""
    world = InstallWorld(
        [package("app", "1.0.0", ["db 1.0.0"]), package("db"), package("db", "2.0.0")], [install("app")]
    )
    world.settle()
    name = f"{full('db')}.1.0.0"
    template = world.row(name).template
    world.installs[key(name)] = world.installs[key(name)]._replace(range=">=2.0.0", generation=2)
    world.decide()
    assert (world.row(name).template, world.row(name).version) == (template, "1.0.0")


# fields of an API


def _definition(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    return {
        "spec": {
            "group": "some.api.org",
            "names": {"kind": "MainAPI"},
            "versions": [
                {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}},
                {"name": "v2", "served": False},
            ],
        }
    }


OLD = _definition(size={"type": "integer"})
NEW = _definition(size={"type": "integer"}, replicas={"type": "integer"})
FIELDS = {REQUIRED_FIELDS: '{"some.api.org/v1 MainAPI": ["spec.replicas", "spec.size"]}'}


@pytest.mark.parametrize(("definition", "status"), [(OLD, "refused"), (NEW, "locked")])
def test_an_api_without_a_needed_field_is_not_enough(definition: dict[str, Any], status: str) -> None:
    """Two revisions of one API version: the older one lacks the field, which the message names."""
    served = served_by([definition])
    assert served.offers == {MAIN_OFFER}
    packages = [package("app", "1.0.0", [{"gvk": MAIN_API}], annotations=FIELDS)]
    world = InstallWorld(packages, [install("app")], offers=served.offers, schemas=served.schemas).settle()
    assert world.row("app").status == status
    assert ("API some.api.org/v1 MainAPI with spec.replicas, spec.size" in world.row("app").message) == (
        status == "refused"
    )


def test_without_the_annotation_no_field_is_looked_at() -> None:
    """The check is optional."""
    served = served_by([OLD])
    packages = [package("app", "1.0.0", [{"gvk": MAIN_API}])]
    world = InstallWorld(packages, [install("app")], offers=served.offers, schemas=served.schemas).settle()
    assert world.conditions("app") == ["ExistingGVK"]


def test_a_provider_counts_while_the_api_is_not_served() -> None:
    """Its schema is unknown before it is installed; once it is served without the field, that is reported."""
    packages = [
        package("app", "1.0.0", [{"gvk": MAIN_API}], annotations=FIELDS),
        package("provider", "1.0.0", provides=[MAIN_API]),
    ]
    world = InstallWorld(packages, [install("app"), install("provider")]).settle()
    assert world.conditions("app") == ["FoundPackageInstall"]
    served = served_by([OLD])
    world.facts.update(offers=served.offers, schemas=served.schemas)
    assert world.settle().row("app").status == "refused"
    served = served_by([NEW])
    world.facts.update(offers=served.offers, schemas=served.schemas)
    assert world.settle().conditions("app") == ["FoundPackageInstall"]


@pytest.mark.parametrize(
    ("schema", "missing"),
    [
        ({}, ("a.b",)),
        ({"properties": {"a": {"properties": {"b": {}}}}}, ()),
        ({"properties": {"a": {"properties": {"c": {}}}}}, ("a.b",)),
        ({"properties": {"a": {"x-kubernetes-preserve-unknown-fields": True}}}, ()),
        ({"properties": {"a": {"items": {"properties": {"b": {}}}}}}, ()),
        ({"properties": {"a": {"additionalProperties": {"properties": {"b": {}}}}}}, ()),
        ({"properties": {"a": {"additionalProperties": {"type": "string"}}}}, ()),
        ({"properties": {"a": {"type": "string"}}}, ("a.b",)),
    ],
)
def test_fields_of_a_schema(schema: dict[str, Any], missing: tuple[str, ...]) -> None:
    """Lists, maps and parts with unknown fields are understood."""
    assert missing_fields(schema, ["a.b"]) == missing


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"MainAPI": ["spec"]}', '{"a/v1 K": []}', '{"a/v1 K": ["spec..x"]}', '{"a/v1 K": "x"}'],
)
def test_an_annotation_of_fields_that_cannot_be_read_is_a_defect(text: str) -> None:
    """The reader refuses it, and the Package cannot be installed."""
    with pytest.raises(ValueError, match=r"pvbus\.dev/required-fields"):
        required_fields(text)
    found = package("app", annotations={REQUIRED_FIELDS: text})
    assert "pvbus.dev/required-fields" in found.candidate.defect


def test_a_package_without_a_version_is_a_problem() -> None:
    """As of the reader of both families."""
    assert isinstance(known_package({"metadata": {"name": "x"}, "spec": {"refName": "x"}}), Problem)


# names


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("pkg.test.dev", "1.0.0", "pkg.test.dev.1.0.0"),
        ("pkg.test.dev", "v1.0.0", "pkg.test.dev.1.0.0"),
        ("pkg.test.dev", "1.0.0-rc.1", "pkg.test.dev.1.0.0-rc.1"),
    ],
)
def test_a_name_is_the_package_and_the_version(name: str, version: str, expected: str) -> None:
    """As in the example of the proposal."""
    assert install_name(name, version, ()) == expected


def test_names_that_need_a_hash_are_valid_and_differ() -> None:
    """Build metadata, length and names that are taken give different names of the allowed form."""
    long = ".".join(["a" * 60] * 5)
    names = [
        install_name("pkg.dev", "1.0.0+x.1", ()),
        install_name("pkg.dev", "1.0.0+x-1", ()),
        install_name("pkg.dev", "1.0.0-x.1", ()),
        install_name(long, "1.0.0", ()),
        install_name(long, "1.0.1", ()),
        install_name("pkg.dev", "1.0.0", {"pkg.dev.1.0.0"}),
    ]
    names.append(install_name("pkg.dev", "1.0.0", {"pkg.dev.1.0.0", names[-1]}))
    assert len(set(names)) == len(names)
    for each in names:
        assert len(each) <= NAME_BYTES_MAX
        assert all(part and part.strip("-") == part for part in each.split("."))
        assert set(each) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_a_version_that_would_be_one_too_many_is_not_created() -> None:
    """Of a package whose versions have different types: another namespace's install excludes the version."""
    packages = [
        package("app", "1.0.0", ["db 1.0.0"]),
        package("db", "1.0.0", installation="onePerCluster"),
        package("db", "2.0.0"),
    ]
    world = InstallWorld(packages, [install("app"), install("mine", "db", namespace="other")]).settle()
    assert world.row("app").status == "refused"
    assert "may be installed once per cluster, and other/mine is there" in world.row("app").message
    assert len(world.installs) == 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("namespace", ["demo", GLOBAL_NAMESPACE])
def test_a_misnamed_package_hides_none_of_the_right_name(reverse: bool, namespace: str) -> None:
    """It has other dependencies, and nothing would find its content; alone it is refused in words."""

    def published(name: str, where: str, **spec: object) -> KnownPackage:
        metadata = {"name": name, "namespace": where}
        spec = {"refName": "pa.test.dev", "version": "1.0.0", **spec}
        kind = {"apiVersion": "data.packaging.carvel.dev/v1alpha1", "kind": "Package"}
        found = known_package({**kind, "metadata": metadata, "spec": spec})
        assert isinstance(found, KnownPackage)
        return found

    right = published("pa.test.dev.1.0.0", namespace)
    wrong = published("other", "demo", dependencies=[{"package": {"refName": "evil.test.dev"}}])
    both = [wrong, right] if reverse else [right, wrong]
    assert Catalogue(both).versions("demo", "pa.test.dev") == {"1.0.0": right}
    alone = Catalogue([wrong]).versions("demo", "pa.test.dev")["1.0.0"].candidate
    assert alone.defect == "its Package is named other: name it pa.test.dev.1.0.0"
    assert alone.requirements == ()
