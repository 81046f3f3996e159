"""Label and field selectors of list and watch requests.

The error texts are Kubernetes' own, so that kubectl prints the same messages as with any cluster.
Source: k8s.io/apimachinery pkg/labels/selector.go and pkg/fields/selector.go (v0.36).
"""

import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.selectors import INTEGER, NAME, PREFIX, Requirement

_NAME_WORDS = (
    "consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)

_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^\s=!(),<>]+)|(?P<end>$))")
_SETS = {"in": "In", "notin": "NotIn"}
_OPERATORS = (*_SETS, "=", "==", "!=", ">", "<")


REQUIREMENTS_MAX = 1000
"""Maximum requirements of one selector: each is evaluated for each object of a list, 10,000 times or more.
The values of one `in (...)` count as one."""


def _check_count(count: int) -> None:
    if count > REQUIREMENTS_MAX:
        raise ValueError(f"a selector may have at most {REQUIREMENTS_MAX} requirements")


class LabelSelector(NamedTuple):
    """All requirements must hold; none selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        present = labels or {}
        return all(requirement.matches(present) for requirement in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse `a=1,b!=2,c in (x,y),d,!e,f>3`. Raises ValueError with Kubernetes' message."""
    try:
        return LabelSelector(_LabelParser(text).parse())
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

    def parse(self) -> tuple[Requirement, ...]:
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
            _check_count(len(requirements))
        return tuple(requirements)

    def _requirement(self) -> Requirement:
        absent = self._peek() == "!"
        if absent:
            self._take()
        key = self._take_word("identifier")
        _check_key(key)
        if absent:
            return Requirement(key, "DoesNotExist")
        if self._peek() in ("", ","):
            return Requirement(key, "Exists")
        operator = self._take()
        if operator not in _OPERATORS:
            raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in _SETS:
            return Requirement(key, _SETS[operator], self._value_list(operator))
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

    def _value_list(self, operator: str) -> frozenset[str]:
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
        for value in values:
            _check_value(operator, value)
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


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or PREFIX.fullmatch(prefix) is None):
        raise ValueError(
            f'key: Invalid value: "{key}": prefix part a lowercase RFC 1123 subdomain must '
            "consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
    if len(name) > 63:
        raise ValueError(f'key: Invalid value: "{key}": name part must be no more than 63 bytes')
    if NAME.fullmatch(name) is None:
        raise ValueError(f'key: Invalid value: "{key}": name part must {_NAME_WORDS}')


def _check_value(key: str, value: str) -> None:
    if len(value) > 63:
        raise ValueError(f'values[0][{key}]: Invalid value: "{value}": must be no more than 63 bytes')
    if value and NAME.fullmatch(value) is None:
        raise ValueError(
            f'values[0][{key}]: Invalid value: "{value}": a valid label must be an empty string or '
            f"{_NAME_WORDS}"
        )


class FieldRequirement(NamedTuple):
    """One requirement of a field selector.

    path: the path of the field
    equal: whether the field must have the value; otherwise it must have another one
    value: the value
    """

    path: str
    equal: bool
    value: str


class FieldSelector(NamedTuple):
    """All requirements must hold; none selects everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return all(
            (_field(obj, requirement.path) == requirement.value) == requirement.equal
            for requirement in self.requirements
        )

    def exact(self, path: str) -> str | None:
        """Return the value that the selector requires at `path`, None if it does not restrict the field."""
        return next((r.value for r in self.requirements if r.path == path and r.equal), None)


METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


class _PackageRevisionFields:
    """Porch's selectable fields, including one per label of the package's own metadata."""

    _FIXED = METADATA_FIELDS | {
        f"spec.{name}" for name in ("revision", "packageName", "repository", "workspaceName", "lifecycle")
    }

    def __contains__(self, path: object) -> bool:
        return path in self._FIXED or (
            isinstance(path, str) and path.startswith("spec.packageMetadata.labels[") and path.endswith("]")
        )


_SELECTABLE: dict[tuple[str, str], Container[str]] = {
    ("", "Event"): METADATA_FIELDS
    | {f"involvedObject.{name}" for name in _REFERENCE}
    | {"reason", "reportingComponent", "source", "type"},
    ("events.k8s.io", "Event"): METADATA_FIELDS
    | {f"regarding.{name}" for name in _REFERENCE}
    | {"reason", "reportingController", "type"},
    ("", "Secret"): METADATA_FIELDS | {"type"},
    ("", "Namespace"): METADATA_FIELDS | {"status.phase"},
    ("porch.kpt.dev", "PackageRevision"): _PackageRevisionFields(),
}


def selectable_fields(group: str, kind: str) -> Container[str]:
    """Return the fields that field selectors of this kind support."""
    return _SELECTABLE.get((group, kind), METADATA_FIELDS)


def parse_field_selector(text: str, supported: Container[str] = METADATA_FIELDS) -> FieldSelector:
    """Parse `metadata.name=a,type!=b`. Raises ValueError with Kubernetes' message."""
    requirements = []
    terms = _split(text)
    _check_count(len(terms))
    for term in terms:
        match = re.match(r"((?:[^=!\\]|\\.)*?)(!=|==|=)(.*)", term, re.DOTALL)
        if match is None:
            raise ValueError(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in supported:
            raise ValueError(f"field label not supported: {path}")
        requirements.append(FieldRequirement(path, operator != "!=", _unescape(value)))
    return FieldSelector(tuple(requirements))


def _split(text: str) -> list[str]:
    """Split at commas without a backslash; empty terms are ignored."""
    return [term for term in re.findall(r"(?:[^,\\]|\\.)+", text, re.DOTALL) if term]


def _unescape(value: str) -> str:
    if re.search(r"(?<!\\)(?:\\\\)*\\(?![\\,=])", value):
        raise ValueError(f"invalid field selector: invalid escape sequence in '{value}'")
    return re.sub(r"\\([\\,=])", r"\1", value)


_OMITTED = {"spec.revision": "0"}
"""Fields whose value is omitted from an object if it is this one: a draft has no number yet."""


def _field(obj: Mapping[str, Any], path: str) -> str:
    """Return a field as text, "" if it is missing."""
    head, bracket, key = path.partition("[")
    names = ["source", "component"] if path == "source" else head.split(".")
    if bracket:
        names.append(key.removesuffix("]"))
    value: Any = obj
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return _OMITTED.get(path, "")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
