"""search-replace v0.2.0."""

import pytest

from pvbus.controlplane.packages.functions.search_replace import search_replace
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import config_map, items, text

HEAD = "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: a\n"


def changed(body: str, **matchers: str) -> tuple[str, list[str]]:
    """Return the rest of the object, and the messages with their fields."""
    given = {name.replace("_", "-"): value for name, value in matchers.items()}
    output = search_replace(items(HEAD + text(body)), config_map(**given))
    (item,) = output.items
    assert item.text.startswith(HEAD)
    return item.text.removeprefix(HEAD), [
        f"{result.field.get('path', '')}: {result.message}".removeprefix(": ") for result in output.results
    ]


@pytest.mark.parametrize(
    ("reason", "before", "given", "expected"),
    [
        ("by value", "a: 3\nb: 4", {"by_value": "3", "put_value": "5"}, "a: 5\nb: 4"),
        ("untyped", "a: 3", {"by_value": "3", "put_value": "x"}, "a: x"),
        ("quotes stay", "a: '3' # c", {"by_value": "3", "put_value": "5"}, "a: '5' # c"),
        ("values are compared as text", "a: true", {"by_value": "true", "put_value": "no"}, "a: no"),
        ("by the whole value only", "a: 33", {"by_value": "3", "put_value": "5"}, "a: 33"),
        ("by expression", "a: my-3-x", {"by_value_regex": "-[0-9]", "put_value": "5"}, "a: 5"),
        (
            "groups",
            "a: x-dev-y",
            {"by_value_regex": "(.*)-dev-(.*)", "put_value": "${2}-${1}-${1}"},
            "a: y-x-x",
        ),
        ("a group that takes no part", "a: b", {"by_value_regex": "(x)?b", "put_value": "<${1}>"}, "a: <>"),
        ("other names in braces", "a: b", {"by_value_regex": "(b)", "put_value": "${x}-${1}"}, "a: ${x}-b"),
        ("by path", "a: {b: 1, c: 2}", {"by_path": "a.b", "put_value": "3"}, "a: {b: 3, c: 2}"),
        ("a missing path is made", "a: {}", {"by_path": "a.b.c", "put_value": "3"}, "a:\n  b:\n    c: 3"),
        ("a map is replaced", "a:\n  b: 1\n", {"by_path": "a", "put_value": "3"}, "a: 3\n"),
        ("path and value", "a: 1\nb: 1", {"by_path": "b", "by_value": "1", "put_value": "2"}, "a: 1\nb: 2"),
        ("path and another value", "b: 1", {"by_path": "b", "by_value": "9", "put_value": "2"}, "b: 1"),
        ("an element", "a: [1, 2]", {"by_path": "a[1]", "put_value": "3"}, "a: [1, 3]"),
        ("each element", "a: [1, 2]", {"by_path": "a[*]", "put_value": "3"}, "a: [3, 3]"),
        ("a field of elements", "a: [{b: 1}]", {"by_path": "a[*].b", "put_value": "3"}, "a: [{b: 3}]"),
        ("no such element", "a: [1]", {"by_path": "a[1]", "put_value": "3"}, "a: [1]"),
        ("any part", "a: {b: {c: 1}}", {"by_path": "a.*.c", "put_value": "3"}, "a: {b: {c: 3}}"),
        ("any parts", "a: {b: {c: 1}}", {"by_path": "**.c", "put_value": "3"}, "a: {b: {c: 3}}"),
        ("no part, too", "c: 1", {"by_path": "**.c", "put_value": "3"}, "c: 3"),
        ("keys with dots", "a: {b.c: 1}", {"by_path": "**.b.c", "put_value": "3"}, "a: {b.c: 3}"),
        ("only the path decides", "a: [1]", {"by_path": "*[0]", "put_value": "3"}, "a: [3]"),
        ("comment", "a: 3", {"by_value": "3", "put_comment": "kpt-set: ${n}"}, "a: 3 # kpt-set: ${n}"),
        ("instead of another", "a: 3 # c", {"by_value": "3", "put_comment": "d"}, "a: 3 # d"),
        (
            "comment and value",
            "a: x-1",
            {"by_value_regex": "x-(.)", "put_value": "y-${1}", "put_comment": "kpt-set: ${e}-${1}"},
            "a: y-1 # kpt-set: ${e}-1",
        ),
        (
            "at one exact path the value only",
            "a: 3",
            {"by_path": "a", "put_value": "4", "put_comment": "c"},
            "a: 4",
        ),
        ("a list", "a:\n- x # y\n- z", {"by_path": "a", "put_comment": "c"}, "a: # c\n- x # y\n- z"),
        ("a flow list", "a: [x, z]\nb: 1", {"by_path": "a", "put_comment": "c"}, "a: # c\n- x\n- z\nb: 1"),
        ("an empty list", "a: []", {"by_path": "a", "put_comment": "c"}, "a: []"),
        (
            "inside a flow map",
            "a: {b: 1, c: '2'} # d\ne: 1",
            {"by_value": "1", "by_path": "a.b", "put_comment": "c"},
            'a: # d\n  b: 1 # c\n  c: "2"\ne: 1',
        ),
        (
            "inside a flow map of a list",
            "a:\n- {b: 1, c: 2}\ne: 1",
            {"by_path": "a[*].b", "put_comment": "c"},
            "a:\n- b: 1 # c\n  c: 2\ne: 1",
        ),
        ("nothing to put", "a: 3", {"by_value": "3"}, "a: 3"),
        ("nothing to look for", "a: 3", {"put_value": "4"}, "a: 3"),
        (
            "a block scalar",
            "a: |\n  3\n",
            {"by_path": "a", "by_value_regex": "3", "put_value": "4"},
            "a: '4'",
        ),
    ],
)
def test_replacements(reason: str, before: str, given: dict[str, str], expected: str) -> None:
    assert changed(before, **given)[0].rstrip().replace('"', "'") == expected.rstrip().replace('"', "'"), (
        reason
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"by_value": "3"}, ['spec.n: Matched field value "3"', 'spec.l[0]: Matched field value "3"']),
        ({"by_path": "spec.n", "put_value": "4"}, ['spec.n: Mutated field value to "4"']),
        ({"by_path": "spec.n", "put_comment": "c"}, ['spec.n: Mutated field value to "3 # c"']),
        ({"by_path": "spec.l", "put_comment": "c"}, ['spec.l # c: Mutated field value to "[3]"']),
        ({"by_value": "5"}, ["no matches"]),
        ({}, ["no matches"]),
    ],
)
def test_results(given: dict[str, str], expected: list[str]) -> None:
    assert changed("spec:\n  n: 3\n  l:\n  - 3\n", **given)[1] == expected


