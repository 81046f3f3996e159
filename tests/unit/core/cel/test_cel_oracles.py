"""CEL: wherever another implementation has an answer, ours is the same."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.cel import ROOTS, CelError, compile_expression
from pvbus.core.cel import types as t
from pvbus.core.cel.checker import check
from tests.tools.cel_oracles import ORACLES, NoAnswer, Oracle
from tests.tools.cel_oracles.cel_cpp import agreed

TABLE = json.loads((Path(__file__).parents[3] / "data/cel/cel-go-answers.json").read_text(encoding="utf-8"))
KINDS = {name: t.STRING if name in ("repoDefault", "packageDefault") else t.DYN for name in ROOTS}
CPP, PYTHON = ORACLES["cel-cpp"], ORACLES["cel-python"]


def answer(oracle: Oracle, text: str, inputs: dict[str, Any]) -> Any:
    """The oracle's value of an expression. Raises NoAnswer."""
    return oracle.program(check(text, KINDS))(inputs)


@pytest.mark.parametrize(("name", "results"), [("cel-cpp", 234), ("cel-python", 587)])
def test_oracles_know_the_table(name: str, results: int) -> None:
    """An oracle gives no result where cel-go gives another one, or an error; of cel-go's 593 results it
    has that many. cel-python lacks six: two have trailing commas, which it cannot parse, three are names
    of types with dots, which it takes for selections, and one has two signs before a string."""
    found: Counter[str] = Counter()
    rows = [row for row in TABLE["rows"] if row.get("error") not in ("compile", "convert")]
    for row in rows:
        try:
            value = answer(ORACLES[name], row["expression"], TABLE["inputs"])
        except NoAnswer:
            continue
        assert value == row.get("result", "an error"), row
        found["results"] += 1
    assert len([row for row in rows if "result" in row]) == 593
    assert found["results"] >= results


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
def test_cel_python_takes_trees_as_deep_as_we_allow(text: str) -> None:
    """The deepest trees that compile have an answer there, the same as ours."""
    assert answer(PYTHON, text, TABLE["inputs"]) == compile_expression(text).evaluate(TABLE["inputs"])


@pytest.mark.slow
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
def test_oracles_agree_on_long_loops(text: str, count: int) -> None:
    """Around our limit, and around where cel-python gives up, an oracle that has an answer has ours."""
    inputs = {"target": {"labels": {f"k{n}": "v" for n in range(count)}}}
    text = text.replace("L", "target.labels")
    try:
        ours = compile_expression(text).evaluate(inputs)
    except CelError as error:
        ours = str(error)
    for oracle in ORACLES.values():
        try:
            assert answer(oracle, text, inputs) == ours
        except NoAnswer:
            continue


def test_cel_python_has_answers_up_to_a_thousand_iterations() -> None:
    """It gives up after that: an iteration takes it 100 us."""
    text = "target.labels.all(k, k != '') ? 'yes' : 'no'"
    for count, has_answer in ((1_000, True), (1_001, False)):
        inputs = {"target": {"labels": {f"k{n}": "v" for n in range(count)}}}
        if has_answer:
            assert answer(PYTHON, text, inputs) == "yes"
        else:
            with pytest.raises(NoAnswer):
                answer(PYTHON, text, inputs)


def test_the_cpp_oracle_evaluates_most_of_what_people_write() -> None:
    """Common expressions have an answer there. Odd ones, where it departs from cel-go, have none."""
    inputs = {"target": {"name": "n", "labels": {"region": "eu"}}, "repoDefault": "r"}
    for text, value in (
        ("target.name + '-' + target.labels['region']", "n-eu"),
        ("has(target.labels.a) ? repoDefault : 'b'", "b"),
    ):
        assert answer(CPP, text, inputs) == value
    for text in ("string(1.0)", "string(int(target.name))", "target.labels.map(k, k)[0]", "string(b'a')"):
        assert not agreed(check(text, KINDS))
