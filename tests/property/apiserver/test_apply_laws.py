"""Laws of field sets and of applies, over random objects."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.apiserver.apply import fieldsets as fs
from pvbus.controlplane.apiserver.apply.fieldtypes import FieldType, of_schema
from pvbus.controlplane.apiserver.apply.managed import decoded, encoded
from pvbus.controlplane.apiserver.apply.merging import merge
from pvbus.controlplane.apiserver.apply.objectfields import compare, field_set
from pvbus.controlplane.apiserver.apply.ownership import Conflict, ConflictsError, Writing, applied, updated

VERSION = "example.com/v1"
TEXT = st.sampled_from(["a", "b", "c"])
NUMBER = st.integers(0, 2)
SCHEMA = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "x": {"type": "integer"},
        "inner": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
        "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "list": {"type": "array", "items": {"type": "string"}},
        "items": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
        },
    },
}
TYPE = of_schema(SCHEMA)
ITEMS = st.lists(
    st.fixed_dictionaries({"k": TEXT}, optional={"v": NUMBER}), max_size=3, unique_by=lambda item: item["k"]
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "x": NUMBER,
        "inner": st.fixed_dictionaries({}, optional={"x": NUMBER, "y": NUMBER}),
        "texts": st.dictionaries(TEXT, TEXT, max_size=3),
        "set": st.lists(TEXT, max_size=3, unique=True),
        "list": st.lists(TEXT, max_size=2),
        "items": ITEMS,
    },
)
FULL = st.fixed_dictionaries(
    {},
    optional={
        "x": NUMBER,
        "inner": st.fixed_dictionaries({"x": NUMBER}, optional={"y": NUMBER}),
        "texts": st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
        "set": st.lists(TEXT, min_size=1, max_size=3, unique=True),
        "list": st.lists(TEXT, max_size=2),
        "items": ITEMS.filter(bool),
    },
)
"""Objects without empty maps and lists that merge, which nobody can own."""
ELEMENTS = st.sampled_from(["f:a", "f:b", 'v:"a"', 'k:{"a":1}'])
PATHS = st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple)
SETS = st.lists(PATHS, max_size=6).map(lambda found: fs.of_paths(*found))
NAMES = st.sampled_from(["alice", "bob"])


def view(obj: Any, api_version: str) -> tuple[FieldType, Any] | None:
    return (TYPE, obj) if api_version == VERSION else None


def writing(name: str) -> Writing:
    return Writing(name, VERSION, "", fs.EMPTY, "2024-01-01T00:00:00Z")


def members(fields: fs.FieldSet) -> set[fs.Path]:
    return set(fs.paths(fields))


@given(SETS, SETS)
def test_sets_are_sets_of_paths(one: fs.FieldSet, other: fs.FieldSet) -> None:
    """Each operation does to the nested form what it does to the paths."""
    assert members(fs.union(one, other)) == members(one) | members(other)
    assert members(fs.intersection(one, other)) == members(one) & members(other)
    assert members(fs.difference(one, other)) == members(one) - members(other)
    below = {path for path in members(one) if any(path[: len(p)] == p for p in members(other))}
    assert members(fs.recursive_difference(one, other)) == members(one) - below
    for operation in (fs.union, fs.intersection, fs.difference, fs.recursive_difference):
        found = operation(one, other)
        assert found == fs.of_paths(*fs.paths(found)) == fs.parsed(found)


@given(SETS)
def test_a_set_is_read_as_it_is_printed(fields: fs.FieldSet) -> None:
    """fieldsV1 has one form for one set."""
    assert fs.parsed(fs.printed(fields)) == fields == fs.of_paths(*fs.paths(fields))
    assert all(fs.has(fields, path) for path in fs.paths(fields))


@given(OBJECTS, OBJECTS)
def test_a_comparison_names_each_path_once(old: Any, new: Any) -> None:
    """Removed, modified and added do not meet, and turned around they change places."""
    there, back = compare(TYPE, old, new), compare(TYPE, new, old)
    parts = [members(part) for part in there]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert (there.removed, there.modified, there.added) == (back.added, back.modified, back.removed)
    assert not any(compare(TYPE, old, old))


@given(OBJECTS, OBJECTS)
def test_merging_twice_is_merging_once(live: Any, config: Any) -> None:
    """What is applied is there afterwards, and nothing of it goes the second time."""
    once = merge(TYPE, live, config) or {}
    assert merge(TYPE, once, config) in (once, once or None)
    assert not members(field_set(TYPE, config)) - members(field_set(TYPE, once)) - _empty(config)


def _empty(config: Any) -> set[fs.Path]:
    """Return the paths of empty objects, which stay only where nothing else is."""
    return {(f"f:{name}",) for name, value in config.items() if value == {}}


@given(st.lists(st.tuples(NAMES, FULL), max_size=5))
def test_forced_applies_end_with_what_was_applied(steps: list[tuple[str, Any]]) -> None:
    """Each applier owns what it named; an equal apply changes nothing; who applies {} leaves nothing."""
    live: Any = {}
    managers: Any = {}
    for name, config in steps:
        found = applied(view, writing(name), live, config, managers, force=True)
        live = live if found.obj is None else found.obj
        managers = found.managers
        again = applied(view, writing(name), live, config, managers, force=True)
        assert (again.obj, again.managers) == (None, managers)
        assert decoded(encoded(managers)) == managers
    for name in ("alice", "bob"):
        found = applied(view, writing(name), live, {}, managers, force=True)
        live = live if found.obj is None else found.obj
        managers = found.managers
    assert not managers
    assert not any(live.values())


@given(OBJECTS, OBJECTS, OBJECTS)
def test_an_apply_without_force_changes_nothing_of_others(first: Any, second: Any, config: Any) -> None:
    """Either no field of another changes, or the conflict names one that would."""
    managers = updated(view, writing("carol"), {}, first, {})
    managers = updated(view, writing("dave"), first, second, managers)
    owned = {path for each in managers.values() for path in fs.paths(each.fields)}
    conflicts: tuple[Conflict, ...] = ()
    new = second
    try:
        found = applied(view, writing("alice"), second, config, managers, force=False)
        new = second if found.obj is None else found.obj
    except ConflictsError as exc:
        conflicts = exc.conflicts
    assert {each.path for each in conflicts} <= owned
    assert not members(compare(TYPE, second, new).modified) & owned
