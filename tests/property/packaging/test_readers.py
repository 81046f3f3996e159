"""Laws of the readers of packages: nothing that is written makes them fail, and pages lose nothing."""

import copy
from typing import Any

import msgspec
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import ContentRow, LockedRevision, LockRow
from pvbus.core.platform.packaging.reading import Problem, carvel_package, install_of, installation_type_of
from pvbus.core.platform.packaging.statuses import package_locks
from pvbus.core.platform.packaging.xpkg import META_GROUP, candidate_of, package_meta
from pvbus.core.platform.solver.model import Candidate
from tests.tools.packagingmanifests import manifests

FIELDS = [
    *("metadata", "name", "namespace", "annotations", "uid", "generation", "spec", "status", "package"),
    *("revisionHistoryLimit", "packagePullSecrets", "imagePullSecrets", "packagePullPolicy", "commonLabels"),
    *("serviceAccount", "runtimeConfigRef", "packageRef", "refName", "versionSelection", "constraints"),
    *("prereleases", "identifiers", "dependencies", "packages", "override", "values", "secretRef", "or"),
    *("gvk", "apiVersion", "kind", "version", "provides", "optional", "alias", "install", "managedBy"),
    *("crossplane", "dependsOn", "provider", "crd", "names", "claimNames", "versions", "group", "served"),
    *("pvbus.dev/owner", "pvbus.dev/range", "kapp-controller.carvel.dev/owner", "currentIdentifier"),
]
TEXTS = [
    *("1.0.0", ">=1.0.0", "v1", "~>1", "", "a/b:v1@sha256:1", "@", ":", "Auto", "Manual", "onePerCluster"),
    *("PackageInstall/x", "|", "pkg.crossplane.io/v1", "1.0.0 || || 2.0.0"),
]
scalars = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)) | st.sampled_from(
    TEXTS
)
keys = st.sampled_from(FIELDS) | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)
KINDS = [
    ("pkg.crossplane.io/v1", "Provider"),
    ("pkg.crossplane.io/v1beta1", "Package"),
    ("packaging.carvel.dev/v1alpha1", "PackageInstall"),
    ("data.packaging.carvel.dev/v1alpha1", "Package"),
    (f"{META_GROUP}/v1", "Configuration"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
]


META = {
    "apiVersion": f"{META_GROUP}/v1",
    "kind": "Configuration",
    "metadata": {"name": "x"},
    "spec": {
        "crossplane": {"version": ">=v1.0.0"},
        "dependsOn": [
            {"provider": "r/a", "version": ">=v1.0.0"},
            {"crd": {"apiVersion": "v1", "kind": "A"}},
        ],
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "a.b"},
    "spec": {"group": "b", "names": {"kind": "A"}, "versions": [{"name": "v1", "served": True}]},
}
GOOD = [META, CRD, *manifests()]


@st.composite
def changed(draw: st.DrawFn) -> Any:
    """A good object with up to three changes anywhere: a value replaced, removed or added."""
    found = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        # Identity is left alone: without it nothing is read.
        at, name = (
            found,
            draw(st.sampled_from([each for each in found if each not in ("apiVersion", "kind")])),
        )
        while isinstance(at[name], dict | list) and at[name] and draw(st.integers(0, 4)):
            at = at[name]
            name = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "remove" and at is not found:
            del at[name]
        elif change == "add" and isinstance(at, dict):
            at[draw(keys)] = draw(values)
        else:
            at[name] = draw(values)
    return found


def objects() -> st.SearchStrategy[dict[str, Any]]:
    """Objects that are good, nearly good, or anything at all."""
    anything = st.dictionaries(keys, values, max_size=6) | values
    wild = st.fixed_dictionaries({}, optional={"metadata": anything, "spec": anything, "status": anything})
    return (
        changed()
        | changed()
        | st.builds(
            lambda kind, found: {**found, "apiVersion": kind[0], "kind": kind[1]},
            st.sampled_from(KINDS),
            wild,
        )
    )


@given(obj=objects())
def test_any_object_is_an_install_or_a_problem(obj: dict[str, Any]) -> None:
    """Never an error, never an Install with two versions, never a Problem without a reason."""
    found = install_of(obj)
    if isinstance(found, Problem):
        assert found.fields
        assert found.message
        return
    assert found.package
    assert sum(map(bool, (found.tag, found.digest, found.range))) <= 1
    assert isinstance(found, Install)


@given(obj=objects())
def test_any_object_is_a_package_or_a_problem(obj: dict[str, Any]) -> None:
    """A version that has a defect has no requirements: it is never taken for one without any."""
    found = carvel_package(obj)
    assert installation_type_of(obj) in ("onePerCluster", "onePerNamespace", "noRestrictions")
    if isinstance(found, Problem):
        assert found.fields
        return
    name, candidate = found
    assert name
    assert not (candidate.defect and candidate.requirements)
    assert isinstance(candidate, Candidate)


odd = st.dictionaries(st.integers() | st.booleans(), scalars, min_size=1, max_size=2)


@given(documents=st.lists(objects() | values | odd, max_size=3), is_whole=st.booleans())
def test_any_documents_are_a_content(documents: list[Any], is_whole: bool) -> None:
    """The row can be written and read again, and a candidate can be made of it."""
    text = yaml.safe_dump_all([META, *documents] if is_whole else documents, allow_unicode=True)
    row = package_meta({"package.yaml": text.encode("utf-8", "replace")})
    assert msgspec.json.decode(msgspec.json.encode(row), type=ContentRow) == row
    candidate = candidate_of("v1.0.0", "", row)
    assert candidate.defect == "" or candidate.requirements == ()
    assert (row.defect != "") <= (candidate.defect != "")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_content(data: bytes) -> None:
    """What is no YAML is a defect."""
    row = package_meta({"package.yaml": data})
    assert row.defect


owned = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "apiextensions.k8s.io/CustomResourceDefinition||",
                "apiextensions.crossplane.io/Composition||",
                "/Secret|ns|",
            ]
        ),
        st.text('abcäß"', min_size=1, max_size=40),
    ).map("".join),
    unique=True,
    max_size=40,
)


