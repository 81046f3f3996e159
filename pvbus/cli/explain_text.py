"""Formats the answers of `pvbus explain` as text."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pvbus.cli.asking import task_lines
from pvbus.cli.edits import kept_lines
from pvbus.cli.explainrollouts import rollout_lines
from pvbus.cli.gone import gone_lines
from pvbus.core.kernel.messages import first_of

Document = dict[str, Any]
SHOWN_MAX = 20
VALUE_CHARACTERS_MAX = 80
NAMES_MAX = 3  # of the variants of one group

STATE_WORDS: Mapping[str, str] = {
    "present": "a target wants it",
    "waiting": "no target wants it any more; its removal waits until the set has been quiet for a while",
    "held": "its removal is held, because too many would go at once",
    "confirmed": "its removal is confirmed, and waits for a check that nothing is out of date",
    "ordered": "its removal is ordered: render deletes it once it has read the set from the API server",
    "gone": "it is deleted",
}
"""The meaning of each state of a child's row in `pvbus.unroll`."""


def variant_lines(document: Document) -> Iterator[str]:
    """Yield the description of a variant, first the sets that made it."""
    yield f"PackageVariant {document['variant']}"
    if not document["known"]:
        yield from gone_lines("PackageVariant", document["variant"], document["gone"])
        yield from kept_lines(document.get("kept") or [])
        yield from _note_lines(document)
        return
    if not document["madeBy"]:
        yield "  made by: a person or another program; no set has it among its targets"
    for maker in document["madeBy"]:
        yield from _maker_lines(maker)
    yield from _decision_lines(document)
    for revision in document["revisions"]:
        yield f"  package revision: {revision}"
    for render in document.get("renders") or []:
        yield f"  render of {render['revision']}: {render['remark']}"
    yield from _promotion_lines(document.get("promotion") or [])
    yield from rollout_lines(document.get("rollouts") or [])
    yield from task_lines(document.get("tasks") or [])
    yield from _injection_lines(document)
    conflicts = document.get("conflicts") or []
    yield from kept_lines(document.get("kept") or [])
    yield from _conflict_lines(conflicts)
    if conflicts:
        act = "see both" if all(map(is_warning, conflicts)) else "settle conflicts"
        yield f"  to {act}: pvbus diff {document['variant']}"
    yield from _closing_lines(document)


def _promotion_lines(promotion: list[Document]) -> Iterator[str]:
    """Yield why each open revision is not proposed, or what becomes of it."""
    for each in promotion:
        line = f"  promotion of {each['revision']}: {each['reason']}: {each['message']}"
        if not each["order"]:
            yield line
        elif each["outcome"] == "refused":
            yield f"{line}; the API server refuses to {each['order']} it: {each['outcomeMessage']}"
        elif each["outcome"] != "done":
            yield f"{line}; release has not carried that out yet: does it run? pvbus lag release"
        else:
            yield line


def _conflict_lines(conflicts: list[Document]) -> Iterator[str]:
    """Yield the conflicts of upgrades, values that both sides changed, and the warnings."""
    for each in conflicts[:SHOWN_MAX]:
        what = "warning" if is_warning(each) else "conflict"
        yield f"  {what} of the upgrade in {each['revision']}: {conflict_words(each)}"
    if len(conflicts) > SHOWN_MAX:
        yield f"  and {len(conflicts) - SHOWN_MAX} more conflicts (-o json has them all)"


def is_warning(conflict: Document) -> bool:
    """Return whether an entry of the list blocks nothing: two elements stay where there was one."""
    return conflict.get("taken") == "both"


def conflict_words(conflict: Document) -> str:
    """Say what a conflict is about, and which value the draft has."""
    where = ", ".join(str(conflict[part]) for part in ("file", "object", "field") if conflict.get(part))
    old, local, new = (conflict_value(conflict, side) for side in ("old", "local", "new"))
    if is_warning(conflict):
        return f"{where}: {local} stays beside upstream's {new}; both sides changed the key of {old}"
    if conflict.get("taken") == "local":
        return f"{where}: stays {local} as it is here; upstream changed {old} to {new}"
    return f"{where}: is upstream's {new}; here it was changed from {old} to {local}"


