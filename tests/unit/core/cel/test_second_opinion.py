"""cel-python's grammar beside our parser: where they differ, and that only `validate` pays for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.cel.second_opinion import syntax_disagreement

TABLE = json.loads((Path(__file__).parents[3] / "data/cel/cel-go-answers.json").read_text(encoding="utf-8"))
REFUSES, ACCEPTS = "cel-python does not parse", "cel-python parses"


@pytest.mark.parametrize(
    ("reason", "text", "words"),
    [
        ("both parse it", "target.labels['region'] + '-x'", ""),
        ("a type error is none of syntax", "1 + 'a'", ""),
        ("a name that nobody declared is none of syntax", "cluster.name", ""),
        ("both refuse it", "target.", ""),
        ("nothing at all", "", ""),
        ("a trailing comma", "['a',][0]", REFUSES),
        ("a raw text with a backslash at its end", r"r'\' + 'x'", REFUSES),
        ("a reserved word", "package", ACCEPTS),
        ("an unknown escape", r"'\q'", ACCEPTS),
    ],
)
def test_what_they_disagree_about(reason: str, text: str, words: str) -> None:
    """A disagreement names the parser that accepts the text; agreement yields nothing."""
    assert syntax_disagreement(text).startswith(words), reason
    assert bool(syntax_disagreement(text)) == bool(words), reason


def test_they_agree_on_most_of_the_table() -> None:
    """Of 1,112 expressions our parser takes 4 that cel-python refuses, and refuses 26 that it takes."""
    found = [syntax_disagreement(row["expression"]) for row in TABLE["rows"]]
    assert len(found) == 1112
    assert sum(said.startswith(REFUSES) for said in found) == 4
    assert sum(said.startswith(ACCEPTS) for said in found) == 26


@given(st.text(alphabet=st.sampled_from(list("ab'\"\\{}[]().,:?+-*/%<>=!&|0123 \n\tuxrtin🙂é")), max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    """Any text gets an opinion."""
    assert isinstance(syntax_disagreement(text), str)


@pytest.mark.slow
def test_other_commands_do_not_load_cel_python() -> None:
    """It takes 250 ms; only an expression that is validated is worth them."""
    code = (
        "import sys, pkgutil, importlib, pvbus.cli\n"
        "from pvbus.cli.commands import COMMANDS\n"
        "for place in COMMANDS.values(): importlib.import_module(place.location.partition(':')[0])\n"
        "from pvbus.core.cel import compile_expression\n"
        "compile_expression('target.name')\n"
        "print([name for name in ('celpy', 'lark', 'cel_expr_python') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
