"""`x-kubernetes-validations`: CEL rules of schemas.

CEL's standard functions are supported. Kubernetes' own libraries (URLs, quantities, ...) are not, and a rule
that uses them is refused when its CustomResourceDefinition is created. The loops of one evaluation are
limited like those of any expression here, and the validation of one object has a budget: both definitions
and objects come from clients.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pvbus.controlplane.apiserver.formats import Pattern
from pvbus.core.cel import CelCompileError, CelEvalError, types
from pvbus.core.cel.checker import check
from pvbus.core.cel.evaluator import evaluation


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

    def broken(self, value: Any, old: Any, *, is_root: bool) -> str | None:
        """Return the message if the rule does not hold. Rules over `oldSelf` need an old value."""
        if self._compares and old is None:
            return None
        variables = {"self": _visible(value, is_root)}
        if self._compares:
            variables["oldSelf"] = _visible(old, is_root)
        try:
            holds = self._program(variables)
        except CelEvalError as error:
            return f'rule evaluation error: {error}; rule: "{self._text}"'
        if holds is True:
            return None
        return self._message_from(variables) or self._message

    def _message_from(self, variables: Mapping[str, Any]) -> str:
        """Return the result of the message expression, "" if it fails or is not a text."""
        if self._said is None:
            return ""
        try:
            said = self._said(variables)
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


RULE_SECONDS_MAX = 1.0
"""Time limit for the rules of one object. An object of the usual size takes a millisecond."""

MATCH_STEPS_MAX = 300_000_000
"""Step limit for the patterns of one object; a match takes the pattern's size times the text's length. RE2
needs at most about a second for so many."""


class OutOfBudgetError(Exception):
    """The validation of an object exceeds its budget."""


class Budget:
    """The remaining time and steps for the validation of one object."""

    def __init__(self) -> None:
        self._seconds = RULE_SECONDS_MAX
        self._steps = MATCH_STEPS_MAX

    def matches(self, pattern: Pattern, value: str) -> bool:
        self._steps -= pattern.steps * len(value)
        if self._steps < 0:
            raise OutOfBudgetError
        return pattern.found_in(value)

    def broken(self, rule: Rule, value: Any, old: Any, *, is_root: bool) -> str | None:
        if self._seconds < 0:
            raise OutOfBudgetError
        begun = time.monotonic()
        message = rule.broken(value, old, is_root=is_root)
        self._seconds -= time.monotonic() - begun
        return message
