"""starlark v0.5.0."""

import importlib.util
import resource
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


@pytest.mark.slow
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


_DEEP = """
def deep(levels):
  value = []
  for _ in range(levels):
    value = [value]
  return value
"""
_FIRST = 'ctx.resource_list["items"][0]'
_HOSTILE = {
    "a text of a terabyte": ("x = 'a' * (1 << 40)", "too big"),
    "a list of a terabyte": ("x = [1] * (1 << 40)", "too big"),
    "a number of a terabit": ("x = 1 << (1 << 40)", "Integer overflow"),
    "a text that doubles": ("x = 'aaaa'\nfor _ in range(60):\n  x = x + x", "more than 512 MiB"),
    "a replacement that multiplies": ("x = ('a' * 1000000).replace('', 'b' * 100000)", "more than 512 MiB"),
    "a deep list as text": (f"{_DEEP}x = str(deep(1000000))", "nested too deeply"),
    "a deep list as output": (f"{_DEEP}{_FIRST}['spec'] = deep(100000)", "Maximum depth of 1000"),
    "a deep expression": (f"x = {'-' * 100_000}1", "nested too deeply"),
    "openings without end": ("(" * 100_000, "unexpected new line"),
    "deep JSON": ("load('encoding/json.star', 'json')\njson.decode('[' * 200000)", "RecursionError"),
    "a list in itself": ("x = ctx.resource_list['items']\nx.append(x)", "Cycle detected"),
    "an object in itself": (f"x = {_FIRST}\nx['self'] = x", "Cycle detected"),
    "a list in itself as text": ("x = []\nx.append(x)\nfail(x)", "[[...]]"),
    "a key that fails": ("x = sorted(range(3), key = lambda v: fail('no'))", "fail: no"),
    "values without an order": ("x = sorted([1, 'a', None])", "not supported"),
    "a list that grows in its loop": ("x = [1]\nfor y in x:\n  x.append(y)", "while iterating"),
    "an error of megabytes": ("fail('x' * 5000000)", "fail: xxxx"),
    "prints without end": (
        "for _ in range(10000000):\n  print('x' * 1000)",
        "wrote more than 33554432 bytes",
    ),
    "an output of 60 MB": (f"{_FIRST}['spec'] = {{'x': 'a' * 60000000}}", "more than"),
    "a file as a module": ("load('/etc/passwd', 'x')", "there is no module /etc/passwd"),
    "a path as a module": ("load('../../x.star', 'x')", "there is no module ../../x.star"),
    "objects that are none": ("ctx.resource_list['items'] = [1, 'a', None]", "not a list of objects"),
    "a function as a value": (f"{_FIRST}['spec'] = lambda: 1", "not supported on type `function`"),
    "a file outside": (
        f"{_FIRST}['metadata']['annotations'] = {{'internal.config.kubernetes.io/path': '../../x'}}",
        "outside of the package",
    ),
    "no result": ("ctx.resource_list.pop('items')", "left no `items`"),
}


@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize("name", _HOSTILE)
def test_a_script_made_to_harm_fails_in_a_sentence(name: str) -> None:
    script, problem = _HOSTILE[name]
    with pytest.raises(PermanentError) as raised:
        starlark(items(THING), {**run(""), "source": script + "\n"})
    assert problem in str(raised.value)
    assert len(str(raised.value)) < 3000


@needs_interpreter
def test_names_that_hide_their_order_stay_texts() -> None:
    (changed,) = starlark(
        items(THING), run(f"{_FIRST}['spec'] = {{'\\u202e\\u200b\\u0000': '\\u202e'}}")
    ).items
    assert changed.value["spec"] == {"\u202e\u200b\x00": "\u202e"}


@pytest.mark.slow
@needs_interpreter
def test_a_script_that_computes_for_too_long_is_ended_and_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each render of its draft would take a processor for as long; with another input it runs again."""
    monkeypatch.setattr(function, "CPU_SECONDS_MAX", 1)
    script = run("x = 3\nfor _ in range(40):\n  x = x * x")
    problem = "needs too much computing time: let it do less for each object"
    with pytest.raises(PermanentError, match=f"{problem}$"):
        starlark(items(THING), script)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(PermanentError, match="not run again for 10 minutes while script and package"):
        starlark(items(THING), script)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime == before, "it was run"
    with pytest.raises(PermanentError, match=f"{problem}$"):
        starlark(items(THING.replace("name: a", "name: b")), script)


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
