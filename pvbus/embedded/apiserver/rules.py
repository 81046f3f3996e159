"""`x-kubernetes-validations`: CEL rules of schemas, evaluated with cel-python.

CEL's standard functions are there; Kubernetes' own libraries (URLs, quantities, ...) are not, and a
rule that uses them is refused when its CustomResourceDefinition is created.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import celpy
import celpy.celparser
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError
from lark import Tree

RULE_BYTES_MAX = 4096
"""Longer rules exist nowhere we know of; evaluation time grows with the rule."""

_FUNCTIONS = frozenset(
    """
    has all exists exists_one map filter size
    int uint double string bytes bool type dyn timestamp duration
    contains startsWith endsWith matches
    getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear
    getHours getMilliseconds getMinutes getMonth getSeconds
    """.split()  # noqa: SIM905 - a table of words reads better than thirty quoted ones
)


@lru_cache(maxsize=512)
def _program(text: str) -> Any:
    """Compile a rule. Raises ValueError with the reason."""
    if len(text.encode()) > RULE_BYTES_MAX:
        raise ValueError(f"the rule is longer than {RULE_BYTES_MAX} bytes")
    environment = celpy.Environment()
    try:
        tree = environment.compile(text)
    except celpy.celparser.CELParseError as error:
        raise ValueError(str(error.args[0]).splitlines()[0]) from error
    for call in tree.iter_subtrees():
        if call.data in ("ident_arg", "member_dot_arg"):
            name = str(call.children[0 if call.data == "ident_arg" else 1])
            if name not in _FUNCTIONS:
                raise ValueError(f"undeclared reference to '{name}'")
    _check_roots(tree)
    return environment.program(tree)


def _check_roots(tree: Tree[Any]) -> None:
    """Refuse the variable of a rule that is neither `self`, `oldSelf` nor bound by a macro."""
    bound = {"self", "oldSelf"}
    for call in tree.find_data("member_dot_arg"):
        if (
            str(call.children[1]) in ("all", "exists", "exists_one", "map", "filter")
            and len(call.children) > 2
        ):
            bound |= {str(name) for name in call.children[2].find_data("ident") for name in name.children[:1]}
    for ident in tree.find_data("ident"):
        name = str(ident.children[0])
        if name not in bound and not hasattr(celtypes, f"{name.capitalize()}Type"):
            raise ValueError(f"undeclared reference to '{name}'")


class Rule:
    """One rule of a schema. Raises ValueError when made from a rule that cannot be compiled."""

    def __init__(self, rule: Mapping[str, Any]) -> None:
        self._text: str = rule["rule"]
        self._message: str = rule.get("message") or f"failed rule: {self._text.strip()}"
        self._message_expression: str = rule.get("messageExpression", "")
        self._field_path: str = rule.get("fieldPath", "")
        self._compares = re.search(r"\boldSelf\b", self._text) is not None
        if rule.get("optionalOldSelf"):
            raise ValueError("optionalOldSelf is not supported by this server")
        _program(self._text)
        if self._message_expression:
            _program(self._message_expression)

    def path(self, path: str) -> str:
        """Return the path that a finding is reported at."""
        return f"{path}{self._field_path}".removeprefix(".")

    def broken(self, value: Any, old: Any, *, is_root: bool) -> str | None:
        """Return the message if the rule does not hold. Rules over `oldSelf` need an old value."""
        if self._compares and old is None:
            return None
        variables = {"self": json_to_cel(_visible(value, is_root))}
        if self._compares:
            variables["oldSelf"] = json_to_cel(_visible(old, is_root))
        try:
            holds = _program(self._text).evaluate(variables)
        except CELEvalError as error:
            return f'rule evaluation error: {error.args[0]}; rule: "{self._text}"'
        if bool(holds):
            return None
        return self._message_from(variables) or self._message

    def _message_from(self, variables: dict[str, Any]) -> str:
        if not self._message_expression:
            return ""
        try:
            return str(_program(self._message_expression).evaluate(variables))
        except CELEvalError:
            return ""


def _visible(value: Any, is_root: bool) -> Any:
    """Of an object's own metadata, rules see the name alone, as upstream."""
    if not is_root:
        return value
    metadata = value.get("metadata") or {}
    names = {key: metadata[key] for key in ("name", "generateName") if key in metadata}
    return {**value, "metadata": names}
