"""The answers of `pvbus explain` as text for people."""

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
SHOWN_MAX = 20


def variant_lines(document: Document) -> Iterator[str]:
    """Say everything about a variant, what made it first."""
    yield f"PackageVariant {document['variant']}"
    if not document["known"]:
        yield f"  nobody knows it: {document['liveNote'] or 'there is no such object'}"
        return
    if not document["madeBy"]:
        yield "  made by: a person or another program; no set has it among its targets"
    for maker in document["madeBy"]:
        yield from _maker_lines(maker)
    yield from _decision_lines(document)
    for revision in document["revisions"]:
        yield f"  package revision: {revision}"
    yield from _injection_lines(document)
    yield from _closing_lines(document)


def _maker_lines(maker: Document) -> Iterator[str]:
    origin = maker["object"] or "an entry of a list"
    yield f"  made by: set {maker['set']}, {maker['target']}, for {origin} ({maker['state']})"
    upstream = maker["upstream"] or {}
    if upstream:
        version = upstream.get("workspaceName") or f"v{upstream.get('revision', 0)}"
        yield f"  upstream: {upstream.get('repo', '')}/{upstream.get('package', '')} {version}"
    downstream = maker["downstream"]
    yield f"  downstream: {downstream.get('repo', '')}/{downstream.get('package', '')}"
    if maker["expressions"]:
        yield "  expressions:"
    for each in maker["expressions"]:
        outcome = f"error: {each['error']}" if "error" in each else f'"{each["value"]}"'
        yield f"    {each['field']}: {each['expression']} = {outcome}"
    if maker["held"]:
        yield "  its removal is held, because too many would go at once; to confirm it and those with it:"
        yield f"    {maker['held']['confirm']}"


def _decision_lines(document: Document) -> Iterator[str]:
    decided = document["decided"]
    if decided and decided.get("error"):
        yield f"  render: {decided.get('outcome', 'applied')}: {decided['error']}"


def _injection_lines(document: Document) -> Iterator[str]:
    for each in document["injected"]:
        kind = f"{each['group']}/{each['kind']}" if each["group"] else each["kind"]
        need = "required" if each.get("required") else "optional"
        if each.get("hash"):
            origin = f"{kind} {each['name']}, content {each['hash']}"
            yield f"  injected: {each['file']} ({need}) from {origin}"
        else:
            yield f"  not injected: {each['file']} ({need}, {kind}): {each.get('message', '')}"


def set_lines(document: Document) -> Iterator[str]:
    """Say everything about a set."""
    yield f"PackageVariantSet {document['set']}"
    if not document["known"]:
        yield f"  nobody knows it: {document['liveNote'] or 'there is no such object'}"
        return
    states = ", ".join(f"{number} {state}" for state, number in document["children"].items())
    yield f"  variants: {states or 'none'}"
    result = document["result"]
    if result and result.get("reason", "Valid") != "Valid":
        yield f"  {result['reason']}: {result.get('message', '')}"
    for name, error in list(document["failing"].items())[:SHOWN_MAX]:
        yield f"  failing: {name}: {error}"
    for name in document["notReady"][:SHOWN_MAX]:
        yield f"  not applied yet: {name}"
    hidden = max(0, len(document["failing"]) - SHOWN_MAX) + max(0, len(document["notReady"]) - SHOWN_MAX)
    if hidden:
        yield f"  and {hidden} more (-o json has them all)"
    held = document["held"]
    if held:
        names = ", ".join(list(held["variants"])[:SHOWN_MAX])
        yield f"  {len(held['variants'])} removals are held, because they are too many at once: {names}"
        yield f"  to confirm them: {held['confirm']}"
    yield from _closing_lines(document)


def _closing_lines(document: Document) -> Iterator[str]:
    for condition in document["conditions"]:
        message = f": {condition['message']}" if condition.get("message") else ""
        yield f"  {condition['type']}={condition['status']} ({condition.get('reason', '')}){message}"
    for each in document["waitsFor"]:
        yield f"  waits for: {each}"
    if not document["waitsFor"] and not document["conditions"]:
        yield "  waits for: the first answer of the services"
    if document["liveNote"]:
        yield f"  live: {document['liveNote']}"
