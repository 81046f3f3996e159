"""Errors of expressions, in the classes that a user must distinguish."""

EXPRESSION_BYTES_MAX = 4096  # a longer expression is a program; etcd limits objects to 1.5 MB
EXPRESSIONS_MAX = 64  # per template: bounds the cost of compiling it
EXPRESSION_COST_MAX = 80_000  # at most 16 ms
TARGET_COST_MAX = 100_000  # of all expressions of a target: at most 20 ms
BRACKETS_MAX = 64  # brackets within brackets: the parser takes seven stack frames for each
DEPTH_MAX = 128  # levels of a syntax tree: checker and evaluator recurse, Python's own limit is 1000


class CelError(Exception):
    """Base of all; the text is for users, begins like cel-go's and names no field."""


class CelCompileError(CelError):
    """The expression can never work: syntax, names, types, limits. The text begins with `ERROR: `."""


class CelEvalError(CelError):
    """The expression does not work for these inputs, such as `no such key: region`."""


class CelOverloadError(CelEvalError):
    """A function or an operator has no overload for the types that it gets: `no such overload`."""


class CelCostError(CelEvalError):
    """The expression costs more than its limit, or than what the others of its target left. `&&` and `||` do
    not absorb it. The text begins with cel-go's words, and names the expression, its cost and the limit."""


class CelConvertError(CelError):
    """The result is not a string."""


class CompileProblem(Exception):  # noqa: N818 - never leaves this package
    """A compile problem at an offset of the text; problems are collected and reported together."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


PROBLEMS_BYTES_MAX = 8192
"""Size of a report, beside its first problem: each shows its line, so all of them have up to 8 MB."""


def reported(text: str, problems: list[CompileProblem]) -> CelCompileError:
    """Format problems like cel-go: position, message, the line, and a caret below it."""
    parts: list[str] = []
    size = 0
    for problem in sorted(problems, key=lambda p: p.offset):
        before = text[: problem.offset]
        line_number = before.count("\n") + 1
        column = problem.offset - (before.rfind("\n") + 1)
        line = text.split("\n")[line_number - 1]
        part = f"ERROR: <input>:{line_number}:{column + 1 if text else 0}: {problem.message}"
        part = f"{part}\n | {line}\n | {'.' * column}^" if line else part
        size += len(part)
        if parts and size > PROBLEMS_BYTES_MAX:
            parts.append(f"{len(problems) - len(parts)} more errors were truncated")
            break
        parts.append(part)
    return CelCompileError("\n".join(parts))
