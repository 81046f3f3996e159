"""Laws of schemas, patches and selectors, for schemas and objects nobody thought of."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.controlplane.apiserver.nodes import Node, default, prune, validate
from pvbus.controlplane.apiserver.patch import json_patch, merge_patch, strategic_merge_patch
from pvbus.controlplane.apiserver.rules import Budget
from pvbus.controlplane.apiserver.structural import compile_schema
from pvbus.core.api.selectors import matches
from pvbus.core.api.selectortext import parse_label_selector

NAMES = st.sampled_from(["a", "b", "c d", "é"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.sampled_from(["", "a", "bb", "A1"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)
STRING_SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^[a-z]*$", "a"]),
        "enum": st.sampled_from([["a"], ["a", "bb"]]),
        "format": st.sampled_from(["date-time", "byte", "unknown"]),
        "nullable": st.booleans(),
        "default": st.just("a"),
    },
)
NUMBER_SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-1, 1),
        "maximum": st.integers(0, 2),
        "exclusiveMinimum": st.booleans(),
        "multipleOf": st.just(2),
        "enum": st.just([1, 2]),
        "nullable": st.booleans(),
        "default": st.just(1),
    },
)
LEAVES = st.one_of(
    STRING_SCHEMAS,
    NUMBER_SCHEMAS,
    st.just({"type": "boolean"}),
    st.just({"x-kubernetes-int-or-string": True}),
    st.just({"x-kubernetes-preserve-unknown-fields": True}),
    st.just({"type": "object"}),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "x-kubernetes-preserve-unknown-fields": st.just(True),
            "minProperties": st.integers(0, 2),
            "nullable": st.booleans(),
        },
    )
    maps = st.fixed_dictionaries(
        {"type": st.just("object"), "additionalProperties": inner},
        optional={"maxProperties": st.integers(0, 2)},
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "x-kubernetes-list-type": st.sampled_from(["set", "atomic"]),
        },
    )
    return st.one_of(objects, maps, arrays)


SCHEMAS = st.recursive(LEAVES, containers, max_leaves=6)


def example(schema: Any) -> st.SearchStrategy[Any]:
    """Values near what a schema describes, so that many of them are valid."""
    if "properties" in schema:
        properties = {name: example(child) for name, child in schema["properties"].items()}
        near: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional=properties)
    elif isinstance(schema.get("additionalProperties"), dict):
        near = st.dictionaries(NAMES, example(schema["additionalProperties"]), max_size=2)
    elif "items" in schema:
        near = st.lists(example(schema["items"]), max_size=3)
    else:
        near = SCALARS
    return st.one_of(near, near, near, VALUES)


PAIRS = SCHEMAS.flatmap(
    lambda schema: st.tuples(st.just(schema), example(schema).map(lambda value: {"spec": value}))
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(PAIRS)
def test_the_quick_answer_is_right(pair: tuple[Any, Any]) -> None:
    """Where the compiled type finds an object clean, walking the schema finds nothing to do either."""
    inner, obj = pair
    schema = {"type": "object", "properties": {"spec": inner}}
    compiled = compile_schema(schema)
    node = Node(schema, root=True)
    if compiled.is_clean(obj):
        assert default(node, obj) is obj
        unknown: list[str] = []
        assert prune(node, obj, "", unknown) is obj
        assert unknown == []
    assert [error.message for error in compiled.validate(obj)] == [
        error.message for error in validate(node, obj, None, "", Budget())
    ]


@given(PAIRS)
def test_defaulting_and_pruning_settle(pair: tuple[Any, Any]) -> None:
    """Both are done after once, and leave their argument alone."""
    inner, obj = pair
    compiled = compile_schema({"type": "object", "properties": {"spec": inner}})
    before = copy.deepcopy(obj)
    defaulted = compiled.defaulted(obj)
    assert compiled.defaulted(defaulted) == defaulted
    pruned, _ = compiled.pruned(defaulted)
    assert compiled.pruned(pruned) == (pruned, [])
    assert json.dumps(obj) == json.dumps(before)


OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return value


def difference(old: Any, new: Any) -> Any:
    """Return the merge patch that leads from one object without nulls to another."""
    patch = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            patch[key] = difference(old[key], value)
        elif key not in old or json.dumps(old[key]) != json.dumps(value):
            patch[key] = value
    return patch


@given(OBJECTS, OBJECTS)
def test_merge_patch_reaches_any_object(old: Any, new: Any) -> None:
    """The difference of two objects, applied to the first, gives the second."""
    old, new = without_nulls(old), without_nulls(new)
    patch = difference(old, new)
    assert json.dumps(merge_patch(old, patch), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert merge_patch(new, patch) == new
    strategic = strategic_merge_patch(old, patch, group="", kind="ConfigMap")
    assert json.dumps(strategic, sort_keys=True) == json.dumps(new, sort_keys=True)


@given(OBJECTS, NAMES, VALUES)
def test_json_patch_add_test_remove(obj: Any, name: str, value: Any) -> None:
    """What was added is there, and gone when removed."""
    added = json_patch(obj, [{"op": "add", "path": f"/{name}", "value": value}])
    test = {"op": "test", "path": f"/{name}", "value": value}
    assert json_patch(added, [test]) == added == {**obj, name: value}
    removed = json_patch(added, [test, {"op": "remove", "path": f"/{name}"}])
    assert removed == {key: part for key, part in obj.items() if key != name}


LABELS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "1", "2", "x"]))
VALUE_SETS = st.lists(st.sampled_from(["1", "2", "x"]), min_size=1, max_size=3)


@given(LABELS, st.sampled_from(["a", "b", "z"]), VALUE_SETS)
def test_operators_are_each_others_complement(labels: Any, key: str, values: list[str]) -> None:
    """in and notin, = and !=, key and !key: exactly one of two holds, for any labels."""
    one_of = ",".join(values)
    for yes, no in (
        (f"{key} in ({one_of})", f"{key} notin ({one_of})"),
        (f"{key}={values[0]}", f"{key}!={values[0]}"),
        (key, f"!{key}"),
    ):
        assert matches(parse_label_selector(yes), labels) != matches(parse_label_selector(no), labels)
    both = matches(parse_label_selector(f"{key},{key} in ({one_of})"), labels)
    assert both == (labels.get(key) in values)
