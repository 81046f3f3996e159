"""starlark v0.5.0."""

import importlib.util
from typing import Any

import pytest

from pvbus.controlplane.packages.functions import starlark as function
from pvbus.controlplane.packages.functions.starlark import starlark
from pvbus.controlplane.packages.functions.starlark_program import without_tabs
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config_map, items, text

needs_interpreter = pytest.mark.skipif(
    importlib.util.find_spec("starlark") is None,
    reason="needs starlark-pyo3, which has no wheel for this platform",
)

THING = text("""
    apiVersion: x.org/v1 # head
    kind: Thing
    metadata:
      name: a
    spec:
      # about the size
      size: 1 # old
      flag: on
      ratio: 1.50
    """)


def run(source: str, **params: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fn.kpt.dev/v1alpha1",
        "kind": "StarlarkRun",
        "metadata": {"name": "script"},
        "source": text(source),
        "params": params,
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if x:\n\ty = 1\n  \tz = 2\n", "if x:\n        y = 1\n        z = 2\n"),
        ("if x:\n\t\t  y = 1\n", "if x:\n                  y = 1\n"),
        ("x =\t1\t# a\tb\n", "x =        1        # a     b\n"),
        ("x = '\t' + \"\t\"\n", "x = '\t' + \"\t\"\n"),
        ('x = """\n\ta \'b\n\t"""\n\ty\n', 'x = """\n\ta \'b\n\t"""\n        y\n'),
        ("x = 'it\\'s\t' # isn't\n\ty = '\t'\n", "x = 'it\\'s\t' # isn't\n        y = '\t'\n"),
    ],
)
def test_tabs_outside_strings_go_to_the_next_of_every_eight_columns(source: str, expected: str) -> None:
    assert without_tabs(source) == expected


@needs_interpreter
def test_a_script_may_be_indented_with_tabs() -> None:
    script = 'for each in ctx.resource_list["items"]:\n\t  # a remark\n\t  each["spec"]["note"] = "a\tb"\n'
    changed = starlark(items(THING), {**run(""), "source": script})
    assert changed.items[0].value["spec"]["note"] == "a\tb"


@needs_interpreter
def test_a_script_changes_objects_in_place_and_the_rest_keeps_its_text() -> None:
    script = """
        def resize(objects, size):
            for each in objects:
                each["spec"]["size"] = size

        resize(ctx.resource_list["items"], ctx.resource_list["functionConfig"]["params"]["size"])
        print("this does not disturb the output")
        """
    assert after(starlark, run(script, size=5), THING) == [THING.replace("size: 1 # old", "size: 5 # old")]


@needs_interpreter
def test_a_config_map_gives_source_and_parameters() -> None:
    script = (
        'ctx.resource_list["items"][0]["spec"]["size"] = ctx.resource_list["functionConfig"]["data"]["n"]'
    )
    (changed,) = after(starlark, config_map(source=script, n="7"), THING)
    assert 'size: "7" # old' in changed


@needs_interpreter
def test_objects_are_added_and_removed_with_the_modules_that_there_are() -> None:
    script = """
        load("krmfn.star", "krmfn")
        load("encoding/json.star", "json")
        load("encoding/base64.star", "base64")
        found = [each for each in ctx.resource_list["items"] if krmfn.match_gvk(each, "x.org/v1", "Thing")]
        if krmfn.match_name(found[0], "a") and krmfn.match_namespace(found[0], ""):
            found = []
        found.append({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "b"},
            "data": {"json": json.encode({"k": json.decode("[1, null]")}), "text": base64.encode("hé")},
        })
        ctx.resource_list["items"] = found
        """
    assert after(starlark, run(script), THING) == [
        text("""
            apiVersion: v1
            kind: ConfigMap
            metadata:
              name: b
            data:
              json: "{\\"k\\":[1,null]}"
              text: aMOp
            """)
    ]


@needs_interpreter
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ('x = 1\nfail("too", "small")', "script:2:1: fail: too small"),
        ("while True:\n  pass", "script:1:1: cannot use reserved keyword `while`"),
        ('load("http.star", "http")', "there is no module http.star: expected one of krmfn.star, "),
        ("def f(n):\n  return f(n) + 1\nf(1)", "script:2:10: Starlark call stack overflow"),
        ("x = 'a' * 1000000\nfor i in range(30):\n  x = x + x", "the script needs more than 512 MiB"),
        ("ctx.resource_list.clear()", "the script left no `items` in `ctx.resource_list`"),
        ('ctx.resource_list["items"] = 3', "items is not a list of objects"),
        ('open("/etc/passwd")', "script:1:1: Variable `open` not found"),
        ("ctx.environment['HOME']", "HOME"),
    ],
)
def test_what_a_script_does_wrong_is_said_with_its_place(script: str, problem: str) -> None:
    with pytest.raises(PermanentError) as raised:
        starlark(items(THING), run(script))
    assert problem in str(raised.value)


@needs_interpreter
def test_a_script_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "SECONDS_MAX", 0.5)
    with pytest.raises(PermanentError, match=r"did not end within 0\.5 s and was killed"):
        starlark(items(THING), run("for i in range(1 << 30):\n  for j in range(1 << 30):\n    pass"))


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PermanentError, match=r"pip install 'pvbus\[starlark\]'"):
        starlark(items(THING), run("x = 1"))


@pytest.mark.parametrize(
    "own", [None, run(""), config_map(script="x = 1"), {"apiVersion": "v1", "kind": "Secret"}]
)
def test_a_configuration_without_source_is_refused(own: dict[str, Any] | None) -> None:
    with pytest.raises(
        PermanentError, match=r"`source` must not be empty|expected `StarlarkRun` or `ConfigMap`"
    ):
        starlark(items(THING), own)
