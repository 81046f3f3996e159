"""Tables of field sets, comparison, merging and removal, typed by a schema."""

from collections.abc import Mapping
from typing import Any

import pytest

from pvbus.controlplane.apiserver.apply import fieldsets
from pvbus.controlplane.apiserver.apply.fieldsets import EMPTY
from pvbus.controlplane.apiserver.apply.fieldtypes import of_object, of_schema
from pvbus.controlplane.apiserver.apply.managed import Owned, updater
from pvbus.controlplane.apiserver.apply.merging import merge, type_errors
from pvbus.controlplane.apiserver.apply.objectfields import compare, field_set, reconciled, remove, with_named
from pvbus.controlplane.apiserver.apply.ownership import Writing, applied

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "on": {"type": "boolean"},
        "name": {"type": "string"},
        "inner": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
        "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        "pair": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        },
        "args": {"type": "array", "items": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "protocol"],
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "protocol": {"type": "string", "default": "TCP"},
                    "port": {"type": "integer"},
                },
            },
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
TYPE = of_schema(SCHEMA)
HTTP = 'k:{"name":"http","protocol":"TCP"}'
DNS = 'k:{"name":"dns","protocol":"UDP"}'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"size": 1, "on": False}, {"f:size": {}, "f:on": {}}),
        ({"inner": {"x": 1}}, {"f:inner": {"f:x": {}}}),
        ({"inner": {}}, {"f:inner": {}}),
        ({"texts": {"a": "1"}}, {"f:texts": {"f:a": {}}}),
        ({"pair": {"a": "1"}}, {"f:pair": {}}),
        ({"args": ["a"]}, {"f:args": {}}),
        ({"tags": ["a", "b"]}, {"f:tags": {'v:"a"': {}, 'v:"b"': {}}}),
        ({"tags": []}, {}),
        ({"tags": ["a", "a"]}, {"f:tags": {'v:"a"': {}}}),
        (
            {"ports": [{"name": "http", "port": 80}]},
            {"f:ports": {HTTP: {".": {}, "f:name": {}, "f:port": {}}}},
        ),
        ({"free": {"x": {"y": [1]}}}, {"f:free": {"f:x": {".": {}, "f:y": {}}}}),
        ({"name": None}, {"f:name": {}}),
    ],
)
def test_what_an_applied_object_names(value: Any, expected: Any) -> None:
    """Leaves, items by their keys, and what is atomic as a whole; not an object that merges."""
    assert field_set(TYPE, value) == expected


@pytest.mark.parametrize(
    ("old", "new", "removed", "modified", "added"),
    [
        ({"size": 1}, {"size": 2}, {}, {"f:size": {}}, {}),
        ({}, {"inner": {"x": 1}}, {}, {}, {"f:inner": {".": {}, "f:x": {}}}),
        ({"inner": {"x": 1, "y": 2}}, {"inner": {"x": 1}}, {"f:inner": {"f:y": {}}}, {}, {}),
        ({"pair": {"a": "1"}}, {"pair": {"b": "1"}}, {}, {"f:pair": {}}, {}),
        ({"args": ["a"]}, {"args": ["b", "c"]}, {}, {"f:args": {}}, {}),
        (
            {"tags": ["a", "b"]},
            {"tags": ["b", "c"]},
            {"f:tags": {'v:"a"': {}}},
            {},
            {"f:tags": {'v:"c"': {}}},
        ),
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, {}, {}, {}),
        (
            {"ports": [{"name": "http", "port": 80}]},
            {"ports": [{"name": "http", "protocol": "TCP", "port": 81}]},
            {},
            {"f:ports": {HTTP: {"f:port": {}}}},
            {"f:ports": {HTTP: {"f:protocol": {}}}},
        ),
        ({"tags": []}, {"tags": ["a"]}, {}, {}, {"f:tags": {'v:"a"': {}}}),
        ({"inner": {}}, {"inner": None}, {}, {"f:inner": {}}, {}),
        (
            {"free": {"x": 1}},
            {"free": {"x": {"y": 1}}},
            {},
            {"f:free": {"f:x": {}}},
            {"f:free": {"f:x": {"f:y": {}}}},
        ),
    ],
)
def test_how_objects_differ(old: Any, new: Any, removed: Any, modified: Any, added: Any) -> None:
    """Each path is removed, modified or added; what came as a whole brings the objects on the way."""
    found = compare(TYPE, old, new)
    if "free" in old:  # a field that becomes another type is both changed and filled
        assert fieldsets.has(found.modified, ("f:free", "f:x"))
        assert fieldsets.has(found.added, ("f:free", "f:x", "f:y"))
    else:
        assert tuple(found) == (removed, modified, added)


