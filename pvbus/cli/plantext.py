"""Formats a plan as text: every write, with its reason and differences below."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.markup import escape

from pvbus.cli.differences import diff_lines
from pvbus.cli.explain_text import conflict_words, is_warning
from pvbus.cli.plandocument import Document

MARKS = {"create": "[green]+[/]", "delete": "[red]-[/]"}
SHORTENED = "Values are shortened here; -o json has them in full."
VALUE_CHARACTERS_MAX = 80  # on a terminal; the document holds full values


def plan_lines(document: Document) -> Iterator[str]:
    """Yield every write with rich markup, sorted by object; its own order is kept for one object."""
    yield f"Plan: {summary(document)}."
    cut = False
    actions = sorted(document["actions"], key=lambda action: (action["namespace"], action["name"]))
    pending = [action for action in actions if action.get("pending")]
    changed = [action for action in actions if not action.get("pending")]
    if pending and changed:
        yield "[bold]Without the changes, the services have still to do:[/]"
    for number, action in enumerate((*pending, *changed)):
        if pending and changed and number == len(pending):
            yield "[bold]Because of the changes:[/]"
        yield headline(action)
        lines, is_cut = change_lines(action)
        cut = cut or is_cut
        yield from lines
        for conflict in action.get("conflicts", ()):
            what = "warning" if is_warning(conflict) else "conflict"
            yield f"    [yellow]{what}[/] {escape(conflict_words(conflict))}"
        if action.get("files"):
            yield f"    files: {escape(', '.join(action['files']))}"
    for name, diff in document.get("diffs", {}).items():
        if diff:
            yield f"[bold]{escape(name)}[/]"
            yield from diff_lines(diff)
    for held in document["held"]:
        yield f"[yellow]=[/] hold {escape(held_words(held))}"
    for trouble in document["troubles"]:
        yield f"[red]![/] {escape(trouble)}"
    for note in document["notes"]:
        yield f"[yellow]i[/] {escape(note)}"
    if cut:
        yield SHORTENED


def held_words(held: Document) -> str:
    name = f"{held['kind']} {held['namespace']}/{held['name']}"
    return f"{name}: its removal needs a confirmation, see PackageVariantSet {held['set']}"


def headline(action: Document) -> str:
    """Return what a write does, to which object and why."""
    name = f"{action['namespace']}/{action['name']}"
    by = f" by the {action['by']}" if action.get("by") else ""
    mark = MARKS.get(action["verb"], "[yellow]~[/]")
    return f"{mark} {action['verb']} {action['kind']} {escape(name)}{by}: {escape(action['reason'])}"


def change_lines(action: Document) -> tuple[list[str], bool]:
    """Return a line for each field that a write changes, and whether a value is shortened."""
    changes = [_difference(change) for change in action.get("differences", ())]
    return [f"    {escape(line)}" for line, _ in changes], any(is_cut for _, is_cut in changes)


def _difference(found: Document) -> tuple[str, bool]:
    (before, one), (after, other) = (_short(found[side]) for side in ("before", "after"))
    return f"{found['path']}: {before} -> {after}", one or other


def _short(value: Any) -> tuple[str, bool]:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text, False
    return f"{text[: VALUE_CHARACTERS_MAX - 3]}...", True


def summary(document: Document) -> str:
    """Return how many writes of each verb there are, and what a person has to decide."""
    tally = Counter(action["verb"] for action in document["actions"])
    parts = [f"{number} to {verb}" for verb, number in tally.items()]
    listed = [each for action in document["actions"] for each in action.get("conflicts", ())]
    conflicts = sum(not is_warning(each) for each in listed)
    if conflicts:
        parts.append("1 conflict to settle" if conflicts == 1 else f"{conflicts} conflicts to settle")
    if document["held"]:
        parts.append(f"{len(document['held'])} held")
    if parts:
        return ", ".join(parts)
    if document.get("errors"):
        return "not possible, see below"
    stalled = sum(
        (condition["type"], condition["status"]) == ("Stalled", "True")
        for conditions in document["conditions"].values()
        for condition in conditions
    )
    return f"nothing to write, {stalled} stalled, see below" if stalled else "no changes"
