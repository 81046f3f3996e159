"""CEL: the evaluator gives cel-go's answers, its errors and its compile errors, within our limits."""

import inspect
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.cel import (
    EXPRESSION_BYTES_MAX,
    CelCompileError,
    CelConvertError,
    CelError,
    CelEvalError,
    compilations,
    compile_expression,
)

TABLE = json.loads((Path(__file__).parents[3] / "data/cel/cel-go-answers.json").read_text(encoding="utf-8"))
INPUTS: dict[str, Any] = TABLE["inputs"]
ROWS: dict[str, list[dict[str, str]]] = defaultdict(list)
for _row in TABLE["rows"]:
    ROWS[_row["group"]].append(_row)
CLASSES: dict[str, type[CelError]] = {
    "compile": CelCompileError,
    "eval": CelEvalError,
    "convert": CelConvertError,
}


def outcome(text: str, inputs: dict[str, Any] | None = None) -> tuple[str, str]:
    try:
        return "result", compile_expression(text).evaluate(INPUTS if inputs is None else inputs)
    except CelError as error:
        kind = next(name for name, cls in CLASSES.items() if isinstance(error, cls))
        return kind, str(error)


@pytest.mark.parametrize("group", sorted(ROWS))
def test_answers_are_those_of_cel_go(group: str) -> None:
    """Results, class of error and its text are cel-go's; only the words of a syntax error are ours."""
    wrong = []
    for row in ROWS[group]:
        kind, text = outcome(row["expression"])
        if "result" in row:
            same = (kind, text) == ("result", row["result"])
        elif "Syntax error" in row["text"]:
            same = kind == "compile" and text.startswith("ERROR: <input>:")
        else:
            same = (kind, text) == (row["error"], row["text"])
        if not same:
            wrong.append((row, kind, text))
    assert not wrong


WRAPPERS = [
    ("google.protobuf.StringValue{value: 'a'}", "a"),
    (".google.protobuf.StringValue{value: 'a',}.size() == 1 ? 'one' : 'more'", "one"),
    ("google.protobuf.StringValue{} + 'b'", "b"),
    ("google.protobuf.StringValue{value: repoDefault} == repoDefault ? 'same' : 'other'", "same"),
    ("google.protobuf.StringValue{value: 'a'} == null ? 'null' : 'set'", "set"),
    ("true ? google.protobuf.StringValue{value: 'a'} : null", "a"),
    ("google.protobuf.BoolValue{value: true} && !google.protobuf.BoolValue{} ? 'yes' : 'no'", "yes"),
    ("string(google.protobuf.BytesValue{value: b'abc'})", "abc"),
    ("string(google.protobuf.DoubleValue{value: 0.1})", "0.1"),
    ("string(google.protobuf.FloatValue{value: 0.1} == 0.1)", "false"),
    ("string(google.protobuf.FloatValue{value: 1e300} > 1e308)", "true"),
    ("string(google.protobuf.Int32Value{value: -7} + 1)", "-6"),
    ("string(google.protobuf.Int64Value{value: 9223372036854775807})", "9223372036854775807"),
    ("string(google.protobuf.UInt32Value{value: 7u})", "7"),
    ("string(google.protobuf.UInt64Value{value: 18446744073709551615u})", "18446744073709551615"),
    ("[google.protobuf.Int64Value{value: 2}].map(x, string(x))[0]", "2"),
]


@pytest.mark.parametrize(("text", "expected"), WRAPPERS)
def test_a_literal_of_a_wrapper_is_its_value(text: str, expected: str) -> None:
    assert outcome(text, {"repoDefault": "r"}) == ("result", expected)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("google.protobuf.StringValue{value: 1}", "compile", "found no matching overload"),
        ("google.protobuf.StringValue{value: null}", "compile", "found no matching overload"),
        ("google.protobuf.StringValue{text: 'a'}", "compile", "undefined field 'text'"),
        ("google.protobuf.StringValue{value: 'a', value: 'b'}", "compile", "duplicate field 'value'"),
        ("google.protobuf.StringValue{value: 'a'", "compile", "Syntax error"),
        ("google.protobuf.Other{value: 'a'}", "compile", "undeclared reference to 'google.protobuf.Other'"),
        ("google.protobuf.StringValue('a')", "compile", "undeclared reference"),
        ("string(google.protobuf.Int32Value{value: 2147483648})", "eval", "integer overflow"),
        ("string(google.protobuf.UInt32Value{value: 4294967296u})", "eval", "unsigned integer overflow"),
        ("google.protobuf.StringValue{value: dyn(1)}", "eval", "no such overload"),
    ],
)
def test_a_wrong_literal_of_a_wrapper_says_what_is_wrong(text: str, kind: str, words: str) -> None:
    found = outcome(text)
    assert found[0] == kind
    assert words in found[1]


