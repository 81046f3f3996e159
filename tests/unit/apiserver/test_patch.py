"""The three patch types, against the examples of their specifications."""

from copy import deepcopy
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.patch import json_patch, merge_patch, strategic_merge_patch


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [  # the object cases of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "foo"}, {"a": {"b": "c"}}, {"a": {"b": "c"}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, expected: Any) -> None:
    """RFC 7396's examples, and the target stays as it was."""
    before = deepcopy(target)
    assert merge_patch(target, patch) == expected
    assert target == before


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": [1, 2], "m": {"x~/y": 1}, "b": 1}),
        ([{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2], "m": {"x~/y": 1}}),
        ([{"op": "add", "path": "/a/-", "value": 9}], {"a": [1, 2, 9], "m": {"x~/y": 1}}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2], "m": {"x~/y": 1}}),
        ([{"op": "remove", "path": "/m/x~0~1y"}], {"a": [1, 2], "m": {}}),
        ([{"op": "replace", "path": "/a", "value": None}], {"a": None, "m": {"x~/y": 1}}),
        ([{"op": "move", "from": "/a", "path": "/m/a"}], {"m": {"x~/y": 1, "a": [1, 2]}}),
        ([{"op": "copy", "from": "/a/1", "path": "/b"}], {"a": [1, 2], "m": {"x~/y": 1}, "b": 2}),
        ([{"op": "test", "path": "/a", "value": [1, 2]}], {"a": [1, 2], "m": {"x~/y": 1}}),
        ([{"op": "replace", "path": "", "value": {}}], {}),
        ([{"op": "replace", "path": "/b", "value": 1}], {"a": [1, 2], "m": {"x~/y": 1}, "b": 1}),
        ([{"op": "test", "path": "/b", "value": None}], {"a": [1, 2], "m": {"x~/y": 1}}),
    ],
)
def test_json_patch(operations: Any, expected: Any) -> None:
    """Each operation of RFC 6902, a missing field as in kube-apiserver; the target stays as it was."""
    target = {"a": [1, 2], "m": {"x~/y": 1}}
    before = deepcopy(target)
    assert json_patch(target, operations) == expected
    assert target == before


@pytest.mark.parametrize(
    ("operations", "code", "words"),
    [
        ([{"op": "test", "path": "/a", "value": True}], 422, "testing value /a failed"),
        ([{"op": "remove", "path": "/x"}], 422, "nothing at /x"),
        ([{"op": "replace", "path": "/l/1", "value": 1}], 422, "'1' is not an index"),
        ([{"op": "test", "path": "/x", "value": 1}], 422, "test failed"),
        ([{"op": "add", "path": "/x/y", "value": 1}], 422, "nothing at /x"),
        ([{"op": "add", "path": "/l/2", "value": 1}], 422, "'2' is not an index"),
        ([{"op": "remove", "path": "/l/-"}], 422, "'-' is not an index"),
        ([{"op": "move", "from": "/m", "path": "/m/x"}], 422, "cannot be moved into itself"),
        ([{"op": "replace", "path": "", "value": 1}], 422, "not an object"),
        ([{"op": "add", "path": "/x"}], 422, "has no value"),
        ([{"op": "frob", "path": "/x"}], 422, "unexpected kind"),
        ([{"op": "add", "path": "x", "value": 1}], 422, "no valid 'path'"),
        ({"a": 1}, 400, "must be an array"),
        ([{"op": "test", "path": "", "value": 0}] * 10_001, 413, "10000"),
    ],
)
def test_json_patch_errors(operations: Any, code: int, words: str) -> None:
    """What cannot be applied changes nothing and says why."""
    with pytest.raises(StatusError, match=words) as error:
        json_patch({"a": 1, "l": [1], "m": {}}, operations)
    assert error.value.code == code


def strategic(obj: Any, patch: Any, kind: str = "ConfigMap") -> Any:
    before = deepcopy(obj)
    result = strategic_merge_patch(obj, patch, group="", kind=kind)
    assert obj == before
    return result


def owners(*uids: str) -> list[dict[str, str]]:
    return [{"uid": uid, "name": uid} for uid in uids]


@pytest.mark.parametrize(
    ("obj", "patch", "expected"),
    [
        ({"data": {"a": "1", "b": "2"}}, {"data": {"a": None, "c": "3"}}, {"data": {"b": "2", "c": "3"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "replace", "c": "3"}}, {"data": {"c": "3"}}),
        ({"data": {"a": "1"}}, {"data": {"$patch": "delete"}}, {"data": {}}),
        (
            {"data": {"a": "1", "b": "2"}},
            {"data": {"$retainKeys": ["a", "c"], "c": "3"}},
            {"data": {"a": "1", "c": "3"}},
        ),
        (
            {"metadata": {"finalizers": ["x", "y"]}},
            {"metadata": {"finalizers": ["y", "z"]}},
            {"metadata": {"finalizers": ["x", "y", "z"]}},
        ),
        (
            {"metadata": {"finalizers": ["x", "y"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}},
            {"metadata": {"finalizers": ["y"]}},
        ),
        (
            {"metadata": {"finalizers": ["x", "y"]}},
            {"metadata": {"$setElementOrder/finalizers": ["z", "y"], "finalizers": ["z"]}},
            {"metadata": {"finalizers": ["x", "z", "y"]}},
        ),
        (
            {"metadata": {"ownerReferences": owners("1", "2")}},
            {"metadata": {"ownerReferences": [{"uid": "2", "kind": "K"}, {"uid": "3"}]}},
            {
                "metadata": {
                    "ownerReferences": [*owners("1"), {"uid": "2", "name": "2", "kind": "K"}, {"uid": "3"}]
                }
            },
        ),
        (
            {"metadata": {"ownerReferences": owners("1", "2")}},
            {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}},
            {"metadata": {"ownerReferences": owners("2")}},
        ),
        (
            {"metadata": {"ownerReferences": owners("1", "2")}},
            {"metadata": {"ownerReferences": [{"$patch": "replace"}, *owners("9")]}},
            {"metadata": {"ownerReferences": owners("9")}},
        ),
        ({"list": [1, 2]}, {"list": [3]}, {"list": [3]}),
    ],
)
def test_strategic_merge_patch(obj: Any, patch: Any, expected: Any) -> None:
    """Merge keys and directives; lists without a merge key are replaced."""
    assert strategic(obj, patch) == expected


def test_strategic_merge_patch_of_namespace_conditions() -> None:
    """Conditions of a Namespace merge by their type."""
    obj = {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}}
    patch = {"status": {"conditions": [{"type": "B", "status": "False"}]}}
    merged = strategic(obj, patch, kind="Namespace")
    assert [c["status"] for c in merged["status"]["conditions"]] == ["True", "False"]


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"data": {"$patch": "explode"}},
        {"data": {"$retainKeys": ["a"], "b": "1"}},
        {"metadata": {"ownerReferences": [{"name": "no uid"}]}},
    ],
)
def test_strategic_merge_patch_errors(patch: Any) -> None:
    """Patches that mean nothing are bad requests."""
    with pytest.raises(StatusError) as error:
        strategic({"metadata": {}, "data": {}}, patch)
    assert error.value.code == 400
