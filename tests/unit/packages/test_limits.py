"""Packages made to waste time or memory: a function ends soon, with a result or a refusal."""

import contextlib
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.functions import limits, yamltext
from pvbus.controlplane.packages.functions.apply_replacements import apply_replacements, parse_path
from pvbus.controlplane.packages.functions.apply_setters import apply_setters, read_back, split_pattern
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.functions.selecting import parse_selector
from pvbus.controlplane.packages.functions.yamltext import load, with_value
from pvbus.controlplane.packages.gitcommand import explain
from pvbus.controlplane.packages.render import render
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import config, config_map, items

SECONDS_MAX = 2.0
"""Each case takes some milliseconds; what is quadratic takes minutes, what is exponential for ever."""


def by_pattern(pattern: str, present: str) -> dict[str, str]:
    """Read back by a regular expression: short texts only."""
    literals, names = split_pattern(pattern)
    match = re.search("(.*)".join(map(re.escape, literals)), present) if names else None
    values = match.groups() if match else ()
    return dict(zip(names, values, strict=True)) if values and all(values) else {}


@given(
    st.lists(st.sampled_from(["a", "b", "-", "${x}", "${y}", "${z}", "${", "}", "ab"]), max_size=8).map(
        "".join
    ),
    st.text("ab-\n", max_size=12),
)
def test_values_are_read_back_as_a_greedy_pattern_would(pattern: str, present: str) -> None:
    assert read_back(pattern, present) == by_pattern(pattern, present)


_CASES: dict[str, Callable[[], object]] = {
    "many names": lambda: read_back("${a}" * 5 + "x", "a" * 100 + "!"),
    "very many names": lambda: read_back("${a}" * 100_000 + "x", "a" * 1_000_000),
    "names between letters": lambda: read_back("a${n}" * 50_000, "a" * 1_000_000 + "b"),
    "a literal that nearly fits everywhere": lambda: read_back(
        "${a}b" + "a" * 100_000, "a" * 1_000_000 + "c" + "a" * 100_000
    ),
    "lines": lambda: read_back("a${a}b", "a\n" * 500_000),
    "openings without end": lambda: read_back("${" * 200_000, "a" * 1000),
    "spaces in a selector": lambda: parse_selector("a" + " " * 9_000 + "!"),
    "spaces before a value": lambda: parse_selector("a=" + " " * 9_000 + "!"),
    "a field path of openings": lambda: parse_path("[" * 50_000),
    "what git printed": lambda: explain("fetch", "repository " * 300_000),
    "a tag of digits": lambda: FunctionRegistry({}).resolve("set-labels:v" + "9" * 100_000),
    "a revision of digits": lambda: layout.revision_number("v" + "9" * 100_000),
    "a list of equals": lambda: with_value(
        "l: [" + "a, b, " * 2_000 + "]\n", {"l": ["a", "b"] * 2_000}, {"l": ["b", "b", "a"] * 1_300}
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_work_is_in_proportion_to_the_text(case: str) -> None:
    began = time.process_time()
    with contextlib.suppress(PermanentError):  # a refusal is an answer
        _CASES[case]()
    assert time.process_time() - began < SECONDS_MAX


def test_setters_that_stand_for_each_other_do_not_grow_without_limit() -> None:
    """Ten levels of ten names each would be ten billion characters."""
    setters = {chr(ord("a") + level): f"${{{chr(ord('b') + level)}}}" * 10 for level in range(10)}
    (item,) = items("kind: A\napiVersion: v1\nmetadata: {name: a}\nx: y # kpt-set: ${a}\n")
    with pytest.raises(PermanentError, match="characters, at most"):
        apply_setters([item], config_map(**setters, k="!"))


def test_many_setters_of_one_document_take_one_edit() -> None:
    """Reading the document again after each of 2,000 fields took minutes."""
    fields = "".join(f"  k{number}: old # kpt-set: ${{image}}-{number}\n" for number in range(2_000))
    (item,) = items(f"apiVersion: v1\nkind: A\nmetadata: {{name: a}}\nspec:\n{fields}")
    began = time.process_time()
    (changed,) = apply_setters([item], config_map(image="new")).items
    assert time.process_time() - began < 5
    assert changed.value["spec"] == {f"k{number}": f"new-{number}" for number in range(2_000)}
    assert changed.text.count("# kpt-set: ") == 2_000
    assert load(changed.text) == changed.value


_REPLACEMENTS = """\
apiVersion: fn.kpt.dev/v1alpha1
kind: ApplyReplacements
metadata: {name: c}
replacements:
"""
_ONCE = """\
- source: {kind: A, fieldPath: data.a}
  targets: [{select: {kind: A}, fieldPaths: [data.a], options: {delimiter: '-', index: 1000000000}}]
"""
_NESTING = """\
- source: {kind: A, fieldPath: data}
  targets: [{select: {kind: A}, fieldPaths: [data.a], options: {create: true}}]
"""
_TWICE = _NESTING.replace("[data.a]", "[data.b, data.c]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "replacement", "file"),
    [
        ("a text twice as long each time", _ONCE, "a.yaml"),
        ("a map in itself", _NESTING, "a.yaml"),
        ("a map in itself, in JSON", _NESTING, "a.json"),
        ("a map twice in itself", _TWICE, "a.yaml"),
        ("a map twice in itself, in JSON", _TWICE, "a.json"),
    ],
)
def test_what_doubles_with_each_replacement_fails_its_package_alone(
    reason: str, replacement: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RENDER_SECONDS_MAX", 2.0)
    kptfile = (
        "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: p}\n"
        "pipeline: {mutators: [{image: apply-replacements:v0.1.1, configPath: c.yaml}]}\n"
    )
    package = {
        "Kptfile": kptfile,
        "c.yaml": _REPLACEMENTS + replacement * 200,
        file: '{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}, "data": {"a": "x"}}\n',
    }
    result = render(package, registry=FunctionRegistry({}))
    assert not result.rendered
    assert result.step == "pipeline.mutators[0]"
    assert result.resources[file] == package[file]


def test_a_render_of_many_small_edits_has_a_deadline() -> None:
    (item,) = items("apiVersion: v1\nkind: A\nmetadata: {name: a}\n")
    with limits.render_limits(0.0), pytest.raises(PermanentError, match="did not end within 0 s"):
        item.with_value({**item.value, "x": 1})


def test_values_that_grow_all_objects_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROWTH_CHARACTERS_MAX", 10_000)
    objects = items(
        *(f"apiVersion: v1\nkind: A\nmetadata: {{name: a{n}}}\ndata: {{a: x}}\n" for n in range(20))
    )
    source = items(f"apiVersion: v1\nkind: B\nmetadata: {{name: b}}\ndata: {{a: {'x' * 1_000}}}\n")
    replacements = config("""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: ApplyReplacements
        replacements:
        - source: {kind: B, fieldPath: data.a}
          targets: [{select: {kind: A}, fieldPaths: [data.a]}]
    """)
    with limits.render_limits(), pytest.raises(PermanentError, match="more than 10000 characters longer"):
        apply_replacements([*source, *objects], replacements)


def test_long_lists_that_stay_for_the_most_part_keep_their_comments() -> None:
    """The limit on comparisons counts what differs only."""
    lines = [f"- a{number} # {number}\n" for number in range(3_000)]
    values = [f"a{number}" for number in range(3_000)]
    after = with_value("".join(lines), values, [*values[:1_500], "new", *values[1_501:]])
    assert after == "".join([*lines[:1_500], "- new # 1500\n", *lines[1_501:]])
    assert yamltext.load(after)[1_500] == "new"
