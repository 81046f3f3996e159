"""Label selectors: whether one is well formed, and whether it matches one object.

Selectors in a list request, in a function's configuration and in a set all become `Requirement`s.
unroll matches many objects at once through its index, which splits requirements by kind.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pvbus.core.api.variants import LabelSelector, ObjectSelector

INTEGER = re.compile(r"[+-]?[0-9]{1,63}")
NAME_BYTES_MAX = 63
PREFIX_BYTES_MAX = 253
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


class Requirement(NamedTuple):
    """One condition on a label. `>` and `<`, which only list requests have, compare with one integer."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether labels fulfil it; an unknown operator is never fulfilled."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case ">" | "<" if value is not None and INTEGER.fullmatch(value):
                (bound,) = map(int, self.values)
                return int(value) > bound if self.operator == ">" else int(value) < bound
        return False


def matches(selector: LabelSelector | ObjectSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether labels fulfil every requirement; an empty selector matches everything.

    NotIn and DoesNotExist hold if the label is absent. Only the labels of an ObjectSelector count; no labels
    fulfil a malformed requirement.
    """
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        Requirement(each.key, each.operator, frozenset(each.values)).matches(labels)
        for each in selector.match_expressions
    )


def selector_problems(selector: LabelSelector | ObjectSelector, field: str) -> Iterator[str]:
    """Yield the problems for which an API server would refuse a selector, each with its field path."""
    for key, value in sorted(selector.match_labels.items()):
        yield from _key_problems(key, f"{field}.matchLabels")
        yield from _value_problems(value, f"{field}.matchLabels[{key}]")
    for i, requirement in enumerate(selector.match_expressions):
        here = f"{field}.matchExpressions[{i}]"
        yield from _key_problems(requirement.key, f"{here}.key")
        if requirement.operator in ("In", "NotIn"):
            if not requirement.values:
                yield f'{here}.values must be specified when `operator` is "In" or "NotIn"'
            for j, value in enumerate(requirement.values):
                yield from _value_problems(value, f"{here}.values[{j}]")
        elif requirement.operator in ("Exists", "DoesNotExist"):
            if requirement.values:
                yield f'{here}.values may not be specified when `operator` is "Exists" or "DoesNotExist"'
        else:
            yield f'{here}.operator "{requirement.operator}" is not a valid label selector operator'


def _key_problems(key: str, field: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    good_name = NAME.fullmatch(name) and len(name.encode()) <= NAME_BYTES_MAX
    good_prefix = not slash or (PREFIX.fullmatch(prefix) and len(prefix) <= PREFIX_BYTES_MAX)
    if not good_name or not good_prefix:
        yield f'{field} "{key}" is not a valid label key'


def _value_problems(value: str, field: str) -> Iterator[str]:
    if value and not (NAME.fullmatch(value) and len(value) <= NAME_BYTES_MAX):
        yield f'{field} "{value}" is not a valid label value'
