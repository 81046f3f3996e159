"""Formats a plan for a screen: at most LINES_MAX lines, whatever the number of variants.

The summary comes first, then what a person must look at (errors, conflicts, held removals, removals), then
all other writes in groups of equal ones, each with an example in full.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.markup import escape

from pvbus.cli.differences import diff_lines
from pvbus.cli.explain_text import conflict_words, is_warning
from pvbus.cli.plandocument import Document
from pvbus.cli.plangroups import Group, groups_of, repeated
from pvbus.cli.plantext import MARKS, change_lines, headline, held_words, summary

LINES_MAX = 60
PROBLEMS_MAX = 8  # lines of each of errors, conflicts, held removals and notes
SETS_MAX = 5
CUT = "Shortened to fit a screen: --details lists every write, -o json has all values."
MORE = "the whole list: --details; as data: -o json"

Lines = list[str]


def screen_lines(document: Document) -> Lines:
    """Return at most LINES_MAX lines with rich markup."""
    lines = [f"[bold]Plan:[/] {summary(document)}.", *_set_lines(document)]
    for title, entries in (
        ("", [f"[red]![/] {escape(text)}" for text in _counted(document["troubles"])]),
        ("Conflicts", [f"  {line}" for line in _conflict_lines(document)]),
        ("", [f"[yellow]=[/] hold {escape(text)}" for text in _held(document)]),
        ("", [f"[yellow]i[/] {escape(text)}" for text in document["notes"]]),
    ):
        if title and entries:
            lines.append(f"[bold]{title}, for a person to settle:[/]")
        lines += _limited(entries, PROBLEMS_MAX)
    return [*lines, *_group_lines(document, LINES_MAX - len(lines))]


def _set_lines(document: Document) -> Lines:
    """Return how many variants of each set change; nothing where the headlines say it."""
    variants = document.get("variants", {})
    changed = {action["variant"] for action in document["actions"] if action.get("variant")}
    if len(changed) < 2:
        return []
    sets = Counter(variants.get(key, {}).get("set", "") for key in changed)
    of_set = Counter(variant["set"] for variant in variants.values())
    return _limited(
        [
            f"  {escape(f'PackageVariantSet {key}' if key else 'of no set')}: {number} of {of_set[key]} "
            "variants change"
            for key, number in sets.most_common()
        ],
        SETS_MAX,
    )


def _counted(texts: Sequence[str]) -> Lines:
    return [
        f"{text} (and {count - 1} more like it)" if count > 1 else text for text, count in repeated(texts)
    ]


def _conflict_lines(document: Document) -> Lines:
    """Return each different conflict once, the most frequent first, with where it is."""
    found: dict[str, list[str]] = {}
    for action in document["actions"]:
        for conflict in action.get("conflicts", ()):
            what = "warning" if is_warning(conflict) else "conflict"
            text = f"[yellow]{what}[/] {escape(conflict_words(conflict))}"
            found.setdefault(text, []).append(f"{action['namespace']}/{action['name']}")
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"{text}: {escape(_named(sorted(names)))}" for text, names in ordered]


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _held(document: Document) -> Lines:
    found: dict[str, list[Document]] = {}
    for held in document["held"]:
        found.setdefault(f"{held['namespace']}/{held['set']}", []).append(held)
    return [
        held_words(items[0]) + (f" (and {len(items) - 1} more of this set)" if len(items) > 1 else "")
        for _, items in sorted(found.items())
    ]


def _limited(lines: Lines, number: int) -> Lines:
    if len(lines) <= number:
        return lines
    return [*lines[: number - 1], f"  ... and {len(lines) - number + 1} more; {MORE}"]


# ------------------------------------------------------------ groups


def _group_lines(document: Document, room: int) -> Lines:
    """Return the groups with their examples, or only their headlines where there is no room for more."""
    groups = groups_of(document)
    titles = dict(_titles(groups))
    heads = [group_headline(group) for group in groups]
    room -= len(titles) + 1  # a line on shortened values, or on what is left out
    shown, left = groups[:room], groups[room:]
    if left:
        shown, left = groups[: room - 1], groups[room - 1 :]
    diffs = dict(document.get("diffs", {}))  # each is shown once
    examples = [_example_lines(group, diffs) for group in shown]
    shares = shares_of([len(example) for example, _ in examples], room - len(shown) - bool(left))
    lines: Lines = []
    for number, ((example, _), share) in enumerate(zip(examples, shares, strict=True)):
        lines += [*titles.get(number, ()), heads[number], *example[:share]]
    if left:
        writes = sum(len(group.actions) for group in left)
        lines.append(f"... and {writes} writes in {len(left)} more groups; {MORE}")
    elif any(
        is_cut or len(example) > share for (example, is_cut), share in zip(examples, shares, strict=True)
    ):
        lines.append(CUT)
    return lines


def shares_of(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many lines each text gets: short ones all, and the long ones equal parts of the rest."""
    shares = [0] * len(lengths)
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for done, index in enumerate(by_length):
        shares[index] = min(lengths[index], room // (len(lengths) - done))
        room -= shares[index]
    return shares


def _titles(groups: Sequence[Group]) -> Iterator[tuple[int, Lines]]:
    pending = sum(bool(group.example.get("pending")) for group in groups)
    if 0 < pending < len(groups):
        yield 0, ["[bold]Without the changes, the services have still to do:[/]"]
        yield pending, ["[bold]Because of the changes:[/]"]


def group_headline(group: Group) -> str:
    """Return what a group does; for one write, its own headline."""
    action = group.example
    if len(group.actions) == 1:
        return headline(action)
    mark = MARKS.get(action["verb"], "[yellow]~[/]")
    by = f" by the {action['by']}" if action.get("by") else ""
    name = escape(f"{action['namespace']}/{action['name']}")
    kinds = f"{action['kind'].removesuffix('s')}s"
    return (
        f"{mark} {action['verb']} {len(group.actions)} {kinds}{by}, such as {name}: "
        f"{escape(action['reason'])}"
    )


def _example_lines(group: Group, diffs: Document) -> tuple[Lines, bool]:
    """Return the lines below a headline, and whether a value is shortened.

    diffs: those that are still to be shown
    """
    action = group.example
    lines, is_cut = change_lines(action)
    if action.get("files"):
        lines.append(f"    files: {escape(', '.join(action['files']))}")
    if lines and not group.is_same:
        lines.insert(0, "    the values differ from variant to variant; in this one:")
    return [*lines, *diff_lines(diffs.pop(f"{action['namespace']}/{action['name']}", ""))], is_cut
