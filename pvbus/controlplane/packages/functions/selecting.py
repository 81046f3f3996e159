"""Label selectors in Kubernetes' string form, and selectors of objects by their identity."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import re2  # type: ignore[import-untyped]  # it has no types

from pvbus.controlplane.packages.functions.item import Item
from pvbus.controlplane.packages.functions.scopes import CLUSTER_SCOPED
from pvbus.core.errors import PermanentError

SELECTOR_CHARACTERS_MAX = 10_000
"""Length of a selector: one of a thousand terms still fits."""

# RE2, for linear time on any input: selectors come from packages.
_TERM = re2.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<without>[\w./-]+)"
    r"|(?P<key>[\w./-]+)\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?)\s*(?:,|$)"
)


class Requirement(NamedTuple):
    """One term of a selector. values None: only presence counts. wanted: False negates the term."""

    key: str
    values: frozenset[str] | None
    wanted: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        found = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return found == self.wanted


@lru_cache(maxsize=64)
def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Parse `a=b,c!=d,e in (f,g),h notin (i),j,!k`. Raises: PermanentError."""
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise PermanentError(
            f"a selector has {len(text)} characters, at most {SELECTOR_CHARACTERS_MAX} are allowed",
            reason="InvalidFunctionConfig",
        )
    requirements: list[Requirement] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TERM.match(text, position)
        if not match:
            raise PermanentError(f"cannot read the selector {text[:200]!r}", reason="InvalidFunctionConfig")
        position = match.end()
        if match["absent"]:
            requirements.append(Requirement(match["without"], None, False))
        elif match["set"]:
            values = frozenset(value.strip() for value in match["values"].split(","))
            requirements.append(Requirement(match["key"], values, match["set"] == "in"))
        elif match["operator"]:
            values = frozenset({match["value"]})
            requirements.append(Requirement(match["key"], values, match["operator"] != "!="))
        else:
            requirements.append(Requirement(match["key"], None, True))
    return tuple(requirements)


class ObjectSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False):
    """Selects objects; an empty field matches any. Names and kinds are compared whole, not as patterns."""

    group: str = ""
    version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    label_selector: str = ""
    annotation_selector: str = ""

    @classmethod
    def parse(cls, value: Any) -> "ObjectSelector":
        try:
            return msgspec.convert(value or {}, cls)
        except msgspec.ValidationError as exc:
            raise PermanentError(f"selector: {exc}", reason="InvalidFunctionConfig") from exc

    @property
    def is_empty(self) -> bool:
        return self == ObjectSelector()

    def matches(self, item: Item) -> bool:
        wanted = (self.group, self.version, self.kind, self.name)
        present = (item.group, item.version, item.kind, item.name)
        return (
            all(want in ("", have) for want, have in zip(wanted, present, strict=True))
            and self._in_namespace(item)
            and all(each.holds(item.labels) for each in parse_selector(self.label_selector))
            and all(each.holds(item.annotations) for each in parse_selector(self.annotation_selector))
        )

    def _in_namespace(self, item: Item) -> bool:
        if not self.namespace or (item.group, item.kind) in CLUSTER_SCOPED:
            return True
        return self.namespace == (item.namespace or "default")

    def __str__(self) -> str:
        given = msgspec.to_builtins(self)
        return ", ".join(f"{key} {value}" for key, value in given.items() if value) or "anything"
