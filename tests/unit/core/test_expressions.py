"""CEL: both engines give cel-go's answers, its errors and its compile errors, within our limits."""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from celpy.evaluation import Evaluator

from pvbus.core import cel
from pvbus.core.cel import (
    EXPRESSION_BYTES_MAX,
    ITERATIONS_MAX,
    ROOTS,
    CelCompileError,
    CelConvertError,
    CelError,
    CelEvalError,
    Engine,
    available_engines,
    celpy_engine,
    compilations,
    compile_expression,
    default_engine,
    engine_named,
)
from pvbus.core.cel import types as t
from pvbus.core.cel.checker import Checked, check

TABLE = json.loads((Path(__file__).parents[2] / "data/cel/cel-go-answers.json").read_text(encoding="utf-8"))
INPUTS: dict[str, Any] = TABLE["inputs"]
ROWS: dict[str, list[dict[str, str]]] = defaultdict(list)
for _row in TABLE["rows"]:
    ROWS[_row["group"]].append(_row)
KINDS = {name: t.STRING if name in ("repoDefault", "packageDefault") else t.DYN for name in ROOTS}
CPP = "cel-cpp" in available_engines()
CLASSES: dict[str, type[CelError]] = {
    "compile": CelCompileError,
    "eval": CelEvalError,
    "convert": CelConvertError,
}


