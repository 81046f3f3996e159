"""Label selectors in text, as in `labelSelector=`, `-l` and the configuration of a function.

The error texts are Kubernetes' own, so that kubectl prints the same messages as with any cluster.
Source: k8s.io/apimachinery pkg/labels/selector.go (v0.36).
"""

import re

from pvbus.core.api.names import invalid_value, key_error, value_error
from pvbus.core.api.selectors import INTEGER, Requirement, Requirements

_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^\s=!(),<>]+)|(?P<end>$))")
_SETS = {"in": "In", "notin": "NotIn"}
_OPERATORS = (*_SETS, "=", "==", "!=", ">", "<")

REQUIREMENTS_MAX = 1000
"""Maximum requirements of one selector: each is evaluated for each object of a list, 10,000 times or more.
The values of one `in (...)` count as one."""


def check_count(count: int) -> None:
    if count > REQUIREMENTS_MAX:
        raise ValueError(f"a selector may have at most {REQUIREMENTS_MAX} requirements")


def parse_label_selector(text: str) -> Requirements:
    """Parse `a=1,b!=2,c in (x,y),d,!e,f>3`, in linear time. Raises ValueError with Kubernetes' message."""
    try:
        return _LabelParser(text).parse()
    except ValueError as error:
        raise ValueError(f"unable to parse requirement: {error}") from None


class _LabelParser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while match := _TOKEN.match(text, position):
            if match.group("end") is not None:
                break
            self.tokens.append(match.group("symbol") or match.group("word"))
            position = match.end()
        self.tokens.append("")  # the end of the text reads as an empty token
        self.next = 0

    def parse(self) -> Requirements:
        if self._peek() == "":
            return ()
        if not (self._is_word() or self._peek() == "!"):
            raise ValueError(f"found '{self._peek()}', expected: !, identifier, or 'end of string'")
        requirements = [self._requirement()]
        while (token := self._take()) != "":
            if token != ",":
                raise ValueError(f"found '{token}', expected: ',' or 'end of string'")
            if not (self._is_word() or self._peek() == "!"):
                raise ValueError(f"found '{self._peek()}', expected: identifier after ','")
            requirements.append(self._requirement())
            check_count(len(requirements))
        return tuple(requirements)

    def _requirement(self) -> Requirement:
        absent = self._peek() == "!"
        if absent:
            self._take()
        key = self._take_word("identifier")
        if why := key_error(key):
            raise ValueError(f"key: {invalid_value(key, why)}")
        if absent:
            return Requirement(key, "DoesNotExist")
        if self._peek() in ("", ","):
            return Requirement(key, "Exists")
        operator = self._take()
        if operator not in _OPERATORS:
            raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in _SETS:
            return Requirement(key, _SETS[operator], self._value_list(key))
        value = self._exact_value()
        if operator in (">", "<"):
            return Requirement(key, operator, frozenset([_integer(value)]))
        _check_value(key, value)
        return Requirement(key, "NotIn" if operator == "!=" else "In", frozenset([value]))

    def _exact_value(self) -> str:
        """Read the value after an operator; a missing one is the empty value."""
        if self._peek() in ("", ","):
            return ""
        return self._take_word("identifier")

    def _value_list(self, key: str) -> frozenset[str]:
        if (token := self._take()) != "(":
            raise ValueError(f"found '{token}', expected: '('")
        values: set[str] = set()
        if self._peek() == ")":
            self._take()
            raise ValueError(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
            )
        while True:
            values.add("" if self._peek() in (",", ")") else self._take_word("',', ')' or identifier"))
            token = self._take()
            if token == ")":
                break
            if token != ",":
                raise ValueError(f"found '{token}', expected: ',' or ')'")
        for number, value in enumerate(sorted(values)):
            _check_value(key, value, number)
        return frozenset(values)

    def _peek(self) -> str:
        return self.tokens[self.next]

    def _is_word(self) -> bool:
        return self._peek() not in ("", "=", "==", "!=", "!", "(", ")", ",", "<", ">")

    def _take(self) -> str:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def _take_word(self, expected: str) -> str:
        if not self._is_word():
            raise ValueError(f"found '{self._peek()}', expected: {expected}")
        return self._take()


def _integer(value: str) -> str:
    if INTEGER.fullmatch(value) is None or not -(2**63) <= int(value) < 2**63:
        shown = value[:63]
        raise ValueError(
            f"values[0]: Invalid value: \"{shown}\": for 'Gt', 'Lt' operators, the value must be an integer"
        )
    return value


def _check_value(key: str, value: str, number: int = 0) -> None:
    if why := value_error(value):
        raise ValueError(f"values[{number}][{key}]: {invalid_value(value, why)}")
