"""Laws of the three-way merge, and a model of it that works on leaves instead of trees."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.kernel.conflicts import ABSENT
from pvbus.core.variants.merge import MergeError, fields, packages
from pvbus.core.variants.merge.schemas import Keyed, Schema, by, schema_of
from pvbus.core.yaml import editor

SCALARS = st.integers(0, 3) | st.sampled_from(["x", "y", "yes", "1"]) | st.booleans()
PLAIN = st.lists(SCALARS, max_size=2)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects whose field names say what the fields hold: the shapes of all sides agree."""
    elements = st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(
        lambda found: [{"name": name, **value} for name, value in found.items()]
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "s1": SCALARS,
            "s2": SCALARS,
            "plain": PLAIN,
            "m1": inner,
            "m2": inner,
            "keyed": elements,
        },
    )


NODES: st.SearchStrategy[Any] = st.recursive(st.just({}), _object, max_leaves=6)


def _schema(depth: int) -> Schema:
    if not depth:
        return {}
    inner = _schema(depth - 1)
    return {"m1": inner, "m2": inner, "keyed": Keyed(by("name"), inner)}


SCHEMA = _schema(8)


def merged(old: Any, local: Any, new: Any) -> Any:
    return fields.merge(old, local, new, SCHEMA).value


def unordered(value: Any) -> Any:
    """Return a value whose lists with merge keys are tables: their order is not upstream's."""
    if isinstance(value, dict):
        return {
            key: {e["name"]: unordered(e) for e in item} if key == "keyed" else unordered(item)
            for key, item in value.items()
        }
    return value


# ---------------------------------------------------------------- the model

Leaf = tuple[str, ...]


def leaves(value: Any, path: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    """Yield every scalar and plain list with its path, and every collection as itself (ABSENT)."""
    if isinstance(value, dict):
        yield path, ABSENT
        for key, item in value.items():
            if key == "keyed":
                yield (*path, "keyed"), ABSENT
                for element in item:
                    yield from leaves(element, (*path, "keyed", f"[{element['name']}]"))
            else:
                yield from leaves(item, (*path, key))
    else:
        yield path, value


def modelled(old: Any, local: Any, new: Any) -> dict[Leaf, Any]:
    """Decide each leaf by itself, with what is gone above it."""
    o, l, u = (dict(leaves(side)) for side in (old, local, new))  # noqa: E741

    def is_gone(path: Leaf) -> bool:
        above = [path[:depth] for depth in range(1, len(path) + 1)]
        cleared = any(p[-1] == "keyed" and p in o and p not in u for p in above)
        return cleared or any(p[-1][0] == "[" and p in o and (p not in u or p not in l) for p in above)

    result: dict[Leaf, Any] = {}
    empties: list[Leaf] = []
    for path in o.keys() | l.keys() | u.keys():
        if is_gone(path):
            continue
        if any(side.get(path) is ABSENT for side in (o, l, u)):
            sides = (path in o, path in l, path in u)
            if sides not in ((True, True, False), (True, False, True), (True, False, False)):
                empties.append(path)
            continue
        nothing = object()
        before, mine, theirs = (side.get(path, nothing) for side in (o, l, u))
        changed = before is nothing or theirs is nothing or not editor.same(before, theirs)
        taken = theirs if changed and before is not theirs else mine
        if taken is not nothing:
            result[path] = taken
    collections = {path[:depth] for path in [*result, *empties] for depth in range(len(path))} | set(empties)
    return {**result, **dict.fromkeys(collections, ABSENT)}


@settings(deadline=None)
@given(NODES, NODES, NODES)
def test_fields_are_merged_as_the_model_does(old: Any, local: Any, new: Any) -> None:
    """Decisions on single leaves give what the recursive merge gives."""
    outcome = dict(leaves(merged(old, local, new)))
    expected = modelled(old, local, new)
    assert outcome.keys() == expected.keys() | {()}
    assert all(editor.same(outcome[path], value) for path, value in expected.items() if value is not ABSENT)


# ---------------------------------------------------------------- laws of fields


@settings(deadline=None)
@given(NODES, NODES)
def test_a_side_that_changed_nothing_takes_the_other(one: Any, other: Any) -> None:
    """Without a local change upstream's value comes, without one upstream the local one stays."""
    assert unordered(merged(one, one, other)) == unordered(other)
    assert editor.same(merged(one, other, one), other)


@settings(deadline=None)
@given(NODES, NODES)
def test_both_the_same_is_that_and_no_conflict(old: Any, both: Any) -> None:
    outcome = fields.merge(old, both, both, SCHEMA)
    assert editor.same(outcome.value, both)
    assert not outcome.conflicts
    assert not outcome.edits


@settings(deadline=None)
@given(NODES, NODES, NODES)
def test_a_second_merge_of_the_same_upstream_changes_nothing(old: Any, local: Any, new: Any) -> None:
    once = merged(old, local, new)
    assert editor.same(merged(old, once, new), once)
    assert editor.same(merged(new, once, new), once)


@settings(deadline=None)
@given(NODES, NODES, NODES)
def test_nothing_local_is_lost_without_a_conflict(old: Any, local: Any, new: Any) -> None:
    """What local changed is in the result, or among the values of a conflict."""
    outcome = fields.merge(old, local, new, SCHEMA)
    before, mine, after = (dict(leaves(side)) for side in (old, local, outcome.value))
    named = [str(conflict.local) for conflict in outcome.conflicts]
    for path, value in mine.items():
        if value is ABSENT or path[-1] == "name" or (path in before and editor.same(before[path], value)):
            continue
        is_there = path in after and editor.same(after[path], value)
        assert is_there or any(repr(value) in text or str(value) == text for text in named)


# ---------------------------------------------------------------- any shape

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "containers", "ports", "a.b", ""]) | st.none() | st.just(1),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
ELEMENTS = st.none() | SCALARS | st.fixed_dictionaries({}, optional={"name": ANYTHING, "ports": ANYTHING})


