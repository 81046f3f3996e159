"""The lists of the fleet for programs: `/api/v1/{kind}`, as `pvbus get` has them.

Who asks has the page's token: as `Authorization: Bearer TOKEN`, or as the cookie of the page.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import UsageError
from pvbus.core.web.listing import (
    LIMIT,
    LIMIT_MAX,
    URGENCY,
    Listed,
    Query,
    check_query,
    counts_of,
    entries_of,
    page_of,
)
from pvbus.core.web.model import Model

API_PATH = "/api/v1"
PARAMETERS: Mapping[str, str] = {
    "namespace": "Only of this namespace.",
    "set": "Only of this set: NAMESPACE/SET.",
    "labelSelector": "Only with these labels, as Kubernetes writes selectors. It sees those of the package "
    "(spec.labels), its variant, its target and its set, the first one that has a label.",
    "state": f"Only in one of these states, separated by commas: {', '.join(URGENCY)}.",
    "sortBy": "A field, or a label; states by urgency. The name if it is not given.",
    "limit": f"Entries of a page, 1 to {LIMIT_MAX}; {LIMIT} if it is not given.",
    "continue": "The token of the page before.",
    "countBy": "Fields or labels, separated by commas: the answer has counts in place of entries.",
}


class Asked(NamedTuple):
    """A query, and how to answer it.

    token: continues a list, "" from its beginning
    """

    query: Query
    limit: int
    token: str
    count_by: tuple[str, ...]


def asked_of(kind: str, given: Mapping[str, str]) -> Asked:
    """Return what a request asks for. Raises UsageError."""
    if kind not in [each.value for each in Listed]:
        raise UsageError(f'there is no list "{kind}"; there are {", ".join(Listed)}')
    if unknown := sorted(given.keys() - PARAMETERS.keys()):
        raise UsageError(f'there is no parameter "{unknown[0]}"; there are {", ".join(PARAMETERS)}')
    selector, limit = given.get("labelSelector", ""), given.get("limit", str(LIMIT))
    try:
        requirements = parse_label_selector(selector)
    except ValueError as exc:
        raise UsageError(f"labelSelector: {exc}") from exc
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10):
        raise UsageError(f'limit: "{limit[:40]}" is no number')
    states, count_by = _words(given.get("state", "")), _words(given.get("countBy", ""))
    names = (given.get("namespace", ""), given.get("set", ""))
    query = Query(
        Listed(kind), *names, frozenset(states), selector, requirements, given.get("sortBy") or "name"
    )
    check_query(query, count_by)
    return Asked(query, int(limit), given.get("continue", ""), count_by)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def answer_of(model: Model, asked: Asked) -> dict[str, Any]:
    """Return a page of a list, or counts, as plain values. Raises UsageError."""
    query, entries = asked.query, entries_of(model, asked.query)
    incomplete = [f"{kind}s may be missing: {why}" for kind, why in model.incomplete()]
    about = {"kind": query.kind.value, "incomplete": incomplete}
    if asked.count_by:
        counts = counts_of(entries, asked.count_by)
        return {**about, "counts": counts, "total": sum(row["count"] for row in counts)}
    page = page_of(entries, query, limit=asked.limit, token=asked.token)
    return {**about, "items": page.entries, "continue": page.token, "remaining": page.remaining}
