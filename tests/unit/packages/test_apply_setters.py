"""apply-setters v0.2.0."""

import pytest

from pvbus.controlplane.packages.functions.apply_setters import apply_setters
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import config_map, items, text

HEAD = "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: a\n"


def set_in(body: str, **setters: str) -> str:
    (changed,) = apply_setters(items(HEAD + text(body)), config_map(**setters)).items
    assert changed.text.startswith(HEAD)
    return changed.text.removeprefix(HEAD)


@pytest.mark.parametrize(
    ("reason", "before", "setters", "expected"),
    [
        ("a whole value", "a: x # kpt-set: ${n}", {"n": "y"}, "a: y # kpt-set: ${n}"),
        ("untyped", "a: 3 # kpt-set: ${n}", {"n": "5"}, "a: 5 # kpt-set: ${n}"),
        ("what plain would mean otherwise", "a: 3 # kpt-set: ${n}", {"n": "# x"}, 'a: "# x" # kpt-set: ${n}'),
        ("a list is no scalar", "a: 3 # kpt-set: ${n}", {"n": "[x"}, 'a: "[x" # kpt-set: ${n}'),
        ("a map is no scalar", "a: 3 # kpt-set: ${n}", {"n": "b: c"}, 'a: "b: c" # kpt-set: ${n}'),
        ("spaces stay", "a: 3 # kpt-set: ${n}", {"n": " x"}, 'a: " x" # kpt-set: ${n}'),
        (
            "inside a flow",
            "a: {b: 3, c: [4]} # kpt-set: ${n}",
            {"n": "x"},
            "a: {b: 3, c: [4]} # kpt-set: ${n}",
        ),
        ("quotes stay", "a: 'x' # kpt-set: ${n}", {"n": "y"}, "a: 'y' # kpt-set: ${n}"),
        ("empty is a string", "a: x # kpt-set: ${n}", {"n": ""}, 'a: "" # kpt-set: ${n}'),
        ("a field without value", "a: # kpt-set: ${n}", {"n": "y"}, "a: y # kpt-set: ${n}"),
        ("a list's element", "a:\n- x # kpt-set: ${n}", {"n": "y"}, "a:\n- y # kpt-set: ${n}"),
        (
            "the other names are read back",
            "a: nginx:1.7 # kpt-set: ${image}:${tag}",
            {"tag": "1.8"},
            "a: nginx:1.8 # kpt-set: ${image}:${tag}",
        ),
        (
            "reading back is greedy",
            "a: x-y-z # kpt-set: ${p}-${q}",
            {"q": "w"},
            "a: x-y-w # kpt-set: ${p}-${q}",
        ),
        ("a name that was not given", "a: x # kpt-set: ${other}", {"n": "y"}, "a: x # kpt-set: ${other}"),
        ("the marker must be exact", "a: x #kpt-set: ${n}", {"n": "y"}, "a: x #kpt-set: ${n}"),
        ("keys stay", "k: # kpt-set: ${n}\n  a: b", {"n": "y"}, "k: # kpt-set: ${n}\n  a: b"),
        (
            "a block list",
            "a: # kpt-set: ${n}\n- x\n- y # why\nb: c",
            {"n": "[p, q, r]"},
            "a: # kpt-set: ${n}\n- p\n- q\n- r\nb: c",
        ),
        (
            "a wide block list",
            "a: # kpt-set: ${n}\n  - x\n\n# about b\nb: c",
            {"n": "[p]"},
            "a: # kpt-set: ${n}\n  - p\n\n# about b\nb: c",
        ),
        (
            "a flow list becomes a block",
            "a: [x, y] # kpt-set: ${n}\nb: c",
            {"n": "[p]"},
            "a: # kpt-set: ${n}\n- p\nb: c",
        ),
        (
            "an empty list takes the comment behind it",
            "a: # kpt-set: ${n}\n- x\nb: c",
            {"n": ""},
            "a: [] # kpt-set: ${n}\nb: c",
        ),
        (
            "a list of maps",
            "a: # kpt-set: ${n}\n- x: 1\n  y: 2\nb: c",
            {"n": "[{x: 3}]"},
            "a: # kpt-set: ${n}\n- x: 3\nb: c",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" not in value else "",
)
def test_what_a_setter_writes(reason: str, before: str, setters: dict[str, str], expected: str) -> None:
    assert set_in(f"{before}\n", **setters) == f"{expected}\n", reason


def test_the_kptfile_and_objects_for_the_package_alone_are_set_too() -> None:
    local = "  annotations:\n    config.kubernetes.io/local-config: 'true'\n"
    given = items(f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: x # kpt-set: ${{n}}\n{local}")
    (changed,) = apply_setters(given, config_map(n="y")).items
    assert changed.name == "y"


@pytest.mark.parametrize(
    ("body", "setters", "message"),
    [
        ("a: x # kpt-set: ${p}-${q}\n", {"p": "1"}, "values for setters [${q}] must be provided"),
        ("a: '-' # kpt-set: ${p}-${q}\n", {"p": "1"}, "values for setters [${q}] must be provided"),
        ("a: # kpt-set: ${n}\n- x\n", {"n": "text"}, "must be an array of values, but found 'text'"),
        ("a: # kpt-set: ${n}\n- x\n", {"n": "[x"}, "must be an array of values, but found '[x'"),
        ("a: # kpt-set: ${n}-${m}\n- x\n", {"n": "[x]"}, "invalid setter pattern for array node"),
        ("a: b\n", {}, "input setters list cannot be empty"),
    ],
)
def test_what_cannot_be_set_fails(body: str, setters: dict[str, str], message: str) -> None:
    with pytest.raises(PermanentError) as caught:
        set_in(body, **setters)
    assert message in str(caught.value)


def test_results_name_file_and_field() -> None:
    given = items(HEAD + "a:\n- b: x # kpt-set: ${n}\n")
    (result,) = apply_setters(given, config_map(n="y")).results
    assert result.file == {"path": "0.yaml", "index": 0}
    assert result.field == {"path": "a[0].b", "proposedValue": "y"}
    assert result.message == 'set field value to "y"'
    assert not result.resource_ref


def test_no_match_is_told_and_no_failure() -> None:
    output = apply_setters(items(HEAD), config_map(n="y"))
    assert [result.message for result in output.results] == ["no matches for input setter(s)"]