@pytest.mark.parametrize(
    ("glob", "matches"),
    [
        ("0.yaml", True),
        ("**/0.yaml", True),
        ("*.yaml", True),
        ("**", True),
        ("1.yaml", False),
        ("*/0.yaml", False),
    ],
)
def test_files_are_chosen_by_path(glob: str, matches: bool) -> None:
    written, _ = changed("a: 3", by_value="3", put_value="4", by_file_path=glob)
    assert written.rstrip() == ("a: 4" if matches else "a: 3")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"by-valeu": "3"}, 'invalid matcher "by-valeu", must be one of'),
        ({"by-value": "3", "by-value-regex": "3"}, r"only one of \[.by-value., .by-value-regex.\]"),
        ({"by-value-regex": "("}, "`by-value-regex` is not an expression"),
        ({"by-value-regex": "(a)", "put-value": "${2}"}, "unable to resolve capture groups"),
        ({"by-file-path": "{a,b}.yaml"}, "`by-file-path` can have"),
        ({"by-path": "kind.x", "put-value": "1"}, "`kind` is not a map"),
    ],
)
def test_a_configuration_it_cannot_use_fails(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PermanentError, match=problem):
        search_replace(items(HEAD), config_map(**given))


def test_json_gets_values_but_no_comments() -> None:
    before = '{"apiVersion": "v1", "kind": "X", "metadata": {"name": "a"}, "n": 3}'
    given = items(before)
    json_item = type(given[0])(text=before, value=given[0].value, file="a.json")
    (item,) = search_replace([json_item], config_map(**{"by-value": "3", "put-comment": "c"})).items
    assert item.text == before
    (item,) = search_replace([json_item], config_map(**{"by-value": "3", "put-value": "4"})).items
    assert item.value["n"] == 4
