"""What an oracle is: it evaluates a checked expression, or says that it has no answer."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pvbus.core.cel.checker import Checked

Evaluation = Callable[[Mapping[str, Any]], Any]


class NoAnswer(Exception):  # noqa: N818 - an outcome
    """The oracle failed, or is known to depart from cel-go here. Nothing follows from that."""


class Oracle(Protocol):
    @property
    def name(self) -> str: ...

    def program(self, checked: Checked) -> Evaluation:
        """Return the evaluation of an expression; it raises NoAnswer."""
        ...


def no_answer(inputs: Mapping[str, Any]) -> Any:
    """The evaluation of an expression that the oracle cannot take."""
    raise NoAnswer
