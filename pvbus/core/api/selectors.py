"""Label selectors: one form of their conditions, `Requirement`, one matcher, and what Kubernetes refuses.

Selectors of objects (`matchLabels` and `matchExpressions`) become requirements here, those in text in
`selectortext`. The index of unroll, which matches many objects at once, stands on the same requirements.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pvbus.core.api.names import invalid_value, key_error, label_errors, value_error
from pvbus.core.api.variants import LabelSelector, ObjectSelector

INTEGER = re.compile(r"[+-]?[0-9]{1,63}")


class Requirement(NamedTuple):
    """One condition on a label. `>` and `<`, which only selectors in text have, compare with one integer."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()


Requirements = tuple[Requirement, ...]
"""All must hold; none selects everything."""


def requirements_of(selector: LabelSelector | ObjectSelector) -> Requirements:
    """Return what a selector requires of labels; a label with its value is `In` with one value."""
    return (
        *(Requirement(key, "In", frozenset((value,))) for key, value in selector.match_labels.items()),
        *(Requirement(e.key, e.operator, frozenset(e.values)) for e in selector.match_expressions),
    )


def matches(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Tell whether labels fulfil every requirement.

    NotIn and DoesNotExist hold if the label is absent. No labels fulfil an unknown operator.
    """
    for key, operator, values in requirements:
        value = labels.get(key)
        if operator == "In":
            holds = value in values
        elif operator == "NotIn":
            holds = value not in values
        elif operator == "Exists":
            holds = value is not None
        elif operator == "DoesNotExist":
            holds = value is None
        else:
            holds = _compares(value, operator, values)
        if not holds:
            return False
    return True


def _compares(value: str | None, operator: str, values: frozenset[str]) -> bool:
    if operator not in (">", "<") or value is None or INTEGER.fullmatch(value) is None:
        return False
    (bound,) = map(int, values)
    return int(value) > bound if operator == ">" else int(value) < bound


def selector_problems(selector: LabelSelector | ObjectSelector, field: str) -> Iterator[str]:
    """Yield the problems for which an API server would refuse a selector, each with its field path."""
    yield from (f"{path}: {why}" for path, why in selector_errors(selector, field))


def selector_errors(selector: LabelSelector | ObjectSelector, field: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each wrong field of a selector, and why an API server would refuse it."""
    for wrong, why in label_errors(dict(sorted(selector.match_labels.items()))):
        yield f"{field}.matchLabels", invalid_value(wrong, why)
    for i, requirement in enumerate(selector.match_expressions):
        here = f"{field}.matchExpressions[{i}]"
        if why := key_error(requirement.key):
            yield f"{here}.key", invalid_value(requirement.key, why)
        if requirement.operator in ("In", "NotIn"):
            if not requirement.values:
                yield f"{here}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'"
            for j, value in enumerate(requirement.values):
                if why := value_error(value):
                    yield f"{here}.values[{j}]", invalid_value(value, why)
        elif requirement.operator in ("Exists", "DoesNotExist"):
            if requirement.values:
                why = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield f"{here}.values", why
        else:
            yield f"{here}.operator", invalid_value(requirement.operator, "not a valid selector operator")