@pytest.mark.parametrize(
    ("live", "applied", "expected"),
    [
        ({"size": 1, "on": True}, {"size": 2}, {"size": 2, "on": True}),
        ({"inner": {"x": 1}}, {"inner": {"y": 2}}, {"inner": {"x": 1, "y": 2}}),
        ({"pair": {"a": "1"}}, {"pair": {"b": "2"}}, {"pair": {"b": "2"}}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        ({"tags": ["a", "b"]}, {"tags": ["c", "b"]}, {"tags": ["a", "c", "b"]}),
        ({"tags": ["a", "b", "c"]}, {"tags": ["c", "a"]}, {"tags": ["b", "c", "a"]}),
        (
            {"ports": [{"name": "http", "port": 80}, {"name": "dns", "protocol": "UDP"}]},
            {"ports": [{"name": "dns", "protocol": "UDP", "port": 53}]},
            {"ports": [{"name": "http", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}]},
        ),
        ({"tags": ["a"]}, {"tags": []}, {"tags": ["a"]}),
        ({"inner": {"x": 1}}, {"inner": None}, {"inner": {"x": 1}}),
        ({"size": 1}, {"size": None}, {"size": None}),
    ],
)
def test_what_an_apply_makes(live: Any, applied: Any, expected: Any) -> None:
    """The applied object wins where it speaks; maps, sets and lists by key keep the rest."""
    assert merge(TYPE, live, applied) == expected


def test_removal_leaves_what_is_not_named() -> None:
    """Fields and items go by their paths; an object that is named as a declared field goes whole."""
    value = {"inner": {"x": 1}, "tags": ["a", "b"], "ports": [{"name": "http", "port": 80}], "size": 1}
    gone = {"f:inner": {"f:x": {}}, "f:tags": {'v:"a"': {}}, "f:ports": {HTTP: {"f:port": {}}}}
    assert remove(TYPE, value, gone) == {"inner": None, "tags": ["b"], "ports": [{"name": "http"}], "size": 1}
    whole = remove(TYPE, value, with_named(TYPE, gone))
    assert whole == {"size": 1}


def test_a_field_that_became_atomic_is_owned_whole() -> None:
    """Owners from before a change of the schema do not conflict about parts that merge no more."""
    before: fieldsets.FieldSet = {"f:pair": {"f:a": {}}, "f:args": {"i:0": {}}, "f:inner": {"f:x": {}}}
    assert reconciled(TYPE, before) == {"f:pair": {}, "f:args": {}, "f:inner": {"f:x": {}}}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"nothing": 1}, ".nothing: field not declared in schema"),
        ({"size": "1"}, ".size: expected numeric (int or float), got string"),
        ({"on": 1}, ".on: expected boolean, got &{1}"),
        ({"tags": ["a", "a"]}, '.tags: duplicate entries for key [="a"]'),
        ({"inner": []}, ".inner: expected map, got &{[]}"),
        ({"ports": [{"port": 1}]}, ""),
        ({"free": {"anything": [1, {"x": 1}]}}, ""),
    ],
)
def test_what_does_not_fit_is_not_applied(value: Any, error: str) -> None:
    """Each error has the field's path; a key with a default may be missing."""
    assert type_errors(TYPE, value) == ([error] if error else [])


def test_owners_are_found_by_uid_in_every_kind() -> None:
    """Metadata merges alike in all kinds, also in those without a schema."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    metadata = {"ownerReferences": [owner], "finalizers": ["a/b"], "labels": {"x": "y"}}
    for schema in (None, {"type": "object"}):
        assert field_set(of_object(schema), {"metadata": metadata}) == {
            "f:metadata": {
                "f:ownerReferences": {'k:{"uid":"u"}': {}},
                "f:finalizers": {'v:"a/b"': {}},
                "f:labels": {"f:x": {}},
            }
        }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:spec", "f:ports", HTTP, "f:port"), '.spec.ports[name="http",protocol="TCP"].port'),
        (("f:tags", 'v:"a"'), '.tags[="a"]'),
        (("f:x", "i:3"), ".x[3]"),
    ],
)
def test_paths_as_kubectl_prints_them(path: fieldsets.Path, text: str) -> None:
    """Conflicts name fields in these words."""
    assert fieldsets.shown(path) == text


@pytest.mark.parametrize("fields", [{"x": {}}, {"k:[]": {}}, {"k:{": {}}, {"i:x": {}}, {"f:a": 1}, []])
def test_fields_that_cannot_be_read_are_refused(fields: Any) -> None:
    """A client may send any managedFields."""
    with pytest.raises(ValueError, match=r"."):
        fieldsets.parsed(fields)


class Compared(str):
    """A text that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_an_apply_compares_an_object_as_often_whatever_the_number_of_its_owners() -> None:
    """A large object with many owners held up the server for seconds: each owner cost a comparison."""
    type_ = of_schema({"type": "object", "additionalProperties": {"type": "string"}})

    version = "example.com/v1"

    def compared(owners: int) -> int:
        live = {f"k{n}": Compared("v") for n in range(50)}
        managers = {updater(f"m{n}", version, ""): Owned({"f:k0": {}}, version) for n in range(owners)}
        config = {f"k{n}": Compared("v") for n in range(50)} | {"k49": "w"}
        Compared.comparisons = 0
        writing = Writing("applier", version, "", EMPTY, "2024-01-01T00:00:00Z")
        applied(lambda obj, _: (type_, obj), writing, live, config, managers, force=False)
        return Compared.comparisons

    assert compared(100) == compared(1) > 0
