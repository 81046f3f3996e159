"""Selections of clusters by name and labels, and what is left of one without others.

A selector of labels cannot say "not both of these", so a difference becomes several selections that do not
overlap: not (a and b) is either not a, or a and not b.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.cli.importing.converted import NoCounterpartError, fields, items, text_of
from pvbus.core.api.selectors import Requirement
from pvbus.core.errors import UsageError

OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
PIECES_MAX = 64


class Selection(NamedTuple):
    """Clusters that fulfil all requirements. name: of the only cluster, "" for any."""

    name: str = ""
    requirements: tuple[Requirement, ...] = ()

    def restricted(self, selector: Mapping[str, Any], field: str) -> "Selection":
        """Add the requirements of a label selector. Raises UsageError."""
        labels = fields(selector.get("matchLabels"), f"{field}.matchLabels")
        added = [
            Requirement(key, "In", frozenset((text_of(value, field),)))
            for key, value in sorted(labels.items())
        ]
        for number, value in enumerate(items(selector.get("matchExpressions"), f"{field}.matchExpressions")):
            added.append(_requirement(fields(value, field), f"{field}.matchExpressions[{number}]"))
        return self._replace(requirements=tuple(dict.fromkeys((*self.requirements, *added))))

    def selector(self) -> dict[str, Any]:
        """Return the fields of an object selector."""
        singles = [each for each in self.requirements if each.operator == "In" and len(each.values) == 1]
        labels = {requirement.key: min(requirement.values) for requirement in reversed(singles)}
        rest = [
            requirement
            for requirement in self.requirements
            if requirement not in singles or labels[requirement.key] not in requirement.values
        ]
        made: dict[str, Any] = {"name": self.name} if self.name else {}
        if labels:
            made["matchLabels"] = dict(sorted(labels.items()))
        if rest:
            made["matchExpressions"] = [_plain(requirement) for requirement in rest]
        return made


def conjunction(first: Selection, second: Selection) -> Selection | None:
    """Return what both select, None if that is seen to be nothing."""
    if first.name and second.name and first.name != second.name:
        return None
    if any(_exclude(a, b) for a in first.requirements for b in second.requirements):
        return None
    requirements = tuple(dict.fromkeys((*first.requirements, *second.requirements)))
    return Selection(first.name or second.name, requirements)


def without(selection: Selection, others: Iterable[Selection]) -> list[Selection]:
    """Return what a selection has that no other has, as selections that do not overlap.

    Raises NoCounterpartError where a name would have to be excluded, or there are too many pieces.
    """
    pieces = [selection]
    for other in others:
        pieces = [rest for piece in pieces for rest in _difference(piece, other)]
        if len(pieces) > PIECES_MAX:
            raise NoCounterpartError(f"it overlaps the targets before it in more than {PIECES_MAX} ways")
    return pieces


def disjoint(selections: Iterable[Selection]) -> list[Selection]:
    """Return selections that select the same together, and nothing twice. Raises NoCounterpartError."""
    before: list[Selection] = []
    pieces: list[Selection] = []
    for selection in selections:
        pieces += without(selection, before)
        before.append(selection)
    return pieces


def _difference(piece: Selection, other: Selection) -> list[Selection]:
    if conjunction(piece, other) is None:
        return [piece]
    if other.name and not piece.name:
        raise NoCounterpartError(
            f"a selector cannot exclude the cluster {other.name}, which a target before it names: label that "
            "cluster, and select it by the label"
        )
    pieces = []
    fulfilled = piece
    for requirement in other.requirements:
        if requirement in fulfilled.requirements:
            continue
        excluding = conjunction(fulfilled, Selection(requirements=(_opposite(requirement),)))
        pieces += [excluding] if excluding else []
        fulfilled = fulfilled._replace(requirements=(*fulfilled.requirements, requirement))
    return pieces


def _opposite(requirement: Requirement) -> Requirement:
    return requirement._replace(operator=OPPOSITE[requirement.operator])


def _exclude(first: Requirement, second: Requirement) -> bool:
    """Return whether no label fulfils both, by the values that both list."""
    is_listed = first.operator == second.operator == "In"
    return first.key == second.key and is_listed and not first.values & second.values


def _requirement(value: Mapping[str, Any], field: str) -> Requirement:
    operator = text_of(value.get("operator"), f"{field}.operator")
    if operator not in OPPOSITE:
        raise UsageError(f"{field}.operator: is none of {', '.join(OPPOSITE)}")
    listed = items(value.get("values"), f"{field}.values")
    values = frozenset(text_of(item, f"{field}.values") for item in listed)
    return Requirement(text_of(value.get("key"), f"{field}.key"), operator, values)


def _plain(requirement: Requirement) -> dict[str, Any]:
    plain: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
    return plain | ({"values": sorted(requirement.values)} if requirement.values else {})
