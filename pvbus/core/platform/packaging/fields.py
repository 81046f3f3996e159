"""Reads the fields of an object that a person or a program wrote, and collects what is wrong with them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.platform.solver.languages import LANGUAGES, ConstraintError, VersionError

MEANINGLESS = "has no meaning here: remove it, or correct its name"


class FieldProblem(NamedTuple):
    """What is wrong with a field, for example `spec.dependsOn[0].version`."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Fields:
    """Returns fields by name and type; what has another type is a problem, and its value is left out.

    is_strict: whether unknown fields of a whole spec are problems, too. The API server has dealt with those
    of an object in the cluster, and later versions of the other project may have more.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.problems: list[FieldProblem] = []

    def wrong(self, field: str, message: str) -> None:
        self.problems.append(FieldProblem(field, message))

    def check_known(self, value: Mapping[str, Any], path: str, fields: Iterable[str]) -> None:
        """Report every field of a mapping that is not among those that have a meaning."""
        for field in sorted(map(str, set(value) - set(fields))):
            self.wrong(f"{path}.{field}", MEANINGLESS)

    def check_known_spec(self, value: Mapping[str, Any], path: str, fields: Iterable[str]) -> None:
        """Report unknown fields of a whole spec, if this reader is strict."""
        if self.is_strict:
            self.check_known(value, path, fields)

    def text(self, value: Mapping[str, Any], path: str, field: str, *, required: bool = False) -> str:
        """Return a text, "" if there is none."""
        found = value.get(field)
        if found is None and not required:
            return ""
        if not isinstance(found, str) or not found:
            self.wrong(f"{path}.{field}", "must be a text that is not empty")
            return ""
        return found

    def choice(self, value: Mapping[str, Any], path: str, field: str, choices: Mapping[str, str]) -> str:
        """Return what a text stands for, "" if there is none."""
        found = self.text(value, path, field)
        if found and found not in choices:
            self.wrong(f"{path}.{field}", f"must be one of {', '.join(choices)}")
        return choices.get(found, "")

    def flag(self, value: Mapping[str, Any], path: str, field: str) -> bool | None:
        """Return true or false, None if neither is given."""
        found = value.get(field)
        if found is None or isinstance(found, bool):
            return found
        self.wrong(f"{path}.{field}", "must be true or false")
        return None

    def number(self, value: Mapping[str, Any], path: str, field: str, default: int) -> int:
        """Return a whole number that is not negative."""
        found = value.get(field)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self.wrong(f"{path}.{field}", "must be a whole number that is not negative")
            return default
        return found

    def mapping(self, value: Mapping[str, Any], path: str, field: str) -> Mapping[str, Any]:
        found = value.get(field)
        if found is None or isinstance(found, Mapping):
            return found or {}
        self.wrong(f"{path}.{field}" if path else field, "must be a mapping")
        return {}

    def pairs(self, value: Mapping[str, Any], path: str, field: str) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts to texts by key."""
        found = self.mapping(value, path, field)
        if all(isinstance(name, str) and isinstance(each, str) for name, each in found.items()):
            return tuple(sorted(found.items()))
        self.wrong(f"{path}.{field}", "must map texts to texts")
        return ()

    def texts(self, value: Mapping[str, Any], path: str, field: str) -> tuple[str, ...]:
        found = value.get(field)
        if found is None:
            return ()
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            self.wrong(f"{path}.{field}", "must be a list of texts")
            return ()
        if not all(isinstance(each, str) for each in found):
            self.wrong(f"{path}.{field}", "must be a list of texts")
            return ()
        return tuple(found)

    def items(self, value: Mapping[str, Any], path: str, field: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the mappings of a list, each with its path."""
        found = value.get(field)
        if found is None:
            return []
        path = f"{path}.{field}" if path else field
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            self.wrong(path, "must be a list")
            return []
        result = []
        for index, each in enumerate(found):
            if isinstance(each, Mapping):
                result.append((f"{path}[{index}]", each))
            else:
                self.wrong(f"{path}[{index}]", "must be a mapping")
        return result

    def range(self, text: str, path: str, language: str) -> str:
        """Check a range; return "" if it is none."""
        try:
            LANGUAGES[language].parse_range(text)
        except ConstraintError as exc:
            self.wrong(path, f"{exc}; the language is {language}'s")
            return ""
        return text

    def is_version(self, text: str, path: str, language: str) -> bool:
        """Report a text that is no version."""
        try:
            LANGUAGES[language].parse_version(text)
        except VersionError as exc:
            self.wrong(path, str(exc))
            return False
        return True