def _pod(containers: Any, finalizers: Any) -> Any:
    """Return a Pod as it is read: keys of a file are texts."""
    pod = {"metadata": {"finalizers": finalizers}, "spec": {"containers": containers}}
    return editor.values(yaml.safe_dump(pod))[0]


PODS = st.builds(
    _pod, st.lists(ELEMENTS, max_size=3) | ANYTHING, st.lists(st.none() | SCALARS, max_size=3) | ANYTHING
)
POD = schema_of("", "Pod")


def plain(value: Any) -> Any:
    """Return a value without null fields, which mean that there is none, and lists in any order."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return sorted(map(plain, value), key=repr) if isinstance(value, list) else value


@settings(deadline=None)
@given(PODS, PODS, PODS)
def test_the_laws_hold_where_lists_and_keys_are_anything(old: Any, local: Any, new: Any) -> None:
    """Nulls, keys that are missing or not unique, and other kinds of values than the schema knows."""
    outcome = fields.merge(old, local, new, POD)
    (document,) = editor.parse(yaml.safe_dump(local, sort_keys=False))
    assert editor.same(editor.values(fields.edited(document, outcome.edits).text)[0], outcome.value)
    assert editor.same(plain(fields.merge(old, local, old, POD).value), plain(local))
    assert editor.same(plain(fields.merge(old, old, new, POD).value), plain(new))
    both = fields.merge(old, new, new, POD)
    assert editor.same(both.value, new)
    assert not both.conflicts


# ---------------------------------------------------------------- texts


@settings(deadline=None)
@given(NODES, NODES, NODES)
def test_the_edits_make_the_merged_value_of_the_local_text(old: Any, local: Any, new: Any) -> None:
    outcome = fields.merge(old, local, new, SCHEMA)
    (document,) = editor.parse(yaml.safe_dump(local, sort_keys=False))
    after = fields.edited(document, outcome.edits)
    assert editor.same(after.value, outcome.value)
    assert editor.same(editor.values(after.text)[0], outcome.value)


KINDS = ("ConfigMap", "Thing")


def _text(found: Mapping[tuple[str, str], Any]) -> str:
    objects = (
        {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for (kind, name), spec in found.items()
    )
    return "---\n".join(yaml.safe_dump(item, sort_keys=False) for item in objects)


TEXTS = st.dictionaries(st.tuples(st.sampled_from(KINDS), st.sampled_from("ab")), NODES, max_size=3).map(
    _text
)
PATHS = st.sampled_from(["a.yaml", "b.yaml", "README.md", "sub/c.yaml", "sub/Kptfile", "sub/in/Kptfile"])
ROOT = "kind: Kptfile\nmetadata:\n  name: root\n"
PACKAGES = st.dictionaries(PATHS, TEXTS.filter(bool), max_size=4).map(
    lambda files: {
        "Kptfile": ROOT,
        **{path: ROOT if path.endswith("Kptfile") else text for path, text in files.items()},
    }
)


def values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the objects of a package by file and identity."""
    return {
        path: sorted((each["kind"], each["metadata"]["name"], str(each)) for each in editor.values(text))
        if path.endswith(".yaml")
        else text
        for path, text in texts.items()
    }


@pytest.mark.slow
@settings(deadline=None)
@given(PACKAGES, PACKAGES)
def test_a_package_that_one_side_left_alone_is_the_others(one: Any, other: Any) -> None:
    assert packages.merge(one, other, one).texts == other
    assert values(packages.merge(one, one, other).texts) == values(other)


@pytest.mark.slow
@settings(deadline=None)
@given(PACKAGES, PACKAGES)
def test_equal_packages_merge_to_themselves(old: Any, both: Any) -> None:
    outcome = packages.merge(old, both, both)
    assert outcome.texts == both
    assert not outcome.conflicts


@pytest.mark.slow
@settings(deadline=None)
@given(PACKAGES, PACKAGES, PACKAGES)
def test_merging_the_same_upstream_package_twice_changes_nothing(old: Any, local: Any, new: Any) -> None:
    try:
        once = packages.merge(old, local, new).texts
    except MergeError:  # a sub-package was added on both sides
        return
    assert packages.merge(new, once, new).texts == once
