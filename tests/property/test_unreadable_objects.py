"""Objects of packages with any one field replaced by anything: they are read, or are problems."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pvbus.cli.packages.tree import text_of
from pvbus.core.platform.packaging.carvelobjects import facts_of
from pvbus.core.platform.packaging.reading import okey_of
from pvbus.core.platform.resolve.carvel import decided_rows
from pvbus.core.platform.resolve.state import ScopeState

META = {"name": "a", "namespace": "demo", "uid": "u", "generation": 1, "annotations": {"pvbus.dev/x": "y"}}
INSTALL = {
    "apiVersion": "packaging.carvel.dev/v1alpha1",
    "kind": "PackageInstall",
    "metadata": {**META, "annotations": {"kapp-controller.carvel.dev/owner": "PackageInstall/o"}},
    "spec": {
        "packageRef": {
            "refName": "a.dev",
            "versionSelection": {"constraints": "1.0.0", "prereleases": {"identifiers": ["rc"]}},
        },
        "serviceAccountName": "sa",
        "paused": False,
        "dependencies": {
            "managedBy": "Auto",
            "override": [{"name": "leaf", "packageRef": {"refName": "l.dev"}}],
            "values": [{"name": "leaf", "secretRef": {"name": "s"}}],
        },
    },
    "status": {"version": "1.0.0"},
}
PACKAGE = {
    "apiVersion": "data.packaging.carvel.dev/v1alpha1",
    "kind": "Package",
    "metadata": {
        **META,
        "name": "a.dev.1.0.0",
        "annotations": {"pvbus.dev/required-fields": '{"a.dev/v1 A": ["spec.x"]}'},
    },
    "spec": {
        "refName": "a.dev",
        "version": "1.0.0",
        "installationType": "onePerCluster",
        "dependencies": [{"name": "leaf", "or": [{"package": {"refName": "l.dev", "version": ">=1.0.0"}}]}],
        "provides": [{"gvk": {"apiVersion": "a.dev/v1", "kind": "A"}}],
        "kubernetesVersionSelection": {"constraints": ">1.0.0"},
    },
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "as.a.dev"},
    "spec": {
        "group": "a.dev",
        "names": {"kind": "A", "plural": "as"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
            }
        ],
    },
}
PROVIDER = {
    "apiVersion": "pkg.crossplane.io/v1",
    "kind": "Provider",
    "metadata": {"name": "p", "uid": "u", "generation": 1, "annotations": {"pvbus.dev/range": ">=v1.0.0"}},
    "spec": {"package": "x.dev/p", "packagePullSecrets": [{"name": "s"}], "revisionHistoryLimit": 1},
    "status": {"currentRevision": "p-1", "currentIdentifier": "x.dev/p:v1.0.0"},
}
REVISION = {
    "apiVersion": "pkg.crossplane.io/v1",
    "kind": "ProviderRevision",
    "metadata": {
        "name": "p-1",
        "generation": 1,
        "labels": {"pkg.crossplane.io/package": "p"},
        "annotations": {"pvbus.dev/digest": "sha256:1"},
        "ownerReferences": [{"kind": "Provider", "name": "p", "controller": True}],
    },
    "spec": {"image": "x.dev/p:v1.0.0", "revision": 1, "desiredState": "Active"},
}
OTHERS = [
    {**INSTALL, "metadata": {**META, "name": "other"}, "spec": {"packageRef": {"refName": "o.dev"}}},
    {
        **PACKAGE,
        "metadata": {**META, "name": "o.dev.1.0.0"},
        "spec": {"refName": "o.dev", "version": "1.0.0"},
    },
]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=False),
    st.sampled_from(["", "|", "a|b", "x" * 5000, "~2", ">>1", "\x00", "a/b/c", "{", "9" * 400]),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(
        st.text(max_size=3), st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3
    ),
)
IDENTITY = ("apiVersion", "kind", "name", "namespace")


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field, but for those that a key of the bus is made of."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        here = (*path, key)
        if path in ((), ("metadata",)) and key in IDENTITY:
            continue
        yield here
        if isinstance(inner, dict | list):
            yield from paths(inner, here)


def broken(obj: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    found = copy.deepcopy(obj)
    inner: Any = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return found


@pytest.mark.parametrize("obj", [INSTALL, PACKAGE, DEFINITION], ids=lambda each: each["kind"])
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_list_is_shown_with_one_broken_object(obj: dict[str, Any], data: st.DataObject) -> None:
    """The other objects are decided on as without it."""
    given_ = broken(obj, data.draw(st.sampled_from(list(paths(obj)))), data.draw(JUNK))
    read = facts_of([given_, *OTHERS])
    rows = decided_rows(read.facts)
    assert list(text_of(rows, list(rows), frozenset(read.facts.installs)))
    assert rows["packaging.carvel.dev/PackageInstall|demo|other"].status == "locked"
    assert all(each.message for each in read.problems)


@pytest.mark.parametrize(
    "obj", [INSTALL, PACKAGE, DEFINITION, PROVIDER, REVISION], ids=lambda each: each["kind"]
)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_tables_of_resolve_take_any_object(obj: dict[str, Any], data: st.DataObject) -> None:
    """A row that cannot be applied would stop the service for everybody."""
    given_ = broken(obj, data.draw(st.sampled_from(list(paths(obj)))), data.draw(JUNK))
    state, key = ScopeState(), okey_of(obj)
    state.observe(key, msgspec.json.encode(given_))
    state.observe(key, msgspec.json.encode(obj))
    state.observe(key, None)
