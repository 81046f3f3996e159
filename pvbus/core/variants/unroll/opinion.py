"""The second opinion on a set's expressions: which targets are looked at, and whether two evaluators agree.

Once per generation, when all rows of a set are written, unroll asks for it. Another process evaluates the
expressions for a sample of the targets, with ours and with cel-python (`pvbus.core.cel.second_opinion`), and
the answer becomes part of the roll-up. Nothing waits for it. Ours decides in any case.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, Self
from zlib import crc32

import msgspec

from pvbus.core.cel import (
    EXPRESSIONS_MAX,
    CelCompileError,
    CelCostError,
    CelError,
    CelOverloadError,
    compile_expression,
)
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.records import Dispute
from pvbus.core.redaction import without_secrets
from pvbus.core.variants.expressions import expressions_of
from pvbus.core.variants.unroll.contexts import ContextKey, Contexts

SAMPLE_TARGETS: Final = 20  # beside the first and the last: each costs some ms of another process
DISPUTES_SHOWN: Final = 3  # more would not be read in a condition
ANSWER_CHARACTERS_MAX: Final = 200  # of one answer of a dispute: a condition shows six of them


class Sample(NamedTuple):
    """A target whose expressions are evaluated.

    target: its index in the set's spec
    name: its name, as messages have it
    variables: the variables of its expressions, by name
    """

    target: int
    name: str
    variables: Mapping[str, Any]


class Question(NamedTuple):
    """What is evaluated for a second opinion.

    expressions: target index -> path and text of each expression
    samples: the targets for which they are evaluated
    """

    expressions: Mapping[int, tuple[tuple[str, str], ...]]
    samples: tuple[Sample, ...]

    def size(self, sample: Sample) -> int:
        """Return the number of expressions of a sample."""
        return len(self.expressions[sample.target])


class Opinion(NamedTuple):
    """How many evaluations had which outcome, and the first disputes.

    left_out: evaluations that would have cost too much
    not_comparable: evaluations in which cel-python is known to differ, or lacks a part
    """

    agreed: int = 0
    disputed: int = 0
    left_out: int = 0
    not_comparable: int = 0
    disputes: tuple[Dispute, ...] = ()

    def plus(self, other: Self) -> Self:
        return self._replace(
            agreed=self.agreed + other.agreed,
            disputed=self.disputed + other.disputed,
            left_out=self.left_out + other.left_out,
            not_comparable=self.not_comparable + other.not_comparable,
            disputes=(*self.disputes, *other.disputes)[:DISPUTES_SHOWN],
        )


OUTCOMES: Final = ("agreed", "disputed", "left_out", "not_comparable")


class Pending(Protocol):
    """A question that was asked.

    opinion: the answer, None until there is one
    seconds: in how many seconds the answer may be there
    """

    @property
    def opinion(self) -> Opinion | None: ...

    @property
    def seconds(self) -> float: ...

    def cancel(self) -> None: ...


class Opinions(Protocol):
    """Who gives second opinions."""

    def ask(self, question: Question) -> Pending:
        """Ask, and return at once. Every question gets an opinion, if only that all is left out."""
        ...


# ---------------------------------------------------------------- the question


def sample_of(keys: Iterable[ContextKey], seed: str) -> list[ContextKey]:
    """Return the first and the last target, then others by digest: the same ones for the same seed."""
    known = list(keys)
    if not known:
        return []
    begin = crc32(seed.encode())

    def rank(key: ContextKey) -> tuple[int, ContextKey]:
        return crc32(f"{key[0]} {key[1]}".encode(), begin), key

    ends = dict.fromkeys((min(known), max(known)))
    others = nsmallest(SAMPLE_TARGETS + len(ends), known, key=rank)
    return [*ends, *[key for key in others if key not in ends][:SAMPLE_TARGETS]]


def question_of(contexts: Contexts, seed: str) -> Question:
    """Return what is asked about a set whose targets are evaluated. Targets without a template are not."""
    expressions: dict[int, tuple[tuple[str, str], ...]] = {}
    samples = []
    for key in sample_of(contexts.by_key, seed):
        number = key[0]
        if number not in expressions:
            template = msgspec.to_builtins(contexts.spec.targets[number].template)
            texts = islice(expressions_of(template, f"spec.targets[{number}].template"), EXPRESSIONS_MAX)
            expressions[number] = tuple((path, text) for path, text in texts if text)
        if expressions[number]:
            variables = contexts.variables(contexts.by_key[key])
            samples.append(Sample(number, contexts.described(key), variables))
    return Question(expressions, tuple(samples))


# ---------------------------------------------------------------- the answer

Evaluate = Callable[[str, Mapping[str, Any]], str]
"""An evaluator, such as `second_opinion.answer`: from an expression and its variables to a string."""


def evaluated(text: str, variables: Mapping[str, Any]) -> str:
    """Evaluate with ours. Raises CelError."""
    return compile_expression(text).evaluate(variables)


def opinion_of(
    question: Question,
    sample: Sample,
    theirs: Evaluate,
    no_answer: type[Exception],
    ours: Evaluate = evaluated,
) -> Opinion:
    """Evaluate the expressions of one target twice, and compare. no_answer: what `theirs` may raise."""
    opinion = Opinion()
    for path, text in question.expressions[sample.target]:
        variables = sample.variables
        if path.endswith(".downstream.repoExpr"):
            variables = {name: value for name, value in variables.items() if name != "repository"}
        opinion = opinion.plus(_compared(path, text, sample.name, variables, theirs, no_answer, ours))
    return opinion


def _compared(
    path: str,
    text: str,
    target: str,
    variables: Mapping[str, Any],
    theirs: Evaluate,
    no_answer: type[Exception],
    ours: Evaluate,
) -> Opinion:
    mine = _answer(ours, text, variables)
    if isinstance(mine, CelCostError):
        return Opinion(left_out=1)
    if isinstance(mine, CelCompileError):
        return Opinion(not_comparable=1)
    try:
        other = _answer(theirs, text, variables)
    except no_answer:
        return Opinion(not_comparable=1)
    if mine == other or (isinstance(mine, CelError) and isinstance(other, CelError)):
        return Opinion(agreed=1)
    if isinstance(mine, CelOverloadError):  # cel-python takes many types for others
        return Opinion(not_comparable=1)
    dispute = Dispute(path=path, target=target, ours=_shown(mine), theirs=_shown(other))
    return Opinion(disputed=1, disputes=(dispute,))


def _answer(evaluate: Evaluate, text: str, variables: Mapping[str, Any]) -> str | CelError:
    try:
        return evaluate(text, variables)
    except CelError as error:
        return error


def _shown(answer: str | CelError) -> str:
    if isinstance(answer, CelError):
        return part(without_secrets(f"the error {answer}"), ANSWER_CHARACTERS_MAX)
    return part(without_secrets(msgspec.json.encode(answer).decode()), ANSWER_CHARACTERS_MAX)