def test_the_table_is_large_enough() -> None:
    """The table holds more than a thousand answers, of every class."""
    rows = TABLE["rows"]
    assert len(rows) > 1000
    assert {row.get("error") for row in rows} == {None, "compile", "eval", "convert"}


def test_a_syntax_error_names_its_place() -> None:
    """A syntax error is reported with line, column and a caret below the position."""
    kind, text = outcome("'a' +\n  / 'b'")
    assert kind == "compile"
    assert text.startswith("ERROR: <input>:2:3: Syntax error: mismatched input '/'")
    assert text.endswith("\n |   / 'b'\n | ..^")


@pytest.mark.parametrize("text", ["!-repoDefault", "'a' == !-packageDefault", "!-'a'", "-!true"])
def test_signs_of_two_kinds_do_not_mix(text: str) -> None:
    """A minus after `!` is the sign of a number or a syntax error."""
    kind, message = outcome(text)
    assert kind == "compile"
    assert "Syntax error: mismatched input" in message


def test_all_problems_are_told() -> None:
    """Problems are reported together, in the order of the text."""
    _, text = outcome("badvar + (1 + 'a') + other")
    lines = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert [line.partition(": ")[2].partition(":")[2][:3] for line in lines] == ["1:1", "1:1", "1:2"]
    assert "'badvar'" in lines[0]
    assert "'other'" in lines[-1]


def test_unbound_variable_fails_only_where_it_is_used() -> None:
    """An expression may name a variable that is not there, as long as it does not need it."""
    inputs = {"repoDefault": "r", "target": {"name": "x", "labels": {}}}
    assert outcome("true || repository.name == 'a' ? 'yes' : 'no'", inputs) == ("result", "yes")
    kind, text = outcome("repository.name", inputs)
    assert (kind, text) == ("eval", "no such attribute(s): repository")


def test_keys_of_maps_are_looped_in_sorted_order() -> None:
    """The order of loops over a map does not depend on how the map was built."""
    one = {"target": {"labels": {"b": "1", "a": "2", "c": "3"}}}
    other = {"target": {"labels": {"c": "3", "a": "2", "b": "1"}}}
    for inputs in (one, other):
        assert outcome("target.labels.map(k, k)[0]", inputs) == ("result", "a")


# --- limits


def loop(count: int) -> tuple[str, dict[str, Any]]:
    labels = {f"k{n}": "v" for n in range(count)}
    return "target.labels.all(k, k != '') ? 'yes' : 'no'", {"target": {"labels": labels}}


@pytest.mark.parametrize(
    "macro", ["all(k, true)", "exists(k, false)", "exists_one(k, true)", "map(k, k) != []"]
)
def test_ten_thousand_iterations_are_fine_and_a_hundred_thousand_are_not(macro: str) -> None:
    """Each iteration has a cost, whatever its body does."""
    text = f"target.labels.{macro} ? 'yes' : 'no'"
    assert outcome(text, loop(10_000)[1])[0] == "result"
    kind, message = outcome(text, loop(100_000)[1])
    assert (kind, message.partition(":")[0]) == ("eval", "operation cancelled")


def test_a_loop_that_is_cut_short_costs_what_it_took() -> None:
    """A loop that `exists` ends early costs only the iterations it made."""
    _, inputs = loop(20_000)
    inputs["target"]["list"] = [0] * 1_000_000
    text = "target.list.exists(n, true) && target.list.exists(n, n == 0) ? 'yes' : 'no'"
    assert outcome(text, inputs) == ("result", "yes")


def test_an_expression_of_4_kib_is_the_longest() -> None:
    """4,096 bytes compile, one more does not."""
    assert outcome("'" + "a" * (EXPRESSION_BYTES_MAX - 2) + "'")[0] == "result"
    kind, text = outcome("'" + "a" * (EXPRESSION_BYTES_MAX - 1) + "'")
    assert kind == "compile"
    assert text.startswith("ERROR: ")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1000 + "'a'" + ")" * 1000,
        "'a'" + " + 'a'" * 500,
        "[" * 1500 + "]" * 1500,
        "true ? 'a' : " * 250 + "'b'",
        "target" + ".a" * 1500,
        "-(" * 1300 + "1" + ")" * 1300,
        "{'a': " * 500 + "1" + "}" * 500,
    ],
)
def test_deep_nesting_is_a_compile_error(text: str) -> None:
    """A tree that is too deep is refused by name, never by a stack overflow."""
    kind, message = outcome(text)
    assert kind == "compile"
    assert "recursion limit" in message