def conflict_value(conflict: Document, side: str) -> str:
    """Return one side's value of a conflict for people, shortened."""
    if side not in conflict:
        return "nothing"
    value = conflict[side]
    text = repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."


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
    if maker["removal"]:
        yield from _removal_lines(maker["removal"])
    if maker["held"]:
        yield from _confirm_lines(maker["held"])


def _removal_lines(removal: Document) -> Iterator[str]:
    since = f", since {removal['since']}" if removal["since"] else ""
    yield f"  removal: {STATE_WORDS.get(removal['state'], removal['state'])} ({removal['state']}{since})"
    if removal["waitsFor"] and removal["state"] not in ("held", "gone"):
        yield f"  removal waits for: {removal['waitsFor']}"


def _confirm_lines(held: Document) -> Iterator[str]:
    yield f"  to see all that is held with it: {held['show']}"
    if held["confirm"]:
        yield f"  to confirm it: {held['confirm']}"
    else:
        yield "  the list is still being written, and the command that confirms it follows"


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


def repository_lines(document: Document) -> Iterator[str]:
    """Yield the description of a Repository."""
    yield f"Repository {document['repository']}"
    if not document["known"]:
        yield f"  {document['liveNote']}; check namespace and name"
        return
    yield f"  package revisions: {document['packageRevisions']}"
    for condition in document["conditions"]:
        state = f"{condition.get('type', '')}={condition.get('status', '')}"
        yield f"  {state} {condition.get('reason', '')}: {condition.get('message', '')}"


def set_lines(document: Document) -> Iterator[str]:
    """Yield the description of a set."""
    yield f"PackageVariantSet {document['set']}"
    if not document["known"]:
        yield from gone_lines("PackageVariantSet", document["set"], document["gone"])
        yield from kept_lines(document.get("kept") or [])
        yield from _note_lines(document)
        return
    states = ", ".join(f"{number} {state}" for state, number in document["children"].items())
    yield f"  variants: {states or 'none'}"
    result = document["result"]
    if result and result.get("reason", "Valid") != "Valid" and not document["failingTargets"]:
        yield f"  {result['reason']}: {result.get('message', '')}"
    for group in document["failingTargets"]:
        number = f"{group['count']} targets" if group["count"] > 1 else "1 target"
        yield f"  failing: {number}: {group['reason']}: {group['message']}"
        yield f"    {', '.join(group['targets'])}"
    yield from _unready_lines(document["notReady"])
    held = document["held"]
    if held:
        names = first_of(held["variants"], NAMES_MAX)
        yield f"  {len(held['variants'])} removals are held, because they are too many at once: {names}"
        yield from _confirm_lines(held)
    yield from kept_lines(document.get("kept") or [])
    for dispute in document["disputes"]:
        yield f"  cel-python disagrees: {dispute}"
    if document["removing"]:
        yield f"  removals wait for: {document['removing']}"
    yield from _closing_lines(document)


def _unready_lines(groups: list[Document]) -> Iterator[str]:
    for group in groups[:SHOWN_MAX]:
        number = f"{group['count']} variants" if group["count"] > 1 else "1 variant"
        yield f"  not ready: {number}: {group['reason']}: {group['message']}"
        targets = group["targets"] or [""] * len(group["variants"])
        named = [
            f"{name} (for {target})" if target else name
            for name, target in zip(group["variants"], targets, strict=True)
        ]
        yield f"    {first_of(named, NAMES_MAX)}"
    hidden = sum(group["count"] for group in groups[SHOWN_MAX:])
    if hidden:
        yield f"  and {hidden} more variants with other reasons (-o json has them all)"


def _note_lines(document: Document) -> Iterator[str]:
    if document["liveNote"]:
        yield f"  live: {document['liveNote']}"


def _closing_lines(document: Document) -> Iterator[str]:
    for condition in document["conditions"]:
        message = f": {condition['message']}" if condition.get("message") else ""
        yield f"  {condition['type']}={condition['status']} ({condition.get('reason', '')}){message}"
    for each in document["waitsFor"]:
        yield f"  waits for: {each}"
    if not document["waitsFor"] and not document["conditions"]:
        yield "  waits for: the first answer of the services"
    yield from _note_lines(document)
