"""Regular expressions as Go reads them: RE2's syntax, searched in time linear in the text.

Patterns come from clients, so their length, the memory of a compiled one and the number of those that are
kept have limits: together at most PATTERNS_KEPT times PATTERN_MEMORY_MAX, 128 MiB.
"""

import re
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no types

PATTERN_BYTES_MAX = 8192
"""Longest pattern. The longest in common definitions (cron schedules) have about 1,000 bytes."""

PATTERN_MEMORY_MAX = 512 * 1024
"""Memory of a compiled pattern, about 12,000 steps, which take 5 ms to compile. `.{0,1000}` has 9,000 steps;
Go's own limit of repetitions is 1,000, too."""

PATTERNS_KEPT = 256

REMEMBERED_MAX = 128
"""Longest text whose match is cached: types and reasons of conditions recur all the time, and a cache hit
takes a fiftieth of a search."""


class Pattern:
    """A compiled pattern. steps: its size; multiplied by a text's length, it bounds the cost of a search."""

    def __init__(self, compiled: Any) -> None:
        self.steps: int = compiled.programsize
        self._search = compiled.search
        self._remembered = lru_cache(maxsize=512)(self._found)

    def found_in(self, text: str) -> bool:
        """Return whether the pattern matches anywhere."""
        return self._remembered(text) if len(text) <= REMEMBERED_MAX else self._found(text)

    def _found(self, text: str) -> bool:
        return self._search(text) is not None


def go_pattern(text: str) -> Pattern:
    """Compile a pattern in Go's syntax.

    Raises ValueError for patterns that Go cannot compile or that are too large.
    """
    compiled = _compiled(text)
    if isinstance(compiled, str):
        raise ValueError(compiled)
    return compiled


# RE2's messages for a bad pattern, and those of Go's regexp package, which users of Porch know.
_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "bad repetition operator": "invalid nested repetition operator",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
}
_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")  # RE2 matches a single byte of UTF-8, Go never does


@lru_cache(maxsize=PATTERNS_KEPT)
def _compiled(text: str) -> Pattern | str:
    """Return the pattern, or why there is none: a bad one costs as much as a good one."""
    if len(text.encode(errors="surrogatepass")) > PATTERN_BYTES_MAX:
        return f"the pattern is longer than {PATTERN_BYTES_MAX} bytes"
    if _ANY_BYTE.search(text):
        return "error parsing regexp: invalid escape sequence: `\\C`"
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # nobody asks for groups, and a search without them is faster
    options.max_mem = PATTERN_MEMORY_MAX
    try:
        return Pattern(re2.compile(text, options))
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        words, _, pattern = shown.partition(": ")
        if words.startswith("pattern too large"):
            return "the pattern is too large: use smaller repetitions"
        if words == "trailing \\":
            words, pattern = "trailing backslash at end of expression", ""
        return f"error parsing regexp: {_REASONS.get(words, words)}: `{pattern}`"