HEADS_BYTES = 100
"""More than the names of all sections of a page."""


@given(packages=st.lists(owned, max_size=5), room=st.integers(2_050, 2_600))
def test_pages_are_small_and_lose_nothing(packages: list[list[str]], room: int) -> None:
    """X1: every page is smaller than the limit, and together they are the one page that has no limit."""
    rows = {
        f"pkg.crossplane.io/Provider||p{n}": LockRow(
            status="locked",
            package=f"r/p{n}",
            revisions=(
                LockedRevision(
                    name=f"p{n}-1",
                    revision=1,
                    digest="d",
                    is_active=True,
                    objects=tuple(f"{key}{n}" for key in objects_),
                ),
            ),
        )
        for n, objects_ in enumerate(packages)
    }
    pages = package_locks(rows, bytes_max=room)
    (whole,) = package_locks(rows, bytes_max=10_000_000)
    for page in pages:
        entries = sum(len(section) for section in page["spec"].values())
        assert entries <= 1 or len(msgspec.json.encode(page["spec"])) <= room - 2_000 + HEADS_BYTES
        assert len(msgspec.json.encode(page)) <= room
    spec_bytes = len(msgspec.json.encode(whole["spec"]))
    assert len(pages) <= 1 + 2 * spec_bytes // (room - 2_000)
    assert [page["metadata"]["name"] for page in pages] == [
        "lock",
        *(f"lock-{number}" for number in range(2, len(pages) + 1)),
    ]
    merged: dict[str, Any] = {}
    for page in pages:
        for section, value in page["spec"].items():
            if section == "packages":
                merged.setdefault(section, []).extend(value)
            else:
                assert not set(value) & set(merged.get(section, {}))
                merged.setdefault(section, {}).update(value)
    assert merged == whole["spec"]