@pytest.fixture(params=["cel-python", "cel-cpp"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param not in available_engines():
        pytest.skip("the extra fast-cel is not installed")
    return engine_named(request.param)


def outcome(text: str, engine: Engine, inputs: dict[str, Any] | None = None) -> tuple[str, str]:
    try:
        return "result", compile_expression(text, engine=engine).evaluate(
            INPUTS if inputs is None else inputs
        )
    except CelError as error:
        kind = next(name for name, cls in CLASSES.items() if isinstance(error, cls))
        return kind, str(error)


@pytest.mark.parametrize("group", sorted(ROWS))
def test_answers_are_those_of_cel_go(engine: Engine, group: str) -> None:
    """Results, class of error and its text are cel-go's; only the words of a syntax error are ours."""
    wrong = []
    for row in ROWS[group]:
        kind, text = outcome(row["expression"], engine)
        if "result" in row:
            same = (kind, text) == ("result", row["result"])
        elif "Syntax error" in row["text"]:
            same = kind == "compile" and text.startswith("ERROR: <input>:")
        else:
            same = (kind, text) == (row["error"], row["text"])
        if not same:
            wrong.append((row, kind, text))
    assert not wrong


def test_the_table_is_large_enough() -> None:
    """The table holds more than a thousand answers, of every class."""
    rows = TABLE["rows"]
    assert len(rows) > 1000
    assert {row.get("error") for row in rows} == {None, "compile", "eval", "convert"}


def test_a_syntax_error_names_its_place(engine: Engine) -> None:
    """A text that does not parse is told with line, column and a caret below the place."""
    kind, text = outcome("'a' +\n  / 'b'", engine)
    assert kind == "compile"
    assert text.startswith("ERROR: <input>:2:3: Syntax error: mismatched input '/'")
    assert text.endswith("\n |   / 'b'\n | ..^")


@pytest.mark.parametrize("text", ["!-repoDefault", "'a' == !-packageDefault", "!-'a'", "-!true"])
def test_signs_of_two_kinds_do_not_mix(engine: Engine, text: str) -> None:
    """A minus after `!` is the sign of a number or a syntax error."""
    kind, message = outcome(text, engine)
    assert kind == "compile"
    assert "Syntax error: mismatched input" in message


def test_all_problems_are_told(engine: Engine) -> None:
    """Problems are told together, in the order of the text."""
    _, text = outcome("badvar + (1 + 'a') + other", engine)
    lines = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert [line.partition(": ")[2].partition(":")[2][:3] for line in lines] == ["1:1", "1:1", "1:2"]
    assert "'badvar'" in lines[0]
    assert "'other'" in lines[-1]


def test_unbound_variable_fails_only_where_it_is_used(engine: Engine) -> None:
    """An expression may name a variable that is not there, as long as it does not need it."""
    inputs = {"repoDefault": "r", "target": {"name": "x", "labels": {}}}
    assert outcome("true || repository.name == 'a' ? 'yes' : 'no'", engine, inputs) == ("result", "yes")
    kind, text = outcome("repository.name", engine, inputs)
    assert (kind, text) == ("eval", "no such attribute(s): repository")


def test_keys_of_maps_are_looped_in_sorted_order(engine: Engine) -> None:
    """The order of loops over a map does not depend on how the map was built."""
    one = {"target": {"labels": {"b": "1", "a": "2", "c": "3"}}}
    other = {"target": {"labels": {"c": "3", "a": "2", "b": "1"}}}
    for inputs in (one, other):
        assert outcome("target.labels.map(k, k)[0]", engine, inputs) == ("result", "a")


# --- limits


def loop(count: int) -> tuple[str, dict[str, Any]]:
    labels = {f"k{n}": "v" for n in range(count)}
    return "target.labels.all(k, k != '') ? 'yes' : 'no'", {"target": {"labels": labels}}


@pytest.mark.parametrize("count", [9_999, 10_000])
def test_as_many_iterations_as_the_limit_are_fine(engine: Engine, count: int) -> None:
    """Up to 10,000 iterations an evaluation succeeds."""
    text, inputs = loop(count)
    assert outcome(text, engine, inputs) == ("result", "yes")


@pytest.mark.parametrize("macro", ["all(k, true)", "exists(k, false)", "exists_one(k, true)"])
def test_one_iteration_above_the_limit_fails(engine: Engine, macro: str) -> None:
    """The 10,001st iteration is an error of evaluation with one text in every engine."""
    _, inputs = loop(10_001)
    kind, text = outcome(f"target.labels.{macro} ? 'yes' : 'no'", engine, inputs)
    assert (kind, text) == ("eval", f"loops take more than {ITERATIONS_MAX} iterations in one evaluation")


@pytest.mark.parametrize(
    ("loops", "result"),
    [
        ("filter(k, true).size() == 99 ? 'yes' : 'no'", "yes"),
        ("map(a, target.labels.map(b, a + b)).size() == 99 ? 'yes' : 'no'", "yes"),
        ("all(a, target.labels.all(b, true)) ? 'yes' : 'no'", "yes"),
        ("all(a, target.labels.all(b, true) && target.labels.all(b, true)) ? 'yes' : 'no'", None),
        ("all(a, target.labels.all(b, true)) && [1].all(a, true) ? 'yes' : 'no'", "yes"),
    ],
)
def test_iterations_of_all_loops_are_counted_together(engine: Engine, loops: str, result: str | None) -> None:
    """Nested loops and loops beside each other share one budget: 99 x 99 + 99 is 9,900."""
    _, inputs = loop(99)
    kind, text = outcome(f"target.labels.{loops}", engine, inputs)
    assert (kind, text) == ("result", result) if result else kind == "eval"


def test_a_loop_that_is_cut_short_counts_what_it_took(engine: Engine) -> None:
    """A loop that `exists` ends early costs only the iterations it made."""
    _, inputs = loop(20_000)
    text = "target.labels.exists(k, true) && target.labels.exists(k, k == 'k1') ? 'yes' : 'no'"
    assert outcome(text, engine, inputs) == ("result", "yes")


def test_the_limit_cannot_be_absorbed(engine: Engine) -> None:
    """`||` turns other errors into true, but not the end of the budget."""
    _, inputs = loop(10_001)
    kind, _ = outcome("target.labels.all(k, true) || true ? 'yes' : 'no'", engine, inputs)
    assert kind == "eval"


def test_four_nested_loops_over_ten_thousand_elements_fail_fast(engine: Engine) -> None:
    """10,000 to the fourth iterations are refused after 10,000."""
    labels = {f"k{n:05}": "v" for n in range(10_000)}
    text = "string(L.map(a, L.map(b, L.map(c, L.map(d, a + b + c + d)))).size())".replace(
        "L", "target.labels"
    )
    program = compile_expression(text, engine=engine)
    started = time.process_time()
    with pytest.raises(CelEvalError, match="loops take more than 10000 iterations"):
        program.evaluate({"target": {"labels": labels}})
    assert time.process_time() - started < 2


@pytest.mark.parametrize("built", ["a + b + B", "string(bytes(B))", "[a] + [b] == [] ? '' : B + B"])
def test_loops_cannot_fill_the_memory(engine: Engine, built: str) -> None:
    """Text built inside loops is limited too, and `||` cannot absorb that."""
    _, inputs = loop(90)
    inputs["target"]["annotations"] = {"big": "x" * 100_000}
    text = f"L.exists(a, L.exists(b, size({built}) == 1) || false) || true ? 'yes' : 'no'"
    text = text.replace("L", "target.labels").replace("B", "target.annotations.big")
    kind, message = outcome(text, engine, inputs)
    assert (kind, message) == ("eval", "loops build more than 1048576 characters in one evaluation")


def test_an_expression_of_4_kib_is_the_longest(engine: Engine) -> None:
    """4,096 bytes compile, one more does not."""
    assert outcome("'" + "a" * (EXPRESSION_BYTES_MAX - 2) + "'", engine)[0] == "result"
    kind, text = outcome("'" + "a" * (EXPRESSION_BYTES_MAX - 1) + "'", engine)
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
def test_deep_nesting_is_a_compile_error(engine: Engine, text: str) -> None:
    """A tree that is too deep is refused by name, never by a stack overflow."""
    kind, message = outcome(text, engine)
    assert kind == "compile"
    assert "recursion limit" in message


def test_a_long_chain_of_conditions_is_not_deep(engine: Engine) -> None:
    """`||` and `&&` chains are flat."""
    text = " || ".join(["repoDefault == 'x'"] * 150) + " ? 'yes' : 'no'"
    assert outcome(text, engine) == ("result", "no")


def test_a_hostile_pattern_takes_linear_time(engine: Engine) -> None:
    """Regular expressions do not backtrack."""
    started = time.process_time()
    assert outcome(f"'{'a' * 2000}!'.matches('^(a+)+$') ? 'yes' : 'no'", engine) == ("result", "no")
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
    program = compile_expression(text, engine=default_engine())
    assert program.reads == frozenset(reads)
    assert program.roots == {path[0] for path in reads}


# --- engines and compilations


def test_a_text_is_compiled_once_per_engine(engine: Engine) -> None:
    """Compiling the same text again costs nothing and gives the same program."""
    before = compilations()
    text = f"'compiled once by {engine.name}'"
    first = compile_expression(text, engine=engine)
    assert compile_expression(text, engine=engine) is first
    assert compilations() == before + 1


def test_the_default_engine_is_the_fastest_that_is_installed() -> None:
    """The C++ engine goes first where it is installed; cel-python is always there."""
    assert default_engine().name == available_engines()[0]
    assert available_engines()[-1] == "cel-python"
    assert available_engines() == (("cel-cpp", "cel-python") if CPP else ("cel-python",))


@pytest.mark.parametrize("name", ["other", "python", ""])
def test_an_unknown_engine_is_refused_with_those_there_are(name: str) -> None:
    """Asking for an engine that does not exist tells which there are."""
    with pytest.raises(LookupError, match=rf"no CEL engine '{name}' here; there are: .*cel-python"):
        engine_named(name)


def test_an_engine_that_is_not_installed_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, cel-python is the default, and asking for the C++ engine says how to get it."""
    monkeypatch.setattr(cel, "find_spec", lambda name: None)
    engine_named.cache_clear()
    assert default_engine().name == "cel-python"
    with pytest.raises(
        LookupError, match=r"'cel-cpp' here \(install pvbus\[fast-cel\]\); there are: cel-python"
    ):
        engine_named("cel-cpp")
    engine_named.cache_clear()


class CorrectedError(Exception):
    """The correction layer was asked."""


def corrected_nothing(checked: Checked) -> Any:
    def evaluate(inputs: Any) -> Any:
        raise CorrectedError

    return evaluate


def test_cel_python_itself_gives_587_of_593_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the correction layer cel-python gives 99 % of the table's results, and no result where
    cel-go gives an error. The six others: two have trailing commas, which it cannot parse, three names
    of types with dots, which it takes for selections, and one has two signs before a string."""
    evaluated = 0
    original = Evaluator.evaluate

    def counting(self: Evaluator, context: Any = None) -> Any:
        nonlocal evaluated
        evaluated += 1
        return original(self, context)

    monkeypatch.setattr(celpy_engine, "corrected", corrected_nothing)
    monkeypatch.setattr(Evaluator, "evaluate", counting)
    own, rows = 0, [row for row in TABLE["rows"] if row.get("error") not in ("compile", "convert")]
    for row in rows:
        program = celpy_engine.CelpyEngine().program(check(row["expression"], KINDS))
        try:
            found = program(INPUTS)
        except CorrectedError:
            continue
        assert found == row.get("result", "an error"), row
        own += 1
    assert len([row for row in rows if "result" in row]) == 593
    assert own >= 587
    assert evaluated >= own


@pytest.mark.parametrize(
    "text",
    [
        "[[[[[[[[[[[[[[[['deep']]]]]]]]]]]]]]]][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]",
        "(" * 60 + "'a'" + ")" * 60,
        "'a'" + " + 'a'" * 126,
        "true ? 'a' : " * 60 + "'b'",
        "[" * 60 + "'a'" + "]" * 60 + "[0]" * 60,
        "['a'].map(a, " * 15 + "a" + ")" * 15 + "[0]" * 15,
    ],
)
def test_cel_python_itself_takes_trees_as_deep_as_we_allow(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deepest trees that compile need no correction, and no larger stack than cel-python asks for."""
    monkeypatch.setattr(celpy_engine, "corrected", corrected_nothing)
    assert "a" in celpy_engine.CelpyEngine().program(check(text, KINDS))(INPUTS) + "a"


def test_cel_python_hands_long_loops_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 1,000 iterations are its own; the correction layer takes all that is longer."""
    monkeypatch.setattr(celpy_engine, "corrected", corrected_nothing)
    for count, text in ((1_000, "'yes'"), (1_001, "")):
        loops, inputs = loop(count)
        program = celpy_engine.CelpyEngine().program(check(loops, KINDS))
        if text:
            assert program(inputs) == "yes"
        else:
            with pytest.raises(CorrectedError):
                program(inputs)


@pytest.mark.skipif(not CPP, reason="the extra fast-cel is not installed")
@pytest.mark.parametrize("count", [999, 1_000, 1_001, 9_999, 10_000, 10_001, 10_002])
@pytest.mark.parametrize(
    "text",
    [
        "L.all(k, k != '') ? 'yes' : 'no'",
        "L.exists(k, k == '') ? 'yes' : 'no'",
        "L.exists_one(k, k == 'k1') ? 'yes' : 'no'",
        "string(L.map(k, k + '!').size())",
        "L.filter(k, k == 'k7')[0]",
        "L.all(k, false) || L.all(k, true) || true ? 'yes' : 'no'",
        "L.exists(a, L.all(b, b != '')) ? 'yes' : 'no'",
    ],
)
def test_both_engines_end_at_the_same_iteration(text: str, count: int) -> None:
    """Around the limit, and around where cel-python hands over, the two say the same."""
    _, inputs = loop(count)
    said = {name: outcome(text.replace("L", "target.labels"), engine_named(name), inputs)
            for name in available_engines()}  # fmt: skip
    assert len(set(said.values())) == 1, said


def test_cpp_evaluates_most_of_what_people_write() -> None:
    """The C++ engine is not merely a name: common expressions are evaluated there, odd ones are not."""
    cpp_engine = pytest.importorskip("pvbus.core.cel.cpp_engine", exc_type=ImportError)
    kinds = {"target": t.DYN, "repoDefault": t.STRING}
    for text in ("target.name + '-' + target.labels['region']", "has(target.labels.a) ? repoDefault : 'b'"):
        assert cpp_engine.agreed(check(text, kinds))
    for text in ("string(1.0)", "string(int(target.name))", "target.labels.map(k, k)[0]", "string(b'a')"):
        assert not cpp_engine.agreed(check(text, kinds))
