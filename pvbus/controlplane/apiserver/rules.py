"""`x-kubernetes-validations`: CEL rules of schemas.

CEL's standard functions are supported. Kubernetes' own libraries (URLs, quantities, ...) are not, and a rule
that uses them is refused when its CustomResourceDefinition is created. A rule's cost is limited like that of
any expression here, and the validation of one object has a budget: both definitions and objects come from
clients.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pvbus.core import cel
from pvbus.core.cel import CelCompileError, CelCostError, CelEvalError, types
from pvbus.core.cel.checker import check
from pvbus.core.cel.evaluator import evaluation
from pvbus.core.cel.patterns import Pattern


@lru_cache(maxsize=512)
def _program(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """Compile a rule. Raises ValueError with the reason."""
    try:
        checked = check(text, {"self": types.DYN, "oldSelf": types.DYN})
    except CelCompileError as error:
        raise ValueError(str(error)) from error
    return evaluation(checked)


class Rule:
    """One compiled rule of a schema. Its constructor raises ValueError for an invalid rule."""

    def __init__(self, rule: Mapping[str, Any]) -> None:
        self._text: str = rule["rule"]
        self._message: str = rule.get("message") or f"failed rule: {self._text.strip()}"
        self._message_expression: str = rule.get("messageExpression", "")
        self._field_path: str = rule.get("fieldPath", "")
        self._compares = re.search(r"\boldSelf\b", self._text) is not None
        if rule.get("optionalOldSelf"):
            raise ValueError("optionalOldSelf is not supported by this server")
        self._program = _program(self._text)
        self._said = _program(self._message_expression) if self._message_expression else None

    def path(self, path: str) -> str:
        """Return the path at which a violation is reported."""
        return f"{path}{self._field_path}".removeprefix(".")

    def broken(self, value: Any, old: Any, budget: cel.Budget, *, is_root: bool) -> str | None:
        """Return the message if the rule does not hold. Rules over `oldSelf` need an old value.

        Raises CelCostError.
        """
        if self._compares and old is None:
            return None
        variables = {"self": _visible(value, is_root)}
        if self._compares:
            variables["oldSelf"] = _visible(old, is_root)
        cel.set_budget(variables, budget)
        try:
            holds = self._program(variables)
        except CelCostError:
            raise
        except CelEvalError as error:
            return f'rule evaluation error: {error}; rule: "{self._text}"'
        if holds is True:
            return None
        return self._message_from(variables) or self._message

    def exceeded(self, error: CelCostError) -> str:
        """Return Kubernetes' message for a rule that costs too much."""
        words = "no further validation rules will be run due to call cost exceeds limit for rule"
        return f"'{error}': {words}: {self._message}"

    def _message_from(self, variables: Mapping[str, Any]) -> str:
        """Return the result of the message expression, "" if it fails or is not a text."""
        if self._said is None:
            return ""
        try:
            said = self._said(variables)
        except CelCostError:
            raise
        except CelEvalError:
            return ""
        return said if isinstance(said, str) else ""


def _visible(value: Any, is_root: bool) -> Any:
    """Return the value for rules: of a root object's metadata they see only the names, as upstream."""
    if not is_root:
        return value
    metadata = value.get("metadata") or {}
    names = {key: metadata[key] for key in ("name", "generateName") if key in metadata}
    return {**value, "metadata": names}


OBJECT_COST_MAX = 10 * cel.EXPRESSION_COST_MAX
"""Cost limit for the rules of one object, in proportion to that of one rule as in Kubernetes: at most 0.1 s.
An object of the usual size takes a millisecond."""

MATCH_STEPS_MAX = 60_000_000
"""Step limit for the patterns of one object; a match takes the pattern's size times the text's length. RE2
needs at most 0.4 s for so many."""


class OutOfBudgetError(Exception):
    """The validation of an object exceeds its budget."""


class Budget:
    """The remaining cost and steps for the validation of one object."""

    def __init__(self) -> None:
        self._cost = cel.Budget(OBJECT_COST_MAX)
        self._steps = MATCH_STEPS_MAX
        self._is_spent = False

    def matches(self, pattern: Pattern, value: str) -> bool:
        self._steps -= pattern.steps * len(value)
        if self._steps < 0:
            raise OutOfBudgetError
        return pattern.found_in(value)

    def judge(self, rule: Rule, value: Any, old: Any, *, is_root: bool) -> str | None:
        if self._is_spent:
            raise OutOfBudgetError
        try:
            return rule.broken(value, old, self._cost, is_root=is_root)
        except CelCostError as error:
            self._is_spent = True
            return rule.exceeded(error)