def test_a_long_chain_of_conditions_is_not_deep() -> None:
    """`||` and `&&` chains are flat."""
    text = " || ".join(["repoDefault == 'x'"] * 150) + " ? 'yes' : 'no'"
    assert outcome(text) == ("result", "no")


def test_a_hostile_pattern_takes_linear_time() -> None:
    """Regular expressions do not backtrack."""
    started = time.process_time()
    assert outcome(f"'{'a' * 2000}!'.matches('^(a+)+$') ? 'yes' : 'no'") == ("result", "no")
    assert time.process_time() - started < 1


# --- what an expression reads


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("repoDefault", [("repoDefault",)]),
        ("'x'", []),
        ("target.labels['region']", [("target", "labels", "region")]),
        ("target['labels'].region", [("target", "labels", "region")]),
        ("has(target.labels.a) ? target.name : 'x'", [("target", "labels", "a"), ("target", "name")]),
        ("'a' in target.labels ? 'x' : 'y'", [("target", "labels", "a")]),
        ("target.labels.map(k, k)[0]", [("target", "labels")]),
        ("target.labels[repoDefault]", [("repoDefault",), ("target", "labels")]),
        ("target.labels.a + string(size(target.labels))", [("target", "labels")]),
        ("['a'].map(target, target)[0]", []),
        ("['a'].map(x, target.labels[x])[0]", [("target", "labels")]),
        ("target == upstream ? 'a' : 'b'", [("target",), ("upstream",)]),
        ("true ? 'a' : repository.name", [("repository", "name")]),
        ("type(target.name) == string ? 'a' : 'b'", [("target", "name")]),
        (".target.name", [("target", "name")]),
        ("{target.name: repository.labels.a}['x']", [("repository", "labels", "a"), ("target", "name")]),
        ("target.labels.filter(k, k == upstream.name)[0]", [("target", "labels"), ("upstream", "name")]),
    ],
)
def test_reads_are_the_shortest_paths_that_cover_all(text: str, reads: list[tuple[str, ...]]) -> None:
    """A caller may drop from the inputs whatever is below no path."""
    program = compile_expression(text)
    assert program.reads == frozenset(reads)
    assert program.roots == {path[0] for path in reads}


# --- compilations


def test_a_text_is_compiled_once() -> None:
    """Compiling the same text again costs nothing and gives the same program."""
    before = compilations()
    first = compile_expression("'compiled once'")
    assert compile_expression("'compiled once'") is first
    assert compilations() == before + 1


FRAMES_MAX = 600  # of Python's 1,000; the rest is for whoever evaluates


@pytest.mark.parametrize(
    "text",
    [
        "[[[[[[[[[[[[[[[['deep']]]]]]]]]]]]]]]][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]",
        "(" * 60 + "'a'" + ")" * 60,
        "'a'" + " + 'a'" * 126,
        "true ? 'a' : " * 60 + "'b'",
        "[" * 60 + "'a'" + "]" * 60 + "[0]" * 60,
        "['a'].map(a, " * 15 + "a" + ")" * 15 + "[0]" * 15,
        "['a'].map(a, " * 60 + "a" + ")" * 60 + "[0]" * 60,
        "[1].exists(a, " * 60 + "a + " * 60 + "1 > 0" + ")" * 60 + " ? 'a' : 'b'",
    ],
)
def test_the_deepest_trees_fit_on_the_stack(text: str) -> None:
    """What the limits of depth let through needs no larger stack than Python has anyway."""
    depth, frame = 0, inspect.currentframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + FRAMES_MAX)
    try:
        kind, result = outcome(text)
    finally:
        sys.setrecursionlimit(limit)
    assert (kind, result.strip("a")) in (("result", ""), ("result", "deep"))


@pytest.mark.slow
def test_each_text_of_one_thousand_sets_is_compiled_once() -> None:
    """A restart with five different expressions in each set."""
    texts = [
        text
        for n in range(1_000)
        for text in (
            f"target.labels['region-{n}'] + '-fleet'",
            f"packageDefault + '-{n}-' + target.name",
            f"'tier-{n}-' + repository.labels.tier",
            f"target.labels.region{n}",
            f"has(target.annotations.note{n}) ? target.annotations.note{n} : 'none'",
        )
    ]
    before = compilations()
    for text in (*texts, *texts):
        compile_expression(text)
    assert compilations() == before + 5_000
