"""`.krmignore`: files of a package that functions do not see, with patterns like in a `.gitignore`.

A pattern applies below the folder of its file. The last matching pattern decides; the content of a
matching folder is ignored with it. Matching takes time in proportion to pattern and name.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

IGNORE_FILE = ".krmignore"
PATTERNS_MAX = 1_000
"""Per file; every path is compared with each pattern, and more are a mistake."""


class _Rule(NamedTuple):
    """One pattern. parts: split at slashes; anchored: it matches from the folder of its file only."""

    parts: tuple[str, ...]
    anchored: bool
    folders_only: bool
    ignores: bool


def ignored(resources: Mapping[str, str]) -> frozenset[str]:
    """Return the files that functions do not see."""
    rules = {
        path.removesuffix(IGNORE_FILE): _rules(text)
        for path, text in resources.items()
        if path.rpartition("/")[2] == IGNORE_FILE
    }
    return frozenset(path for path in resources if _is_ignored(path, rules)) if rules else frozenset()


def _rules(text: str) -> list[_Rule]:
    found = []
    for line in text.splitlines()[:PATTERNS_MAX]:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        ignores = not pattern.startswith("!")
        pattern = pattern.removeprefix("!").removeprefix("\\")
        folders_only = pattern.endswith("/")
        parts = tuple(part for part in pattern.split("/") if part)
        if parts:
            found.append(_Rule(parts, "/" in pattern.rstrip("/"), folders_only, ignores))
    return found


def _is_ignored(path: str, rules: Mapping[str, Iterable[_Rule]]) -> bool:
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        ignores = False
        for folder, own in sorted(rules.items()):
            if not path.startswith(folder):
                continue
            inside = tuple(names[folder.count("/") : depth])
            for rule in own:
                if inside and (depth < len(names) or not rule.folders_only) and _matches(rule, inside):
                    ignores = rule.ignores
        if ignores:
            return True
    return False


def _matches(rule: _Rule, names: tuple[str, ...]) -> bool:
    if not rule.anchored:
        return _glob(rule.parts[0], names[-1])
    return _path_matches(rule.parts, names)


def _path_matches(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Match part by part; `**` matches any number of folders."""
    reached = {0}
    for part in parts:
        if part == "**":
            reached = set(range(min(reached), len(names) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(names) and _glob(part, names[at])}
    return len(names) in reached


def _glob(pattern: str, name: str) -> bool:
    """Match one name: `*` any characters, `?` one. Backtracks to the last `*` only."""
    at = star = mark = 0
    has_star = False
    for_pattern = 0
    while at < len(name):
        if for_pattern < len(pattern) and pattern[for_pattern] == "*":
            has_star, star, mark = True, for_pattern, at
            for_pattern += 1
        elif for_pattern < len(pattern) and pattern[for_pattern] in ("?", name[at]):
            for_pattern += 1
            at += 1
        elif has_star:
            for_pattern = star + 1
            mark += 1
            at = mark
        else:
            return False
    return all(char == "*" for char in pattern[for_pattern:])
