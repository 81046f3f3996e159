"""Writes the files that are generated from the code, or compares them with what is there."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


def differences(folder: Path, wanted: Mapping[str, str], present: Collection[str]) -> list[str]:
    """Return one line per file that is missing, stale or not generated any more.

    wanted: path relative to the folder -> text. present: the paths of all generated files that are there.
    """
    lines = []
    for path, text in wanted.items():
        file = folder / path
        if not file.exists():
            lines.append(f"{path} is missing")
        elif file.read_text() != text:
            lines.append(f"{path} differs from the code")
    return lines + [f"{path} is not generated any more" for path in sorted(set(present) - wanted.keys())]


def run(
    folder: Path, wanted: Mapping[str, str], present: Collection[str], arguments: Sequence[str], module: str
) -> int:
    """Write the files and remove what is not generated any more; with --check, name the differences on stderr
    instead and return 1 if there are any. module: what writes them, for that message."""
    if "--check" in arguments:
        found = differences(folder, wanted, present)
        for line in found:
            print(f"{folder.name}/{line}; run: python -m {module}", file=sys.stderr)
        return 1 if found else 0
    for path, text in wanted.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in set(present) - wanted.keys():
        (folder / path).unlink()
    return 0
