"""What expressions cost: counted, limited for an expression and for a target, and never absorbed."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.rules import OBJECT_COST_MAX
from pvbus.core.cel import (
    EXPRESSION_BYTES_MAX,
    EXPRESSION_COST_MAX,
    TARGET_COST_MAX,
    Budget,
    CelCompileError,
    CelCostError,
    CelError,
    compile_expression,
    set_budget,
)
from pvbus.core.cel.patterns import PATTERN_BYTES_MAX, go_pattern
from tests.tools.hostile_expressions import HOSTILE, TARGET, Hostile


def sharing(budget: Budget, target: Any = TARGET) -> dict[str, Any]:
    variables = {"target": target}
    set_budget(variables, budget)
    return variables


def spent(text: str, target: Any = TARGET) -> tuple[int, CelError | None]:
    """Return the cost of an expression over `target`, and its error."""
    budget = Budget(10**9)
    try:
        compile_expression(text).evaluate(sharing(budget, target))
    except CelError as error:
        return budget.spent, error
    return budget.spent, None


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE, ids=[hostile.name for hostile in HOSTILE])
def test_a_hostile_expression_ends_at_the_limit(hostile: Hostile) -> None:
    """Counted cost, the same each time: an error that says so, or an answer below the limit."""
    cost, error = spent(hostile.text)
    assert (cost, str(error)) == ((again := spent(hostile.text))[0], str(again[1]))
    assert (cost > EXPRESSION_COST_MAX) == isinstance(error, CelCostError)


def test_there_are_enough_hostile_expressions() -> None:
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE) >= 60
    refused = sum(isinstance(spent(hostile.text)[1], CelCostError) for hostile in HOSTILE)
    assert 60 <= refused < len(HOSTILE)


def test_the_error_names_the_expression_its_cost_and_the_limit() -> None:
    text = "target.annotations.big.matches('(a?){1000}bN') ? 'x' : 'y'"
    cost, error = spent(text)
    assert str(error) == (
        "operation cancelled: actual cost limit exceeded: the expression costs at least "
        f"{cost:,}, and its limit is {EXPRESSION_COST_MAX:,}: {text}"
    )


def test_a_long_expression_is_not_repeated_whole() -> None:
    _, error = spent(f"target.annotations.big.matches('(a?){{1000}}b') ? '{'x' * 2000}' : ''")
    assert isinstance(error, CelCostError)
    assert len(str(error)) < 400


@pytest.mark.parametrize("absorbing", ["{} || true", "true && {} || true", "[1].exists(x, {} || x == 1)"])
def test_no_operator_absorbs_the_limit(absorbing: str) -> None:
    hostile = absorbing.format("target.annotations.big.matches('(a?){1000}bN')")
    assert isinstance(spent(f"{hostile} ? 'x' : 'y'")[1], CelCostError)


def test_expressions_of_a_target_share_a_budget() -> None:
    """Each of them is below its own limit; the third is above that of the target."""
    text = "target.annotations.big + target.annotations.big"
    program, budget = compile_expression(text), Budget()
    inputs = sharing(budget)
    program.evaluate(inputs)
    program.evaluate(inputs)
    with pytest.raises(CelCostError) as caught:
        program.evaluate(inputs)
    assert f"all expressions together cost at least {budget.spent:,}" in str(caught.value)
    assert f"their limit is {TARGET_COST_MAX:,}" in str(caught.value)
    assert text in str(caught.value)


def test_the_reference_says_what_the_limits_are() -> None:
    reference = (Path(__file__).parents[4] / "docs" / "reference.md").read_text()
    section = reference.partition("### The cost of expressions")[2]
    for limit in (EXPRESSION_COST_MAX, TARGET_COST_MAX, OBJECT_COST_MAX):
        assert f"| {limit:,} |" in section


def test_after_the_limit_of_a_target_nothing_is_evaluated() -> None:
    inputs = sharing(Budget())
    for text in ("target.annotations.big.matches('(a?){1000}b') ? '' : ''", "target.name"):
        with pytest.raises(CelCostError):
            compile_expression(text).evaluate(inputs)


GROWING = {
    "concatenation": "t.a + t.a",
    "contains": "t.a.contains('ab') ? '' : ''",
    "startsWith": "t.a.startsWith(t.a) ? '' : ''",
    "endsWith": "t.a.endsWith(t.a) ? '' : ''",
    "matches, text": "t.a.matches('^b+$') ? '' : ''",
    "matches, pattern": "'b'.matches('^(' + t.s + '?)+$') ? '' : ''",
    "order": "t.a < t.a ? '' : ''",
    "equality": "t.a == t.b ? '' : ''",
    "equality of lists": "t.l == t.m ? '' : ''",
    "in a list": "-1 in t.l ? '' : ''",
    "key": "t.a in t.k ? '' : ''",
    "loop": "t.l.all(x, x >= 0) ? '' : ''",
    "loop over keys": "t.k.all(x, x != '') ? '' : ''",
    "lists joined": "string((t.l + t.l).size())",
    "int": "int(t.d) == 1 ? '' : ''",
    "double": "double(t.d) == 1.0 ? '' : ''",
    "duration": "duration(t.h) == duration('1h') ? '' : ''",
    "bytes": "bytes(t.a) == b'' ? '' : ''",
    "string": "string(bytes(t.a))",
    "zone": "string(timestamp(0).getHours(t.a))",
}


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING)
def test_the_cost_grows_with_the_input(text: str) -> None:
    """Never less for more, and for a hundred times as much a multiple."""

    def cost(size: int) -> int:
        numbers = list(range(size))
        inputs = {
            "a": "a" * size, "b": "a" * (size - 1) + "b", "s": "b" * min(size, 1000), "l": numbers,
            "m": [*numbers], "k": {f"k{n}": n for n in numbers}, "d": "1" * size, "h": "1h" * size,
        }  # fmt: skip
        return spent(text.replace("t.", "target."), inputs)[0]

    costs = [cost(size) for size in (10, 30, 100, 300, 1_000)]
    assert costs == sorted(costs)
    assert costs[-1] > 5 * costs[0] or text.startswith("string(timestamp")
    assert costs[-1] > costs[0]


def test_a_step_costs_the_same_whatever_its_input() -> None:
    """Plain expressions are charged once, for all of their steps."""
    text = "has(target.labels.a) ? target.labels.a : target.name"
    short, long = ({"name": "n", "labels": {"a": "v" * size}} for size in (1, 1_000))
    assert spent(text, short) == spent(text, long)


def test_a_pattern_is_charged_once_for_all_its_uses() -> None:
    """It stays compiled; each search costs."""
    once, _ = spent("'ab'.matches('(a?){300}b') ? '' : ''", {})
    often, _ = spent("[1,2,3,4,5,6,7,8,9].all(n, 'ab'.matches('(a?){300}b')) ? '' : ''", {})
    assert often < 3 * once


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * (PATTERN_BYTES_MAX + 1), "the pattern is longer than 8192 bytes"),
        (r"\pL{1000}", "the pattern is too large: use smaller repetitions"),
        ("(a", "error parsing regexp: missing closing ): `(a`"),
    ],
)
def test_patterns_have_limits(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        go_pattern(pattern)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("string(int('" + "0" * 3000 + "12'))", "12"),
        ("string(int('-" + "0" * 3000 + "'))", "0"),
        ("string(int('" + "9" * 3000 + "'))", "type conversion error from 'string' to 'int'"),
        ("string(uint('+1'))", "type conversion error from 'string' to 'uint'"),
        ("string(int('+1'))", "1"),
        ("string(double('" + "1" * 3000 + "x'))", "type conversion error from 'string' to 'double'"),
        ("string(duration('" + "1" * 3000 + "h'))", "'google.protobuf.Duration'"),
        ("string(duration('0." + "3" * 3000 + "s'))", "0.333333333s"),
        ("string(duration('" + "0" * 3000 + "1s'))", "1s"),
        ("string(double('1.'))", "1.0"),
    ],
)
def test_long_numbers_are_read_in_time_linear_in_their_length(text: str, answer: str) -> None:
    """Python refuses to make an integer of more than 4,300 digits, and some patterns need the square."""
    try:
        given = compile_expression(text.replace("1.0", "1.0")).evaluate({})
    except CelError as error:
        given = str(error)
    assert answer in given or given == answer.removesuffix(".0")


def test_values_nested_deeper_than_the_stack_can_be_compared() -> None:
    chain: Any = []
    twin: Any = []
    for _ in range(5_000):
        chain, twin = [chain], [twin]
    assert spent("target.a == target.b ? 'x' : 'y'", {"a": chain, "b": twin})[1] is None


@pytest.mark.parametrize("problem", ["x", "1+''", "int([])"])
def test_a_report_of_problems_is_not_much_longer_than_its_expression(problem: str) -> None:
    """Each problem shows its line, so two thousand of them would make 8 MB."""
    count = (EXPRESSION_BYTES_MAX - 2) // len(problem + "||")
    with pytest.raises(CelCompileError) as caught:
        compile_expression("||".join([problem] * count))
    assert len(str(caught.value)) < 4 * EXPRESSION_BYTES_MAX
    assert str(caught.value).endswith(" more errors were truncated")
